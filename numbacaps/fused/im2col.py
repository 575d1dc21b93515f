"""The gathered array as a matrix: the row of every pixel and d1 has all that its window reads (im2col).

Where a capsule's row is no multiple of 16 bytes, no wide copy can take it, and every tile of a product gathers its windows in short
pieces. Here the pieces of a window are brought together once, for all tiles of columns. Behind that a product has a window of one
pixel, and rows of any length. It costs writing and reading the matrix, so it pays where many columns of the kernel share it.

The matrix lies in parts of 32 bytes, as capsules of such a size would (:mod:`numbacaps.fused.im2col_packing`). What is copied are
words of 2, 4 or 8 bytes, whatever is in them: neighbouring elements of a capsule's row, as many as come out even.
"""

from functools import cache

import numpy as np

from numbacaps.device.elements import from_element
from numbacaps.device.instructions import short, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda

PART = 32  # bytes
WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}  # by their bytes
THREADS = 256
BLOCKS = 4  # fit a multiprocessor: a thread has at most 64 registers
# Rows of a thread, by the bytes of a word: their loads wait together. More words of 8 bytes would not fit its registers.
_EACH = {2: 8, 4: 8, 8: 4}


def rows_of_block(word):
    """Rows of the matrix that a block writes, of words of so many bytes."""
    return THREADS * word // PART * _EACH[word]


@cache
def make_im2col(word):
    """Kernel that writes the matrix, in parts: (N, parts, rows of an image, k of a part), of words of so many bytes.

    A block has some rows and several parts of them, one after another, so that what neighbouring parts read of a
    line is in L1. A thread has one k of a part, and a few rows. k, and where anything lies, count words.
    """
    K, EACH, BLOCK = PART // word, _EACH[word], rows_of_block(word)
    APART = THREADS // K  # rows from one of a thread's to the next
    held, ZERO = WORDS[word], WORDS[word](0)

    @kept_on_disk
    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def im2col_kernel(
        source,  # in   the gathered array
        matrix,  # out
        taps,  # in   of every k: from a pixel's place to what it reads, rows down, columns across
        rows,  # of all images
        of_image,  # rows
        columns,  # of pixels
        G,
        D1,
        by_image,  # words of source from one image, row, column, g and d1 of pixels to the next
        by_row,
        by_column,
        by_g,
        by_d1,
        stride_down,  # rows and columns of source from one row and column of pixels to the next
        stride_across,
        H,  # rows and columns of source
        W,
        parts,
        of_block,  # parts
        first,  # where the matrix begins in its array
    ):
        pixel_at = cuda.shared.array(BLOCK, np.int32)  # where a row's pixel lies in source
        part_at = cuda.shared.array(BLOCK, np.int32)  # where a row's first part lies in matrix
        at_row = cuda.shared.array(BLOCK, np.int32)  # the row and column of source there
        at_column = cuda.shared.array(BLOCK, np.int32)
        from_pixel = cuda.local.array(EACH, np.int32)
        to_part = cuda.local.array(EACH, np.int32)
        h = cuda.local.array(EACH, np.int32)
        w = cuda.local.array(EACH, np.int32)
        some = cuda.local.array(EACH, held)
        thread = short(cuda.threadIdx.x)
        groups = np.uint32(np.uint32(parts + of_block - 1) // np.uint32(of_block))
        turn = np.uint32(cuda.blockIdx.x)
        row0, part = short(turn // groups * BLOCK), short(turn % groups * of_block)
        here = short(min(np.int64(BLOCK), rows - row0))
        if thread < here:
            row = np.uint32(row0 + thread)
            image = np.uint32(row // np.uint32(of_image))
            r = np.uint32(row % np.uint32(of_image))
            q, d1 = np.uint32(r // np.uint32(D1)), np.uint32(r % np.uint32(D1))
            pixel, g = np.uint32(q // np.uint32(G)), np.uint32(q % np.uint32(G))
            i, j = np.uint32(pixel // np.uint32(columns)), np.uint32(pixel % np.uint32(columns))
            place = np.int64(image) * by_image + np.int64(i) * by_row + np.int64(j) * by_column
            pixel_at[thread] = short(place + np.int64(g) * by_g + np.int64(d1) * by_d1)
            part_at[thread] = short((np.int64(image) * parts * of_image + r) * K)
            at_row[thread], at_column[thread] = short(i * stride_down), short(j * stride_across)
        k, mine = short(np.uint32(thread) % K), short(np.uint32(thread) // K)
        tap, last = short(part * (3 * K) + k), short(min(np.int64(part + of_block), parts))
        offset, down, across = taps[at(tap)], taps[at(tap + K)], taps[at(tap + 2 * K)]
        to, step = short(part * of_image * K + k), short(of_image * K)
        written = from_element(matrix, first)
        wait_for_last()  # and lets nothing start before it ends: its blocks fill the multiprocessors
        cuda.syncthreads()
        for e in range(EACH):
            one = min(short(mine + e * APART), short(here - 1))
            from_pixel[e], to_part[e] = pixel_at[one], part_at[one]
            h[e], w[e] = at_row[one], at_column[one]
        while part < last:
            for e in range(EACH):
                is_row = np.uint32(h[e] + down) < np.uint32(H)
                is_inside = is_row and np.uint32(w[e] + across) < np.uint32(W)
                there = np.uint32(from_pixel[e] + offset) if is_inside else np.uint32(0)
                value = source[at(there)]
                some[e] = value if is_inside else ZERO
            part = short(part + 1)
            if part < last:  # asked for before the stores
                tap = short(tap + 3 * K)
                offset, down, across = taps[at(tap)], taps[at(tap + K)], taps[at(tap + 2 * K)]
            for e in range(EACH):
                if mine + e * APART < here:
                    written[at(np.uint32(to_part[e] + to))] = some[e]
            to = short(to + step)

    return im2col_kernel
