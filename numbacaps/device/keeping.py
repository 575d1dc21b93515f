"""Memory that queued kernels still use, kept until these kernels have run.

Whether a device array may be dropped while queued kernels use it depends on the allocator. Numba's own allocator
frees the memory behind all queued work. A pool (RMM's, PyTorch's) gives it to the next caller at once, on any stream.
So the toolkit drops arrays through :func:`keep`: it records an event at the end of the stream's queue, and lets the
array go when the event has passed. Networks and their data are large and seldom dropped; for them the host waits
instead (:func:`wait_when_dropped`). Tensors are left to PyTorch, whose pool reuses memory in the order of the stream
it was allocated on.
"""

import threading
import weakref
from contextlib import suppress

from numbacaps.device.streams import is_idle, is_lasting
from numbacaps.device.target import SIMULATED, cuda, current_device

BYTES = 1 << 28  # kept beside what was handed over last; beyond it the host waits
_ENTRIES = 64  # at most, kept behind a whole device that is not queried; chosen, not measured


class Keeping:
    """What is kept, each behind an event of its stream.

    Parameters
    ----------
    limit : int
        Bytes kept, those that were handed over last apart.
    mark : callable
        ``mark(stream)``: an event at the end of what is queued, with ``query()`` and ``synchronize()``.
    """

    def __init__(self, limit, mark):
        self._limit, self._mark, self._kept = limit, mark, []
        self._lock = threading.RLock()  # the garbage collector may come by while it is held

    def __len__(self):
        return len(self._kept)

    def keep(self, stream, held, nbytes):
        """Hold objects until a stream has passed what is queued on it; earlier ones are let go as they are passed.

        Parameters
        ----------
        stream : Numba stream or 0
        held : object
        nbytes : int
            Of device memory that it holds.
        """
        self.keep_behind(self._mark(stream), held, nbytes)

    def keep_behind(self, event, held, nbytes):
        """Hold objects until an event has passed."""
        entry = event, held, nbytes
        with self._lock:
            earlier = list(self._kept)
            left = sum(one[2] for one in earlier)
            is_little = left + nbytes < self._limit and len(earlier) < _ENTRIES
            if _is_unasked(event, is_little) or not event.query():
                self._kept.append(entry)
            for one in earlier:
                event, _, nbytes = one
                if _is_unasked(event, is_little):
                    continue
                passed = event.query()
                if left > self._limit and not passed:
                    event.synchronize()
                    passed = event.query()
                if passed:
                    left -= nbytes
                    self._drop(one)

    def clear(self):
        """Wait until everything has been passed, and let it go."""
        with self._lock:
            for one in list(self._kept):
                one[0].synchronize()
                if one[0].query():
                    self._drop(one)

    def _drop(self, entry):
        if entry in self._kept:  # the garbage collector may have been here
            self._kept.remove(entry)


def _is_unasked(event, is_little):
    """Whether an event is not queried yet. To query a whole device breaks other libraries' captures off, so it is put off while little is kept."""
    return isinstance(event, _WholeDevice) and is_little


class _WholeDevice:
    """As an event that passes when a device has no work left. While a stream is captured, it neither passes nor waits."""

    def __init__(self, device):
        self._device = device

    def query(self):
        return is_idle(self._device)

    synchronize = query


def _mark(stream):
    try:
        event = cuda.event(timing=False)
        event.record(stream)
    except Exception:  # whatever a driver says: another library captures the stream, for example
        return _WholeDevice(None)
    return event


_keeping = Keeping(BYTES, _mark)


def keep(stream, held, nbytes=0):
    """Hold objects until a stream has passed what is queued on it by now; see :meth:`Keeping.keep`.

    The stream is that of a call that is under way, so it is there.
    """
    if not SIMULATED:  # where everything is synchronous
        _keeping.keep(stream, held, nbytes)


def keep_later(stream, held, nbytes=0, device=None):
    """The same behind a call that ended some time ago, on a stream that may have been destroyed since.

    A driver that is asked about a destroyed stream ends the process. Numba's own streams are there as long as they
    are held here. Of another library's stream only the address is known, and a thread's default stream is another one in every
    thread: there the memory is kept until the whole device has no work left. This function does not wait for the end of a capture: the caller may hold a lock that the captured work takes. ``device`` has the memory, by default
    the current one.
    """
    if SIMULATED:  # where everything is synchronous
        return
    if not is_lasting(stream) or device not in (None, current_device()):
        _keeping.keep_behind(_WholeDevice(device), held, nbytes)
    else:
        keep(stream, held, nbytes)


def keep_behind_all(device, held):
    """Hold objects until a device has passed all that is queued on it by now."""
    if not SIMULATED:
        _keeping.keep_behind(_WholeDevice(device), held, 0)


def let_go():
    """Wait until nothing is kept any more: before memory is asked for that may have to be large."""
    _keeping.clear()


def wait_when_dropped(owner, waits, held):
    """Have the host wait for what is queued when an owner is dropped, before the owner's memory is freed.

    Parameters
    ----------
    owner : object
    waits : sequence of callable
        Each waits for a stream.
    held : object
        What has the memory, and does not hold the owner.
    """
    weakref.finalize(owner, _wait, waits, held).atexit = False


def _wait(waits, held):
    for wait in waits:
        with suppress(Exception):  # whatever a driver says of a device that has failed
            wait()
