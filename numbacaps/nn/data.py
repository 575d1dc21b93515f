"""Images that lie on the device whole, so that of a batch only the row numbers are sent."""

import numpy as np

from numbacaps.arrays import contiguous
from numbacaps.device.keeping import wait_when_dropped
from numbacaps.device.streams import synchronize
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.nn.kernels.gather_rows import gather

PLACES = 256  # steps whose row numbers the host can write ahead


class Data:
    """Images and their labels on the device, as :meth:`numbacaps.nn.CapsNet.place` makes them.

    Parameters
    ----------
    x : ndarray (count, C, H, W, *T1)
    labels : ndarray (count,) of int
    kind : object
        What networks take it: the same for those that do.
    """

    def __init__(self, x, labels, kind):
        self.kind, self._count = kind, len(x)
        self.x = cuda.to_device(contiguous(x))
        self.labels = cuda.to_device(contiguous(np.asarray(labels, np.int64)))
        synchronize()

    def __len__(self):
        return self._count

    def __repr__(self):
        return f"<Data of {len(self)} images, kind {self.kind}>"


class RowBatch:
    """Where batches of one size lie, gathered from data by the row numbers that the host writes.

    The numbers of step t lie at place t % PLACES of a ring in pinned memory, where the kernels read
    them. Each half of a round is a visit: the host, on a new one, waits until what it wrote on the last visit to this
    half has been read. Visits are counted by steps, so steps on other data in between count too.

    Parameters
    ----------
    data : Data
    N : int
    step : device array (1,), int64
        Steps done.
    computing : Stream
        Where the batch is gathered and read.

    Attributes
    ----------
    x, labels : device arrays
        The batch, for work that is queued behind :meth:`gather`.
    """

    def __init__(self, data, N, step, computing):
        self._images, self._all_labels = data.x, data.labels
        self._step, self._computing = step, computing
        self._places = PLACES
        self._host, self._ring = _pinned((PLACES, N))
        self._host[:] = 0
        self._rows, self.labels = cuda.device_array(N, np.int64), cuda.device_array(N, np.int64)
        self.x = cuda.device_array((N, *data.x.shape[1:]), data.x.dtype)
        self._visit, self._read = 0, [computing.event() for _ in range(2)]
        held = data.x, data.labels, self._host, self._ring, self._rows, self.labels, self.x
        wait_when_dropped(self, [computing.synchronize], held)

    def write(self, rows, step):
        """Write the row numbers of a step that is about to be queued."""
        visit = 2 * step // self._places
        if visit != self._visit:
            self._computing.record(self._read[self._visit % 2])
            self._computing.wait_for(self._read[visit % 2])
            self._visit = visit
        self._host[step % self._places] = rows

    def gather(self):
        """Queue the gathering of the step's batch."""
        read = self._images, self._all_labels, self._ring, self._step
        gather(*read, self._rows, self.x, self.labels, self._computing.numba)


def _pinned(shape):
    """Pinned memory for int64 as the host sees it, and as kernels do."""
    if SIMULATED:
        array = cuda.device_array(shape, np.int64)
        return array, array
    host = cuda.pinned_array(shape, np.int64)
    return host, cuda.from_cuda_array_interface(host.__array_interface__, owner=host)
