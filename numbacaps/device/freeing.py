"""When Numba frees memory, and what it does when there is none left.

Numba lists what is to be freed, and frees the whole list now and then. All that leans on these lists is here.
"""

from contextlib import suppress
from functools import wraps

from cuda.bindings import driver

from numbacaps.device.target import SIMULATED


def free_together():
    """Let several threads empty Numba's lists together from now on; the simulator has none.

    One thread may find the last item, and another one take it. Numba raises IndexError then, in a finalizer or in a call
    that allocates.
    """
    if SIMULATED:
        return
    from numba.cuda.cudadrv.driver import _PendingDeallocs

    _PendingDeallocs.clear = _until_empty(_PendingDeallocs.clear)


def _until_empty(work):
    """``work(listed)``, which ends where another thread has taken the last item."""

    @wraps(work)
    def cleared(listed):
        with suppress(IndexError):
            work(listed)

    return cleared


def allocate_again_after(let_go):
    """Where memory runs out, have Numba call ``let_go()`` and allocate once more from now on."""
    if SIMULATED:
        return
    from numba.cuda.cudadrv.driver import HostOnlyCUDAMemoryManager

    attempt = HostOnlyCUDAMemoryManager._attempt_allocation
    HostOnlyCUDAMemoryManager._attempt_allocation = _twice(attempt, let_go)


def _twice(attempt, let_go):
    @wraps(attempt)
    def attempted(manager, allocator):
        try:
            return attempt(manager, allocator)
        except Exception as error:  # Numba's
            if getattr(error, "code", None) != driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise
        let_go()
        return attempt(manager, allocator)

    return attempted
