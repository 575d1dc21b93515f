"""A kernel is loaded by one thread at a time.

Numba asks whether a kernel is loaded, loads it and notes that it is, and threads that launch the same kernel for
the first time can do so at once. All but one then meet its note of a library that is loaded already, which it takes for an error.
"""

from functools import wraps
from threading import RLock

from numbacaps.device.target import SIMULATED, cuda


def load_one_at_a_time():
    """Let Numba load kernels so from now on; nothing is loaded on the simulator."""
    if SIMULATED:
        return
    from numba.cuda.codegen import CUDACodeLibrary

    CUDACodeLibrary.get_cufunc = _one_at_a_time(CUDACodeLibrary.get_cufunc)


def _one_at_a_time(work):
    """``work(library)`` by one thread at a time. A library that is loaded needs no lock.

    The lock would be a deadlock there. The thread that loads may collect garbage, whose finalizers wait for the end of a capture
    (:func:`numbacaps.device.streams.synchronize`). The thread that captures launches kernels that are loaded.
    """
    lock = RLock()

    @wraps(work)
    def alone(library):
        loaded = library._cufunc_cache.get(cuda.get_current_device().id)
        if loaded is not None:
            return loaded
        with lock:
            return work(library)

    return alone
