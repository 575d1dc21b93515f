"""Register tiles the other way round: the sum runs over pixels, which no index table could hold.

    dw[k, n] = sum over m of x[m, k] * dy[m, n]

What changed from rung 3: a block's tile is BM taps by BN columns, and it walks the pixels BK at a time.
A thread's tap and column are the same all along, so their offsets stay in registers; where the pixels
after the next lie is worked out by BK threads into shared memory while all multiply.
There are few tiles and a long sum, so it is cut into ``splits``, each added up by blocks of its own; a
second kernel adds the splits, always in the same order, so the same input gives the same bits.
"""

from functools import cache

import numpy as np

from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.instructions import wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import SIMULATED, at, cuda
from numbacaps.fused.addressing import (
    make_first_tap,
    make_gathered_at,
    make_in_array,
    make_pixel_of,
    make_result_at,
)

_NOWHERE = -(1 << 30)  # a row that every tap reaches over the edge from


@cache
def make_reduction(pixels, N, K, tile, splits, size, dtype):
    """Kernel for one :class:`numbacaps.fused.implicit_gemm.Product`; ``size`` elements a split."""
    BM, BN, BK, TM, TN = tile.BM, tile.BN, tile.BK, tile.TM, tile.TN
    THREADS = tile.threads
    pixel_of, first_tap = make_pixel_of(pixels), make_first_tap(pixels)
    gathered_at, result_at = make_gathered_at(pixels), make_result_at(pixels)
    in_array = make_in_array(pixels)
    B_G = pixels.steps[1]
    A_LOADS, B_LOADS = BM * BK // THREADS, BN * BK // THREADS
    A_APART, B_APART = THREADS // BM, THREADS // BN  # pixels from a thread's load to its next
    A_SIZE, B_SIZE, PLACES = BK * BM, BK * BN, 2 * BK
    DOWN, ACROSS = BM // TM, BN // TN
    ELEMENTS = TM * TN
    SPLITS, SIZE = splits, size
    NOWHERE = _NOWHERE
    sums = sum_dtype(dtype)
    ZERO = sums.type(0)
    read, _ = conversions(dtype)
    _, write = conversions(dtype if splits == 1 else sums)

    @kept_on_disk
    @cuda.jit
    def reduction_kernel(
        a,  # in   the gathered array
        c,  # in   the other array
        b,  # out  (splits, size): the kernel's gradient, a partial sum each
        table,  # in   Product.table
        M,
        per_split,  # pixels, a multiple of BK
    ):
        a_tile = cuda.shared.array(A_SIZE, sums)  # (BK, BM)
        c_tile = cuda.shared.array(B_SIZE, sums)  # (BK, BN)
        base = cuda.shared.array(PLACES, np.int64)  # of the pixels of two steps
        other = cuda.shared.array(PLACES, np.int64)
        top = cuda.shared.array(PLACES, np.int32)
        left = cuda.shared.array(PLACES, np.int32)
        a_next = cuda.local.array(A_LOADS, sums)
        c_next = cuda.local.array(B_LOADS, sums)
        total = cuda.local.array(ELEMENTS, sums)
        thread = cuda.threadIdx.x
        k0 = cuda.blockIdx.x * BM
        n0 = cuda.blockIdx.y * BN
        g = cuda.blockIdx.z // SPLITS
        split = cuda.blockIdx.z % SPLITS
        first = split * per_split
        last = min(M, first + per_split)
        steps = (last - first + BK - 1) // BK
        a_k, a_m = thread % BM, thread // BM  # a thread's loads of a tile lie in one column of it
        c_n, c_m = thread % BN, thread // BN
        offset, down, across = 0, NOWHERE, 0
        if k0 + a_k < K:
            offset, down = table[at(k0 + a_k)], table[at(K + k0 + a_k)]
            across = table[at(2 * K + k0 + a_k)]
        column_offset = -1
        if n0 + c_n < N:
            column_offset = table[at(4 * K + N + n0 + c_n)]
        for i in range(ELEMENTS):
            total[i] = ZERO
        for step in range(-2, steps):
            if step + 2 < steps and thread < BK:
                m = first + (step + 2) * BK + thread
                place = step % 2 * BK + thread
                image, row, column, d1 = pixel_of(m)
                h, w = first_tap(row, column)
                top[at(place)] = h if m < last else NOWHERE
                left[at(place)] = w
                base[at(place)] = gathered_at(g, image, row, column, d1)
                other[at(place)] = result_at(g, image, row, column, d1)
            if -1 <= step and step + 1 < steps:
                for load in range(A_LOADS):
                    place = (step + 1) % 2 * BK + a_m + load * A_APART
                    h, w = top[at(place)] + down, left[at(place)] + across
                    value = ZERO
                    if in_array(h, w):
                        value = read(a[at(base[at(place)] + offset)])
                    a_next[load] = value
                for load in range(B_LOADS):
                    place = (step + 1) % 2 * BK + c_m + load * B_APART
                    value = ZERO
                    if column_offset >= 0 and top[at(place)] > NOWHERE:
                        value = read(c[at(other[at(place)] + column_offset)])
                    c_next[load] = value
            if step >= 0:
                for m in range(BK):
                    for i in range(TM):
                        for j in range(TN):
                            total[i * TN + j] += (
                                a_tile[at(m * BM + thread // ACROSS + i * DOWN)]
                                * c_tile[at(m * BN + thread % ACROSS + j * ACROSS)]
                            )
            cuda.syncthreads()  # the tiles have been read, and the places are there
            if -1 <= step and step + 1 < steps:
                for load in range(A_LOADS):
                    a_tile[at((a_m + load * A_APART) * BM + a_k)] = a_next[load]
                for load in range(B_LOADS):
                    c_tile[at((c_m + load * B_APART) * BN + c_n)] = c_next[load]
            cuda.syncthreads()  # the next tiles are there
        for i in range(TM):
            k = k0 + thread // ACROSS + i * DOWN
            if k < K:
                for j in range(TN):
                    n = n0 + thread % ACROSS + j * ACROSS
                    if n < N:
                        to = g * B_G + table[at(3 * K + k)] + table[at(4 * K + n)]
                        b[at(split * SIZE + to)] = write(total[i * TN + j])

    return reduction_kernel


ADDED = 4 if SIMULATED else 32  # elements of a block that adds splits
_LANES = 8  # threads for each of them
ADD_THREADS = ADDED * _LANES
_AHEAD = 8  # splits that a thread loads at once


@cache
def make_add_splits(splits, size, dtype):
    """Kernel that adds the partial sums of ``splits`` splits, always in the same order."""
    SPLITS, SIZE = splits, size
    ACROSS, LANES, THREADS = ADDED, _LANES, ADD_THREADS
    TURNS = -(-splits // LANES)
    AHEAD = min(TURNS, _AHEAD)
    sums = sum_dtype(dtype)
    ZERO = sums.type(0)
    _, write = conversions(dtype)

    @kept_on_disk
    @cuda.jit
    def add_splits_kernel(
        partial,  # in   (splits, size), of sum_dtype
        dw,  # out  (size,)
    ):
        wait_for_last()  # the splits are summed
        of_lanes = cuda.shared.array(THREADS, sums)
        held = cuda.local.array(AHEAD, sums)
        thread = cuda.threadIdx.x
        i = cuda.blockIdx.x * ACROSS + thread % ACROSS
        total = ZERO
        for turn in range(0, TURNS, AHEAD):
            first = turn * LANES + thread // ACROSS
            for j in range(AHEAD):
                split = first + j * LANES
                held[j] = partial[at(min(split, SPLITS - 1) * SIZE + min(i, SIZE - 1))]
            for j in range(AHEAD):
                if first + j * LANES < SPLITS:
                    total += held[j]
        of_lanes[at(thread)] = total
        cuda.syncthreads()
        if thread < ACROSS and i < SIZE:
            for lane in range(1, LANES):
                total += of_lanes[at(lane * ACROSS + thread)]
            dw[at(i)] = write(total)

    return add_splits_kernel
