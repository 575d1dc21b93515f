"""A layer's products in the forward pass, on warpgroups: tiles of 64 rows (pixel, d1) of the image.

The products are those of :mod:`numbacaps.fused.rung_5_warp_specialized.kernel`, whose boxes are not needed any more: a
thread loads its part of the first operand from shared memory. Where a layer has fewer tiles than there are
warpgroups, these share its sum.
"""

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    TF32_NEARER,
    bulk_store,
    cut_tf32,
    descriptor_strides,
    fence_proxy_async,
    load_run,
    local_array,
    mbarrier_arrive,
    mbarrier_arrive_times,
    mbarrier_wait,
    mbarrier_wait_where,
    meet_at,
    short,
    store_pair,
    unforeseen,
    wgmma_commit,
    wgmma_fence,
    wgmma_fragment,
    wgmma_wait,
    wgmma_wait_but,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.nn.resident.layer_end import written
from numbacaps.nn.resident.pipeline import ring_functions
from numbacaps.nn.resident.row_addresses import row_addresses
from numbacaps.nn.resident.squash_tile import make_squash_tile

_ZERO = np.float32(0)
_UNROLLED = 6  # steps, at most: of more the code takes longer to be fetched than it saves


def make_tile_products(layer, pipeline, keeps, conclude):
    """Device function for a layer's products on warpgroups, a tile of 64 rows each, and its activation.

    Parameters
    ----------
    layer : numbacaps.nn.resident.layers.ResidentLayer
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    keeps : bool
        The output and its squash's slopes are written to global memory.
    conclude : device function
        What comes behind the last tile.
    """
    chunks, schedule, output = layer.chunks, layer.schedule, written(layer.output, keeps)
    shares, together, split = schedule.shares, schedule.shares * schedule.batch, layer.terms > 1
    steps, columns = chunks.count // together, layer.BN
    fragments = schedule.batch * layer.taps.columns * chunks.groups * 4
    RUN, BATCH = map(specialized, (chunks.run, schedule.batch))
    RUNS, FRAGMENTS = map(specialized, (2 * chunks.groups // chunks.run, fragments))
    FIRST, SPLIT = specialized(layer.rows.first), split
    LOW, SUMS = map(specialized, (fragments if split else 1, columns // 2))
    PART_SUMS = specialized(columns // 2 if split else 1)
    B_MATRIX = specialized(descriptor_strides(columns * CHUNK, 128))
    TILES, ROUNDS, SHARES = map(specialized, (schedule.tiles, schedule.rounds, shares))
    WARPGROUPS = pipeline.warpgroups
    STEPS, TOGETHER = map(specialized, (steps, together))
    UNROLLS = steps <= _UNROLLED
    WHOLE, OTHERS = shares == 1, specialized(shares > 1 and together < chunks.stages)
    # Steps in turn whose fragments have registers of their own, so that one's products can follow the other's.
    halves = 2 if schedule.overlaps else 1
    HALVES, LATER, HELD = map(specialized, (halves, halves - 1, halves * fragments))
    IN, OUT, SIZE = map(specialized, (layer.input_at, output.at, output.size))
    KEEPS, OUTPUT = map(specialized, (keeps or layer.last, output.elements_before))
    SLOPES, GROUPS_OUT = map(specialized, (output.groups_before, output.groups))
    STAGES, EMPTY = map(specialized, (chunks.stages, pipeline.empty_at))
    NEARER = TF32_NEARER
    lies_at, phase_of, following, after = ring_functions(pipeline, chunks.stages)
    input_of, k_at, result_of, result_of_column = row_addresses(layer)
    store, write_tile = _make_results(layer)
    load, multiply = _make_products(layer)

    @cuda.jit(device=True, forceinline=True)
    def rows_of(tile, warp, lane):
        """A thread's first row of a tile, and where it and the one 8 below begin to read."""
        row = short(tile * 64 + (warp & 3) * 16 + lane // 4)
        return row, (input_of(row), input_of(row + 8))

    squash = make_squash_tile(layer, result_of, result_of_column, keeps)

    @cuda.jit(device=True, forceinline=True)
    def pass_by(shared, start, lane, stage, phases):
        """Leave a chunk to others."""
        mbarrier_wait(shared, start + stage * 8, phase_of(stage, phases))
        if lane == 0:
            mbarrier_arrive(shared, start + EMPTY + stage * 8)
        return following(stage, phases)

    @cuda.jit(device=True, forceinline=True)
    def leave(shared, start, lane, stage):
        """Leave the chunks from there on to TMA, in the name of all that share the sum."""
        for _ in range(BATCH):
            if lane == 0:
                mbarrier_arrive_times(shared, start + EMPTY + stage * 8, SHARES)
            stage = short(stage + 1 if stage < STAGES - 1 else 0)

    @cuda.jit(device=True, forceinline=True)
    def compute(work, stage, phases):
        shared, start, floats, slopes = work.shared, work.start, work.floats, work.slopes
        outputs, image, images, thread = work.outputs, work.image, work.images, work.thread
        warp = work.warp
        acc = local_array(SUMS, np.float32)
        part = local_array(PART_SUMS, np.float32)
        high = local_array(HELD, np.float32)
        low = local_array(LOW, np.float32)
        loaded = local_array(FRAGMENTS, np.float32)
        run_at = local_array(RUNS, np.int32)
        chunk_at = local_array(BATCH, np.int64)
        lane = short(thread & 31)
        warpgroup = short(warp >> 2)
        for i in range(RUNS):
            run_at[i] = k_at(i * RUN, lane)
        origin = short(floats + IN + FIRST)
        if stage >= STAGES:
            stage = short(0)
        tile, share = short(warpgroup), short(0)
        if SHARES * TILES <= WARPGROUPS:
            tile = short(np.uint32(warpgroup) % TILES)
            share = short(np.uint32(warpgroup) // TILES)
        row, rows_at = rows_of(tile, warp, lane)
        load(loaded, shared, origin, run_at, rows_at, share * BATCH)
        for around in range(short(ROUNDS)):
            for i in range(SUMS):
                acc[i] = _ZERO
            for i in range(PART_SUMS):
                part[i] = _ZERO
            busy = tile < TILES and share < SHARES
            if busy:
                before = stage
                first = short(0)
                while first < STEPS:
                    for half in range(HALVES):
                        step = short(first + half)
                        if SHARES > 1:
                            stage, phases = after(stage, phases, share * BATCH)
                        for i in range(FRAGMENTS):
                            if SPLIT:
                                high[i] = cut_tf32(loaded[i])
                                low[i] = (loaded[i] - high[i]) * NEARER
                            else:
                                high[half * FRAGMENTS + i] = loaded[i] * NEARER
                        one, bits = stage, phases
                        for r in range(BATCH):
                            if OTHERS == 1:  # whose chunk may have been there
                                chunk = step * TOGETHER + share * BATCH + r
                                asked = 1 if chunk >= STAGES else 0
                                empty = start + EMPTY + one * 8
                                mbarrier_wait_where(shared, empty, phase_of(one, bits) ^ 1, asked)
                            mbarrier_wait(shared, start + one * 8, phase_of(one, bits))
                            chunk_at[r] = B_MATRIX + lies_at(start, one)
                            one, bits = following(one, bits)
                        ahead = short(step + 1 if step < STEPS - 1 else 0)
                        if step == STEPS - 1:  # the next tile's
                            _, rows_at = rows_of(tile + WARPGROUPS, warp, lane)
                        chunk = ahead * TOGETHER + share * BATCH
                        # Before the products: with many in the queue the warp stands still.
                        if not SPLIT:
                            load(loaded, shared, origin, run_at, rows_at, chunk)
                        wgmma_fence()
                        multiply(acc, part, high, half * FRAGMENTS, low, shared, chunk_at)
                        wgmma_commit()
                        if SPLIT:  # fragments that are only cut would be taken for free
                            load(loaded, shared, origin, run_at, rows_at, chunk)
                        wgmma_wait_but(LATER)
                        if SPLIT:
                            for i in range(SUMS):
                                acc[i] += part[i]
                        if step >= LATER:  # read are the chunks of this step, or of the one before
                            leave(shared, start, lane, before if LATER > 0 else stage)
                        before = stage
                        if TOGETHER > 1:
                            stage, phases = after(stage, phases, TOGETHER - share * BATCH)
                        else:
                            stage, phases = following(stage, phases)
                    first = short(first + HALVES) if UNROLLS else unforeseen(first + HALVES)
                if LATER > 0:
                    wgmma_wait()
                    leave(shared, start, lane, before)
            else:
                for _ in range(short(STEPS * TOGETHER)):
                    stage, phases = pass_by(shared, start, lane, stage, phases)
            column = short(lane % 4 * 2)
            if busy:
                if WHOLE:
                    squash(acc, slopes, SLOPES * images + image * GROUPS_OUT, row, lane)
                store(acc, shared, floats + OUT + share * SIZE, row, column)
                if WHOLE and KEEPS == 1:
                    fence_proxy_async()  # TMA may see the tile
                    meet_at(2 + warpgroup, 128)
                    if warp & 3 == 0 and lane == 0:
                        write_tile(shared, start, outputs, image * SIZE + OUTPUT * images, tile)
            tile, row = short(tile + WARPGROUPS), short(row + WARPGROUPS * 64)
        conclude(work)
        return stage, phases

    return compute


def _make_products(layer):
    """Device functions: one loads a thread's part of the first operand, one queues the products with some chunks."""
    taps, chunks, schedule = layer.taps, layer.chunks, layer.schedule
    BN, PART, SPLIT = *map(specialized, (layer.BN, 2 * layer.BN)), layer.terms > 1
    CHANNEL, TAP_ROW = map(specialized, (taps.channel_step, taps.row_step))
    TAP_COLUMN, TAP_ROWS = map(specialized, (taps.column_step, taps.rows))
    TAP_COLUMNS, CHANNELS = map(specialized, (taps.columns, chunks.channels))
    GROUPS, RUN = map(specialized, (chunks.groups, chunks.run))
    RUNS, BATCH = map(specialized, (2 * chunks.groups // chunks.run, schedule.batch))
    PARTS = 2 if SPLIT else 1
    STEPS = specialized(chunks.count // (schedule.shares * schedule.batch))

    @cuda.jit(device=True, forceinline=True)
    def load(to, shared, origin, run_at, rows_at, chunk):
        """A thread's part of the first operand, of chunks: a row of taps of some channels each."""
        values = local_array(RUN, np.float32)
        row_at, below_at = rows_at
        for r in range(BATCH):
            one = np.uint32(chunk + r)
            begin = origin + np.uint32(one // TAP_ROWS) * (CHANNELS * CHANNEL)
            begin += np.uint32(one % TAP_ROWS) * TAP_ROW
            for i in range(RUNS):
                for half in range(2):
                    slot = begin + run_at[i] + (below_at if half else row_at)
                    for tap in range(TAP_COLUMNS):
                        load_run(RUN, values, shared, slot + tap * TAP_COLUMN)
                        for j in range(RUN):
                            four = i * RUN + j  # k's of a tap
                            k = (r * GROUPS + four // 2) * TAP_COLUMNS + tap
                            to[k * 4 + four % 2 * 2 + half] = values[j]

    @cuda.jit(device=True, forceinline=True)
    def multiply(acc, part, high, first, low, shared, chunk_at):
        """Queue the products with the chunks that lie there."""
        for chain in range(PARTS):  # in three terms the small products first
            for r in range(BATCH):
                for tap in range(TAP_COLUMNS):
                    for group in range(GROUPS):
                        b_high = chunk_at[r] + (tap * PARTS * GROUPS + group) * PART
                        b_low = b_high + GROUPS * PART
                        k = ((r * GROUPS + group) * TAP_COLUMNS + tap) * 4
                        if not SPLIT:
                            more = 0 if STEPS == 1 and r + tap + group == 0 else 1
                            wgmma_fragment(BN, acc, 0, high, first + k, shared, b_high, more)
                        elif chain == 0:
                            more = 1 if r + tap + group > 0 else 0
                            wgmma_fragment(BN, part, 0, low, k, shared, b_high, more)
                            wgmma_fragment(BN, part, 0, high, k, shared, b_low, 1)
                        else:
                            wgmma_fragment(BN, part, 0, high, k, shared, b_high, 1)

    return load, multiply


def _make_results(layer):
    """Device functions: one stores a thread's sums in shared memory, one lets a tile be written to global memory."""
    BN, N, N_FULL = map(specialized, (layer.BN, layer.N, layer.N == layer.BN))
    ROWS, OUT = map(specialized, (layer.rows.count, layer.output.at))
    D3, BY_CAPSULE = map(specialized, (layer.D3, layer.by_capsule))
    CAPSULES = specialized(layer.N // layer.D3)
    _, _, result_of, result_of_column = row_addresses(layer)

    @cuda.jit(device=True, forceinline=True)
    def store(acc, array, begin, row, column):
        """Write a thread's sums where they belong in an image's result."""
        for half in range(2):
            if row + half * 8 < ROWS:
                to = begin + result_of(row + half * 8)
                for block in range(BN // 8):
                    n, i = column + block * 8, block * 4 + half * 2
                    if N_FULL == 1 or n < N:
                        store_pair(array, to + result_of_column(n), acc[i], acc[i + 1])

    @cuda.jit(device=True, forceinline=True)
    def write_tile(shared, start, outputs, begin, tile):
        """Let a tile's rows of every capsule be written while the next tiles are computed."""
        first = short(tile * 64)
        count = short(min(64, ROWS - first)) * D3
        for p in range(short(CAPSULES)):
            at_row = p * BY_CAPSULE + first * D3
            bulk_store(outputs, begin + at_row, shared, start + 4 * (OUT + at_row), 4 * count)

    return store, write_tile
