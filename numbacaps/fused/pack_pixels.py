"""The gathered array packed for 16-byte copies: a pixel's channels side by side, filled up with zeros.

Capsules of 3, 5 or 7 elements lie in runs that no wide copy can take. Where a window reads every pixel many times,
it pays to bring its channels side by side once; so every size becomes a size that the widest copies take. The rows lie as
the kernel wants them that reads them (:class:`numbacaps.fused.pixel_packing.Layout`).
"""

from functools import cache

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import (
    CHUNK,
    copy_chunk,
    short,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda

THREADS = 128
AT_ONCE = 8  # channels that a thread loads before it stores any: the loads wait together


@cache
def make_pack_pixels(dtype):
    """Kernel that packs an array of pixels: (N, C, H, W, G, D1, D) becomes rows of C * D elements.

    The H * W * G * D1 capsules of a channel lie side by side, and so do their elements. A block loads some capsules of
    some channels in that order, and stores them from shared memory in the order of rows, 16 bytes at a time.
    """
    EACH, BLOCK, TOGETHER = CHUNK // dtype.itemsize, THREADS, AT_ONCE
    held = np.dtype(stored(dtype))
    _, as_element = conversions(dtype)
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def pack_pixels_kernel(
        source,  # in   (N, C, capsules, D)
        packed,  # out
        C,
        capsules,  # of a channel
        D1,
        G,
        D,
        row,  # elements, with zeros behind the last channel
        by_image,  # elements of packed from one row to the next: of an image, a g, a pixel and a d1
        by_g,
        by_pixel,
        by_d1,
        by_part,  # and from one part of a row to the next, of 2^bits elements
        bits,
        of_block,  # capsules of a block
        channels,  # of a block, a multiple of AT_ONCE
        pitch,  # elements from one capsule of a block to the next, a multiple of EACH
        first,  # where it begins in its array
    ):
        shared = cuda.shared.array(0, held, CHUNK)  # (of_block, pitch)
        to_row = cuda.shared.array(BLOCK, np.int64)  # where a capsule's row begins
        some = cuda.local.array(TOGETHER, held)
        thread = short(cuda.threadIdx.x)
        parts = np.uint32(np.uint32(C + channels - 1) // np.uint32(channels))
        blocks = np.uint32(np.uint32(capsules + of_block - 1) // np.uint32(of_block))
        turn = np.uint32(np.uint32(cuda.blockIdx.x) // parts)
        c0 = short(np.uint32(cuda.blockIdx.x) % parts * channels)
        n, q0 = short(turn // blocks), short(turn % blocks * of_block)
        here = min(short(of_block), short(capsules - q0))
        wait_for_last()  # and lets nothing start before it ends: its blocks fill the multiprocessors
        end, step, apart = short(c0 + channels), short(capsules * D), short(D)
        size, i = short(here * D), thread
        begin = (np.int64(n) * C + c0) * step + np.int64(q0) * D
        while i < size:
            to = short(np.uint32(i) // np.uint32(D) * pitch + np.uint32(i) % np.uint32(D))
            place, c = begin + i, c0
            while c < end:
                if c + TOGETHER <= C:
                    for j in range(TOGETHER):
                        some[j] = source[at(place + np.int64(short(j * step)))]
                else:
                    for j in range(TOGETHER):
                        there = place + np.int64(short(j * step))
                        some[j] = source[at(there)] if c + j < C else as_element(ZERO)
                for j in range(TOGETHER):
                    shared[at(short(to + j * apart))] = some[j]
                c, to = short(c + TOGETHER), short(to + TOGETHER * apart)
                place += TOGETHER * np.int64(step)
            i = short(i + BLOCK)
        if thread < here:
            q = np.uint32(q0 + thread)
            pixel, d1 = np.uint32(q // np.uint32(D1)), np.uint32(q % np.uint32(D1))
            pixel, g = np.uint32(pixel // np.uint32(G)), np.uint32(pixel % np.uint32(G))
            of_image = np.int64(pixel) * by_pixel + np.int64(g) * by_g + np.int64(d1) * by_d1
            to_row[thread] = first + n * by_image + of_image
        cuda.syncthreads()
        k0, chunks = short(c0 * D), short(np.uint32(channels * D) // EACH)
        last = min(chunks, short(np.uint32(row - k0) // EACH))
        r, k = short(np.uint32(thread) // np.uint32(chunks)), short(thread % np.uint32(chunks))
        down, on = short(BLOCK // np.uint32(chunks)), short(BLOCK % np.uint32(chunks))
        while r < here:
            if k < last:
                element = short(k0 + k * EACH)
                part = short(element >> bits)
                to = to_row[r] + part * by_part + (element - (np.int64(part) << bits))
                copy_chunk(shared, r * pitch + k * EACH, packed, to)
            r, k = short(r + down), short(k + on)
            if k >= chunks:
                r, k = short(r + 1), short(k - chunks)

    return pack_pixels_kernel
