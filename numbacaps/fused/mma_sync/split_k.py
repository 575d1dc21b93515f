"""The kernel's gradient by warps, for every geometry.

    dw[k, n] = sum over m of x[m, k] * dy[m, n]

What changed from :mod:`numbacaps.fused.mma_sync.kernel`: both operands are gathered, and the sum runs over pixels. They
lie in shared memory as they lie in capsule layout, a row of taps or columns for each pixel. Where pixels lie is worked
out by all threads at once, a batch of stages ahead. Sums that three terms cannot tell are summed again
(:mod:`numbacaps.fused.mma_sync.again`).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.elements import from_element
from numbacaps.device.instructions import (
    CHUNK,
    cp_async_commit,
    cp_async_wait,
    let_next_start,
    local_array,
    shared_address,
    shared_array,
    short,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.mma_sync.again import make_sum_pixels_again
from numbacaps.fused.mma_sync.copies import kept_of, make_copy
from numbacaps.fused.mma_sync.edges import NO_PIXEL, NOWHERE, is_inside
from numbacaps.fused.mma_sync.factors import make_load_across_k
from numbacaps.fused.mma_sync.pixels import edge_of_pixel, last_pixel, pixel_of_row, place_of_pixel
from numbacaps.fused.mma_sync.rows import make_place
from numbacaps.fused.mma_sync.split_k_tile import SplitKTile
from numbacaps.fused.mma_sync.sums import make_multiply, make_store
from numbacaps.fused.mma_sync.table import (
    A_G,
    A_IMAGE,
    ABSENT,
    B_COLUMNS_AT,
    B_G,
    C_COLUMNS_AT,
    C_G,
    C_IMAGE,
    KERNEL_AT,
    PIXEL_COLUMNS,
    PIXEL_D1,
    PIXEL_ROWS,
    TAPS_AT,
)
from numbacaps.fused.told import all_told


@dataclass(frozen=True)
class SplitKSpec:
    """What the kernel is compiled for.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the operands.
    result : numpy.dtype
        Of the gradient, or float32 where splits are added later.
    terms : int
        1, or 3 of float32.
    a_run, c_run : int
        Bytes that one copy takes of x and of dy.
    paired : bool
        Columns come in pairs, which one store can take.
    tile : numbacaps.fused.mma_sync.split_k_tile.SplitKTile
    """

    dtype: np.dtype
    result: np.dtype
    terms: int
    a_run: int
    c_run: int
    paired: bool
    tile: SplitKTile


@cache
def make_mma_sync_split_k(spec):
    """Kernel for a :class:`SplitKSpec`."""
    tile, itemsize = spec.tile, spec.dtype.itemsize
    BM, BN, WM, WN = map(specialized, (tile.BM, tile.BN, tile.WM, tile.WN))
    bk, ACROSS = tile.pixels(itemsize), specialized(tile.BN // tile.WN)
    BK, STAGES, THREADS = map(specialized, (bk, tile.STAGES, tile.threads))
    a_each, c_each = spec.a_run // itemsize, spec.c_run // itemsize
    A_EACH, C_EACH = map(specialized, (a_each, c_each))
    a_pitches, c_pitches = tile.pitches(itemsize)
    place_a, place_c = make_place(*a_pitches), make_place(*c_pitches)
    of_taps, of_columns = tile.stage(itemsize)
    C_FIRST, STAGE = map(specialized, (of_taps, of_taps + of_columns))
    A_EIGHT_WORDS, C_EIGHT_WORDS = map(specialized, (of_taps // 2, of_columns // 2))  # half a stage
    # Lanes side by side copy 32 bytes of a row, then of four rows, and on.
    abreast = 32 // itemsize
    ABREAST = specialized(abreast)
    A_LANES, C_LANES = map(specialized, (abreast // a_each, abreast // c_each))
    own, apart = tile.share(tile.BM, a_each, itemsize)
    A_OWN, A_APART, A_COPIES = map(specialized, (own, apart, bk // apart))
    A_KEPT = specialized(kept_of(spec.a_run, own * bk // apart))
    A_GROUPS = specialized(tile.BM // abreast // own)
    own, apart = tile.share(tile.BN, c_each, itemsize)
    C_OWN, C_APART, C_COPIES = map(specialized, (own, apart, bk // apart))
    C_KEPT = specialized(kept_of(spec.c_run, own * bk // apart))
    C_GROUPS = specialized(tile.BN // abreast // own)
    BATCH = specialized(
        tile.threads // bk
    )  # stages whose pixels are placed at once, one by each thread
    PLACES = specialized(2 * tile.threads)
    down, beside, terms = tile.WM // 16, tile.WN // 8, spec.terms
    parts = 2 if terms == 3 else 1
    A_HELD, B_HELD = map(specialized, (parts * down * 4, parts * beside * 2))
    load_a = make_load_across_k(itemsize, terms, down, a_pitches[1], True)
    load_b = make_load_across_k(itemsize, terms, beside // 2, c_pitches[1], False)
    IS_FLOAT32, SIZE = itemsize == 4, itemsize
    SUMS, PENDING = map(specialized, (down * beside * 4, tile.STAGES - 2))
    multiply = make_multiply(spec.dtype, terms, down, beside)
    of_lane = make_store(spec.result, spec.paired, down, beside)
    own_row, own_column, store = of_lane.row, of_lane.column, of_lane.store
    OWN_ROWS, OWN_COLUMNS = map(specialized, (of_lane.rows, of_lane.columns))
    THREE = terms == 3
    sum_again = make_sum_pixels_again(beside, a_each) if THREE else None
    (begin_a, end_a), (begin_c, end_c) = (
        make_copy(run, spec.dtype) for run in (spec.a_run, spec.c_run)
    )
    held = np.dtype(stored(spec.dtype))
    ZERO = np.float32(0)
    BOUNDS = THREADS, specialized(tile.BLOCKS)

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def mma_sync_split_k_kernel(
        a,  # in   x
        c,  # in   dy
        b,  # out  (splits, size): the kernel's gradient, a partial sum each
        table,  # in   numbacaps.fused.mma_sync.table
        splits,
        per_split,  # pixels, a multiple of BK
        size,
        a_first,  # where x and dy begin in their arrays
        c_first,
    ):
        shared = cuda.shared.array(0, held, CHUNK)  # STAGES of BK rows of taps, then of columns
        # Of the pixels of two batches: where they lie from the split's first image on, in x and in dy, and where they stand.
        base = shared_array(PLACES, np.int32)
        other = shared_array(PLACES, np.int32)
        edge = shared_array(PLACES, np.int32)
        acc = local_array(SUMS, np.float32)
        a_part = local_array(A_HELD, np.float32)
        b_part = local_array(B_HELD, np.float32)
        a_offset = local_array(A_OWN, np.int32)
        tap = local_array(A_OWN, np.int32)
        c_offset = local_array(C_OWN, np.int32)
        a_from = local_array(A_COPIES, np.int32)
        around = local_array(A_COPIES, np.int32)
        c_from = local_array(C_COPIES, np.int32)
        a_kept, c_kept = local_array(A_KEPT, held), local_array(C_KEPT, held)
        to_row = local_array(OWN_ROWS, np.int32)
        to_column = local_array(OWN_COLUMNS, np.int32)
        start = shared_address(shared)
        thread = short(cuda.threadIdx.x & 1023)  # known not to be negative
        lane, warp = short(thread % 32), short(thread // 32)
        k0 = short(cuda.blockIdx.x * BM)
        n0 = short(cuda.blockIdx.y * BN)
        deep, cut = np.uint32(cuda.blockIdx.z), np.uint32(splits)
        split, g = short(deep % cut), short(deep // cut)
        M, N, K = table[at(0)], table[at(1)], table[at(2)]
        end_of_array = last_pixel(table, 0)
        first = short(split * per_split)
        last = min(M, short(first + per_split))
        steps = short((last - first + BK - 1) // BK)
        a_start = a_first + np.int64(g) * table[at(A_G)]
        c_start = c_first + np.int64(g) * table[at(C_G)]
        image_rows = table[at(PIXEL_ROWS)] * table[at(PIXEL_COLUMNS)] * table[at(PIXEL_D1)]
        image0 = np.uint32(np.uint32(first) // np.uint32(image_rows))
        m_image = short(first - image0 * image_rows)
        a_here = from_element(a, a_start + np.int64(image0) * table[at(A_IMAGE)])
        c_here = from_element(c, c_start + np.int64(image0) * table[at(C_IMAGE)])
        a_k = short(thread // (4 * A_LANES) % A_GROUPS * ABREAST + thread % A_LANES * A_EACH)
        a_m = short(thread // (4 * A_LANES * A_GROUPS) * 4 + thread // A_LANES % 4)
        c_n = short(thread // (4 * C_LANES) % C_GROUPS * ABREAST + thread % C_LANES * C_EACH)
        c_m = short(thread // (4 * C_LANES * C_GROUPS) * 4 + thread // C_LANES % 4)
        taps, c_columns = table[at(TAPS_AT)], table[at(C_COLUMNS_AT)]
        for own in range(A_OWN):
            k = short(k0 + a_k + own * (A_GROUPS * ABREAST))
            a_offset[own], tap[own] = short(0), short(NOWHERE)
            if k < K:
                a_offset[own] = table[at(taps + 2 * (k // A_EACH))]
                tap[own] = table[at(taps + 2 * (k // A_EACH) + 1)]
        for own in range(C_OWN):
            n = short(n0 + c_n + own * (C_GROUPS * ABREAST))
            c_offset[own] = table[at(c_columns + n)] if n < N else short(ABSENT)
        if IS_FLOAT32:
            a_at = short(place_a(lane % 4) + warp // ACROSS * WM + lane // 4)
            b_at = short(C_FIRST + place_c(lane % 4) + warp % ACROSS * WN + lane // 4)
        else:
            a_at = short(
                place_a(lane // 16 * 8 + lane % 8) + warp // ACROSS * WM + lane // 8 % 2 * 8
            )
            b_at = short(C_FIRST + place_c(lane % 16) + warp % ACROSS * WN + lane // 16 * 8)
        a_to, c_to = short(place_a(a_m) + a_k), short(C_FIRST + place_c(c_m) + c_n)
        for i in range(SUMS):
            acc[i] = ZERO
        wait_for_last()  # both arrays are there
        for step in range(short(-STAGES), steps):
            cp_async_wait(PENDING)  # this thread's copies of the stage have arrived
            cuda.syncthreads()  # so have the others', and no thread reads the stage before
            ahead = short(step + STAGES - 1)
            after = np.uint32(ahead + 1)
            if np.uint32(after % BATCH) == 0:
                m = short(after * BK + thread)
                is_there = first + m < last
                place = short(np.uint32(after // BATCH) % 2 * THREADS + thread)
                image, h, w, d1 = pixel_of_row(m_image + m, table, 0)
                base[at(place)] = short(place_of_pixel(image, h, w, d1, table, A_IMAGE))
                of_c = short(place_of_pixel(image, h, w, d1, table, C_IMAGE))
                other[at(place)] = of_c if is_there else short(ABSENT)
                stands = edge_of_pixel(h, w, table, 0)
                edge[at(place)] = stands if is_there else short(NO_PIXEL)
            if ahead >= 0 and ahead < steps:
                to = short(np.uint32(ahead) % STAGES * STAGE)
                place = short(np.uint32(ahead) % (2 * BATCH) * BK)
                # All before the first copy, which no load passes: so one is waited for.
                for i in range(A_COPIES):
                    a_from[i] = base[at(place + a_m + i * A_APART)]
                    around[i] = edge[at(place + a_m + i * A_APART)]
                for i in range(C_COPIES):
                    c_from[i] = other[at(place + c_m + i * C_APART)]
                for i in range(A_COPIES):
                    for own in range(A_OWN):
                        reached = short(around[i] + tap[own])
                        inside = is_inside(reached, end_of_array)
                        slot = to + a_to + place_a(i * A_APART) + own * (A_GROUPS * ABREAST)
                        source, copy = short(a_from[i] + a_offset[own]), i * A_OWN + own
                        begin_a(a_kept, copy, shared, start, slot * SIZE, a_here, source, inside)
                for i in range(C_COPIES):
                    for own in range(C_OWN):
                        # One test: of two, LLVM branches on the first, and loads in branches wait for each other.
                        known = short(c_from[i] | c_offset[own]) >= 0
                        slot = to + c_to + place_c(i * C_APART) + own * (C_GROUPS * ABREAST)
                        source, copy = short(c_from[i] + c_offset[own]), i * C_OWN + own
                        begin_c(c_kept, copy, shared, start, slot * SIZE, c_here, source, known)
            cp_async_commit()
            if step >= 0:
                stage = short(np.uint32(step) % STAGES * STAGE)
                for half in range(2):  # 8 words of pixels
                    a_first = short(stage + a_at + half * A_EIGHT_WORDS)
                    b_first = short(stage + b_at + half * C_EIGHT_WORDS)
                    load_a(a_part, shared, start, a_first)
                    load_b(b_part, shared, start, b_first)
                    multiply(acc, a_part, b_part)
            if ahead >= 0 and ahead < steps:
                to = short(np.uint32(ahead) % STAGES * STAGE)
                for i in range(A_COPIES):
                    for own in range(A_OWN):
                        slot = to + a_to + place_a(i * A_APART) + own * (A_GROUPS * ABREAST)
                        end_a(a_kept, i * A_OWN + own, shared, slot * SIZE)
                for i in range(C_COPIES):
                    for own in range(C_OWN):
                        slot = to + c_to + place_c(i * C_APART) + own * (C_GROUPS * ABREAST)
                        end_c(c_kept, i * C_OWN + own, shared, slot * SIZE)
        let_next_start()
        b_from = np.int64(g) * table[at(B_G)] + np.int64(split) * size
        of_kernel, b_columns = table[at(KERNEL_AT)], table[at(B_COLUMNS_AT)]
        for i in range(OWN_ROWS):  # before anything is stored: no load passes a store
            k = short(k0 + warp // ACROSS * WM + own_row(i, lane))
            to_row[i] = table[at(of_kernel + k)] if k < K else short(ABSENT)
        for j in range(OWN_COLUMNS):
            n = short(n0 + warp % ACROSS * WN + own_column(j, lane))
            to_column[j] = table[at(b_columns + n)] if n < N else short(ABSENT)
        store(from_element(b, b_from), acc, to_row, to_column, lane)
        if THREE:
            cuda.syncwarp()  # lanes store for each other
            if not all_told(acc, SUMS):
                row0, column0 = (
                    k0 + warp // ACROSS * WM + lane // 4,
                    n0 + warp % ACROSS * WN + lane % 4 * 2,
                )
                where = a_start, c_start, row0, column0
                sum_again(b, b_from, a, c, table, *where, first, last, SUMS)

    return mma_sync_split_k_kernel
