"""Where a batch lies: in pinned memory on the host, and on the device, where the network reads it.

With two slots in turn the next batch is copied, on a stream of its own, while the network computes
on the one before it.
"""

import numpy as np

from numbacaps.target import SIMULATED, cuda


class Slot:
    """A place for one batch.

    Parameters
    ----------
    shape : tuple
        (N, C, H, W, *T1) of the images.
    dtype : numpy.dtype
        Of the images; labels are int64.

    Attributes
    ----------
    x, labels : device arrays
        Valid for work that is queued on the computing stream between :meth:`fill` and
        :meth:`release`.
    """

    def __init__(self, shape, dtype):
        self._host_x = cuda.pinned_array(shape, dtype)
        self._host_labels = cuda.pinned_array(shape[:1], np.int64)
        self.x = cuda.device_array(shape, dtype)
        self.labels = cuda.device_array(shape[:1], np.int64)
        self._copied, self._read = _event(), _event()

    def fill(self, x, labels, copying, computing):
        """Queue the copy of a batch, and let the computing stream wait for it.

        Parameters
        ----------
        x, labels : ndarray
            Free for other use on return; ``labels`` is None where nobody reads them.
        copying, computing : Stream
        """
        self._copied.synchronize()  # the batch before has left the pinned memory
        self._read.wait(copying.numba)  # and nobody computes on it any more
        arrays = ((self._host_x, x, self.x), (self._host_labels, labels, self.labels))
        for pinned, given, on_device in arrays:
            if given is not None:
                np.copyto(pinned, given)
                on_device.copy_to_device(pinned, stream=copying.numba)
        self._copied.record(copying.numba)
        self._copied.wait(computing.numba)

    def release(self, computing):
        """Say that all work which reads the batch is queued."""
        self._read.record(computing.numba)


def _event():
    """An event that takes no time; the simulator's take no argument."""
    return cuda.event() if SIMULATED else cuda.event(timing=False)
