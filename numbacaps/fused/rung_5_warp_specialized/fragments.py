"""The first operand on its way: from a box in shared memory to registers, split for three terms, to the tensor cores."""

import numpy as np

from numbacaps.device.fragments import nearer_tf32
from numbacaps.device.instructions import (
    CHUNK,
    FRAGMENT_PRODUCTS,
    cut_tf32,
    descriptor_strides,
    load_run,
    local_array,
    unroll_loops,
)
from numbacaps.device.ring import make_look_ahead
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


def make_own_rows(spec):
    """Device function ``run_at, row_at, below_at, late = own_rows(thread)``: where in a box a thread's part lies.

    It has a row of the product, and the eighth row below it, which lie at ``row_at`` and ``below_at``; runs of k's
    lie at ``run_at``. ``late`` lanes have the two rows the other way round.
    """
    box, run = spec.box, spec.run
    D, D1, FILLED = map(specialized, (spec.D, spec.pixels.D1, spec.filled_rows))
    IMAGE_AT, CHANNEL_AT = map(specialized, (box.image_step, box.channel_step))
    RUN, RUNS = map(specialized, (run, 2 * spec.k_groups // run))
    ROUNDED = spec.dtype.itemsize == 4

    @cuda.jit(device=True, forceinline=True)
    def find_runs(run_at, lane):
        unroll_loops()
        for i in range(RUNS):
            k = (i * 4 + lane % 4) * RUN
            run_at[i] = k // D * CHANNEL_AT + k % D

    @cuda.jit(device=True, inline="always")  # it makes an array
    def own_rows(thread):
        run_at = local_array(RUNS, np.int32)
        row = thread.warp % 4 * 16 + thread.lane // 4
        row_at = 0
        if row < FILLED:
            row_at = row // D1 * IMAGE_AT + row % D1 * D
        below_at = 0
        if row + 8 < FILLED:
            below_at = (row + 8) // D1 * IMAGE_AT + (row + 8) % D1 * D
        # Of 2 bytes an element, half the lanes load the row below first: or channels would meet in a bank.
        late = not ROUNDED and thread.lane & 2 > 0
        if late:
            row_at, below_at = below_at, row_at
        find_runs(run_at, thread.lane)
        return run_at, row_at, below_at, late

    return own_rows


def make_load_batch(spec):
    """Device function ``load_batch(to, shared, slots, own)``: a thread's part of a batch of tap rows.

    ``slots`` is where the warpgroup's first slot of the batch lies, ``own`` of :func:`make_own_rows`. A slot is
    loaded once for all taps and pixels that read it: of each 8 k's and column of slots four elements.
    """
    box, window = spec.box, spec.window
    run, groups = spec.run, spec.k_groups
    GROUPS, RUN, RUNS = map(specialized, (groups, run, 2 * groups // run))
    COLUMNS_IN, BATCH = map(specialized, (spec.columns_in, spec.batch_rows))
    ROW_AT, COLUMN_AT = map(specialized, (box.row_step, box.column_step))
    TAP_TOP, TAP_DOWN = map(specialized, (window.start[0], window.step[0]))

    @cuda.jit(device=True, forceinline=True)
    def load_batch(to, shared, slots, own):
        unroll_loops()
        run_at, row_at, below_at, _ = own
        values = local_array(RUN, np.float32)
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

    return load_batch


def make_prepare(spec):
    """Device function ``prepare(high, low, loaded, own)``: what is loaded as the tensor cores take it."""
    FRAGMENTS = specialized(spec.fragments)
    SPLIT, ROUNDED = spec.split, spec.dtype.itemsize == 4

    @cuda.jit(device=True, forceinline=True)
    def prepare(high, low, loaded, own):
        unroll_loops()
        late = own[3]
        for i in range(FRAGMENTS):
            if SPLIT:
                # Not loaded[i] itself, though nobody reads its low bits: what is loaded next would take its
                # place while it is still multiplied.
                high[i] = cut_tf32(loaded[i])
                low[i] = nearer_tf32(loaded[i] - high[i])
            elif ROUNDED:
                high[i] = nearer_tf32(loaded[i])
            else:
                high[i] = loaded[i ^ 1] if late else loaded[i]

    return prepare


def make_multiply_batch(spec):
    """Device function ``multiply_batch(sums, fragments, shared, start, taps)``: queue the products of a batch.

    ``sums`` are ``(acc, part)``, ``fragments`` ``(high, low)``, ``taps`` the first tap row's stage and phase. In
    three terms the small products of a pixel come first, which lose nothing while the sum is small.
    """
    ring, window, columns = spec.tap_ring, spec.window, spec.tile.BN
    START, PITCH = map(specialized, (ring.data, ring.pitch))
    BN, MATRIX = map(specialized, (columns, descriptor_strides(columns * CHUNK, 128)))
    PART = specialized(2 * columns)  # chunks of one product's second operand
    SPLIT, PARTS, CHAINS = spec.split, spec.parts, specialized(spec.tile.PW * spec.parts)
    BATCH, GROUPS = map(specialized, (spec.batch_rows, spec.k_groups))
    COLUMNS_IN, SUMS = map(specialized, (spec.columns_in, spec.pixel_sums))
    across = window.taps[1], window.start[1], window.step[1]
    TAP_COLUMNS, TAP_LEFT, TAP_ACROSS = map(specialized, across)
    COLUMN_STEP = specialized(spec.pixels.left[0])
    look_ahead = make_look_ahead(ring)
    multiply = FRAGMENT_PRODUCTS[spec.dtype.name]

    @cuda.jit(device=True, forceinline=True)
    def multiply_batch(sums, fragments, shared, start, taps):
        unroll_loops()
        acc, part = sums
        high, low = fragments
        for chain in range(CHAINS):
            j = chain // PARTS  # of the warpgroup's pixels
            for r in range(BATCH):
                stage, _ = look_ahead(taps[0], taps[1], r)
                b_row = MATRIX + (start + START + stage * PITCH) // 16
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

    return multiply_batch
