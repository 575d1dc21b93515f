"""When Numba frees memory: not while that is put off, and also when several threads do so together.

Numba lists what is to be freed, and frees all of it now and then. Two threads may do so together: one finds a last item, the other takes it.
Numba raises IndexError then, out of a finalizer or of the call that wanted memory.
"""

from contextlib import suppress
from functools import wraps

from numbacaps.device.target import SIMULATED, cuda


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


class Kept:
    """Numba's lists of the current device, which are kept as they are from the beginning to the end.

    The end undoes what the beginning has done by then, so Ctrl-C may come between any two steps.
    """

    def __init__(self):
        context = cuda.current_context()
        owners = context, getattr(context, "memory_manager", None)
        lists = [one.deallocations for one in owners if hasattr(one, "deallocations")]
        self._before = [(listed, listed._disable_count) for listed in lists]

    def begin(self):
        """Let Numba free nothing from now on."""
        for listed, count in self._before:
            listed._disable_count = count + 1

    def end(self):
        """Let it free again."""
        for listed, count in self._before:
            listed._disable_count = count
