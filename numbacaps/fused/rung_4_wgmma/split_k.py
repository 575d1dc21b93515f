"""The kernel's gradient on the tensor cores, by the products of single warps.

    dw[k, n] = sum over m of x[m, k] * dy[m, n]

What changed from :mod:`numbacaps.fused.rung_3_register_tiles.split_k`: a warp multiplies WM taps by WN columns with ``mma``,
8 pixels at a time. Both operands lie in shared memory as they lie in capsule layout, a row of
taps or columns for each pixel, so copies are asynchronous and take up to 16 bytes, and the next stages are
on their way while one is multiplied. A row is 8 banks behind the one before it: a warp reads four rows at
once, and its lanes side by side four elements each, all on banks of their own. So a thread's rows and
columns of a product are neighbours in dw.

The tensor cores read TF32, which they cut from float32; factors are brought near enough to their roundings first.

The kernel serves all sizes. It is compiled for a tile, the bytes that one copy takes of each operand, the element's
type, and for whether taps reach over the edge.
"""

from functools import cache

import numpy as np

from numbacaps.device.division import divide
from numbacaps.device.instructions import (
    CHUNK,
    cp_async,
    cp_async_commit,
    cp_async_wait,
    let_next_start,
    load_run,
    local_array,
    mma,
    shared_address,
    short,
    store_pair,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.device.tf32 import nearer
from numbacaps.fused.addressing import (
    B_G,
    C_FIRST,
    C_G,
    HEIGHT,
    IMAGE_ROWS,
    WIDTH,
    find_first_tap,
    find_gathered,
    find_in_other,
    find_pixel,
)
from numbacaps.fused.rung_3_register_tiles.split_k import (
    OVER_SPLITS,
    PER_SPLIT,
    SIZE,
    SPLITS,
    K,
    M,
    N,
)

_ABSENT = -(1 << 62)  # the offset of a tap or column that there is not


@cache
def make_mma_reduction(inside, runs, tile, dtype):
    """Kernel that takes the numbers of :func:`numbacaps.fused.rung_3_register_tiles.split_k.numbers`.

    Parameters
    ----------
    inside : bool
        No tap of any pixel reaches over the edge.
    runs : tuple of int
        Bytes (4, 8 or 16) that one copy takes from the gathered and from the other array.
    tile : numbacaps.fused.rung_4_wgmma.split_k_tile.MmaTile
    dtype : numpy.dtype
    """
    INSIDE = inside
    bm, bn, wm, wn, threads = tile.BM, tile.BN, tile.WM, tile.WN, tile.threads
    BM, BN, WM, WN, BK = map(specialized, (bm, bn, wm, wn, tile.BK))
    THREADS, STAGES, PENDING = specialized(threads), specialized(tile.STAGES), tile.STAGES - 2
    ACROSS = specialized(bn // wn)  # warps
    a_pitch, c_pitch = tile.pitches
    A_PITCH, C_PITCH = map(specialized, tile.pitches)
    c_start, stage = tile.BK * a_pitch, tile.BK * (a_pitch + c_pitch)
    C_START, STAGE = map(specialized, (c_start, stage))  # elements
    A_RUN, C_RUN = runs
    A_ELEMENTS, C_ELEMENTS = (run // dtype.itemsize for run in runs)
    # A thread copies the same runs of every pixel that it takes; OWN of them, every APART pixels.
    A_LANES, C_LANES = (8 // elements for elements in (A_ELEMENTS, C_ELEMENTS))
    (a_own, a_apart), (c_own, c_apart) = tile.share(bm, A_ELEMENTS), tile.share(bn, C_ELEMENTS)
    A_OWN, A_APART, C_OWN, C_APART = map(specialized, (a_own, a_apart, c_own, c_apart))
    A_OCTETS, C_OCTETS = map(specialized, (bm // 8 // a_own, bn // 8 // c_own))
    A_TURNS, C_TURNS = map(specialized, (tile.BK // a_apart, tile.BK // c_apart))
    # Stages whose pixels are placed at once, one by each thread.
    BATCH = specialized(threads // tile.BK)
    PLACES = 2 * threads
    EDGES = 1 if INSIDE else PLACES
    QUADS_DOWN, QUADS_ACROSS = map(specialized, (wm // 32, wn // 32))
    OWN_ROWS, OWN_COLUMNS = map(specialized, (wm // 8, wn // 4))  # of the result, a thread's
    down_tiles, across_tiles = wm // 16, wn // 8
    DOWN_TILES, ACROSS_TILES = map(specialized, (down_tiles, across_tiles))
    SUMS = specialized(down_tiles * across_tiles * 4)
    A_SIZE, B_SIZE = map(specialized, (down_tiles * 4, across_tiles * 2))
    store_sums = make_store_sums(tile, C_RUN > 4, dtype)
    ABSENT = _ABSENT
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def mma_reduction_kernel(
        a,  # in   the gathered array
        c,  # in   the other array
        of,  # in   numbers
        b,  # out  (splits, size): the kernel's gradient, a partial sum each
        table,  # in   Product.table
    ):
        shared = cuda.shared.array(0, dtype, CHUNK)  # STAGES of (BK, A_PITCH), then (BK, C_PITCH)
        base = cuda.shared.array(PLACES, np.int64)  # of the pixels of two batches
        other = cuda.shared.array(PLACES, np.int64)
        top = cuda.shared.array(EDGES, np.int32)
        left = cuda.shared.array(EDGES, np.int32)
        acc = local_array(SUMS, np.float32)
        quad = cuda.local.array(4, np.float32)
        a_part = local_array(A_SIZE, np.float32)
        b_part = local_array(B_SIZE, np.float32)
        a_offset = local_array(A_OWN, np.int64)
        c_offset = local_array(C_OWN, np.int64)
        down = local_array(A_OWN, np.int32)
        across = local_array(A_OWN, np.int32)
        to_row = local_array(OWN_ROWS, np.int64)
        to_column = local_array(OWN_COLUMNS, np.int64)
        start = shared_address(shared)
        thread = short(cuda.threadIdx.x & 1023)  # known not to be negative
        lane, warp = short(thread % 32), short(thread // 32)
        columns, depth = short(of[N]), short(of[K])
        height, width = np.uint32(of[HEIGHT]), np.uint32(of[WIDTH])
        k0 = short(cuda.blockIdx.x * BM)
        n0 = short(cuda.blockIdx.y * BN)
        g, split = divide(cuda.blockIdx.z, of[SPLITS], of[OVER_SPLITS])
        g, split = np.int64(g), np.int64(split)
        first = split * of[PER_SPLIT]
        count = short(min(of[M] - first, of[PER_SPLIT]))  # pixels
        steps = short(np.uint32(count + BK - 1) // BK)
        image0 = first // of[IMAGE_ROWS]
        m_image = np.uint32(
            first - image0 * of[IMAGE_ROWS]
        )  # rows of that image before the split's
        c_first = g * of[C_G] + of[C_FIRST]
        # Lanes side by side copy 8 elements of a row, four rows, and on.
        a_k = thread // (4 * A_LANES) % A_OCTETS * 8 + thread % A_LANES * A_ELEMENTS
        a_m = thread // (4 * A_LANES * A_OCTETS) * 4 + thread // A_LANES % 4
        c_n = thread // (4 * C_LANES) % C_OCTETS * 8 + thread % C_LANES * C_ELEMENTS
        c_m = thread // (4 * C_LANES * C_OCTETS) * 4 + thread // C_LANES % 4
        for own in range(A_OWN):
            k = np.int64(k0 + a_k + own * (A_OCTETS * 8))
            a_offset[own] = table[at(k)] if k < depth else ABSENT
            down[own] = short(table[at(of[K] + k)]) if k < depth else short(0)
            across[own] = short(table[at(2 * of[K] + k)]) if k < depth else short(0)
        of_columns = 4 * of[K]  # where they begin in the table
        for own in range(C_OWN):
            n = n0 + c_n + own * (C_OCTETS * 8)
            c_offset[own] = table[at(of_columns + of[N] + n)] if n < columns else ABSENT
        a_from = lane % 4 * A_PITCH + warp // ACROSS * WM + lane // 4 * 4
        b_from = C_START + lane % 4 * C_PITCH + warp % ACROSS * WN + lane // 4 * 4
        for i in range(SUMS):
            acc[i] = ZERO
        wait_for_last()  # both arrays are there
        let_next_start()
        for step in range(short(-STAGES), steps):
            cp_async_wait(PENDING)  # this thread's copies of the stage have arrived
            cuda.syncthreads()  # so have the others', and nobody reads the stage before
            ahead = short(step + STAGES - 1)
            after = np.uint32(ahead + 1)
            if np.uint32(after % BATCH) == 0:
                m = np.uint32(m_image + after * BK + thread)
                place = short(np.uint32(after // BATCH) % 2 * THREADS + thread)
                on, row, column, d1 = find_pixel(m, of)
                image = image0 + on
                base[at(place)] = find_gathered(g, image, row, column, d1, of)
                other[at(place)] = c_first + find_in_other(image, row, column, d1, of)
                if not INSIDE:
                    h, w = find_first_tap(row, column, of)
                    top[at(place)] = h
                    left[at(place)] = w
            if ahead >= 0 and ahead < steps:
                to = short(np.uint32(ahead) % STAGES * STAGE)
                place = short(np.uint32(ahead) % (2 * BATCH) * BK)
                there = short(count - ahead * BK)  # pixels of the stage
                for turn in range(A_TURNS):
                    m = a_m + turn * A_APART
                    source = base[at(place + m)]
                    h, w = short(0), short(0)
                    if not INSIDE:
                        h, w = top[at(place + m)], left[at(place + m)]
                    for own in range(A_OWN):
                        ok = m < there and a_offset[own] > ABSENT
                        if not INSIDE:
                            row, column = np.uint32(h + down[own]), np.uint32(w + across[own])
                            ok = (
                                ok and row < height and column < width
                            )  # what is below 0 is far above
                        a_to = to + m * A_PITCH + a_k + own * (A_OCTETS * 8)
                        where = source + a_offset[own] if ok else 0
                        cp_async(A_RUN, shared, start + a_to * 4, a, where, ok)
                for turn in range(C_TURNS):
                    m = c_m + turn * C_APART
                    source = other[at(place + m)]
                    for own in range(C_OWN):
                        ok = m < there and c_offset[own] > ABSENT
                        c_to = to + C_START + m * C_PITCH + c_n + own * (C_OCTETS * 8)
                        where = source + c_offset[own] if ok else 0
                        cp_async(C_RUN, shared, start + c_to * 4, c, where, ok)
            cp_async_commit()
            if step >= 0:
                stage = short(np.uint32(step) % STAGES * STAGE)
                for eight in range(BK // 8):
                    for half in range(2):
                        m = eight * 8 + half * 4
                        for i in range(QUADS_DOWN):
                            load_run(4, quad, shared, stage + a_from + m * A_PITCH + i * 32)
                            for j in range(4):
                                a_part[i * 8 + j // 2 * 4 + j % 2 + half * 2] = nearer(quad[j])
                        for i in range(QUADS_ACROSS):
                            load_run(4, quad, shared, stage + b_from + m * C_PITCH + i * 32)
                            for j in range(4):
                                b_part[i * 8 + j * 2 + half] = nearer(quad[j])
                    for i in range(DOWN_TILES):
                        for j in range(ACROSS_TILES):
                            mma(acc, (i * ACROSS_TILES + j) * 4, a_part, i * 4, b_part, j * 2)
        b_first = split * of[SIZE] + g * of[B_G]
        for i in range(OWN_ROWS):  # before anything is stored: no load passes a store
            k = k0 + warp // ACROSS * WM + i // 4 * 32 + lane // 4 * 4 + i % 4
            to_row[i] = b_first + table[at(3 * of[K] + k)] if k < depth else ABSENT
        for j in range(OWN_COLUMNS):
            n = n0 + warp % ACROSS * WN + j // 8 * 32 + lane % 4 * 8 + j % 8
            to_column[j] = table[at(of_columns + n)] if n < columns else ABSENT
        store_sums(b, acc, to_row, to_column)

    return mma_reduction_kernel


def make_store_sums(tile, paired, dtype):
    """``store_sums(b, acc, to_row, to_column)``: a thread's sums, where its rows and columns of dw lie.

    Neighbouring columns go in one store where copies take ``paired`` elements.
    """
    OWN_ROWS, OWN_COLUMNS = map(specialized, (tile.WM // 8, tile.WN // 4))
    ACROSS_TILES = specialized(tile.WN // 8)
    PAIRED, ABSENT, dtype_of = paired, _ABSENT, dtype.type

    @cuda.jit(device=True, inline="always")
    def store_sums(b, acc, to_row, to_column):
        for i in range(OWN_ROWS):
            if to_row[i] > ABSENT:
                row = (i // 4 * 2 + i % 4 // 2) * ACROSS_TILES * 4 + i % 2 * 2
                for j in range(0, OWN_COLUMNS, 2):
                    at_column = row + (j // 8 * 4 + j % 4) * 4 + j % 8 // 4
                    one, two = acc[at_column], acc[at_column + 4]
                    if PAIRED:
                        if to_column[j] > ABSENT:
                            store_pair(b, to_row[i] + to_column[j], dtype_of(one), dtype_of(two))
                    else:
                        if to_column[j] > ABSENT:
                            b[at(to_row[i] + to_column[j])] = one
                        if to_column[j + 1] > ABSENT:
                            b[at(to_row[i] + to_column[j + 1])] = two

    return store_sums
