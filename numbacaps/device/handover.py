"""Memory that one stream writes and others read."""

from numbacaps.device.streams import is_capturing
from numbacaps.device.target import SIMULATED, cuda


class Handover:
    """Orders streams that share memory: reads behind the write, and the next write behind the reads.

    The first read on a stream waits, on the device, for the event behind the write. A write waits, on the host, for
    other streams that have used the memory: it is rare. On the simulator, where everything is synchronous,
    there is nothing to order.
    """

    def __init__(self):
        self._written, self._users = (
            None,
            set(),
        )  # the event, and addresses of the streams ordered behind it

    def before_write(self, stream):
        """Call it before work that writes is queued on a Numba stream.

        Raises
        ------
        ValueError
            The stream is being captured, and the memory is in use on others.
        """
        if not SIMULATED and self._users - {_address(stream)}:
            if is_capturing(stream):
                raise ValueError(
                    "stream is being captured, and other streams use the packed kernel; "
                    "it takes the one stream that uses it"
                )
            cuda.synchronize()

    def after_write(self, stream):
        """Call it behind that work."""
        if not SIMULATED:
            if not is_capturing(stream):
                self._written = cuda.event(timing=False)
                self._written.record(stream)
            self._users = {_address(stream)}

    def before_read(self, stream):
        """Call it before work that reads is queued on a Numba stream.

        Raises
        ------
        ValueError
            The stream is being captured, and is not ordered behind the write, which is still queued.
        """
        if SIMULATED or _address(stream) in self._users:
            return
        if not is_capturing(stream):
            self._written.wait(stream)
        elif not self._written.query():
            raise ValueError(
                "stream is being captured, and the kernel is still being packed on another one; it takes the stream "
                "that packs, or one on which the plan was called since"
            )
        self._users.add(_address(stream))


def _address(stream):
    return int(stream) if stream else 0
