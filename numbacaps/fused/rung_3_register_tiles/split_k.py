"""Register tiles the other way round: the sum runs over pixels, which no index table could hold.

    dw[k, n] = sum over m of x[m, k] * dy[m, n]

What changed from rung 3: a block's tile is BM taps by BN columns, and it walks the pixels BK at a time.
A thread's tap and column are the same all along, so their offsets stay in registers; where the pixels
after the next lie is worked out by BK threads into shared memory while all multiply.
There are few tiles and a long sum, so it is cut into ``splits``, each added up by blocks of its own; a
second kernel adds the splits, always in the same order, so the same input gives the same bits.

Both kernels serve all sizes. The first is compiled for a tile, the element's type, that of what it writes, and for whether
taps reach over the edge; the second for the types and for how many splits a thread loads at once.
"""

from functools import cache

import numpy as np

from numbacaps.device.division import divide, divisor
from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.instructions import (
    local_array,
    shared_array,
    short,
    unforeseen,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import SIMULATED, at, cuda
from numbacaps.fused.addressing import (
    B_G,
    C_FIRST,
    C_G,
    HEIGHT,
    IMAGE_ROWS,
    OVER_IMAGE_ROWS,
    PIXEL_NUMBERS,
    WIDTH,
    find_first_tap,
    find_gathered,
    find_in_other,
    find_pixel,
    numbers_of,
)

_NOWHERE = -(1 << 30)  # a row that every tap reaches over the edge from
# Where the numbers of a product and of its splits stand, behind those of its pixels.
M, N, K, SIZE, PER_SPLIT, SPLITS, OVER_SPLITS = range(PIXEL_NUMBERS, PIXEL_NUMBERS + 7)
NUMBERS = PIXEL_NUMBERS + 7


def numbers(product, images, size, splits, per_split):
    """What the kernel reads of a product, besides its table.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images : int
    size, splits, per_split : int
        ``size`` elements a split; pixels of each, a multiple of the tile's BK.
    """
    sizes = product.M(images), product.N, product.K, size, per_split
    return *numbers_of(product.pixels), *sizes, *divisor(splits)


@cache
def make_reduction(inside, tile, dtype, result):
    """Kernel for products that reach over the edge, or are ``inside``; ``result`` is the dtype of what it writes."""
    threads, a_size, b_size = tile.threads, tile.BK * tile.BM, tile.BK * tile.BN
    BM, BN, BK, TM, TN = map(specialized, (tile.BM, tile.BN, tile.BK, tile.TM, tile.TN))
    A_LOADS, B_LOADS, INSIDE = map(specialized, (a_size // threads, b_size // threads, inside))
    # Pixels from a thread's load to its next.
    A_APART, B_APART = map(specialized, (threads // tile.BM, threads // tile.BN))
    A_SIZE, B_SIZE, PLACES = map(specialized, (a_size, b_size, 2 * tile.BK))
    DOWN, ACROSS = map(specialized, (tile.BM // tile.TM, tile.BN // tile.TN))
    ELEMENTS = specialized(tile.TM * tile.TN)
    NOWHERE = _NOWHERE
    sums = sum_dtype(dtype)
    ZERO = sums.type(0)
    read, _ = conversions(dtype)
    _, write = conversions(result)

    @kept_on_disk
    @cuda.jit
    def reduction_kernel(
        a,  # in   the gathered array
        c,  # in   the other array
        of,  # in   numbers
        b,  # out  (splits, size): the kernel's gradient, a partial sum each
        table,  # in   Product.table
    ):
        a_tile = shared_array(A_SIZE, sums)  # (BK, BM)
        c_tile = shared_array(B_SIZE, sums)  # (BK, BN)
        base = shared_array(PLACES, np.int64)  # of the pixels of two steps
        other = shared_array(PLACES, np.int64)
        top = shared_array(PLACES, np.int32)
        left = shared_array(PLACES, np.int32)
        a_next = local_array(A_LOADS, sums)
        c_next = local_array(B_LOADS, sums)
        total = local_array(ELEMENTS, sums)
        thread = short(cuda.threadIdx.x & 1023)  # known not to be negative
        columns, depth = short(of[N]), short(of[K])
        height, width = np.uint32(of[HEIGHT]), np.uint32(of[WIDTH])
        k0 = short(cuda.blockIdx.x * BM)
        n0 = short(cuda.blockIdx.y * BN)
        g, split = divide(cuda.blockIdx.z, of[SPLITS], of[OVER_SPLITS])
        g, split = np.int64(g), np.int64(split)
        first = split * of[PER_SPLIT]
        count = min(of[M] - first, of[PER_SPLIT])  # pixels
        steps = (count + BK - 1) // BK
        a_k, a_m = thread % BM, thread // BM  # a thread's loads of a tile lie in one column of it
        c_n, c_m = thread % BN, thread // BN
        offset, down, across = np.int64(0), short(NOWHERE), short(0)
        if k0 + a_k < depth:
            k = np.int64(k0 + a_k)
            offset, down = table[at(k)], short(table[at(of[K] + k)])
            across = short(table[at(2 * of[K] + k)])
        of_columns = 4 * of[K]  # where they begin in the table
        column_offset = np.int64(-1)
        if n0 + c_n < columns:
            column_offset = table[at(of_columns + of[N] + n0 + c_n)]
        # The pixel that a thread places next, as its image and its row in that.
        image = (first + thread) // of[IMAGE_ROWS]
        m_image = np.uint32(first + thread - image * of[IMAGE_ROWS])
        c_first = g * of[C_G] + of[C_FIRST]
        for i in range(ELEMENTS):
            total[i] = ZERO
        for step in range(-2, steps):
            if step + 2 < steps and thread < BK:
                place = step % 2 * BK + thread
                _, row, column, d1 = find_pixel(m_image, of)
                h, w = find_first_tap(row, column, of)
                top[at(place)] = h if (step + 2) * BK + thread < count else NOWHERE
                left[at(place)] = w
                base[at(place)] = find_gathered(g, image, row, column, d1, of)
                other[at(place)] = c_first + find_in_other(image, row, column, d1, of)
                on, m_image = divide(m_image + np.uint32(BK), of[IMAGE_ROWS], of[OVER_IMAGE_ROWS])
                image += np.int64(on)
            if -1 <= step and step + 1 < steps:
                for load in range(A_LOADS):
                    place = (step + 1) % 2 * BK + a_m + load * A_APART
                    h = short(top[at(place)] + down)
                    inside = h >= 0
                    if INSIDE == 0:
                        w = np.uint32(left[at(place)] + across)
                        inside = (
                            np.uint32(h) < height and w < width
                        )  # what is below 0 is far above them
                    value = ZERO
                    if inside:
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
        b_first = split * of[SIZE] + g * of[B_G]
        for i in range(TM):
            k = short(k0 + thread // ACROSS + i * DOWN)
            if k < depth:
                for j in range(TN):
                    n = short(n0 + thread % ACROSS + j * ACROSS)
                    if n < columns:
                        to = b_first + table[at(3 * of[K] + k)] + table[at(of_columns + n)]
                        b[at(to)] = write(total[i * TN + j])

    return reduction_kernel


ADDED = 4 if SIMULATED else 32  # elements of a block that adds splits
_LANES = 8  # threads for each of them
ADD_THREADS = ADDED * _LANES
_AHEAD = 8  # splits that a thread loads at once, at most


def ahead_of(splits):
    """How many splits a thread loads at once: no more than its share of them, a power of 2."""
    return min(_AHEAD, 1 << (-(-splits // _LANES) - 1).bit_length())


@cache
def make_add_splits(ahead, dtype):
    """Kernel that adds the partial sums of splits, always in the same order; ``ahead`` of :func:`ahead_of`."""
    ACROSS, LANES, THREADS = ADDED, _LANES, ADD_THREADS
    AHEAD = specialized(ahead)
    sums = sum_dtype(dtype)
    ZERO = sums.type(0)
    _, write = conversions(dtype)

    @kept_on_disk
    @cuda.jit
    def add_splits_kernel(
        partial,  # in   (splits, size), of sum_dtype
        dw,  # out  (size,)
        splits,
        size,
    ):
        wait_for_last()  # the splits are summed
        of_lanes = cuda.shared.array(THREADS, sums)
        held = local_array(AHEAD, sums)
        thread = cuda.threadIdx.x
        i = cuda.blockIdx.x * ACROSS + thread % ACROSS
        total = ZERO
        first, element = short(thread // ACROSS), min(i, size - 1)
        while first < splits:
            for j in range(AHEAD):
                split = min(short(first + j * LANES), short(splits - 1))
                held[j] = partial[at(split * size + element)]
            for j in range(AHEAD):
                if first + j * LANES < splits:
                    total += held[j]
            first = unforeseen(short(first + AHEAD * LANES))
        of_lanes[at(thread)] = total
        cuda.syncthreads()
        if thread < ACROSS and i < size:
            for lane in range(1, LANES):
                total += of_lanes[at(lane * ACROSS + thread)]
            dw[at(i)] = write(total)

    return add_splits_kernel
