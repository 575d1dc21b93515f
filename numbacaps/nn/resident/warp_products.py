"""Products of a layer of at most 8 rows, with operands swapped: the rows are the columns of a warp's products.

What changed from a warpgroup's tile (:mod:`numbacaps.nn.resident.tile_products`), of whose 64 rows all but a few would be empty:
the packed kernel is the first operand, 16 of its columns at a time, and what the layer reads is the second,
8 rows at most. The kernel's core matrices are what ``ldmatrix`` loads, so it is packed as for all others.
A warp takes every N-th chunk of N sets of warps, and of each a group of 8 k's of every tap; what it finds is a share of the sum.
"""

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    TF32_NEARER,
    cut_tf32,
    load_matrices,
    load_run,
    local_array,
    mbarrier_arrive_times,
    mbarrier_wait,
    mbarrier_wait_where,
    mma,
    short,
    unforeseen,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.nn.resident.pipeline import make_past, ring_functions
from numbacaps.nn.resident.row_addresses import row_addresses
from numbacaps.nn.resident.shared_memory import WARPS

_ZERO = np.float32(0)


def make_warp_products(layer, pipeline, conclude):
    """Device function for a layer's products, on warps, and its activation.

    Parameters
    ----------
    layer : numbacaps.nn.resident.layers.ResidentLayer
        One whose schedule is ``swapped``.
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    conclude : device function
        What comes behind the shares of the sum.
    """
    rows, taps, chunks, output = layer.rows, layer.taps, layer.chunks, layer.output
    split, lines, fragments = layer.terms > 1, layer.BN // 16, taps.columns * 2
    arrivals, at_once = pipeline.warpgroups * WARPS // chunks.groups, min(chunks.run, 2)
    ROWS, N, SIZE = map(specialized, (rows.count, layer.N, output.size))
    IN, OUT = map(specialized, (layer.input_at, output.at))
    CHANNEL, TAP_ROW = map(specialized, (taps.channel_step, taps.row_step))
    TAP_COLUMN, TAP_ROWS = map(specialized, (taps.column_step, taps.rows))
    TAP_COLUMNS, FIRST = map(specialized, (taps.columns, rows.first))
    CHANNELS, GROUPS = map(specialized, (chunks.channels, chunks.groups))
    CHUNKS, ARRIVALS = map(specialized, (chunks.count, arrivals))
    SETS = specialized(min(arrivals, chunks.stages))  # of warps, each of which takes a chunk
    AT_ONCE, RUNS = map(specialized, (at_once, 2 // at_once))
    SPLIT, PARTS = split, 2 if split else 1
    LINES, SUMS, FRAGMENTS = map(specialized, (lines, lines * 4, fragments))
    PART_SUMS = specialized(lines * 4 if split else 1)
    LOW = specialized(fragments if split else 1)
    HALF, GROUP = map(
        specialized, (layer.BN * CHUNK, layer.BN * CHUNK * 2)
    )  # bytes of 4 k's and of 8
    STAGES, EMPTY = map(specialized, (chunks.stages, pipeline.empty_at))
    NEARER = TF32_NEARER
    lies_at, phase_of, _, after = ring_functions(pipeline, chunks.stages)
    past = make_past(pipeline, chunks.stages, chunks.count)
    input_of, k_at, result_of, result_of_column = row_addresses(layer)

    @cuda.jit(device=True, forceinline=True)
    def load(high, low, shared, begin, run_at):
        """A lane's part of the second operand: of a row, two k's of every tap."""
        values = local_array(AT_ONCE, np.float32)
        for tap in range(TAP_COLUMNS):
            for i in range(RUNS):
                load_run(AT_ONCE, values, shared, begin + run_at[i] + tap * TAP_COLUMN)
                for j in range(AT_ONCE):
                    to, value = tap * 2 + i * AT_ONCE + j, values[j]
                    if SPLIT:
                        high[to] = cut_tf32(value)
                        low[to] = (value - high[to]) * NEARER
                    else:
                        high[to] = value * NEARER

    @cuda.jit(device=True, forceinline=True)
    def multiply(acc, part, high, low, shared, address):
        """Add the products with a chunk that lies there."""
        a = local_array(4, np.float32)
        a_low = local_array(4, np.float32)
        for i in range(PART_SUMS):
            part[i] = _ZERO
        for tap in range(TAP_COLUMNS):
            for line in range(LINES):
                lies = address + tap * (PARTS * GROUPS * GROUP) + line * 256
                load_matrices(a, shared, lies)
                if SPLIT:  # the small products first
                    load_matrices(a_low, shared, lies + GROUPS * GROUP)
                    mma(part, line * 4, a, 0, low, tap * 2)
                    mma(part, line * 4, a_low, 0, high, tap * 2)
                    mma(part, line * 4, a, 0, high, tap * 2)
                else:
                    mma(acc, line * 4, a, 0, high, tap * 2)
        if SPLIT:
            for i in range(SUMS):
                acc[i] += part[i]

    @cuda.jit(device=True, forceinline=True)
    def compute(work, stage, phases):
        shared, start, floats, thread = work.shared, work.start, work.floats, work.thread
        warp = work.warp
        acc = local_array(SUMS, np.float32)
        part = local_array(PART_SUMS, np.float32)
        high = local_array(FRAGMENTS, np.float32)
        low = local_array(LOW, np.float32)
        run_at = local_array(2, np.int32)
        lane, mine = short(thread & 31), short(np.uint32(warp) // GROUPS)
        group = short(np.uint32(warp) % GROUPS)
        for i in range(RUNS):
            run_at[i] = k_at(2 * group + i, lane)
        for i in range(SUMS):
            acc[i] = _ZERO
        row_at = floats + IN + FIRST + input_of(lane // 4)
        # Of the four matrices that are loaded at once two are 8 columns further, and two 4 k's.
        matrix = group * GROUP + (lane & 7) * 16 + (lane >> 3 & 1) * 128 + (lane >> 4) * HALF
        if stage >= STAGES:
            stage = short(0)
        behind = past(stage, phases)
        stage, phases = after(stage, phases, mine)
        chunk = mine
        while chunk < CHUNKS and mine < SETS:
            one = np.uint32(chunk)
            begin = row_at + np.uint32(one // TAP_ROWS) * (CHANNELS * CHANNEL)
            load(high, low, shared, begin + np.uint32(one % TAP_ROWS) * TAP_ROW, run_at)
            empty = start + EMPTY + stage * 8  # another set's chunk may have been there
            asked = 1 if chunk >= STAGES else 0
            mbarrier_wait_where(shared, empty, phase_of(stage, phases) ^ 1, asked)
            mbarrier_wait(shared, start + stage * 8, phase_of(stage, phases))
            lies = CHUNK * lies_at(start, stage) + matrix
            multiply(acc, part, high, low, shared, lies)
            cuda.syncwarp()
            if lane == 0:  # in the name of those that leave it to this set
                mbarrier_arrive_times(shared, empty, ARRIVALS)
            stage, phases = after(stage, phases, SETS)
            chunk = unforeseen(chunk + SETS)
        row = short(lane % 4 * 2)
        for i in range(2):
            if row + i < ROWS:
                to = floats + OUT + warp * SIZE + result_of(row + i)
                for block in range(2 * LINES):
                    n = short(block * 8 + lane // 4)
                    if n < N:
                        shared[at(to + result_of_column(n))] = acc[block * 2 + i]
        conclude(work)
        return behind

    return compute
