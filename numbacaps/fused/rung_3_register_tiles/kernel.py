"""Rung 3, register tiles: a thread computes TM x TN elements, and loads run ahead of multiplications.

    c[m, n] = sum over k of a[m, k] * b[k, n]

What changed: TM + TN reads of shared memory now serve TM * TN multiplications; where a thread's rows
lie in the gathered array is worked out once, before the loop; the next tiles are on their way to
registers while these are multiplied. Behind the sum may come an activation
(:mod:`numbacaps.fused.epilogue`).

Sizes, steps and offsets come with the launch, so one compiled kernel serves all of them. It is compiled for a tile, whose
registers it names; for the element's type; for whether taps reach over the edge, because asking that costs instructions at
each load; and for the activation behind it, whose groups are lanes and registers.
"""

from functools import cache

import numpy as np

from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.instructions import (
    let_next_start,
    local_array,
    pinned,
    shared_array,
    short,
    unforeseen,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.addressing import (
    B_G,
    C_FIRST,
    C_G,
    C_IMAGE,
    HEIGHT,
    IMAGE_ROWS,
    PIXEL_NUMBERS,
    WIDTH,
    find_first_tap,
    find_gathered,
    find_in_other,
    find_pixel,
    numbers_of,
)
from numbacaps.fused.epilogue import Epilogue, activate, make_differentiate

# Where the numbers of a product stand, behind those of its pixels.
M, N, K = range(PIXEL_NUMBERS, PIXEL_NUMBERS + 3)
NUMBERS = PIXEL_NUMBERS + 3


def numbers(product, images):
    """What the kernel reads of a product, besides its table."""
    return *numbers_of(product.pixels), product.M(images), product.N, product.K


@cache
def make_register_tiles(inside, tile, dtype, epilogue=Epilogue()):
    """Kernel for products that reach over the edge, or are ``inside``; see :mod:`numbacaps.fused.rung_3_register_tiles.tile`."""
    threads, elements, pitch = tile.threads, tile.TM * tile.TN, tile.BM + 4
    BM, BN, BK, TM, TN = map(specialized, (tile.BM, tile.BN, tile.BK, tile.TM, tile.TN))
    a_loads, b_loads = tile.BM * tile.BK // threads, tile.BN * tile.BK // threads
    A_LOADS, B_LOADS, INSIDE = map(specialized, (a_loads, b_loads, inside))
    EDGES = specialized(1 if inside else a_loads)
    # Rows of a tile from a thread's load to its next.
    A_APART, B_APART = map(specialized, (threads // tile.BK, threads // tile.BN))
    A_PITCH = specialized(pitch)  # consecutive k of a row fall on banks of their own
    A_SIZE, B_SIZE = map(specialized, (tile.BK * pitch, tile.BK * tile.BN))
    DOWN, ACROSS = map(specialized, (tile.BM // tile.TM, tile.BN // tile.TN))
    ELEMENTS = specialized(elements)
    sums = sum_dtype(dtype)
    ZERO = sums.type(0)
    read, write = conversions(dtype)
    RESULT, RESULTS = epilogue.results.start, epilogue.results.stop
    # Known before functions are inlined, which takes long.
    ACTIVATES, DIFFERENTIATES = RESULTS > 1, epilogue.differentiates
    BEFORE = specialized(elements if DIFFERENTIATES else 1)
    plain = sums.itemsize == 4 and not (ACTIVATES or DIFFERENTIATES)
    bounds = tuple(map(specialized, (threads, tile.blocks)))
    BOUNDS = bounds if plain else None  # others need more registers
    BLOCKS, LANES, MASK = epilogue.blocks, epilogue.lanes, epilogue.mask
    SLOPE = sums.type(epilogue.slope)
    differentiate = make_differentiate(elements, 1, 1, epilogue, sums) if DIFFERENTIATES else None

    @cuda.jit(device=True, inline="always")
    def row_begins_at(first, m, of):
        """Where a row of the result begins, its number as :func:`find_pixel` takes it; the image of row 0 begins at ``first``."""
        image, row, column, d1 = find_pixel(m, of)
        return first + find_in_other(image, row, column, d1, of)

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def register_tiles_kernel(
        a,  # in   the gathered array
        b,  # in   the kernel
        of,  # in   numbers
        c,  # out  the other array
        activated,  # out  the same behind an activation; in  what one was of, whose gradient c is; or c again
        table,  # in   Product.table_by_taps
    ):
        a_tile = shared_array(A_SIZE, sums)  # (BK, BM + 4)
        b_tile = shared_array(B_SIZE, sums)  # (BK, BN)
        a_next = local_array(A_LOADS, sums)
        b_next = local_array(B_LOADS, sums)
        base = local_array(A_LOADS, np.int64)
        top = local_array(EDGES, np.int32)
        left = local_array(EDGES, np.int32)
        total = local_array(ELEMENTS, sums)
        to_column = local_array(TN, np.int64)
        before = local_array(BEFORE, sums)
        thread = short(cuda.threadIdx.x & 1023)  # known not to be negative
        m0 = cuda.blockIdx.x * BM
        n0 = short(cuda.blockIdx.y * BN)
        g = cuda.blockIdx.z
        columns, depth = short(of[N]), short(of[K])
        tile_rows, tile_columns = short(min(of[M] - m0, BM)), short(columns - n0)  # that there are
        height, width = np.uint32(of[HEIGHT]), np.uint32(of[WIDTH])
        steps = short(np.uint32(depth + BK - 1) // BK)
        image0 = m0 // of[IMAGE_ROWS]
        m_image = np.uint32(m0 - image0 * of[IMAGE_ROWS])  # rows of that image before the block's
        a_k, a_m = thread % BK, thread // BK  # a thread's loads of a tile lie in one column of it
        b_n, b_k = thread % BN, thread // BN
        b_base = g * of[B_G]
        if b_n < tile_columns:
            b_base += table[at(np.int64(4) * depth + n0 + b_n)]
        for load in range(A_LOADS):
            m = min(
                short(a_m + load * A_APART), short(tile_rows - 1)
            )  # what lies past the rows is not written
            image, row, column, d1 = find_pixel(m_image + np.uint32(m), of)
            if INSIDE == 0:
                h, w = find_first_tap(row, column, of)
                top[load], left[load] = short(pinned(h)), short(pinned(w))
            base[load] = pinned(find_gathered(g, image0 + image, row, column, d1, of))
        for i in range(ELEMENTS):
            total[i] = ZERO
        wait_for_last()  # the operands are there
        for step in range(short(steps + 1)):
            if step < steps:
                k = short(step * BK + a_k)
                if k < depth:
                    tap = np.int64(4) * k
                    offset = table[at(tap)]
                    if INSIDE == 0:
                        down, across = short(table[at(tap + 1)]), short(table[at(tap + 2)])
                for load in range(A_LOADS):
                    value = ZERO  # over the edge lie zeros, and they multiply
                    inside = k < depth
                    if INSIDE == 0:
                        if inside:
                            h, w = np.uint32(top[load] + down), np.uint32(left[load] + across)
                            inside = h < height and w < width  # what is below 0 is far above them
                    if inside:
                        value = read(a[at(base[load] + offset)])
                    a_next[load] = value
                for load in range(B_LOADS):
                    k = short(step * BK + b_k + load * B_APART)
                    value = ZERO
                    if k < depth and b_n < tile_columns:
                        value = read(b[at(b_base + table[at(np.int64(4) * k + 3)])])
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
            if step < steps:
                for load in range(A_LOADS):
                    a_tile[at(a_k * A_PITCH + a_m + load * A_APART)] = a_next[load]
                for load in range(B_LOADS):
                    b_tile[at((b_k + load * B_APART) * BN + b_n)] = b_next[load]
                cuda.syncthreads()  # the next ones are there
        let_next_start()
        # Of a thread. A row is worked out where it is used: registers to keep it in there are none.
        first_row, first_column = thread // ACROSS, thread % ACROSS
        for j in range(TN):  # before anything is stored: no load passes a store
            n = first_column + j * ACROSS
            of_column = np.int64(4) * depth + columns + n0
            to_column[j] = table[at(of_column + n)] if n < tile_columns else 0
        first = g * of[C_G] + of[C_FIRST] + image0 * of[C_IMAGE]
        if DIFFERENTIATES:  # without a branch: past the end others are read, and nothing is written
            for i in range(TM):
                m = unforeseen(min(short(first_row + i * DOWN), short(tile_rows - 1)))
                to = row_begins_at(first, m_image + np.uint32(m), of)
                for j in range(TN):
                    before[i * TN + j] = read(activated[at(to + to_column[j])])
            differentiate(total, 0, before)
        for which in range(RESULT, RESULTS):
            result = c
            if ACTIVATES and which == 1:
                activate(total, ELEMENTS, 1, 1, BLOCKS, LANES, MASK, SLOPE)
                result = activated
            for i in range(TM):
                m = unforeseen(short(first_row + i * DOWN))
                if m < tile_rows:
                    to = row_begins_at(first, m_image + np.uint32(m), of)
                    for j in range(TN):
                        if first_column + j * ACROSS < tile_columns:
                            result[at(to + to_column[j])] = write(total[i * TN + j])

    return register_tiles_kernel
