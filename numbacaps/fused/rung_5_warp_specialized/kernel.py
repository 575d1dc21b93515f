"""Rung 5, bulk copies: threads of their own keep the copy engine busy, and nobody waits for everybody.

    c[m, n] = sum over k of a[m, k] * b[k, n]

What changed: one instruction fetches a whole box, all slots of all images and the stage's channels
(:mod:`numbacaps.device.tensor_map`), one more a row of taps of the packed kernel. The engine works out
the addresses, and what lies over the edge is zero. Boxes and rows of taps are two rings; a barrier
in shared memory says when one is full, another when it may be overwritten, so warpgroups drift apart and
one multiplies while another loads. One thread asks for boxes, another for the packed kernel, so that boxes
are on their way while the kernel is packed. There are as many blocks as multiprocessors, and each takes tile
after tile: while a result is written, the next tile's boxes come. Where the last round has too few tiles for all
blocks, another launch of the kernel takes them in parts.

The first operand comes through registers: a slot's rows are loaded once for all taps and pixels that
read them, where capsules are wide enough a run of k's in one load. Which of a product's k's a thread
holds does not matter as long as the packed kernel has them in the same places. For ``terms`` of 3 both
operands are split in two parts:

    a * b = low(a) * high(b) + high(a) * low(b) + high(a) * high(b)

whose sums leave the tensor cores, which cut off bits as they add, once a batch, for ordinary adds.
"""

from functools import cache

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import (
    CHUNK,
    FRAGMENT_PRODUCTS,
    HALVES,
    TF32_NEARER,
    bulk_copy,
    clock,
    cut_tf32,
    descriptor_strides,
    fence_proxy_async,
    fewer_registers,
    let_next_start,
    load_run,
    map_address,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    more_registers,
    shared_address,
    short,
    shuffle,
    store_pair,
    store_quad,
    store_words,
    tensor_copy,
    wait_for_last,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda
from numbacaps.fused.epilogue import Epilogue, activate, make_differentiate
from numbacaps.fused.rung_5_warp_specialized.tile import BARRIERS, COPYING_REGISTERS, parts_of

_NAP = 100  # nanoseconds


@cache
def make_bulk_wgmma(
    pixels,
    window,
    box,
    rings,
    channels,
    D,
    n,
    groups,
    whole,
    tile,
    columns_in,
    batch_rows,
    ahead,
    run,
    terms,
    dtype,
    epilogue=Epilogue(),
):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` of float32, or of float16 or bfloat16 in pairs.

    Parameters
    ----------
    pixels : numbacaps.fused.implicit_gemm.Pixels
    window : numbacaps.fused.rung_4_wgmma.tile.Window
    box : numbacaps.fused.rung_5_warp_specialized.tile.Box
    rings : numbacaps.fused.rung_5_warp_specialized.tile.Rings
    channels, D : int
        As the product's: of 2 bytes an element ``D`` counts pairs.
    n : numbacaps.fused.implicit_gemm.Columns
    groups : int
        Products.
    whole, tile : numbacaps.fused.rung_5_warp_specialized.tile.BulkTile
        Turns are counted in whole tiles; a block takes a part of one, which may be all of it.
    columns_in : int
        :func:`numbacaps.fused.rung_5_warp_specialized.tile.columns_read`.
    batch_rows : int
        Rows of taps whose products a warpgroup starts at once; a divisor of all.
    ahead : bool
        The next batch is loaded while one is multiplied; otherwise other warpgroups multiply meanwhile.
    run : int
        :func:`numbacaps.fused.rung_5_warp_specialized.tile.run`.
    terms : int
        1 or 3.
    dtype : numpy.dtype
        Of the arrays; sums are of float32.
    epilogue : numbacaps.fused.epilogue.Epilogue
    """
    TH, TW, PW, BN = tile.TH, tile.TW, tile.PW, tile.BN
    WARPS = tile.warpgroups * 4
    REGISTERS, COPYING = tile.registers, COPYING_REGISTERS
    WARPGROUPS_ACROSS = TW // PW
    ROWS, COLUMNS, D1 = pixels.rows, pixels.columns, pixels.D1
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = pixels.other
    C_FIRST, C_G = pixels.first, pixels.steps[2]
    ROW_STEP, COLUMN_STEP = pixels.top[0], pixels.left[0]
    TOP, LEFT = pixels.top[1] + window.first[0], pixels.left[1] + window.first[1]
    TAP_ROWS, TAP_COLUMNS = window.taps
    TAP_TOP, TAP_LEFT = window.start
    TAP_DOWN, TAP_ACROSS = window.step
    WHOLE_TH, WHOLE_TW = whole.TH, whole.TW
    DOWN, ACROSS = -(-ROWS // WHOLE_TH), -(-COLUMNS // WHOLE_TW)  # patches
    PATCHES = DOWN * ACROSS
    PARTS_ACROSS, TILE_PARTS = WHOLE_TW // TW, parts_of(whole, tile)
    IMAGES = box.images
    FILLED = IMAGES * D1  # rows of the 64
    IMAGE_AT, COLUMN_AT, ROW_AT, CHANNEL_AT = (
        box.image_step,
        box.column_step,
        box.row_step,
        box.channel_step,
    )
    E_BY_G, E_BY_LEFT, BY_LEFT = (0, box.pixel, 0) if box.whole_rows else (box.pixel, 0, 1)
    CHANNELS = box.channels
    GROUPS = CHANNELS * D // 8
    STEPS = -(-channels // CHANNELS)
    COLUMNS_IN = columns_in
    BATCH, AHEAD = batch_rows, ahead
    BATCHES = TAP_ROWS // BATCH
    FRAGMENTS = BATCH * GROUPS * COLUMNS_IN * 4
    BOXES, B_ROWS = rings.boxes, rings.tap_rows
    A_BYTES, B_BYTES = box.bytes, rings.tap_row_bytes
    A_PITCH = rings.box_bytes
    B_ELEMENTS = B_BYTES // 4
    A_EMPTY = 8 * BOXES
    B_FULL = 16 * BOXES
    B_EMPTY = B_FULL + 8 * B_ROWS
    A_START = BARRIERS
    B_START = A_START + BOXES * A_PITCH
    B_MATRIX = descriptor_strides(BN * CHUNK, 128)
    PART = 2 * BN  # chunks of one product's second operand
    PARTS = 2 if terms > 1 else 1
    SPLIT = terms > 1
    CHAINS = PW * PARTS
    SUMS = BN // 2
    ALL_SUMS = SUMS * PW
    PART_SUMS = ALL_SUMS if SPLIT else 1
    REST = FRAGMENTS if SPLIT else 1
    RUN = run
    RUNS = 2 * GROUPS // RUN
    N, CAPSULE = n.N, n.D
    BY_CAPSULE = n.other
    PAIRED = C_D1 % 2 == 0 and N % 2 == 0
    N_TILES = -(-N // BN)
    N_FULL = N % BN == 0
    G = groups
    ROUNDED = dtype.itemsize == 4
    # A pixel's capsule is 16 bytes, half of what memory is written in: so two at once.
    QUADS = ROUNDED and D1 == 2 and C_D1 == 2 and PW % 2 == 0 and N % 2 == 0
    # Of 2 bytes an element it is 8, so four at once, where two neighbours always begin at a multiple of 16 bytes.
    apart = C_IMAGE, C_ROW, C_FIRST, n.other, pixels.steps[2] * (groups - 1)
    adjacent = C_D1 == 2 and C_COLUMN == 4 and TW % 4 == 0 and COLUMNS % 2 == 0
    FOURS = not ROUNDED and D1 == 2 and PW % 4 == 0 and N % 2 == 0 and adjacent
    FOURS = FOURS and all(step % 8 == 0 for step in apart)
    ZERO = np.float32(0)
    _, write = conversions(dtype)
    halves = HALVES.get(dtype.name)
    NEARER = TF32_NEARER
    multiply = FRAGMENT_PRODUCTS[dtype.name]
    RESULT, RESULTS = epilogue.results.start, epilogue.results.stop
    # Known before functions are inlined, which takes long.
    ACTIVATES, DIFFERENTIATES = RESULTS > 1, epilogue.differentiates
    BEFORE = SUMS if DIFFERENTIATES else 1
    BLOCKS, LANES, MASK = epilogue.blocks, epilogue.lanes, epilogue.mask
    SLOPE = np.float32(epilogue.slope)
    differentiate = make_differentiate(SUMS, 2, 2, epilogue, np.dtype(np.float32))

    @cuda.jit(device=True, inline="always")
    def place_of(turn, first):
        """Of a block's turn: its group and columns, and where its images and pixels begin."""
        part, turn = turn % TILE_PARTS, first + turn // TILE_PARTS
        # All columns of a patch beside each other: its boxes come from memory once.
        n_tile, patch = turn % N_TILES, turn // N_TILES % PATCHES
        column0 = patch % ACROSS * WHOLE_TW + part % PARTS_ACROSS * TW
        row0 = patch // ACROSS * WHOLE_TH + part // PARTS_ACROSS * TH
        g = turn // (PATCHES * N_TILES) % G
        image0 = turn // (PATCHES * N_TILES * G) * IMAGES
        return g, n_tile, image0, row0, column0

    @cuda.jit(device=True, inline="always")
    def place_of_column(n):
        """Where in a pixel of the result a column lies."""
        n = np.uint32(n)
        return np.uint32(n // CAPSULE) * BY_CAPSULE + np.uint32(n % CAPSULE)

    @cuda.jit(device=True, inline="always")
    def load_rows(to, shared, slots, run_at, row_at, below_at):
        """A thread's part of a batch of rows of slots: of each group and column four elements."""
        values = cuda.local.array(RUN, np.float32)
        for r in range(BATCH):
            slot_row = slots + (TAP_TOP + r * TAP_DOWN) * ROW_AT
            for i in range(RUNS):
                for half in range(2):
                    place = slot_row + run_at[i] + (below_at if half else row_at)
                    for column in range(COLUMNS_IN):
                        load_run(RUN, values, shared, place + column * COLUMN_AT)
                        for j in range(RUN):
                            chunk = i * RUN + j  # of 4 k's, two to a product
                            k = (r * GROUPS + chunk // 2) * COLUMNS_IN + column
                            to[k * 4 + chunk % 2 * 2 + half] = values[j]

    @cuda.jit(device=True, inline="always")
    def differentiate_pixel(acc, j, arrays, place, images, lane, warp):
        """The gradient of an activation in place, of the j-th of a warpgroup's pixels."""
        before, pair, array = arrays
        g, image0, h, w, first_n = place
        for half in range(2):
            row = warp % 4 * 16 + lane // 4 + half * 8
            image = image0 + row // D1
            to = g * C_G + C_FIRST + image * C_IMAGE + row % D1 * C_D1
            to += h * C_ROW + (w + j) * C_COLUMN
            filled = row < FILLED and image < images and h < ROWS and w + j < COLUMNS
            for block in range(BN // 8):
                n = first_n + block * 8
                pair[0] = ZERO
                pair[1] = ZERO
                if filled and (N_FULL or n < N):
                    load_run(2, pair, array, to + place_of_column(n))
                before[block * 4 + half * 2] = pair[0]
                before[block * 4 + half * 2 + 1] = pair[1]
        differentiate(acc, j * SUMS, before)

    @kept_on_disk
    @cuda.jit(launch_bounds=(tile.threads, 1))
    def bulk_wgmma_kernel(
        b,  # in   the packed kernel
        c,  # out  the other array
        words,  # in   the tensor map of the gathered array
        activated,  # out  the same behind an activation; in  what one was of, whose gradient c is; or c again
        images,
        first,  # turn of this launch, in whole tiles
        turns,  # of all blocks
        later,  # cycles by which a block begins behind the one before it, of those that have the fewest turns
        waits,  # 0 behind another product of the pass, 1 right behind the packing, 2 anywhere else
    ):
        shared = cuda.shared.array(0, np.float32)
        begin = shared_address(shared)
        start = (begin + 127) // 128 * 128
        thread = cuda.threadIdx.x
        warp = short(thread >> 5 & 31)  # as in // 32, but known not to be negative
        lane = short(thread & 31)
        first_turn, blocks, last_turn = short(cuda.blockIdx.x), short(cuda.gridDim.x), short(turns)
        before_all = short(first)
        if thread == 0:
            for i in range(BOXES):
                mbarrier_init(shared, start + 8 * i, 1)
                mbarrier_init(shared, start + A_EMPTY + 8 * i, WARPS)
            for i in range(B_ROWS):
                mbarrier_init(shared, start + B_FULL + 8 * i, 1)
                mbarrier_init(shared, start + B_EMPTY + 8 * i, WARPS)
            fence_proxy_async()  # the copy engine may see the barriers
        cuda.syncthreads()
        if warp >= WARPS:
            fewer_registers(COPYING)
            if warp == WARPS and lane == 0:  # boxes, which wait for no packing
                if waits > 1:
                    wait_for_last()  # the gathered array is there
                box_map = map_address(words, 0)
                longer = last_turn % blocks  # blocks that have a turn more than the others
                spare = (first_turn - longer) * later
                if (
                    spare > 0
                ):  # the others begin one after the other, so that not all write at the same time
                    begun = clock()
                    while clock() - begun < spare:
                        cuda.nanosleep(_NAP)
                a_turn, a_phase = short(0), short(1)  # what nobody has filled yet counts as empty
                for turn in range(first_turn, last_turn, blocks):
                    g, n_tile, image0, row0, column0 = place_of(turn, before_all)
                    top = row0 * ROW_STEP + TOP
                    left = column0 * COLUMN_STEP + LEFT
                    e = g * E_BY_G + left * E_BY_LEFT
                    for step in range(short(STEPS)):
                        full = start + a_turn * 8
                        mbarrier_wait(shared, full + A_EMPTY, a_phase)
                        mbarrier_expect(shared, full, A_BYTES)
                        to = start + A_START + a_turn * A_PITCH
                        channel = step * CHANNELS
                        at_left = left * BY_LEFT
                        tensor_copy(shared, to, box_map, e, image0, at_left, top, channel, full)
                        a_turn = short(a_turn + 1)
                        if a_turn == BOXES:
                            a_turn = short(0)
                            a_phase = short(a_phase ^ 1)
            if warp == WARPS + 1 and lane == 0:  # rows of taps
                if waits > 0:
                    wait_for_last()  # the kernel is packed
                let_next_start()  # another product of the same pass, which has a result of its own
                b_turn, b_phase = short(0), short(1)
                for turn in range(first_turn, last_turn, blocks):
                    g, n_tile, _, _, _ = place_of(turn, before_all)
                    b_from = (g * N_TILES + n_tile) * (STEPS * TAP_ROWS * B_ELEMENTS)
                    for _ in range(short(STEPS * TAP_ROWS)):
                        full = start + B_FULL + b_turn * 8
                        mbarrier_wait(shared, full + (B_EMPTY - B_FULL), b_phase)
                        mbarrier_expect(shared, full, B_BYTES)
                        to = start + B_START + b_turn * B_BYTES
                        bulk_copy(shared, to, b, b_from, B_BYTES, full)
                        b_from += B_ELEMENTS
                        b_turn = short(b_turn + 1)
                        if b_turn == B_ROWS:
                            b_turn = short(0)
                            b_phase = short(b_phase ^ 1)
                wait_for_last()  # who waits for this kernel waits for those before it too
        else:
            more_registers(REGISTERS)
            acc = cuda.local.array(ALL_SUMS, np.float32)
            part = cuda.local.array(PART_SUMS, np.float32)
            high = cuda.local.array(FRAGMENTS, np.float32)
            low = cuda.local.array(REST, np.float32)
            loaded = cuda.local.array(FRAGMENTS, np.float32)
            run_at = cuda.local.array(RUNS, np.int32)
            before = cuda.local.array(BEFORE, np.float32)
            pair = cuda.local.array(2, np.float32)
            row_of_patch = warp // 4 // WARPGROUPS_ACROSS
            column_of_patch = warp // 4 % WARPGROUPS_ACROSS * PW
            row = warp % 4 * 16 + lane // 4
            row_at = 0
            if row < FILLED:
                row_at = row // D1 * IMAGE_AT + row % D1 * D
            below_at = 0
            if row + 8 < FILLED:
                below_at = (row + 8) // D1 * IMAGE_AT + (row + 8) % D1 * D
            # Of 2 bytes an element, half the lanes load the row below first: or channels would meet in a bank.
            late = not ROUNDED and lane & 2 > 0
            if late:
                row_at, below_at = below_at, row_at
            for i in range(RUNS):
                k = (i * 4 + lane % 4) * RUN
                run_at[i] = k // D * CHANNEL_AT + k % D
            first_slot = (start - begin + A_START) // 4
            first_slot += (
                row_of_patch * ROW_STEP * ROW_AT + column_of_patch * COLUMN_STEP * COLUMN_AT
            )
            a_turn, b_turn = short(0), short(0)
            a_phase, b_phase = short(0), short(0)
            for turn in range(first_turn, last_turn, blocks):
                for i in range(ALL_SUMS):
                    acc[i] = ZERO
                for i in range(PART_SUMS):
                    part[i] = ZERO
                if AHEAD:
                    mbarrier_wait(shared, start + a_turn * 8, a_phase)
                    slots = first_slot + a_turn * (A_PITCH // 4)
                    load_rows(loaded, shared, slots, run_at, row_at, below_at)
                for step in range(short(STEPS)):
                    if not AHEAD:
                        mbarrier_wait(shared, start + a_turn * 8, a_phase)
                    for batch in range(BATCHES):
                        if not AHEAD:
                            slots = first_slot + a_turn * (A_PITCH // 4)
                            slots += batch * (BATCH * TAP_DOWN * ROW_AT)
                            load_rows(loaded, shared, slots, run_at, row_at, below_at)
                        for i in range(FRAGMENTS):
                            if SPLIT:
                                # Not loaded[i] itself, though nobody reads its low bits: what is loaded
                                # next would take its place while it is still multiplied.
                                high[i] = cut_tf32(loaded[i])
                                low[i] = (loaded[i] - high[i]) * NEARER
                            elif ROUNDED:
                                high[i] = loaded[i] * NEARER
                            else:
                                high[i] = loaded[i ^ 1] if late else loaded[i]
                        for r in range(BATCH):
                            wrapped = short(1 if b_turn + r >= B_ROWS else 0)
                            b_full = start + B_FULL + (b_turn + r - wrapped * B_ROWS) * 8
                            mbarrier_wait(shared, b_full, b_phase ^ wrapped)
                        wgmma_fence()
                        for chain in range(CHAINS):  # of a pixel; in three terms the small products
                            j = chain // PARTS  # first, which lose nothing while the sum is small
                            for r in range(BATCH):
                                wrapped = short(1 if b_turn + r >= B_ROWS else 0)
                                row_turn = b_turn + r - wrapped * B_ROWS
                                b_row = B_MATRIX + (start + B_START + row_turn * B_BYTES) // 16
                                for tap in range(TAP_COLUMNS):
                                    column = j * COLUMN_STEP + TAP_LEFT + tap * TAP_ACROSS
                                    for group in range(GROUPS):
                                        b_high = b_row + (tap * PARTS * GROUPS + group) * PART
                                        b_low = b_high + GROUPS * PART
                                        k = ((r * GROUPS + group) * COLUMNS_IN + column) * 4
                                        s = j * SUMS
                                        if not SPLIT:
                                            multiply(BN, acc, s, high, k, shared, b_high, 1)
                                        elif chain % PARTS == 0:
                                            more = 1 if r + tap + group > 0 else 0
                                            multiply(BN, part, s, low, k, shared, b_high, more)
                                            multiply(BN, part, s, high, k, shared, b_low, 1)
                                        else:
                                            multiply(BN, part, s, high, k, shared, b_high, 1)
                        wgmma_commit()
                        if batch < BATCHES - 1:
                            if AHEAD:
                                slots = first_slot + a_turn * (A_PITCH // 4)
                                slots += (batch + 1) * (BATCH * TAP_DOWN * ROW_AT)
                                load_rows(loaded, shared, slots, run_at, row_at, below_at)
                        else:
                            if lane == 0:
                                mbarrier_arrive(shared, start + A_EMPTY + a_turn * 8)
                            a_turn = short(a_turn + 1)
                            if a_turn == BOXES:
                                a_turn = short(0)
                                a_phase = short(a_phase ^ 1)
                            if AHEAD and step < STEPS - 1:
                                mbarrier_wait(shared, start + a_turn * 8, a_phase)
                                slots = first_slot + a_turn * (A_PITCH // 4)
                                load_rows(loaded, shared, slots, run_at, row_at, below_at)
                        wgmma_wait()
                        if SPLIT:
                            for i in range(ALL_SUMS):
                                acc[i] += part[i]
                        for r in range(BATCH):
                            if lane == 0:
                                mbarrier_arrive(shared, start + B_EMPTY + b_turn * 8)
                            b_turn = short(b_turn + 1)
                            if b_turn == B_ROWS:
                                b_turn = short(0)
                                b_phase = short(b_phase ^ 1)
                g, n_tile, image0, row0, column0 = place_of(turn, before_all)
                first_n = n_tile * BN + lane % 4 * 2
                if DIFFERENTIATES:
                    place = g, image0, row0 + row_of_patch, column0 + column_of_patch, first_n
                    arrays = before, pair, activated
                    differentiate_pixel(acc, 0, arrays, place, images, lane, warp)
                    if PW > 1:  # a loop would have to be unrolled
                        differentiate_pixel(acc, 1, arrays, place, images, lane, warp)
                    if PW > 2:
                        differentiate_pixel(acc, 2, arrays, place, images, lane, warp)
                    if PW > 3:
                        differentiate_pixel(acc, 3, arrays, place, images, lane, warp)
                for which in range(RESULT, RESULTS):
                    result = c
                    if ACTIVATES and which == 1:
                        activate(acc, ALL_SUMS, 2, 2, BLOCKS, LANES, MASK, SLOPE)
                        result = activated
                    for half in range(2):
                        row = warp % 4 * 16 + lane // 4 + half * 8
                        image = image0 + row // D1
                        h = row0 + row_of_patch
                        to_row = g * C_G + C_FIRST + image * C_IMAGE + h * C_ROW
                        filled = row < FILLED and image < images and h < ROWS
                        for block in range(BN // 8):
                            n = first_n + block * 8
                            # Worked out: a table's answer would be waited for.
                            to_column = to_row + place_of_column(n)
                            inside = filled and (N_FULL or n < N)
                            for j in range(PW):  # neighbours one after the other: parts of sectors
                                one = write(acc[j * SUMS + block * 4 + half * 2])
                                other = write(acc[j * SUMS + block * 4 + half * 2 + 1])
                                if QUADS and j % 2 == 0:
                                    # Of two pixels' rows d1 of 0 and 1, this lane has one and the lane
                                    # beside it the other; each gives the half that the other stores.
                                    beside = acc[(j + 1) * SUMS + block * 4 + half * 2]
                                    beyond = acc[(j + 1) * SUMS + block * 4 + half * 2 + 1]
                                    d1 = lane // 4 % 2
                                    got = shuffle(one if d1 else beside, lane ^ 4)
                                    gotten = shuffle(other if d1 else beyond, lane ^ 4)
                                    w = column0 + column_of_patch + j + d1
                                    to = to_column + w * C_COLUMN
                                    nearest = got if d1 else one
                                    second = gotten if d1 else other
                                    third = beside if d1 else got
                                    fourth = beyond if d1 else gotten
                                    if inside and w < COLUMNS:  # one store, of both pixels
                                        store_quad(result, to, nearest, second, third, fourth)
                                if FOURS and j % 4 == 0:
                                    at_j = j * SUMS + block * 4 + half * 2
                                    words = cuda.local.array(4, np.float32)
                                    for i in range(4):
                                        k = at_j + i * SUMS
                                        words[i] = halves(acc[k], acc[k + 1])
                                    d1 = lane // 4 % 2
                                    got = shuffle(words[0] if d1 else words[2], lane ^ 4)
                                    gotten = shuffle(words[1] if d1 else words[3], lane ^ 4)
                                    w = column0 + column_of_patch + j + d1 * 2
                                    to = to_column + w * C_COLUMN
                                    nearest = got if d1 else words[0]
                                    second = words[2] if d1 else got
                                    third = gotten if d1 else words[1]
                                    fourth = words[3] if d1 else gotten
                                    if inside and w < COLUMNS:  # and so is the neighbour
                                        store_words(result, to, nearest, second, third, fourth)
                                if not (QUADS or FOURS):
                                    w = column0 + column_of_patch + j
                                    to = row % D1 * C_D1 + w * C_COLUMN
                                    where = to_column + to
                                    if inside and w < COLUMNS:
                                        if PAIRED:
                                            store_pair(result, where, one, other)
                                        else:
                                            result[at(where)] = one
                                            if N_FULL or n + 1 < N:
                                                where = to_row + place_of_column(n + 1) + to
                                                result[at(where)] = other

    return bulk_wgmma_kernel
