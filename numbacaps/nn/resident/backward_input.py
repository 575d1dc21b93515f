"""The gradient of a layer's input: who multiplies which taps, and who adds when."""

import numpy as np

from numbacaps.device.instructions import (
    local_array,
    mbarrier_arrive,
    mbarrier_arrive_times,
    meet,
    meet_at,
    short,
    unforeseen,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.nn.resident.backward_taps import make_tap_products, make_tap_sums
from numbacaps.nn.resident.pipeline import ring_functions

_ZERO = np.float32(0)


def make_input_gradient(one, pipeline):
    """Device function for the gradient of a layer's input: products on warpgroups, and their sums in shared memory.

    Parameters
    ----------
    one : numbacaps.nn.resident.backward_layout.InputGradient
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    """
    product, schedule = one.product, one.schedule
    at_once, together = schedule.at_once, product.together
    AT_ONCE, HELD_ROWS = map(specialized, (at_once, at_once * 4 * product.steps))
    ALL_SUMS, ROWS_ADDED = map(specialized, (at_once * (product.columns // 2), 2 * at_once))
    PLACES, TOGETHER = map(specialized, (product.N // 8 // product.wide, together))
    IN_TURN, ROUNDS = map(specialized, (product.taps // together, schedule.rounds))
    COPIES, THREADS = specialized(schedule.copies), pipeline.consumers
    CHUNKS, WARPGROUPS = 2 if one.layer.terms > 1 else 1, pipeline.warpgroups
    AT, OUT, SIZE = map(specialized, (one.at, one.out, one.size))
    EMPTY, STAGES = map(specialized, (pipeline.empty_at, one.chunks.stages))
    _, _, following, after = ring_functions(pipeline, one.chunks.stages)
    load_tiles, multiply = make_tap_products(one, pipeline)
    prepare, add = make_tap_sums(one, pipeline)

    @cuda.jit(device=True, forceinline=True)
    def compute_taps(work, stage, phases):
        """Warpgroups take taps in turn: in a step one multiplies, the other adds what it multiplied before."""
        shared, start, floats = work.shared, work.start, work.floats
        thread, warp = work.thread, work.warp
        acc = local_array(ALL_SUMS, np.float32)
        held = local_array(HELD_ROWS, np.float32)
        column_at = local_array(PLACES, np.int32)
        added_at = local_array(ROWS_ADDED, np.int32)
        lane = short(thread & 31)
        if stage >= STAGES:
            stage = short(0)
        prepare(column_at, shared, floats, thread, lane)
        to, last = short(floats + OUT), short(IN_TURN)
        for around in range(short(ROUNDS)):
            row = short(around * (AT_ONCE * 64) + (warp & 3) * 16 + lane // 4)
            load_tiles(held, added_at, shared, floats + AT, row, lane)
            for i in range(ALL_SUMS):
                acc[i] = _ZERO
            step = short(0)
            while step <= last:
                if (step ^ warp >> 2) & 1 == 0:
                    if step < last:
                        multiply(acc, held, shared, start, stage, phases)
                        for _ in range(CHUNKS):
                            if lane == 0:
                                to_empty = start + EMPTY + stage * 8
                                mbarrier_arrive_times(shared, to_empty, WARPGROUPS)
                            stage, phases = following(stage, phases)
                else:
                    if step > 0:
                        add(acc, shared, to, row, added_at, column_at, step - 1, 0)
                    if step < last:
                        stage, phases = after(stage, phases, CHUNKS)
                meet(THREADS)
                step = unforeseen(step + 1)
        return stage, phases

    @cuda.jit(device=True, forceinline=True)
    def compute_tiles(work, stage, phases):
        """A warpgroup takes tiles of its own."""
        shared, start, floats, thread = work.shared, work.start, work.floats, work.thread
        warp = work.warp
        acc = local_array(ALL_SUMS, np.float32)
        held = local_array(HELD_ROWS, np.float32)
        column_at = local_array(PLACES, np.int32)
        added_at = local_array(ROWS_ADDED, np.int32)
        lane = short(thread & 31)
        if stage >= STAGES:
            stage = short(0)
        prepare(column_at, shared, floats, thread, lane)
        tile = short(warp >> 2)
        to = short(floats + OUT + (tile * SIZE if COPIES > 1 else 0))
        for _ in range(short(ROUNDS)):
            row = short(tile * 64 + (warp & 3) * 16 + lane // 4)
            load_tiles(held, added_at, shared, floats + AT, row, lane)
            taps = short(0)
            while taps < IN_TURN:
                multiply(acc, held, shared, start, stage, phases)
                for _ in range(CHUNKS):
                    if lane == 0:
                        mbarrier_arrive(shared, start + EMPTY + stage * 8)
                    stage, phases = following(stage, phases)
                if TOGETHER == 1:
                    meet_at(2 + (warp >> 2), 128)
                add(acc, shared, to, row, added_at, column_at, taps, 2 + (warp >> 2))
                taps = unforeseen(taps + 1)
            tile = short(tile + WARPGROUPS)
        meet(THREADS)
        return stage, phases

    return compute_taps if schedule.takes_taps else compute_tiles
