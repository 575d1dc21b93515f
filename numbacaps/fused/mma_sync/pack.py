"""Operands packed for 16-byte copies: channels last, every row rounded up to 16 bytes.

Capsules of 3, 5 or 7 elements lie in runs that no wide copy can take. Where a window reads every pixel many times,
it pays to bring its channels side by side once, and to fill each row up with zeros; so every size becomes a size that
the widest copies take. The kernel matrix is laid out as the product wants it: a row of columns for every k.
"""

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
LANES = 4  # side by side write 64 bytes of a pixel's row
PIXELS = THREADS // LANES  # of a block


@cache
def make_pack_pixels(dtype):
    """Kernel that packs an array of pixels: (N, C, H, W, G, D1, D) becomes (G, N, H, W, D1, row)."""
    EACH, OF_PIXEL, OF_BLOCK = CHUNK // dtype.itemsize, LANES, PIXELS
    held = np.dtype(stored(dtype))
    _, as_element = conversions(dtype)
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def pack_pixels_kernel(
        source,  # in   (N, C, H, W, G, D1, D)
        packed,  # out  (G, N, H, W, D1, row)
        table,  # in   (row,) where each element of a row lies, or ABSENT
        pixels,  # H * W * D1
        D1,
        G,
        D,
        image,  # elements of one
        row,
        blocks,  # of the pixels of one image and g
        first,  # where it begins in its array
    ):
        let_next_start()
        run = cuda.local.array(EACH, held)
        turn = np.uint32(cuda.blockIdx.x) // np.uint32(blocks)
        thread = np.uint32(cuda.threadIdx.x)
        q = short((cuda.blockIdx.x - turn * blocks) * OF_BLOCK + thread // OF_PIXEL)
        k = short((cuda.blockIdx.y * OF_PIXEL + thread % OF_PIXEL) * EACH)
        n, g = short(turn // np.uint32(G)), short(turn % np.uint32(G))
        wait_for_last()
        if q < pixels:
            pixel, d1 = short(np.uint32(q) // np.uint32(D1)), short(np.uint32(q) % np.uint32(D1))
            base = n * image + (np.int64(pixel) * (G * D1) + g * D1 + d1) * D
            images = short(np.uint32(cuda.gridDim.x) // np.uint32(blocks * G))
            to = first + ((g * images + n) * pixels + q) * row
            while k < row:
                for i in range(EACH):
                    offset = table[at(k + i)]
                    run[i] = source[at(base + offset)] if offset >= 0 else as_element(ZERO)
                store_run(EACH, packed, to + k, run)
                k = short(k + cuda.gridDim.y * (OF_PIXEL * EACH))

    return pack_pixels_kernel


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
        let_next_start()
        run = cuda.local.array(EACH, held)
        chunks = np.uint32(row // EACH)
        item = np.uint32(cuda.blockIdx.x * BLOCK + cuda.threadIdx.x)
        g = cuda.blockIdx.y
        k, n = short(item // chunks), short(item % chunks * EACH)
        wait_for_last()
        if k < rows:
            first = table[at(k)]
            for i in range(EACH):
                column = table[at(rows + n + i)]
                known = first >= 0 and column >= 0
                where = g * step + first + column
                run[i] = source[at(where)] if known else as_element(ZERO)
            store_run(EACH, packed, begin + (g * rows + k) * row + n, run)

    return pack_matrix_kernel
