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
    copy_chunk,
    let_next_start,
    short,
    store_run,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda

THREADS = 128
CHANNELS = 8  # that a thread loads before it stores any: the loads wait together


@cache
def make_pack_pixels(dtype):
    """Kernel that packs an array of pixels: (N, C, H, W, G, D1, D) becomes (G, N, H, W, D1, row).

    The H * W * G * D1 capsules of a channel lie side by side, and so do their elements. A block loads some capsules of
    some channels in that order, and stores them from shared memory in the order of rows.
    """
    EACH, BLOCK, AT_ONCE = CHUNK // dtype.itemsize, THREADS, CHANNELS
    held = np.dtype(stored(dtype))
    _, as_element = conversions(dtype)
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def pack_pixels_kernel(
        source,  # in   (N, C, capsules, D)
        packed,  # out  (G, N, H * W * D1, row)
        images,
        C,
        capsules,  # of a channel
        D1,
        G,
        D,
        row,
        of_block,  # capsules of a block
        channels,  # of a block, a multiple of AT_ONCE
        pitch,  # elements from one capsule of a block to the next, a multiple of EACH
        first,  # where it begins in its array
    ):
        let_next_start()
        shared = cuda.shared.array(0, held, CHUNK)  # (of_block, pitch)
        to_row = cuda.shared.array(BLOCK, np.int64)  # where a capsule's row begins
        some = cuda.local.array(AT_ONCE, held)
        thread = short(cuda.threadIdx.x)
        parts = np.uint32(np.uint32(C + channels - 1) // np.uint32(channels))
        blocks = np.uint32(np.uint32(capsules + of_block - 1) // np.uint32(of_block))
        turn = np.uint32(np.uint32(cuda.blockIdx.x) // parts)
        c0 = short(np.uint32(cuda.blockIdx.x) % parts * channels)
        n, q0 = short(turn // blocks), short(turn % blocks * of_block)
        here = min(short(of_block), short(capsules - q0))
        wait_for_last()
        end, step, apart = short(c0 + channels), short(capsules * D), short(D)
        size, i = short(here * D), thread
        begin = (np.int64(n) * C + c0) * step + np.int64(q0) * D
        while i < size:
            to = short(np.uint32(i) // np.uint32(D) * pitch + np.uint32(i) % np.uint32(D))
            place, c = begin + i, c0
            while c < end:
                if c + AT_ONCE <= C:
                    for j in range(AT_ONCE):
                        some[j] = source[at(place + np.int64(short(j * step)))]
                else:
                    for j in range(AT_ONCE):
                        there = place + np.int64(short(j * step))
                        some[j] = source[at(there)] if c + j < C else as_element(ZERO)
                for j in range(AT_ONCE):
                    shared[at(short(to + j * apart))] = some[j]
                c, to = short(c + AT_ONCE), short(to + AT_ONCE * apart)
                place += AT_ONCE * np.int64(step)
            i = short(i + BLOCK)
        if thread < here:
            q, pixels = np.uint32(q0 + thread), np.uint32(np.uint32(capsules) // np.uint32(G))
            pixel, d1 = np.uint32(q // np.uint32(D1)), np.uint32(q % np.uint32(D1))
            pixel, g = np.uint32(pixel // np.uint32(G)), np.uint32(pixel % np.uint32(G))
            to_row[thread] = ((np.int64(g) * images + n) * pixels + pixel * D1 + d1) * row + first
        cuda.syncthreads()
        k0, chunks = short(c0 * D), short(np.uint32(channels * D) // EACH)
        last = min(chunks, short(np.uint32(row - k0) // EACH))
        r, k = short(np.uint32(thread) // np.uint32(chunks)), short(thread % np.uint32(chunks))
        down, on = short(BLOCK // np.uint32(chunks)), short(BLOCK % np.uint32(chunks))
        while r < here:
            if k < last:
                copy_chunk(shared, r * pitch + k * EACH, packed, to_row[r] + k0 + k * EACH)
            r, k = short(r + down), short(k + on)
            if k >= chunks:
                r, k = short(r + 1), short(k - chunks)

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
