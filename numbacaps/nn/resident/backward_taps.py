"""Products of a layer's taps in the backward pass, and their sums where the taps' windows lie."""

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    TF32_NEARER,
    cut_tf32,
    descriptor_strides,
    load_run,
    local_array,
    mbarrier_wait,
    meet,
    meet_at,
    short,
    store_quad,
    store_run,
    unforeseen,
    wgmma_commit,
    wgmma_fence,
    wgmma_fragment,
    wgmma_wait,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.nn.resident.pipeline import ring_functions

_ZERO = np.float32(0)


def make_tap_products(one, pipeline):
    """Device functions: one loads a thread's part of the first operand, one multiplies it with some taps.

    Parameters
    ----------
    one : numbacaps.nn.resident.backward_layout.InputGradient
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    """
    layer, product, rows = one.layer, one.product, one.layer.rows
    steps, columns, SPLIT = product.steps, product.columns, layer.terms > 1
    ROWS, D1, COLUMNS = map(specialized, (rows.count, rows.D1, rows.columns))
    OUT_ROW, OUT_COLUMN, OUT_D1 = map(specialized, rows.results)
    BY_ROW, BY_COLUMN, BY_D1, FIRST = map(specialized, (*rows.reads, rows.first))
    K, CAPSULE, BY_CAPSULE = map(specialized, (product.K, layer.D3, layer.by_capsule))
    STEPS, AT_ONCE, RUN = map(specialized, (steps, one.schedule.at_once, product.run))
    RUNS, FRAGMENTS = map(specialized, (2 * steps // product.run, 4 * steps))
    BN, PART = map(specialized, (columns, 4 * steps if SPLIT else 1))
    B_MATRIX = specialized(descriptor_strides(columns * CHUNK, 128))
    STEP, SUMS = map(specialized, (2 * columns, columns // 2))
    NEARER = TF32_NEARER
    lies_at, phase_of, following, _ = ring_functions(pipeline, one.chunks.stages)

    @cuda.jit(device=True, forceinline=True)
    def addresses_of(row):
        """Where a row of the image's product lies, and where its first tap is added."""
        row = np.uint32(row if row < ROWS else 0)
        pixel, d1 = np.uint32(row // D1), np.uint32(row % D1)
        down, across = np.uint32(pixel // COLUMNS), np.uint32(pixel % COLUMNS)
        place = short(down * OUT_ROW + across * OUT_COLUMN + d1 * OUT_D1)
        return place, short(down * BY_ROW + across * BY_COLUMN + d1 * BY_D1 + FIRST)

    @cuda.jit(device=True, forceinline=True)
    def load(held, begin_to, shared, begin, row_at, below_at, lane):
        """A thread's part of a tile's first operand: all k's of two rows."""
        values = local_array(RUN, np.float32)
        for i in range(RUNS):
            k = np.uint32((i * 4 + lane % 4) * RUN)
            k = np.uint32(k if k < K else 0)  # multiplied by zeros
            capsule = np.uint32(k // CAPSULE) * BY_CAPSULE + np.uint32(k % CAPSULE)
            for half in range(2):
                place = begin + capsule + (below_at if half else row_at)
                load_run(RUN, values, shared, place)
                for j in range(RUN):
                    four = i * RUN + j
                    to = begin_to + four // 2 * 4 + four % 2 * 2 + half
                    held[to] = values[j] if SPLIT else values[j] * NEARER

    @cuda.jit(device=True, forceinline=True)
    def load_tiles(held, added_at, shared, begin, row, lane):
        """The same of all tiles at once, and where their rows' first taps are added."""
        for t in range(AT_ONCE):
            row_at, added_at[2 * t] = addresses_of(row + 64 * t)
            below_at, added_at[2 * t + 1] = addresses_of(row + 64 * t + 8)
            load(held, t * FRAGMENTS, shared, begin, row_at, below_at, lane)

    @cuda.jit(device=True, forceinline=True)
    def multiply(acc, held, shared, start, stage, phases):
        """The products of all tiles with some taps, whose chunks are next in the ring."""
        high = local_array(PART, np.float32)
        low = local_array(PART, np.float32)
        mbarrier_wait(shared, start + stage * 8, phase_of(stage, phases))
        one, bits = following(stage, phases)
        if SPLIT:
            mbarrier_wait(shared, start + one * 8, phase_of(one, bits))
        b_low = B_MATRIX + lies_at(start, stage)
        b_high = B_MATRIX + lies_at(start, one if SPLIT else stage)
        wgmma_fence()
        for t in range(AT_ONCE if SPLIT else 0):
            to, of = t * SUMS, t * FRAGMENTS
            if SPLIT:  # the small products first
                for i in range(FRAGMENTS):
                    high[i] = cut_tf32(held[of + i])
                    low[i] = (held[of + i] - high[i]) * NEARER
                wgmma_fence()
                for k in range(STEPS):
                    more = 1 if k > 0 else 0
                    wgmma_fragment(BN, acc, to, high, k * 4, shared, b_low + k * STEP, more)
                for k in range(STEPS):
                    wgmma_fragment(BN, acc, to, low, k * 4, shared, b_high + k * STEP, 1)
                for k in range(STEPS):
                    wgmma_fragment(BN, acc, to, high, k * 4, shared, b_high + k * STEP, 1)
                wgmma_commit()
                wgmma_wait()
        if not SPLIT:  # sums that do not wait for each other in turn
            for k in range(STEPS):
                b, more = b_high + k * STEP, 1 if k > 0 else 0
                for t in range(AT_ONCE):
                    of = t * FRAGMENTS + k * 4
                    wgmma_fragment(BN, acc, t * SUMS, held, of, shared, b, more)
            wgmma_commit()
            wgmma_wait()

    return load_tiles, multiply


def make_tap_sums(one, pipeline):
    """Device functions: one fills the input with zeros, one adds a thread's sums of some taps to it.

    Parameters
    ----------
    one, pipeline
        As those of :func:`make_tap_products`.
    """
    product, taps, THREADS = one.product, one.layer.taps, pipeline.consumers
    of_tap, added = product.N // 8, 2 * one.schedule.at_once  # blocks of 8 columns; rows
    held = 2 if one.layer.terms > 1 else added  # as many rows as registers are left for
    places, run = of_tap // product.wide, 2 * product.wide
    ROWS, CHANNEL = map(specialized, (one.layer.rows.count, taps.channel_step))
    TAP_ROW, TAP_COLUMN = map(specialized, (taps.row_step, taps.column_step))
    TAP_COLUMNS, TOGETHER = map(specialized, (taps.columns, product.together))
    WIDE, D = map(specialized, (product.wide, product.D))
    SUMS, OF_TAP, PLACES = map(specialized, (product.columns // 2, of_tap, places))
    ROWS_ADDED, ROWS_HELD = map(specialized, (added, held))
    RUN_OUT, HELD = map(specialized, (run, held * places * run))
    OUT, SIZE, COPIES = map(specialized, (one.out, one.size, one.schedule.copies))

    @cuda.jit(device=True, forceinline=True)
    def below(one):
        """Rows from a thread's first one to this one."""
        return one // 2 * 64 + one % 2 * 8

    @cuda.jit(device=True, forceinline=True)
    def add(acc, shared, to, row, added_at, column_at, taps, barrier):
        """Add a thread's sums of some taps, one after the other; others of its warpgroup add theirs."""
        held = local_array(HELD, np.float32)
        run = local_array(RUN_OUT, np.float32)
        for j in range(TOGETHER):
            tap = np.uint32(taps * TOGETHER + j)
            tap_at = to + np.uint32(tap // TAP_COLUMNS) * TAP_ROW
            tap_at += np.uint32(tap % TAP_COLUMNS) * TAP_COLUMN
            if TOGETHER > 1:
                meet_at(barrier, 128)  # what was added of the tap before is there
            for some in range(0, ROWS_ADDED, ROWS_HELD):
                for one in range(ROWS_HELD):  # before the first store, which they would wait for
                    begin = tap_at + added_at[some + one]
                    if row + below(some + one) < ROWS:
                        for place in range(PLACES):
                            load_run(RUN_OUT, run, shared, begin + column_at[place])
                            for i in range(RUN_OUT):
                                held[(one * PLACES + place) * RUN_OUT + i] = run[i]
                for one in range(ROWS_HELD):
                    begin = tap_at + added_at[some + one]
                    if row + below(some + one) < ROWS:
                        for place in range(PLACES):
                            for i in range(RUN_OUT):
                                block = j * OF_TAP + place * WIDE + i // 2
                                which = (some + one) // 2 * SUMS + block * 4
                                which += (some + one) % 2 * 2 + i % 2
                                run[i] = held[(one * PLACES + place) * RUN_OUT + i] + acc[which]
                            store_run(RUN_OUT, shared, begin + column_at[place], run)

    @cuda.jit(device=True, forceinline=True)
    def prepare(column_at, shared, floats, thread, lane):
        """Fill the input with zeros, and find out where a thread's columns are added."""
        i = short(4 * thread)
        while i < SIZE * COPIES:
            store_quad(shared, floats + OUT + i, _ZERO, _ZERO, _ZERO, _ZERO)
            i = unforeseen(i + 4 * THREADS)
        for place in range(PLACES):
            n = np.uint32((place * 4 + lane % 4) * RUN_OUT)
            column_at[place] = short(np.uint32(n // D) * CHANNEL + np.uint32(n % D))
        meet(THREADS)

    return prepare, add
