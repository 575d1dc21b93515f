"""A kernel is loaded by one thread at a time.

Numba asks whether a kernel is loaded, loads it and notes that it is, and threads that launch the same kernel for
the first time can do so at once. All but one then meet its note of a library that is loaded already, which it takes for an error.
"""

from functools import wraps
from threading import RLock

from numbacaps.device.target import SIMULATED


def load_one_at_a_time():
    """Let Numba load kernels so from now on; nothing is loaded on the simulator."""
    if SIMULATED:
        return
    from numba.cuda.codegen import CUDACodeLibrary

    CUDACodeLibrary.get_cufunc = _one_at_a_time(CUDACodeLibrary.get_cufunc)


def _one_at_a_time(work):
    """The same work, for which other threads wait."""
    lock = RLock()

    @wraps(work)
    def alone(*arguments):
        with lock:
            return work(*arguments)

    return alone
