"""Where a batch lies: in pinned memory on the host, and on the device, where the network reads it.

With two slots in turn the next batch is copied, on a stream of its own, while the network computes
on the one before it. A slot's copies, too, are one graph launch.
"""

from functools import partial

import numpy as np

from numbacaps.device.streams import Repeated
from numbacaps.device.target import cuda


class Slot:
    """A place for one batch.

    Parameters
    ----------
    shape : tuple
        (N, C, H, W, *T1) of the images.
    dtype : numpy.dtype
        Of the images; labels are int64.
    copying, computing : Stream
        Where the batch is copied, and where it is read.

    Attributes
    ----------
    x, labels : device arrays
        Valid for work that is queued on the computing stream between :meth:`fill` and
        :meth:`release`.
    """

    def __init__(self, shape, dtype, copying, computing):
        self._host_x = cuda.pinned_array(shape, dtype)
        self._host_labels = cuda.pinned_array(shape[:1], np.int64)
        self._host_labels.fill(0)
        self.x = cuda.device_array(shape, dtype)
        self.labels = cuda.device_array(shape[:1], np.int64)
        self._copying, self._computing = copying, computing
        self._copied, self._read = copying.event(), computing.event()
        copies = (self.x, self._host_x), (self.labels, self._host_labels)
        self._copy = Repeated(partial(_launch_copies, copies, copying), copying, capturable=True)

    def fill(self, x, labels=None):
        """Queue the copy of a batch, and let the computing stream wait for it.

        Parameters
        ----------
        x, labels : ndarray
            Free for other use on return. Labels that nobody reads may be left out.
        """
        copying, computing = self._copying, self._computing
        copying.wait_for(self._copied)  # the batch before has left the pinned memory
        np.copyto(self._host_x, x)
        if labels is not None:
            np.copyto(self._host_labels, labels)
        copying.wait(self._read)  # nobody computes on the batch before any more
        self._copy()
        copying.record(self._copied)
        computing.wait(self._copied)

    def release(self):
        """Say that all work which reads the batch is queued."""
        self._computing.record(self._read)


def _launch_copies(copies, copying):
    for to, host in copies:
        to.copy_to_device(host, stream=copying.numba)
