"""The kernel's gradient with bulk copies: a block computes every tap, so what it reads serves all of them.

    dw[k, n] = sum over m of x[m, k] * dy[m, n]

What changed from :mod:`numbacaps.fused.rung_4_wgmma.split_k`: warpgroups multiply, and the copy engine brings rows
of pixels (:mod:`numbacaps.fused.rung_5_warp_specialized.kernel` says how). A block walks down strips of the images, and
each warpgroup has a row of taps: when pixel row r of dy is there, tap row i multiplies it with the row of x that
lies i rows below. A row of x stays in shared memory until the last row of taps has read it.

The first operand, x, comes through registers: a slot is loaded once for all taps that read it, and only dy's
place differs. The tensor cores want the second operand with the summed pixels as neighbours, but in capsule
layout columns are; so some warps rewrite each box of dy as core matrices, from which all warpgroups
read. k of a product counts (image, d1), n counts (p, d3).

Of 2 bytes an element a thread reads two neighbours of a capsule's row at once, but a product wants two k's
together. So of both operands two k's are read, 4 apart, so that lanes beside each other read neighbours, and the
halves of their pairs exchanged. Half of the lanes read the two the other way round: all at once would meet in banks.

For ``terms`` of 3 dy is written in two parts, and a thread's x is cut in place when the products with the high
part of it are done. The sums leave the tensor cores after each row for ordinary adds.
"""

from functools import cache
from math import gcd

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    FRAGMENT_PRODUCTS,
    TF32_NEARER,
    cut_tf32,
    descriptor_strides,
    fence_proxy_async,
    fewer_registers,
    let_next_start,
    map_address,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    more_registers,
    permuted_bytes,
    shared_address,
    short,
    store_quad,
    tensor_copy,
    wait_for_last,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda
from numbacaps.fused.rung_5_warp_specialized.split_k_tile import (
    BARRIERS,
    HELPING_REGISTERS,
    LAYING_WARPS,
)

# Of two words' halves: the low ones, or the high ones; and so where the second word comes first.
LOW_HALVES, HIGH_HALVES, LATE_LOW, LATE_HIGH = 0x5410, 0x7632, 0x1054, 0x3276


@cache
def make_bulk_reduction(pixels, window, boxes, rings, strips, D, tile, terms, dtype):
    """Kernel for one :class:`numbacaps.fused.implicit_gemm.Product` of float32, float16 or bfloat16.

    Parameters
    ----------
    pixels : numbacaps.fused.implicit_gemm.Pixels
    window : numbacaps.fused.rung_4_wgmma.tile.Window
    boxes : tuple of numbacaps.fused.rung_5_warp_specialized.split_k_tile.Box
    rings : numbacaps.fused.rung_5_warp_specialized.split_k_tile.Rings
    strips : numbacaps.fused.rung_5_warp_specialized.split_k_tile.Strips
    D : int
        As the product's.
    tile : numbacaps.fused.rung_5_warp_specialized.split_k_tile.ReductionTile
    terms : int
        1 or 3.
    dtype : numpy.dtype
        Of the arrays; sums are of float32.
    """
    of_x, of_dy = boxes
    PW, BN, GROUPS = tile.PW, tile.BN, tile.GROUPS
    WARPS = tile.tap_rows * 4
    REGISTERS, HELPING = tile.registers, HELPING_REGISTERS
    COPYING_WARP = WARPS + LAYING_WARPS
    D1, D3 = pixels.D1, pixels.other[3]
    ROW_STEP, TOP = pixels.top
    COLUMN_STEP, LEFT = pixels.left
    TAP_COLUMNS = window.taps[1]
    TAP_DOWN, TAP_ACROSS = window.step
    REACH = max(TAP_DOWN * (window.taps[0] - 1), ROW_STEP - 1)  # rows of x below a pixel's first
    COLUMNS_KEPT = TAP_ACROSS * (TAP_COLUMNS - 1) + 1 - COLUMN_STEP  # that the next pixel reads too
    COLUMNS_IN = PW * COLUMN_STEP + COLUMNS_KEPT
    QUARTER = -(-PW // 4)
    STRIP_ROWS, DOWN, ACROSS = strips.rows, strips.down, strips.across
    BOX_ROWS = (STRIP_ROWS - 1) * ROW_STEP + REACH + 1
    STRIPS, PER_SPLIT, SPLITS = strips.count, strips.per_split, strips.splits
    IMAGES = of_x.images
    A_CHANNELS, B_CHANNELS = of_x.channels, of_dy.channels
    PAIR, K_STEP = tile.PAIR, tile.K
    PAIRS, D3_PAIRS = D // PAIR, D3 // PAIR  # of a capsule's row; of float32 a pair is one element
    ROWS_OF_WARP = 16 // PAIR
    FILLED = A_CHANNELS * PAIRS  # rows of the tile
    A_CHANNEL, A_IMAGE, A_COLUMN = of_x.channel_step, of_x.image_step, of_x.column_step
    B_CHANNEL, B_IMAGE, B_COLUMN = of_dy.channel_step, of_dy.image_step, of_dy.column_step
    A_BY_G, A_BY_E, A_BY_COLUMN = (0, of_x.pixel, 0) if of_x.whole_rows else (of_x.pixel, 0, 1)
    B_BY_G, B_BY_E, B_BY_COLUMN = (0, of_dy.pixel, 0) if of_dy.whole_rows else (of_dy.pixel, 0, 1)
    # Of a pixel, what a warp lays out at once: squares of PAIR x PAIR elements, of 4 k's and 8 columns.
    K_SQUARES, N_SQUARES = 4 * PAIR, 8 * PAIR
    AT_ONCE = gcd(B_CHANNELS * D3 // N_SQUARES, 4)
    TURNS = B_CHANNELS * D3 // N_SQUARES // AT_ONCE
    ALL_GROUPS = IMAGES * D1 // K_STEP
    K_BITS = K_STEP.bit_length() - 1
    D1_BITS = D1.bit_length() - 1
    # A pair of k's are 4 apart, so that the lanes of a product, which have pairs, read neighbours.
    A_APART = 4 // D1 * A_IMAGE + 4 % D1 * PAIRS
    B_APART = 4 // D1 * B_IMAGE + 4 % D1 * D3_PAIRS
    BATCHES = ALL_GROUPS // GROUPS
    BELOW = 8 // D * A_CHANNEL + 8 % D  # from a row of a product to the eighth below it
    FRAGMENTS = GROUPS * COLUMNS_IN * 4
    PARTS = 2 if terms > 1 else 1
    SPLIT = terms > 1
    SUMS = BN // 2
    ALL_SUMS = SUMS * TAP_COLUMNS
    PART_SUMS = ALL_SUMS if SPLIT else 1
    B_MATRIX = descriptor_strides(BN * CHUNK, 128)
    MATRIX = 2 * BN  # chunks of one product's second operand
    GROUP = BN * 8  # its words of 4 bytes
    LOW = ALL_GROUPS * GROUP  # from the high part of a pixel to the low one
    PIXEL = PARTS * LOW
    A_RING, RAW_RING, B_RING = rings.x, rings.dy, rings.laid_out
    A_BYTES, RAW_BYTES = of_x.bytes, of_dy.bytes
    A_PITCH, RAW_PITCH, B_PITCH = rings.x_bytes, rings.dy_bytes, rings.laid_out_bytes
    A_EMPTY = 8 * A_RING
    RAW_FULL = 2 * A_EMPTY
    RAW_EMPTY = RAW_FULL + 8 * RAW_RING
    B_FULL = RAW_EMPTY + 8 * RAW_RING
    B_EMPTY = B_FULL + 8 * B_RING
    A_START = BARRIERS
    RAW_START = A_START + A_RING * A_PITCH
    B_START = RAW_START + RAW_RING * RAW_PITCH
    THREADS = WARPS * 32  # that multiply
    TILE = THREADS * ALL_SUMS
    ZERO = np.float32(0)
    NEARER = TF32_NEARER
    multiply = FRAGMENT_PRODUCTS[dtype.name]

    @cuda.jit(device=True, inline="always")
    def place_of_k(k):
        """Where a chunk of k's, from one on, lies in a laid out pixel: which product, which chunk of its two."""
        return (k >> K_BITS) * GROUP + (k >> K_BITS - 1 & 1) * (BN * 4)

    @cuda.jit(device=True, inline="always")
    def load_column(fragment, shared, slots, apart, late, batch, group, column):
        """A thread's part of the first operand: of a column of slots, the k's of a product."""
        first = (group * COLUMNS_IN + column) * 4
        for i in range(4):
            k = ((batch * GROUPS + group) * 2 + i // 2) * K_SQUARES
            place = slots + k // D1 * A_IMAGE + k % D1 * PAIRS + column * A_COLUMN
            # Of a pair the other k; of float32 the row below.
            place += i % 2 * (BELOW if PAIR == 1 else apart)
            value = shared[at(place)]
            # Of three terms the first two read its high part.
            fragment[first + i] = value if SPLIT or PAIR > 1 else value * NEARER
        if PAIR > 1:
            # Two k's of two neighbours each: a row's two k's, and the eighth row's.
            for i in range(0, 4, 2):
                one, other = fragment[first + i], fragment[first + i + 1]
                fragment[first + i] = permuted_bytes(one, other, LATE_LOW if late else LOW_HALVES)
                fragment[first + i + 1] = permuted_bytes(
                    one, other, LATE_HIGH if late else HIGH_HALVES
                )

    @cuda.jit(device=True, inline="always")
    def multiply_pixels(acc, part, fragment, shared, which, begin, end):
        """Load and queue the products of some pixels; in four calls, because long loops are not unrolled."""
        slots, apart, late, matrices, batch = which
        for pixel in range(begin, end):
            # Columns that the pixel before it does not read; that one is multiplied meanwhile.
            if not SPLIT:
                new = pixel * COLUMN_STEP + COLUMNS_KEPT if pixel > 0 else 0
                for group in range(GROUPS):
                    for column in range(new, (pixel + 1) * COLUMN_STEP + COLUMNS_KEPT):
                        load_column(fragment, shared, slots, apart, late, batch, group, column)
                wgmma_fence()
            for tap in range(TAP_COLUMNS):
                for group in range(GROUPS):
                    column = pixel * COLUMN_STEP + tap * TAP_ACROSS
                    k = (group * COLUMNS_IN + column) * 4
                    high = pixel * PARTS * ALL_GROUPS + batch * GROUPS + group
                    high = matrices + high * MATRIX
                    s = tap * SUMS
                    if SPLIT:
                        low = high + ALL_GROUPS * MATRIX
                        more = 1 if batch + pixel + group > 0 else 0
                        multiply(BN, part, s, fragment, k, shared, low, more)
                        multiply(BN, part, s, fragment, k, shared, high, 1)
                    else:
                        multiply(BN, acc, s, fragment, k, shared, high, 1)
            wgmma_commit()

    @kept_on_disk
    @cuda.jit(launch_bounds=(tile.threads, 1))
    def bulk_reduction_kernel(
        partial,  # out  as :mod:`numbacaps.fused.rung_5_warp_specialized.add_tiles` reads it
        beside,  # not read: behind two arrays the maps lie as the copy engine wants them
        words,  # in   the tensor maps of the gathered array and of the other one
    ):
        shared = cuda.shared.array(0, np.float32)
        begin = shared_address(shared)
        start = (begin + 127) // 128 * 128
        thread = cuda.threadIdx.x
        warp = short(thread >> 5 & 31)  # as in // 32, but known not to be negative
        lane = short(thread & 31)
        channel0 = cuda.blockIdx.x * A_CHANNELS
        p0 = cuda.blockIdx.y * B_CHANNELS
        g = cuda.blockIdx.z // SPLITS
        split = cuda.blockIdx.z % SPLITS
        first_strip = split * PER_SPLIT
        last_strip = min(STRIPS, first_strip + PER_SPLIT)
        rows = (last_strip - first_strip) * STRIP_ROWS
        if thread == 0:
            for i in range(A_RING):
                mbarrier_init(shared, start + 8 * i, 1)
                mbarrier_init(shared, start + A_EMPTY + 8 * i, WARPS)
            for i in range(RAW_RING):
                mbarrier_init(shared, start + RAW_FULL + 8 * i, 1)
                mbarrier_init(shared, start + RAW_EMPTY + 8 * i, LAYING_WARPS)
            for i in range(B_RING):
                mbarrier_init(shared, start + B_FULL + 8 * i, LAYING_WARPS)
                mbarrier_init(shared, start + B_EMPTY + 8 * i, WARPS)
            fence_proxy_async()  # the copy engine may see the barriers
        let_next_start()  # up to where it waits for the sums
        cuda.syncthreads()
        if warp >= WARPS:
            fewer_registers(HELPING)
            if warp == COPYING_WARP:
                if lane == 0:
                    wait_for_last()  # both arrays are there
                    x_map, dy_map = map_address(words, 0), map_address(words, 1)
                    a_turn, raw_turn = short(0), short(0)
                    # What nobody has filled yet counts as empty.
                    a_phase, raw_phase = short(1), short(1)
                    for strip in range(short(first_strip), short(last_strip)):
                        column = short(strip % ACROSS * PW)
                        row0 = short(strip // ACROSS % DOWN * STRIP_ROWS)
                        image = short(strip // (ACROSS * DOWN) * IMAGES)
                        left = short(column * COLUMN_STEP + LEFT)
                        top = short(row0 * ROW_STEP + TOP)
                        e = short(g * A_BY_G + left * A_BY_E)
                        left = short(left * A_BY_COLUMN)
                        raw_e = short(g * B_BY_G + column * B_BY_E)
                        column = short(column * B_BY_COLUMN)
                        for row in range(BOX_ROWS):
                            full = start + a_turn * 8
                            mbarrier_wait(shared, full + A_EMPTY, a_phase)
                            mbarrier_expect(shared, full, A_BYTES)
                            to = start + A_START + a_turn * A_PITCH
                            tensor_copy(
                                shared, to, x_map, e, channel0, image, left, top + row, full
                            )
                            a_turn = short(a_turn + 1)
                            if a_turn == A_RING:
                                a_turn = short(0)
                                a_phase = short(a_phase ^ 1)
                            below = row - REACH
                            if below >= 0 and below % ROW_STEP == 0:
                                full = start + RAW_FULL + raw_turn * 8
                                mbarrier_wait(shared, full + (RAW_EMPTY - RAW_FULL), raw_phase)
                                mbarrier_expect(shared, full, RAW_BYTES)
                                to = start + RAW_START + raw_turn * RAW_PITCH
                                h = row0 + below // ROW_STEP
                                tensor_copy(shared, to, dy_map, raw_e, p0, image, column, h, full)
                                raw_turn = short(raw_turn + 1)
                                if raw_turn == RAW_RING:
                                    raw_turn = short(0)
                                    raw_phase = short(raw_phase ^ 1)
            else:
                values = cuda.local.array(AT_ONCE, np.float32)
                others = cuda.local.array(AT_ONCE, np.float32)
                # The lane's own part of where elements lie in a box and go to: sizes are powers of two.
                k, n, late = lane % 4, lane // 4, lane // 16
                source = k // D1 * B_IMAGE + k % D1 * D3_PAIRS
                source += n // D3_PAIRS * B_CHANNEL + n % D3_PAIRS
                source = short(source + (late * B_APART if PAIR > 1 else 0))
                target = short(n * (4 * PAIR) + k)
                apart = short(B_APART - 2 * B_APART * late)
                first, second = short(late * 4), short(4 - late * 4)
                first_halves = LATE_HIGH if late else LOW_HALVES
                second_halves = LATE_LOW if late else HIGH_HALVES
                raw_turn, b_turn = short(0), short(0)
                raw_phase, b_phase = short(0), short(1)
                origin = short((start - begin) // 4)
                for _ in range(short(rows)):
                    raw_full = start + RAW_FULL + raw_turn * 8
                    b_full = start + B_FULL + b_turn * 8
                    mbarrier_wait(shared, b_full + (B_EMPTY - B_FULL), b_phase)
                    mbarrier_wait(shared, raw_full, raw_phase)
                    for pixel in range(warp - WARPS, PW, LAYING_WARPS):
                        for k in range(0, IMAGES * D1, K_SQUARES):
                            read = origin + RAW_START // 4 + raw_turn * (RAW_PITCH // 4)
                            read += (k >> D1_BITS) * B_IMAGE + (k & (D1 - 1)) * D3_PAIRS
                            read += pixel * B_COLUMN + source
                            write = origin + B_START // 4 + b_turn * (B_PITCH // 4)
                            write += pixel * PIXEL + target + place_of_k(k)
                            for turn in range(TURNS):
                                for i in range(AT_ONCE):
                                    n = (turn * AT_ONCE + i) * 8
                                    place = read + n // D3_PAIRS * B_CHANNEL + n % D3_PAIRS
                                    values[i] = shared[at(place)]
                                    if PAIR > 1:
                                        others[i] = shared[at(place + apart)]
                                for i in range(AT_ONCE):
                                    place = (turn * AT_ONCE + i) * (4 * N_SQUARES)
                                    near = values[i] * NEARER
                                    if PAIR > 1:
                                        both = permuted_bytes(values[i], others[i], first_halves)
                                        shared[at(write + place + first)] = both
                                        both = permuted_bytes(values[i], others[i], second_halves)
                                        shared[at(write + place + second)] = both
                                    elif SPLIT:
                                        shared[at(write + place)] = cut_tf32(near)
                                        rest = values[i] - cut_tf32(near)
                                        shared[at(write + place + LOW)] = rest
                                    else:
                                        shared[at(write + place)] = near
                    fence_proxy_async()  # the tensor cores may see them
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(shared, raw_full + (RAW_EMPTY - RAW_FULL))
                        mbarrier_arrive(shared, b_full)
                    raw_turn = short(raw_turn + 1)
                    if raw_turn == RAW_RING:
                        raw_turn = short(0)
                        raw_phase = short(raw_phase ^ 1)
                    b_turn = short(b_turn + 1)
                    if b_turn == B_RING:
                        b_turn = short(0)
                        b_phase = short(b_phase ^ 1)
        else:
            more_registers(REGISTERS)
            acc = cuda.local.array(ALL_SUMS, np.float32)
            part = cuda.local.array(PART_SUMS, np.float32)
            fragment = cuda.local.array(FRAGMENTS, np.float32)
            tap_row = warp // 4
            row = warp % 4 * ROWS_OF_WARP + lane // 4
            k = lane % 4
            own_slot = k // D1 * A_IMAGE + k % D1 * PAIRS
            late = lane // 16  # which takes two k's the other way round, as those that lay out do
            own_slot += late * A_APART if PAIR > 1 else 0
            apart = short(A_APART - 2 * A_APART * late)
            if row < FILLED:
                own_slot += row // PAIRS * A_CHANNEL + row % PAIRS
            own_slot = short(own_slot + (start - begin + A_START) // 4)
            for i in range(ALL_SUMS):
                acc[i] = ZERO
            for i in range(PART_SUMS):
                part[i] = ZERO
            a_turn, b_turn, row_of_strip = short(0), short(0), short(0)
            a_phase, b_phase = short(0), short(0)
            for _ in range(short(rows)):
                turn = short(a_turn + tap_row * TAP_DOWN)
                wrapped = short(1 if turn >= A_RING else 0)
                turn = short(turn - wrapped * A_RING)
                slots = own_slot + turn * (A_PITCH // 4)
                b_full = start + B_FULL + b_turn * 8
                matrices = B_MATRIX + (start + B_START + b_turn * B_PITCH) // 16
                mbarrier_wait(shared, start + turn * 8, a_phase ^ wrapped)
                mbarrier_wait(shared, b_full, b_phase)
                for batch in range(BATCHES):
                    if SPLIT:  # which would take more registers while it multiplies
                        for group in range(GROUPS):
                            for column in range(COLUMNS_IN):
                                load_column(
                                    fragment, shared, slots, apart, late, batch, group, column
                                )
                        wgmma_fence()
                    which = slots, apart, late, matrices, batch
                    multiply_pixels(acc, part, fragment, shared, which, 0, QUARTER)
                    if PW > QUARTER:
                        end = min(PW, 2 * QUARTER)
                        multiply_pixels(acc, part, fragment, shared, which, QUARTER, end)
                    if PW > 2 * QUARTER:
                        end = min(PW, 3 * QUARTER)
                        multiply_pixels(acc, part, fragment, shared, which, 2 * QUARTER, end)
                    if PW > 3 * QUARTER:
                        multiply_pixels(acc, part, fragment, shared, which, 3 * QUARTER, PW)
                    wgmma_wait()
                    if SPLIT:
                        for i in range(FRAGMENTS):
                            fragment[i] = (fragment[i] - cut_tf32(fragment[i])) * NEARER
                        wgmma_fence()
                        for tap in range(TAP_COLUMNS):
                            for pixel in range(PW):
                                for group in range(GROUPS):
                                    column = pixel * COLUMN_STEP + tap * TAP_ACROSS
                                    k = (group * COLUMNS_IN + column) * 4
                                    high = pixel * PARTS * ALL_GROUPS + batch * GROUPS + group
                                    high = matrices + high * MATRIX
                                    s = tap * SUMS
                                    multiply(BN, part, s, fragment, k, shared, high, 1)
                        wgmma_commit()
                        wgmma_wait()
                if lane == 0:
                    mbarrier_arrive(shared, b_full + (B_EMPTY - B_FULL))
                if SPLIT:
                    for i in range(ALL_SUMS):
                        acc[i] += part[i]
                b_turn = short(b_turn + 1)
                if b_turn == B_RING:
                    b_turn = short(0)
                    b_phase = short(b_phase ^ 1)
                # This row of taps reads these rows of x no more. It waits for those too that it never
                # read, or it could take one turn of the ring for another; they were asked for before dy's row.
                row_of_strip = short(row_of_strip + 1)
                done = short(ROW_STEP)
                if row_of_strip == STRIP_ROWS:
                    row_of_strip = short(0)
                    done = short(REACH + 1)
                for _ in range(done):
                    if lane == 0:
                        mbarrier_wait(shared, start + a_turn * 8, a_phase)
                        mbarrier_arrive(shared, start + A_EMPTY + a_turn * 8)
                    a_turn = short(a_turn + 1)
                    if a_turn == A_RING:
                        a_turn = short(0)
                        a_phase = short(a_phase ^ 1)
                cuda.syncwarp()
            row = warp % 4 * ROWS_OF_WARP + lane // 4
            tile_turn = cuda.blockIdx.z * cuda.gridDim.y + cuda.blockIdx.y
            to = (tile_turn * cuda.gridDim.x + cuda.blockIdx.x) * TILE + thread * 4
            wait_for_last()  # nobody reads any more what is written now
            if row < FILLED:
                for i in range(0, ALL_SUMS, 4):
                    store_quad(
                        partial, to + i * THREADS, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]
                    )

    return bulk_reduction_kernel
