"""The consumer warpgroups: each has a row of taps, and multiplies a row of x with a row of dy for all its taps."""

import numpy as np

from numbacaps.device.fragments import add, clear, low_tf32, nearer_tf32
from numbacaps.device.instructions import (
    CHUNK,
    FRAGMENT_PRODUCTS,
    descriptor_strides,
    local_array,
    permuted_bytes,
    short,
    unroll_loops,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.ring import (
    CONSUMER,
    make_advance,
    make_look_ahead,
    make_release,
    make_wait,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.rung_5_warp_specialized.split_k_transpose import (
    HIGH_HALVES,
    LATE_HIGH,
    LATE_LOW,
    LOW_HALVES,
)


def kept_columns(spec):
    """Columns of slots that a pixel reads and the next one reads too."""
    return spec.window.step[1] * (spec.window.taps[1] - 1) + 1 - spec.pixels.left[0]


def columns_in(spec):
    """Columns of slots that the taps of a tile's pixels read."""
    return spec.tile.PW * spec.pixels.left[0] + kept_columns(spec)


def make_consume(spec):
    """Device function ``consume(acc, shared, begin, start, rows, warp, lane)``: the sums of all rows of a block's part."""
    tile, window, strips = spec.tile, spec.window, spec.strips
    TAP_DOWN, ROW_STEP = map(specialized, (window.step[0], spec.pixels.top[0]))
    STRIP_ROWS, REACH = map(specialized, (strips.rows, spec.reach))
    MATRIX = specialized(descriptor_strides(tile.BN * CHUNK, 128))
    DATA, PITCH = map(specialized, (spec.transposed_ring.data, spec.transposed_ring.pitch))
    X_PITCH, BATCHES = map(specialized, (spec.x_ring.pitch // 4, spec.k_groups // tile.GROUPS))
    FRAGMENTS = specialized(tile.GROUPS * columns_in(spec) * 4)
    SPLIT, ALL_SUMS = spec.split, specialized(spec.sums)
    PART_SUMS = specialized(spec.sums if SPLIT else 1)
    wait_x, release_x, next_x, look_ahead = (
        make(spec.x_ring) for make in (make_wait, make_release, make_advance, make_look_ahead)
    )
    wait_dy, release_dy, next_dy = (
        make(spec.transposed_ring) for make in (make_wait, make_release, make_advance)
    )
    own_slot_of, multiply_batch = make_own_slot(spec), make_multiply_batch(spec)

    # Inlined by Numba: LLVM would copy the sums of three terms from one row to the next, 4 to 8 % of em and caps2.
    @cuda.jit(device=True, inline="always")
    def consume(acc, shared, begin, start, rows, warp, lane):
        part = local_array(PART_SUMS, np.float32)
        fragment = local_array(FRAGMENTS, np.float32)
        own_slot, apart, late = own_slot_of(begin, start, warp, lane)
        tap_row = warp // 4
        clear(acc, ALL_SUMS)
        clear(part, PART_SUMS)
        x, x_phase = CONSUMER
        dy, dy_phase = CONSUMER
        row_of_strip = short(0)
        for _ in range(short(rows)):
            own_x, phase = look_ahead(x, x_phase, tap_row * TAP_DOWN)
            slots = own_slot + own_x * X_PITCH
            matrices = MATRIX + (start + DATA + dy * PITCH) // 16
            wait_x(shared, start, own_x, phase)
            wait_dy(shared, start, dy, dy_phase)
            for batch in range(BATCHES):
                which = slots, apart, late, matrices, batch
                multiply_batch(acc, part, fragment, shared, which)
            release_dy(shared, start, dy, lane)
            if SPLIT:
                add(acc, part, ALL_SUMS)
            dy, dy_phase = next_dy(dy, dy_phase)
            # This row of taps reads these rows of x no more. It waits for those too that it never read, or it
            # could take one round of the ring for another; they were asked for before dy's row.
            row_of_strip = short(row_of_strip + 1)
            done = short(ROW_STEP)
            if row_of_strip == STRIP_ROWS:
                row_of_strip = short(0)
                done = short(REACH + 1)
            for _ in range(done):
                if lane == 0:
                    wait_x(shared, start, x, x_phase)
                release_x(shared, start, x, lane)
                x, x_phase = next_x(x, x_phase)
            cuda.syncwarp()

    return consume


def make_own_slot(spec):
    """Device function ``slot, apart, late = own_slot(begin, start, warp, lane)``: where a lane's part of a slot lies, how
    far from it the other k of a pair is, and whether it reads the two the other way round, as when dy is transposed."""
    of_x, d1, PAIR = spec.boxes[0], spec.pixels.D1, spec.tile.PAIR
    pairs = spec.D // PAIR
    D1, PAIRS, FILLED = map(specialized, (d1, pairs, spec.filled_rows))
    A_IMAGE, A_CHANNEL = map(specialized, (of_x.image_step, of_x.channel_step))
    A_APART = specialized(4 // d1 * of_x.image_step + 4 % d1 * pairs)
    ROWS_OF_WARP, DATA = map(specialized, (16 // PAIR, spec.x_ring.data))

    @cuda.jit(device=True, forceinline=True)
    def own_slot(begin, start, warp, lane):
        row, k, late = warp % 4 * ROWS_OF_WARP + lane // 4, lane % 4, lane // 16
        slot = k // D1 * A_IMAGE + k % D1 * PAIRS
        slot += late * A_APART if PAIR > 1 else 0
        if row < FILLED:
            slot += row // PAIRS * A_CHANNEL + row % PAIRS
        apart = short(A_APART - 2 * A_APART * late)
        return short(slot + (start - begin + DATA) // 4), apart, late

    return own_slot


def make_load_column(spec):
    """Device function ``load_column(fragment, shared, which, group, column)``: of a column of slots the k's of a product."""
    of_x, D, PAIR, SPLIT = spec.boxes[0], spec.D, spec.tile.PAIR, spec.split
    D1, PAIRS, GROUPS = map(specialized, (spec.pixels.D1, D // PAIR, spec.tile.GROUPS))
    A_IMAGE, A_COLUMN = map(specialized, (of_x.image_step, of_x.column_step))
    # From a row of a product to the eighth below it.
    BELOW = specialized(8 // D * of_x.channel_step + 8 % D)
    COLUMNS_IN, K_SQUARES = map(specialized, (columns_in(spec), 4 * PAIR))

    @cuda.jit(device=True, forceinline=True)
    def load_column(fragment, shared, which, group, column):
        unroll_loops()
        slots, apart, late, _, batch = which
        first = (group * COLUMNS_IN + column) * 4
        for i in range(4):
            k = ((batch * GROUPS + group) * 2 + i // 2) * K_SQUARES
            place = slots + k // D1 * A_IMAGE + k % D1 * PAIRS + column * A_COLUMN
            # Of a pair the other k; of float32 the row below.
            place += i % 2 * (BELOW if PAIR == 1 else apart)
            value = shared[at(place)]
            # Of three terms the first two read its high part.
            fragment[first + i] = value if SPLIT or PAIR > 1 else nearer_tf32(value)
        if PAIR > 1:
            # Two k's of two neighbours each: a row's two k's, and the eighth row's.
            for i in range(0, 4, 2):
                one, other = fragment[first + i], fragment[first + i + 1]
                low, high = LATE_LOW if late else LOW_HALVES, LATE_HIGH if late else HIGH_HALVES
                fragment[first + i] = permuted_bytes(one, other, low)
                fragment[first + i + 1] = permuted_bytes(one, other, high)

    return load_column


def make_multiply_batch(spec):
    """Device function ``multiply_batch(acc, part, fragment, shared, which)``: some images and d1 of all pixels.

    For three terms a thread's part of x is cut in place when the products with its high part are done.
    """
    tile, window = spec.tile, spec.window
    PW, BN, GROUPS = map(specialized, (tile.PW, tile.BN, tile.GROUPS))
    SPLIT, PARTS = spec.split, spec.parts
    COLUMN_STEP = specialized(spec.pixels.left[0])
    TAP_COLUMNS, TAP_ACROSS = map(specialized, (window.taps[1], window.step[1]))
    COLUMNS_IN, COLUMNS_KEPT = map(specialized, (columns_in(spec), kept_columns(spec)))
    ALL_GROUPS, SUMS = map(specialized, (spec.k_groups, tile.BN // 2))
    FRAGMENTS = specialized(tile.GROUPS * columns_in(spec) * 4)
    CHUNKS = specialized(2 * tile.BN)  # of one product's second operand
    multiply, load_column = FRAGMENT_PRODUCTS[spec.dtype.name], make_load_column(spec)

    @cuda.jit(device=True, forceinline=True)
    def multiply_pixels(acc, part, fragment, shared, which):
        unroll_loops()
        _, _, _, matrices, batch = which
        for pixel in range(PW):
            # Columns that the pixel before it does not read; that one is multiplied meanwhile.
            if not SPLIT:
                for group in range(GROUPS):
                    for j in range(COLUMN_STEP + COLUMNS_KEPT):
                        if pixel == 0 or j >= COLUMNS_KEPT:
                            column = pixel * COLUMN_STEP + j
                            load_column(fragment, shared, which, group, column)
                wgmma_fence()
            for tap in range(TAP_COLUMNS):
                for group in range(GROUPS):
                    column = pixel * COLUMN_STEP + tap * TAP_ACROSS
                    k = (group * COLUMNS_IN + column) * 4
                    high = pixel * PARTS * ALL_GROUPS + batch * GROUPS + group
                    high = matrices + high * CHUNKS
                    s = tap * SUMS
                    if SPLIT:
                        low = high + ALL_GROUPS * CHUNKS
                        more = 1 if batch + pixel + group > 0 else 0
                        multiply(BN, part, s, fragment, k, shared, low, more)
                        multiply(BN, part, s, fragment, k, shared, high, 1)
                    else:
                        multiply(BN, acc, s, fragment, k, shared, high, 1)
            wgmma_commit()

    @cuda.jit(device=True, forceinline=True)
    def multiply_low(part, fragment, shared, which):
        unroll_loops()
        _, _, _, matrices, batch = which
        for i in range(FRAGMENTS):
            fragment[i] = low_tf32(fragment[i])
        wgmma_fence()
        for tap in range(TAP_COLUMNS):
            for pixel in range(PW):
                for group in range(GROUPS):
                    column = pixel * COLUMN_STEP + tap * TAP_ACROSS
                    k = (group * COLUMNS_IN + column) * 4
                    high = pixel * PARTS * ALL_GROUPS + batch * GROUPS + group
                    high = matrices + high * CHUNKS
                    multiply(BN, part, tap * SUMS, fragment, k, shared, high, 1)
        wgmma_commit()
        wgmma_wait()

    @cuda.jit(device=True, forceinline=True)
    def multiply_batch(acc, part, fragment, shared, which):
        unroll_loops()
        if SPLIT:  # which would take more registers while it multiplies
            for group in range(GROUPS):
                for column in range(COLUMNS_IN):
                    load_column(fragment, shared, which, group, column)
            wgmma_fence()
        multiply_pixels(acc, part, fragment, shared, which)
        wgmma_wait()
        if SPLIT:
            multiply_low(part, fragment, shared, which)

    return multiply_batch
