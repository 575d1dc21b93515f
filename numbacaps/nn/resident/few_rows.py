"""A resident layer of few rows: the rows are the columns of a warp's products.

What changed from a warpgroup's tile (:mod:`numbacaps.nn.resident.forward`), of whose 64 rows all but a few would be empty:
the packed kernel is the first operand, 16 of its columns at a time, and what the layer reads is the second,
8 rows at most. The kernel's core matrices are what ``ldmatrix`` loads, so it is packed as for all others.
A warp takes every so many chunks, and of each a group of 8 k's of every tap; what it finds is a share of the sum.
"""

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    TF32_NEARER,
    cut_tf32,
    load_matrices,
    load_run,
    mbarrier_arrive_times,
    mbarrier_wait,
    mbarrier_wait_where,
    mma,
    short,
    unforeseen,
)
from numbacaps.device.target import at, cuda
from numbacaps.nn.resident.layout import WARPS
from numbacaps.nn.resident.places import places_of
from numbacaps.nn.resident.ring import make_past, ring_of

_ZERO = np.float32(0)


def make_few_rows(layer, place, conclude):
    """Device function for a layer's products, on warps, and its activation.

    Parameters
    ----------
    layer : numbacaps.nn.resident.layout.ResidentLayer
        One whose ``few`` is set.
    place : numbacaps.nn.resident.layout.Residence
    conclude : device function
        What comes behind the shares of the sum.
    """
    ROWS, N, SIZE, IN, OUT = layer.rows, layer.N, layer.size, layer.at, layer.out
    CHANNEL, TAP_ROW, TAP_COLUMN = layer.taps_apart
    (TAP_ROWS, TAP_COLUMNS), FIRST = layer.taps, layer.reads[-1]
    CHANNELS, GROUPS, CHUNKS = layer.channels_at_once, layer.groups, layer.chunks
    ARRIVALS = place.warpgroups * WARPS // GROUPS
    SETS = min(ARRIVALS, layer.slots)  # of warps, each of which takes a chunk
    AT_ONCE = min(layer.run, 2)
    SPLIT = layer.terms > 1
    PARTS, LINES = 2 if SPLIT else 1, layer.BN // 16
    SUMS, FRAGMENTS = LINES * 4, TAP_COLUMNS * 2
    PART_SUMS, LOW = SUMS if SPLIT else 1, FRAGMENTS if SPLIT else 1
    HALF, GROUP = layer.BN * CHUNK, layer.BN * CHUNK * 2  # bytes of 4 k's and of 8
    SLOTS, EMPTY, NEARER = layer.slots, 8 * place.slots, TF32_NEARER
    lies_at, phase_of, _, after = ring_of(place, layer.slots)
    past = make_past(place, layer.slots, layer.chunks)
    slot_of, k_at, result_of, result_of_column = places_of(layer)

    @cuda.jit(device=True, forceinline=True)
    def load(high, low, shared, begin, run_at):
        """A lane's part of the second operand: of a row, two k's of every tap."""
        values = cuda.local.array(AT_ONCE, np.float32)
        for tap in range(TAP_COLUMNS):
            for i in range(2 // AT_ONCE):
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
        a = cuda.local.array(4, np.float32)
        a_low = cuda.local.array(4, np.float32)
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
    def compute(where, turn, phases):
        shared, start, floats, _, _, _, _, thread, warp = where
        acc = cuda.local.array(SUMS, np.float32)
        part = cuda.local.array(PART_SUMS, np.float32)
        high = cuda.local.array(FRAGMENTS, np.float32)
        low = cuda.local.array(LOW, np.float32)
        run_at = cuda.local.array(2, np.int32)
        lane, mine = short(thread & 31), short(np.uint32(warp) // GROUPS)
        group = short(np.uint32(warp) % GROUPS)
        for i in range(2 // AT_ONCE):
            run_at[i] = k_at(2 * group + i, lane)
        for i in range(SUMS):
            acc[i] = _ZERO
        row_at = floats + IN + FIRST + slot_of(lane // 4)
        # Of the four matrices that are loaded at once two are 8 columns further, and two 4 k's.
        matrix = group * GROUP + (lane & 7) * 16 + (lane >> 3 & 1) * 128 + (lane >> 4) * HALF
        if turn >= SLOTS:
            turn = short(0)
        behind = past(turn, phases)
        turn, phases = after(turn, phases, mine)
        chunk = mine
        while chunk < CHUNKS and mine < SETS:
            one = np.uint32(chunk)
            begin = row_at + np.uint32(one // TAP_ROWS) * (CHANNELS * CHANNEL)
            load(high, low, shared, begin + np.uint32(one % TAP_ROWS) * TAP_ROW, run_at)
            empty = start + EMPTY + turn * 8  # another set's chunk may have been there
            asked = 1 if chunk >= SLOTS else 0
            mbarrier_wait_where(shared, empty, phase_of(turn, phases) ^ 1, asked)
            mbarrier_wait(shared, start + turn * 8, phase_of(turn, phases))
            lies = CHUNK * lies_at(start, turn) + matrix
            multiply(acc, part, high, low, shared, lies)
            cuda.syncwarp()
            if lane == 0:  # in the name of those that leave it to this set
                mbarrier_arrive_times(shared, empty, ARRIVALS)
            turn, phases = after(turn, phases, SETS)
            chunk = unforeseen(chunk + SETS)
        row = short(lane % 4 * 2)
        for i in range(2):
            if row + i < ROWS:
                to = floats + OUT + warp * SIZE + result_of(row + i)
                for block in range(2 * LINES):
                    n = short(block * 8 + lane // 4)
                    if n < N:
                        shared[at(to + result_of_column(n))] = acc[block * 2 + i]
        conclude(where)
        return behind

    return compute
