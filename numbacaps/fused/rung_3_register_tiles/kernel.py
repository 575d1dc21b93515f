"""Rung 3, register tiles: a thread computes TM x TN elements, and loads run ahead of multiplications.

    c[m, n] = sum over k of a[m, k] * b[k, n]

What changed: TM + TN reads of shared memory now serve TM * TN multiplications; where a thread's rows
lie in the gathered array is worked out once, before the loop; the next tiles are on their way to
registers while these are multiplied. Behind the sum may come an activation
(:mod:`numbacaps.fused.epilogue`).
"""

from functools import cache

import numpy as np

from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.instructions import let_next_start, short, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda
from numbacaps.fused.addressing import (
    make_first_tap,
    make_gathered_at,
    make_result_at,
    pixel_of_row,
)
from numbacaps.fused.epilogue import Epilogue, activate, make_differentiate

_NOWHERE = -(1 << 30)  # a row that every tap reaches over the edge from


@cache
def make_register_tiles(pixels, inside, N, K, tile, dtype, epilogue=Epilogue()):
    """Kernel for one :class:`numbacaps.fused.implicit_gemm.Product`; see :mod:`numbacaps.fused.rung_3_register_tiles.tile`."""
    BM, BN, BK, TM, TN = tile.BM, tile.BN, tile.BK, tile.TM, tile.TN
    THREADS = tile.threads
    ROWS, COLUMNS, D1 = pixels.rows, pixels.columns, pixels.D1
    IMAGE = ROWS * COLUMNS * D1  # rows of a
    gathered_at, first_tap, result_at = (
        make(pixels) for make in (make_gathered_at, make_first_tap, make_result_at)
    )
    HEIGHT, WIDTH = pixels.extent
    B_G = pixels.steps[1]
    INSIDE = inside
    A_LOADS, B_LOADS = BM * BK // THREADS, BN * BK // THREADS
    A_APART, B_APART = (
        THREADS // BK,
        THREADS // BN,
    )  # rows of a tile from a thread's load to the next
    A_PITCH = BM + 4  # consecutive k of a row fall on banks of their own
    A_SIZE, B_SIZE = BK * A_PITCH, BK * BN
    DOWN, ACROSS = BM // TM, BN // TN
    STEPS = -(-K // BK)
    ELEMENTS = TM * TN
    NOWHERE = _NOWHERE
    sums = sum_dtype(dtype)
    ZERO = sums.type(0)
    read, write = conversions(dtype)
    RESULT, RESULTS = epilogue.results.start, epilogue.results.stop
    # Known before functions are inlined, which takes long.
    ACTIVATES, DIFFERENTIATES = RESULTS > 1, epilogue.differentiates
    BEFORE = ELEMENTS if DIFFERENTIATES else 1
    BLOCKS, LANES, MASK = epilogue.blocks, epilogue.lanes, epilogue.mask
    SLOPE = sums.type(epilogue.slope)
    differentiate = make_differentiate(ELEMENTS, 1, 1, epilogue, sums)

    @cuda.jit(device=True, inline="always")
    def row_begins_at(g, image0, m):
        """Where a row of the result begins, its number as :func:`pixel_of_row` takes it."""
        image, row, column, d1 = pixel_of_row(m, ROWS, COLUMNS, D1)
        return result_at(g, image0 + image, row, column, d1)

    @kept_on_disk
    @cuda.jit
    def register_tiles_kernel(
        a,  # in   the gathered array
        b,  # in   the kernel
        c,  # out  the other array
        activated,  # out  the same behind an activation; in  what one was of, whose gradient c is; or c again
        table,  # in   Product.table
        M,
    ):
        let_next_start()  # up to where it waits for the result
        a_tile = cuda.shared.array(A_SIZE, sums)  # (BK, BM + 4)
        b_tile = cuda.shared.array(B_SIZE, sums)  # (BK, BN)
        a_next = cuda.local.array(A_LOADS, sums)
        b_next = cuda.local.array(B_LOADS, sums)
        base = cuda.local.array(A_LOADS, np.int64)
        top = cuda.local.array(A_LOADS, np.int32)
        left = cuda.local.array(A_LOADS, np.int32)
        total = cuda.local.array(ELEMENTS, sums)
        to_column = cuda.local.array(TN, np.int64)
        before = cuda.local.array(BEFORE, sums)
        thread = short(cuda.threadIdx.x & 1023)  # known not to be negative
        m0 = cuda.blockIdx.x * BM
        n0 = cuda.blockIdx.y * BN
        g = cuda.blockIdx.z
        image0 = m0 // IMAGE
        m_image = m0 - image0 * IMAGE  # rows of that image before the block's
        a_k, a_m = thread % BK, thread // BK  # a thread's loads of a tile lie in one column of it
        b_n, b_k = thread % BN, thread // BN
        b_base = g * B_G
        if n0 + b_n < N:
            b_base += table[at(4 * K + n0 + b_n)]
        for load in range(A_LOADS):
            i = a_m + load * A_APART
            image, row, column, d1 = pixel_of_row(m_image + i, ROWS, COLUMNS, D1)
            h, w = first_tap(row, column)
            top[load] = h if m0 + i < M else NOWHERE
            left[load] = w
            base[load] = gathered_at(g, image0 + image, row, column, d1)
        for i in range(ELEMENTS):
            total[i] = ZERO
        wait_for_last()  # the operands are there
        for step in range(STEPS + 1):
            if step < STEPS:
                k = step * BK + a_k
                if k < K:
                    offset, down, across = table[at(k)], table[at(K + k)], table[at(2 * K + k)]
                for load in range(A_LOADS):
                    value = ZERO  # over the edge lie zeros, and they multiply
                    if k < K:
                        h, w = top[load] + down, left[load] + across
                        if h >= 0 and (INSIDE or (h < HEIGHT and w >= 0 and w < WIDTH)):
                            value = read(a[at(base[load] + offset)])
                    a_next[load] = value
                for load in range(B_LOADS):
                    k = step * BK + b_k + load * B_APART
                    value = ZERO
                    if k < K and n0 + b_n < N:
                        value = read(b[at(b_base + table[at(3 * K + k)])])
                    b_next[load] = value
            if step > 0:
                for k in range(BK):
                    for i in range(TM):
                        for j in range(TN):
                            total[i * TN + j] += (
                                a_tile[at(k * A_PITCH + thread // ACROSS + i * DOWN)]
                                * b_tile[at(k * BN + thread % ACROSS + j * ACROSS)]
                            )
                cuda.syncthreads()  # the tiles have been read
            if step < STEPS:
                for load in range(A_LOADS):
                    a_tile[at(a_k * A_PITCH + a_m + load * A_APART)] = a_next[load]
                for load in range(B_LOADS):
                    b_tile[at((b_k + load * B_APART) * BN + b_n)] = b_next[load]
                cuda.syncthreads()  # the next ones are there
        for j in range(TN):  # before anything is stored: no load passes a store
            n = n0 + thread % ACROSS + j * ACROSS
            to_column[j] = table[at(4 * K + N + n)] if n < N else 0
        if DIFFERENTIATES:
            for i in range(TM):
                m = thread // ACROSS + i * DOWN
                to = row_begins_at(g, image0, m_image + m)
                for j in range(TN):
                    inside = m0 + m < M and n0 + thread % ACROSS + j * ACROSS < N
                    value = ZERO
                    if inside:
                        value = read(activated[at(to + to_column[j])])
                    before[i * TN + j] = value
            differentiate(total, 0, before)
        for which in range(RESULT, RESULTS):
            result = c
            if ACTIVATES and which == 1:
                activate(total, ELEMENTS, 1, 1, BLOCKS, LANES, MASK, SLOPE)
                result = activated
            for i in range(TM):
                m = thread // ACROSS + i * DOWN
                if m0 + m < M:
                    to = row_begins_at(g, image0, m_image + m)
                    for j in range(TN):
                        if n0 + thread % ACROSS + j * ACROSS < N:
                            result[at(to + to_column[j])] = write(total[i * TN + j])

    return register_tiles_kernel
