"""The partial sums of a product's splits added, always in the same order."""

from functools import cache

import numpy as np

from numbacaps.device.compiled import Compiled
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import let_next_start, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import at, cuda

_THREADS = 256
_TOGETHER = 8  # sums that a thread loads at once


@cache
def make_add_splits(dtype):
    """Kernel for results of a dtype; sums are float32."""
    _, write = conversions(dtype)
    BLOCK, TOGETHER = _THREADS, _TOGETHER
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def add_splits_kernel(
        partial,  # in   (splits, size)
        out,  # out  (size,)
        splits,
        size,
    ):
        some = cuda.local.array(TOGETHER, np.float32)
        i = cuda.blockIdx.x * BLOCK + cuda.threadIdx.x
        wait_for_last()  # the splits are summed
        let_next_start()
        if i < size:
            total, split = ZERO, 0
            while split + TOGETHER <= splits:  # their loads are under way together
                for ahead in range(TOGETHER):
                    some[ahead] = partial[at((split + ahead) * size + i)]
                for ahead in range(TOGETHER):
                    total += some[ahead]
                split += TOGETHER
            while split < splits:
                total += partial[at(split * size + i)]
                split += 1
            out[at(i)] = write(total)

    return add_splits_kernel


class AddSplits:
    """The kernel made ready for a result: what finishes a product whose sum is cut into splits.

    Parameters
    ----------
    size : int
        Elements of the result.
    dtype : numpy.dtype
    splits : int
    """

    def __init__(self, size, dtype, splits):
        self._sizes = splits, size
        made = Compiled(make_add_splits(dtype), (np.dtype(np.float32), dtype), 2, early=True)
        self._launch = made.on(ceil_div(size, _THREADS), _THREADS)

    def __call__(self, partial, result, stream):
        """Launch it on arrays as arguments."""
        self._launch(stream, (*partial, *result, *self._sizes))

    def __str__(self):
        return f", {self._sizes[0]} splits"
