"""The partial sums of a product's splits added, always in the same order."""

from functools import cache

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import let_next_start, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda

THREADS = 256


@cache
def make_add_splits(dtype):
    """Kernel for results of a dtype; sums are float32."""
    _, write = conversions(dtype)
    BLOCK = THREADS
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def add_splits_kernel(
        partial,  # in   (splits, size)
        out,  # out  (size,)
        splits,
        size,
    ):
        let_next_start()
        i = cuda.blockIdx.x * BLOCK + cuda.threadIdx.x
        wait_for_last()  # the splits are summed
        if i < size:
            total = ZERO
            for split in range(splits):
                total += partial[at(split * size + i)]
            out[at(i)] = write(total)

    return add_splits_kernel
