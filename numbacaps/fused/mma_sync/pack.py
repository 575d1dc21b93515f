"""The kernel packed for 16-byte copies: a row of columns for every k, filled up with zeros."""

from functools import cache

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import (
    CHUNK,
    let_next_start,
    short,
    store_run,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda

THREADS = 128


@cache
def make_pack_matrix(dtype):
    """Kernel that packs the kernel: a row of columns for every k."""
    EACH, BLOCK = CHUNK // dtype.itemsize, THREADS
    held = np.dtype(stored(dtype))
    _, as_element = conversions(dtype)
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def pack_matrix_kernel(
        source,  # in   the kernel
        packed,  # out  (G, rows, row)
        table,  # in   (rows,) where each k lies, or ABSENT; then (row,) where each column does
        rows,
        row,
        step,  # from one g to the next
        begin,  # where it begins in its array
    ):
        run = cuda.local.array(EACH, held)
        chunks = np.uint32(row // EACH)
        item = np.uint32(cuda.blockIdx.x * BLOCK + cuda.threadIdx.x)
        g = cuda.blockIdx.y
        k, n = short(item // chunks), short(item % chunks * EACH)
        wait_for_last()
        let_next_start()
        if k < rows:
            first = table[at(k)]
            for i in range(EACH):
                column = table[at(rows + n + i)]
                known = first >= 0 and column >= 0
                where = g * step + first + column
                run[i] = source[at(where)] if known else as_element(ZERO)
            store_run(EACH, packed, begin + (g * rows + k) * row + n, run)

    return pack_matrix_kernel
