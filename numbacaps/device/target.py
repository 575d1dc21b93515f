"""The one place that chooses where kernels run: a real GPU, or Numba's CUDA simulator.

Numba reads ``NUMBA_ENABLE_CUDASIM`` once, while it is imported, so the choice is made here before
anything else of the toolkit touches it. Every other module takes ``cuda`` from this one.

``NUMBACAPS_TARGET=cuda`` or ``NUMBACAPS_TARGET=sim`` decides; without it a GPU is used where a
driver and a GPU are found. Elsewhere NumPy computes by default, and only kernels that are asked for by an algorithm's
name run on the simulator; the first of them says so. Looking for a GPU initialises the driver, so
a process that forks CUDA workers should set the variable (or start them afresh).
"""

import ctypes
import os
import sys
from functools import cache

import numpy as np
from cuda.bindings import driver
from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

from numbacaps.device.simulator import complete

_VARIABLE = "NUMBACAPS_TARGET"


def _gpu_count():
    """GPUs that the CUDA driver offers to this process; 0 where there is no driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _find_target():
    """(whether kernels run on the simulator, whether nobody asked for it), by the environment, then by what is there."""
    choice = os.environ.get(_VARIABLE, "").strip().lower()
    if choice in ("cuda", "sim"):
        return choice == "sim", False
    if choice:
        raise ImportError(f"{_VARIABLE} is {choice!r}; it takes 'cuda' or 'sim'")
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return True, False
    nowhere = not _gpu_count()
    return nowhere, nowhere


def _say_slow():
    """What the first kernel says that runs on the simulator though nobody asked for it."""
    print(
        "numbacaps: no CUDA driver or no GPU found, so this kernel runs on Numba's simulator: right, slow, and its "
        f"times mean nothing ({_VARIABLE}=sim says so quietly; algorithm 'numpy' is fast)",
        file=sys.stderr,
    )


def _import_cuda(simulate, fell_back):
    """numba.cuda for the chosen target, or an error that names the cure."""
    if simulate:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    else:
        os.environ.pop("NUMBA_ENABLE_CUDASIM", None)
    # A small layer has a small grid, and whoever runs it can do nothing about the warning.
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    from numba import cuda

    if ("simulator" in cuda.jit.__module__) != simulate:
        wanted, other = ("the simulator", "a real GPU") if simulate else ("a GPU", "the simulator")
        raise ImportError(
            f"numbacaps runs on {wanted} here, but numba.cuda was imported before it and is set "
            f"to {other}. Import numbacaps before numba, or set NUMBA_ENABLE_CUDASIM="
            f"{int(simulate)} before Python starts."
        )
    if simulate:
        complete(cuda, _say_slow if fell_back else None)
    return cuda


SIMULATED, FELL_BACK = _find_target()
cuda = _import_cuda(SIMULATED, FELL_BACK)

# Kernels index with ``array[at(offset)]``. Numba wraps a negative index round at three instructions
# an access; an unsigned one it takes as it is, and the simulator refuses to make one of a negative int.
at = np.uint64


def check_target():
    """Refuse to go on where the chosen target has no GPU, or a GPU and no compiler for it.

    Raises
    ------
    RuntimeError
        There is no driver or GPU.
    ImportError
        The CUDA compiler libraries are not found; the message names the extra that brings them.
    """
    if SIMULATED:
        return
    if not cuda.is_available():
        raise RuntimeError(
            "NUMBACAPS_TARGET is 'cuda', but no CUDA driver or GPU was found; "
            "NUMBACAPS_TARGET=sim runs the kernels on Numba's simulator"
        )
    _find_compilers()


@cache
def _find_compilers():
    """ImportError where Numba will not find what it compiles with."""
    for library in ("nvvm", "nvrtc"):
        try:
            load_nvidia_dynamic_lib(library)
        except DynamicLibNotFoundError as missing:
            raise ImportError(
                f"CUDA's {library} was not found; the extra 'cu13' (or 'cu12', for a driver of CUDA 12) "
                "brings it: pip install 'numbacaps[cu13]'"
            ) from missing


def current_device():
    """Number of the GPU that this thread works on; 0 on the simulator."""
    if SIMULATED:
        return 0
    status, device = driver.cuCtxGetDevice()  # which takes a thirtieth of what Numba takes
    if status is driver.CUresult.CUDA_SUCCESS:
        return int(device)
    return cuda.get_current_device().id  # it makes a context current where there is none
