"""Memory may be given back by several threads at once.

Numba lists what is to be freed, and frees all of it now and then. Two threads may do so together: one finds a last item, the other takes it.
Numba raises IndexError then, out of a finalizer or of the call that wanted memory.
"""

from contextlib import suppress
from functools import wraps

from numbacaps.device.target import SIMULATED


def free_together():
    """Let threads share Numba's lists so from now on; nothing is listed on the simulator."""
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
