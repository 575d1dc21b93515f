"""Memory that one stream writes and others read."""

from numbacaps.device.streams import identity, place, synchronize
from numbacaps.device.target import SIMULATED, cuda

_DESTROYED = "destroyed"  # stands for all streams that were destroyed, in place of their identities


class Handover:
    """Orders the streams that share memory: a read comes after the write, and the next write after the reads.

    The first read on a stream waits, on the device, for an event that was recorded behind the write. A write waits on
    the host for all queued work, if another stream or a CUDA graph has used the memory. A graph is waited for
    whenever there is one, because its replays are not announced here. Writes are rare, so this costs little. A write
    is never captured into a graph. On the simulator every call is synchronous, so there is nothing to order.

    Attributes
    ----------
    replayed : bool
        A captured graph reads the memory.
    """

    replayed = False

    def __init__(self):
        self._written = None  # the event behind the write
        self._users = {}  # identity to place, of the streams ordered behind it

    def before_write(self, stream):
        """Call it before work that writes is queued on a Numba stream.

        Raises
        ------
        ValueError
            The stream is being captured.
        """
        if SIMULATED:
            return
        own = identity(stream)
        if own is None:
            raise ValueError(
                "stream is being captured; packing takes one that is not, because a graph packs whenever it is replayed: "
                "pack before, or capture calls that are given w"
            )
        if self.replayed or self._users.keys() - {own}:
            synchronize()
        self._add(own, stream)  # a write that breaks off is waited for by the next one

    def after_write(self, stream):
        """Call it behind that work."""
        if SIMULATED:
            return
        self._written = cuda.event(timing=False)
        self._written.record(stream)
        self._users = {identity(stream): place(stream)}
        if self.replayed:
            self._written.synchronize()

    def before_read(self, stream):
        """Call it before work that reads is queued on a Numba stream; whether a graph captures that.

        Raises
        ------
        ValueError
            The stream is being captured, and is not ordered behind the write, which is still queued.
        """
        if SIMULATED:
            return False
        own = identity(stream)
        captured = own is None
        if captured and not (place(stream) in self._users.values() or self._written.query()):
            raise ValueError(
                "stream is being captured, and the kernel is still being packed on another one; it takes the stream "
                "that packs, or one on which the plan was called since"
            )
        self.replayed |= captured
        if not captured and own not in self._users:
            self._written.wait(stream)
            self._add(own, stream)
        return captured

    def _add(self, own, stream):
        """Add a stream. A stream that had its place before was destroyed."""
        at = place(stream)
        for one in [one for one, its in self._users.items() if its == at and one != own]:
            self._users[_DESTROYED] = None
            del self._users[one]
        self._users[own] = at
