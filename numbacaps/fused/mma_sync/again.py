"""Sums of three terms that cannot be told (:mod:`numbacaps.fused.told`) are summed again, each by the thread that has it.

The thread goes through the sum by itself and multiplies by ordinary arithmetic, so the result is what ``"ieee"`` would make
of it. Where the factors lie it finds in the table by which they were copied. It reads its results back, since to ask for a sum
by a number that the compiler does not know would move all of them to local memory.

Where such sums are parts of results, splits or columns, what adds them looks through the results
(:mod:`numbacaps.fused.mma_sync.add_splits`, :mod:`numbacaps.fused.col2im`): finite parts can add up to an infinity, and
infinite ones to a NaN.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import short, unforeseen
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.mma_sync.edges import is_inside
from numbacaps.fused.mma_sync.pixels import edge_of_pixel, last_pixel, pixel_of_row, place_of_pixel
from numbacaps.fused.mma_sync.sums import place_of_sum
from numbacaps.fused.mma_sync.table import (
    A_G,
    A_IMAGE,
    B_COLUMNS_AT,
    B_G,
    C_COLUMNS_AT,
    C_FIRST,
    C_G,
    C_IMAGE,
    COLUMNS_OF_PRODUCT,
    DEPTH,
    HEADER,
    KERNEL_AT,
    PIXEL_COLUMNS,
    PIXEL_D1,
    PIXEL_ROWS,
    ROWS_OF_PRODUCT,
    TAPS_AT,
)
from numbacaps.fused.told import is_told


@cache
def make_sum_again(tile, bk, each):
    """``sum_again(a, b, c, table, products, splits, per_split, size, a_first, b_first)``, of what
    :func:`numbacaps.fused.mma_sync.kernel.make_mma_sync`'s kernel takes: a thread's sums of a product that gathers one operand.

    Where the block and the thread are is worked out anew: no register holds it meanwhile.
    """
    BM, BN, WM, WN = map(specialized, (tile.BM, tile.BN, tile.WM, tile.WN))
    ACROSS, BESIDE = map(specialized, (tile.BN // tile.WN, tile.WN // 8))
    OWN, BK, EACH = map(specialized, (tile.WM * tile.WN // 32, bk, each))
    ZERO = np.float32(0)

    @cuda.jit(device=True)
    def sum_again(a, b, c, table, products, splits, per_split, size, a_first, b_first):
        thread = unforeseen(short(cuda.threadIdx.x))
        lane, warp = thread % 32, thread // 32
        deep = np.uint32(unforeseen(short(cuda.blockIdx.z)))
        split, rest = deep % np.uint32(splits), deep // np.uint32(splits)
        head, g = short(rest % np.uint32(products)) * HEADER, np.int64(rest // np.uint32(products))
        m0 = unforeseen(short(cuda.blockIdx.x)) * BM
        row0 = m0 + warp // ACROSS * WM + lane // 4
        column0 = unforeseen(short(cuda.blockIdx.y)) * BN + warp % ACROSS * WN + lane % 4 * 2
        M, N = table[at(head + ROWS_OF_PRODUCT)], table[at(head + COLUMNS_OF_PRODUCT)]
        K = table[at(head + DEPTH)]
        image_rows = table[at(head + PIXEL_ROWS)] * table[at(head + PIXEL_COLUMNS)]
        image_rows = np.uint32(image_rows * table[at(head + PIXEL_D1)])
        image0 = np.int64(np.uint32(m0) // image_rows)
        a_from = a_first + g * np.int64(table[at(head + A_G)]) + image0 * table[at(head + A_IMAGE)]
        b_from = b_first + g * np.int64(table[at(head + B_G)])
        c_from = (
            np.int64(split) * size + g * np.int64(table[at(head + C_G)]) + table[at(head + C_FIRST)]
        )
        c_from += image0 * table[at(head + C_IMAGE)]
        taps, of_kernel = table[at(head + TAPS_AT)], table[at(head + KERNEL_AT)]
        b_columns, c_columns = table[at(head + B_COLUMNS_AT)], table[at(head + C_COLUMNS_AT)]
        last_one, first = last_pixel(table, head), np.int64(split) * per_split * BK
        last = min(first + per_split * BK, K)
        for i in range(OWN):
            down, beside = place_of_sum(i, BESIDE)
            m, n = row0 + down, column0 + beside
            if m < M and n < N:
                which = np.uint32(m - image0 * image_rows)
                image, h, w, d1 = pixel_of_row(which, table, head)
                to = c_from + place_of_pixel(image, h, w, d1, table, head + C_IMAGE)
                to += table[at(c_columns + n)]
                if not is_told(c[at(to)]):
                    base = a_from + place_of_pixel(image, h, w, d1, table, head + A_IMAGE)
                    edge = edge_of_pixel(h, w, table, head)
                    column = b_from + table[at(b_columns + n)]
                    total = ZERO
                    for k in range(first, last):
                        tap = taps + k // EACH * 2
                        lies = table[at(of_kernel + k)]
                        if lies >= 0:
                            value = ZERO  # over the edge lie zeros, and they multiply
                            if is_inside(short(edge + table[at(tap + 1)]), last_one):
                                value = a[at(base + table[at(tap)] + k % EACH)]
                            total += value * b[at(lies + column)]
                            if total != total:  # NaN, whatever is added
                                break
                    c[at(to)] = total

    return sum_again


@cache
def make_sum_pixels_again(beside, each):
    """``sum_pixels_again(b, b_from, a, c, table, a_start, c_start, row0, column0, first, last, own)``: ``own`` sums over pixels of
    the kernel's gradient, pixels from ``first`` to before ``last``; the first of them is at ``row0``, ``column0``.
    """
    BESIDE, EACH = map(specialized, (beside, each))
    ZERO = np.float32(0)

    @cuda.jit(device=True)
    def sum_pixels_again(b, b_from, a, c, table, a_start, c_start, row0, column0, first, last, own):
        taps, of_kernel = table[at(TAPS_AT)], table[at(KERNEL_AT)]
        b_columns, c_columns = table[at(B_COLUMNS_AT)], table[at(C_COLUMNS_AT)]
        N, K, last_one = table[at(COLUMNS_OF_PRODUCT)], table[at(DEPTH)], last_pixel(table, 0)
        for i in range(own):
            down, beside = place_of_sum(i, BESIDE)
            k, n = row0 + down, column0 + beside
            if k < K and n < N:
                lies, column = table[at(of_kernel + k)], table[at(b_columns + n)]
                to = b_from + lies + column
                if lies >= 0 and not is_told(b[at(to)]):
                    tap = taps + k // EACH * 2
                    offset, where = table[at(tap)] + k % EACH, table[at(tap + 1)]
                    in_c, total = table[at(c_columns + n)], ZERO
                    for m in range(first, last):
                        image, h, w, d1 = pixel_of_row(np.uint32(m), table, 0)
                        value = ZERO
                        if is_inside(short(edge_of_pixel(h, w, table, 0) + where), last_one):
                            value = a[
                                at(
                                    a_start
                                    + place_of_pixel(image, h, w, d1, table, A_IMAGE)
                                    + offset
                                )
                            ]
                        other = c_start + place_of_pixel(image, h, w, d1, table, C_IMAGE) + in_c
                        total += value * c[at(other)]
                        if total != total:
                            break
                    b[at(to)] = total

    return sum_pixels_again
