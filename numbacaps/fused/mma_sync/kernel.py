"""Tensor cores by warps: a product that gathers one operand, for every geometry.

    c[m, n] = sum over k of a[m, k] * b[k, n]

What changed from register tiles: a warp multiplies WM x WN with ``mma.sync``, 16 rows by 8 columns at a time. Copies
are asynchronous (``cp.async``) and STAGES of them are under way. And nothing of the geometry is compiled in: what
Algorithm 5's index functions say stands in a table (:mod:`numbacaps.fused.mma_sync.table`), so that one kernel serves
all sizes whose copies take the same number of bytes.

In three terms a factor of float32 is the sum of a high and a low part, which TF32 both has
(:mod:`numbacaps.fused.mma_sync.sums`). Sums that three terms cannot tell are summed again (:mod:`numbacaps.fused.mma_sync.again`).
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
    load_run,
    local_array,
    shared_address,
    shared_array,
    short,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.mma_sync.again import make_sum_again
from numbacaps.fused.mma_sync.copies import kept_of, make_copy
from numbacaps.fused.mma_sync.edges import NO_PIXEL, is_inside
from numbacaps.fused.mma_sync.factors import make_load_across_k, make_load_along_k
from numbacaps.fused.mma_sync.pixels import edge_of_pixel, last_pixel, pixel_of_row, place_of_pixel
from numbacaps.fused.mma_sync.rows import make_place
from numbacaps.fused.mma_sync.sums import make_multiply, make_store
from numbacaps.fused.mma_sync.table import (
    A_G,
    A_IMAGE,
    ABSENT,
    B_COLUMNS_AT,
    B_G,
    C_COLUMNS_AT,
    C_FIRST,
    C_G,
    C_IMAGE,
    HEADER,
    KERNEL_AT,
    PIXEL_COLUMNS,
    PIXEL_D1,
    PIXEL_ROWS,
    TAPS_AT,
)
from numbacaps.fused.mma_sync.tile import Tile
from numbacaps.fused.told import all_told


@dataclass(frozen=True)
class Spec:
    """What the kernel is compiled for.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the operands.
    result : numpy.dtype
        Of the result, or float32 where splits are added later.
    terms : int
        1, or 3 of float32.
    a_run, b_run : int
        Bytes that one copy takes of the gathered array and of the kernel.
    along_k : bool
        Neighbours in the kernel are neighbours along k; else they are columns.
    paired : bool
        Results come in pairs, which one store can take.
    tile : numbacaps.fused.mma_sync.tile.Tile
    """

    dtype: np.dtype
    result: np.dtype
    terms: int
    a_run: int
    b_run: int
    along_k: bool
    paired: bool
    tile: Tile


@cache
def make_mma_sync(spec):
    """Kernel for a :class:`Spec`."""
    tile, itemsize = spec.tile, spec.dtype.itemsize
    BM, BN, WM, WN = map(specialized, (tile.BM, tile.BN, tile.WM, tile.WN))
    bk, ACROSS = tile.WORDS * 4 // itemsize, specialized(tile.BN // tile.WN)
    BK, HALVES, STAGES = map(specialized, (bk, tile.WORDS // 8, tile.STAGES))
    A_RUN, B_RUN = map(specialized, (spec.a_run, spec.b_run))
    along_k = spec.along_k
    ALONG_K = specialized(along_k)
    a_each, b_each = spec.a_run // itemsize, spec.b_run // itemsize
    # A thread's copies of a stage lie in one column of it.
    lanes = bk // a_each
    apart = tile.threads // lanes
    A_LANES, A_APART, A_COPIES = map(specialized, (lanes, apart, tile.BM // apart))
    A_KEPT = specialized(kept_of(spec.a_run, tile.BM // apart))
    lanes = (bk if along_k else tile.BN) // b_each
    apart, rows = tile.threads // lanes, tile.BN if along_k else bk
    copies = -(-rows // apart)
    B_KEPT = specialized(kept_of(spec.b_run, copies))
    # Along k, lanes side by side copy a row. Across k they copy 32 bytes of a row, then of the next three rows: those often follow
    # each other in the kernel.
    by_fours = not along_k and apart >= 4
    abreast, down_first = (32 // spec.b_run, 4) if by_fours else (lanes, 1)
    B_EACH, B_APART, B_ABREAST, B_DOWN = map(specialized, (b_each, apart, abreast, down_first))
    B_GROUPS = specialized(lanes // abreast)
    B_ROWS, B_COPIES = map(specialized, (rows, copies))
    B_HELD, B_ROWS_HELD = map(specialized, (copies, 1) if along_k else (1, copies))
    B_WHOLE = specialized(rows % apart == 0)
    pitch, (row, four_rows) = tile.pitch * 4, tile.b_pitches(itemsize)
    PITCH, B_FIRST = map(specialized, (pitch, tile.BM * pitch))  # bytes
    place = make_place(row, four_rows)
    EIGHT_WORDS = specialized(8 // itemsize * four_rows)  # elements of 8 words of k
    STAGE = specialized(tile.stage_bytes(along_k, itemsize))
    down, beside, terms = tile.WM // 16, tile.WN // 8, spec.terms
    parts = 2 if terms == 3 else 1
    A_HELD, B_PARTS = map(specialized, (parts * down * 4, parts * beside * 2))
    load_a = make_load_along_k(itemsize, terms, down, pitch)
    load_b_along = make_load_along_k(itemsize, terms, beside // 2, pitch)
    load_b_across = make_load_across_k(itemsize, terms, beside // 2, four_rows, False)
    IS_FLOAT32, SIZE = itemsize == 4, itemsize
    SUMS, PENDING = map(specialized, (down * beside * 4, tile.STAGES - 2))
    multiply = make_multiply(spec.dtype, terms, down, beside)
    of_lane = make_store(spec.result, spec.paired, down, beside)
    own_row, own_column, store = of_lane.row, of_lane.column, of_lane.store
    OWN_ROWS, OWN_COLUMNS = map(specialized, (of_lane.rows, of_lane.columns))
    THREE = terms == 3
    sum_again = make_sum_again(tile, bk, a_each) if THREE else None
    ZERO = np.float32(0)
    BOUNDS = tuple(map(specialized, (tile.threads, tile.BLOCKS)))
    held = np.dtype(stored(spec.dtype))
    (begin_a, end_a), (begin_b, end_b) = (
        make_copy(run, spec.dtype) for run in (spec.a_run, spec.b_run)
    )

    @cuda.jit(device=True, inline="always")
    def slot_of_b(to, b_to, i):  # where copy i of the kernel goes, in bytes
        if ALONG_K == 1:
            return to + b_to + i * (B_APART * PITCH)
        return (to // SIZE + b_to + place(i * B_APART)) * SIZE

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def mma_sync_kernel(
        a,  # in   the gathered array
        b,  # in   the kernel
        c,  # out  the other array, or partial sums
        table,  # in   numbacaps.fused.mma_sync.table
        products,  # in the table
        splits,
        per_split,  # stages
        size,  # elements of a split's sums
        a_first,  # where the operands begin in their arrays
        b_first,
    ):
        shared = cuda.shared.array(
            0, held, CHUNK
        )  # STAGES of BM rows of PITCH bytes, then of the kernel's rows
        # Of each row: where its pixel lies from the block's first image on, where that stands, where the result goes.
        lies = shared_array(BM, np.int32)
        stands = shared_array(BM, np.int32)
        goes = shared_array(BM, np.int32)
        acc = local_array(SUMS, np.float32)
        a_part = local_array(A_HELD, np.float32)
        b_part = local_array(B_PARTS, np.float32)
        base = local_array(A_COPIES, np.int32)
        edge = local_array(A_COPIES, np.int32)
        b_column = local_array(B_HELD, np.int32)
        b_rows = local_array(B_ROWS_HELD, np.int32)
        tap = local_array(2, np.int32)
        a_kept, b_kept = local_array(A_KEPT, held), local_array(B_KEPT, held)
        to_row = local_array(OWN_ROWS, np.int32)
        to_column = local_array(OWN_COLUMNS, np.int32)
        start = shared_address(shared)
        thread = short(cuda.threadIdx.x & 1023)  # known not to be negative
        lane, warp = short(thread % 32), short(thread // 32)
        n0 = short(cuda.blockIdx.y * BN)
        deep, cut, of = np.uint32(cuda.blockIdx.z), np.uint32(splits), np.uint32(products)
        split, rest = short(deep % cut), np.uint32(deep // cut)
        head, g = short(short(rest % of) * HEADER), short(rest // of)
        M, N, K = table[at(head)], table[at(head + 1)], table[at(head + 2)]
        m0 = short(cuda.blockIdx.x * BM)
        if m0 >= M:
            return
        rows = table[at(head + PIXEL_ROWS)] * table[at(head + PIXEL_COLUMNS)]
        image_rows = np.uint32(rows * table[at(head + PIXEL_D1)])
        image0 = np.uint32(np.uint32(m0) // image_rows)
        m_image = np.uint32(m0) - image0 * image_rows
        a_image = table[at(head + A_IMAGE)]
        a_from = a_first + np.int64(g) * table[at(head + A_G)] + np.int64(image0) * a_image
        b_from = b_first + np.int64(g) * table[at(head + B_G)]
        a_here, b_here = from_element(a, a_from), from_element(b, b_from)
        end_of_array = last_pixel(table, head)
        taps, of_kernel = table[at(head + TAPS_AT)], table[at(head + KERNEL_AT)]
        b_columns, c_columns = table[at(head + B_COLUMNS_AT)], table[at(head + C_COLUMNS_AT)]
        a_lane, a_row = thread % A_LANES, thread // A_LANES
        b_lane = thread // (B_ABREAST * B_DOWN) % B_GROUPS * B_ABREAST + thread % B_ABREAST
        b_row = thread // (B_ABREAST * B_DOWN * B_GROUPS) * B_DOWN + thread // B_ABREAST % B_DOWN
        if thread < BM:
            is_there = m0 + thread < M
            image, h, w, d1 = pixel_of_row(m_image + np.uint32(thread), table, head)
            lies[at(thread)] = short(place_of_pixel(image, h, w, d1, table, head + A_IMAGE))
            stands[at(thread)] = edge_of_pixel(h, w, table, head) if is_there else short(NO_PIXEL)
            of_c = short(place_of_pixel(image, h, w, d1, table, head + C_IMAGE))
            goes[at(thread)] = of_c if is_there else short(ABSENT)
        for i in range(B_HELD):
            n = short(n0 + (b_row + i * B_APART if ALONG_K == 1 else b_lane * B_EACH))
            b_column[i] = table[at(b_columns + n)] if n < N else short(ABSENT)
        cuda.syncthreads()
        for i in range(A_COPIES):
            base[i] = lies[at(short(a_row + i * A_APART))]
            edge[i] = stands[at(short(a_row + i * A_APART))]
        b_table = short(of_kernel + (b_lane * B_EACH if ALONG_K == 1 else b_row))
        stages = short((K + BK - 1) // BK)
        first = short(split * per_split)
        last = min(stages, short(first + per_split))
        for i in range(SUMS):
            acc[i] = ZERO
        a_to = short(a_row * PITCH + a_lane * A_RUN)
        # Bytes along k, elements across it.
        if ALONG_K == 1:
            b_to = short(B_FIRST + b_row * PITCH + b_lane * B_RUN)
        else:
            b_to = short(B_FIRST // SIZE + place(b_row) + b_lane * B_EACH)
        # Where a lane reads its row of four matrices.
        a_at = short((warp // ACROSS * WM + lane % 16) * PITCH + lane // 16 * 16)
        if ALONG_K == 1:
            b_at = short(
                B_FIRST
                + (warp % ACROSS * WN + lane // 16 * 8 + lane % 8) * PITCH
                + lane // 8 % 2 * 16
            )
        elif IS_FLOAT32:
            b_at = short(B_FIRST // SIZE + place(lane % 4) + warp % ACROSS * WN + lane // 4)
        else:
            b_at = short(B_FIRST // SIZE + place(lane % 16) + warp % ACROSS * WN + lane // 16 * 8)
        wait_for_last()  # the operands are there
        begin = min(stages, first)  # splits are of the deepest product
        load_run(2, tap, table, taps + 2 * (begin * A_LANES + a_lane))
        for i in range(B_ROWS_HELD):
            b_rows[i] = table[at(b_table + begin * BK + i * B_APART)]
        for step in range(short(first - (STAGES - 1)), last):
            cp_async_wait(PENDING)  # this thread's copies of the stage have arrived
            cuda.syncthreads()  # so have the others', and no thread reads the stage before
            ahead = short(step + STAGES - 1)
            if ahead < last:
                to = short(np.uint32(ahead - first) % STAGES * STAGE)
                offset, where = tap[0], tap[1]
                for i in range(A_COPIES):
                    reached = short(edge[i] + where)
                    a_slot = to + a_to + i * (A_APART * PITCH)
                    source = short(base[i] + offset)
                    inside = is_inside(reached, end_of_array)
                    begin_a(a_kept, i, shared, start, a_slot, a_here, source, inside)
                for i in range(B_COPIES):
                    row = b_rows[0 if ALONG_K == 1 else i]
                    column = b_column[i if ALONG_K == 1 else 0]
                    known = row >= 0 and column >= 0
                    if B_WHOLE == 1 or b_row + i * B_APART < B_ROWS:
                        b_slot = slot_of_b(to, b_to, i)
                        begin_b(
                            b_kept, i, shared, start, b_slot, b_here, short(row + column), known
                        )
                # The table's next entries, while products are under way.
                for i in range(B_ROWS_HELD):
                    b_rows[i] = table[at(b_table + (ahead + 1) * BK + i * B_APART)]
                load_run(2, tap, table, taps + 2 * ((ahead + 1) * A_LANES + a_lane))
            cp_async_commit()
            if step >= first:
                stage = short(np.uint32(step - first) % STAGES * STAGE)
                for half in range(HALVES):  # 8 words of k
                    load_a(a_part, shared, start + (stage + a_at + half * 32))
                    if ALONG_K == 1:
                        load_b_along(b_part, shared, start + (stage + b_at + half * 32))
                    else:
                        first_element = stage // SIZE + b_at + half * EIGHT_WORDS
                        load_b_across(b_part, shared, start, first_element)
                    multiply(acc, a_part, b_part)
            if ahead < last:
                to = short(np.uint32(ahead - first) % STAGES * STAGE)
                for i in range(A_COPIES):
                    end_a(a_kept, i, shared, to + a_to + i * (A_APART * PITCH))
                for i in range(B_COPIES):
                    if B_WHOLE == 1 or b_row + i * B_APART < B_ROWS:
                        end_b(b_kept, i, shared, slot_of_b(to, b_to, i))
        let_next_start()
        for i in range(OWN_ROWS):  # before anything is stored: no load passes a store
            to_row[i] = goes[at(short(warp // ACROSS * WM + own_row(i, lane)))]
        for j in range(OWN_COLUMNS):
            n = short(n0 + warp % ACROSS * WN + own_column(j, lane))
            to_column[j] = table[at(c_columns + n)] if n < N else short(ABSENT)
        c_from = np.int64(g) * table[at(head + C_G)] + table[at(head + C_FIRST)]
        c_from += np.int64(split) * size + np.int64(image0) * table[at(head + C_IMAGE)]
        store(from_element(c, c_from), acc, to_row, to_column, lane)
        if THREE:
            cuda.syncwarp()  # lanes store for each other
            if not all_told(acc, SUMS):
                sum_again(a, b, c, table, products, splits, per_split, size, a_first, b_first)

    return mma_sync_kernel
