"""The consumer warpgroups: each multiplies some pixels of the tile, box by box, tap row by tap row.

A warpgroup has as many boxes as there are steps of k. Of each it loads batches of tap rows, starts their products
and, while the tensor cores are busy, loads the next batch or lets other warpgroups load.
"""

import numpy as np

from numbacaps.device.fragments import add, clear
from numbacaps.device.instructions import (
    local_array,
    short,
    wait_for_last,
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
from numbacaps.device.target import cuda
from numbacaps.fused.rung_5_warp_specialized.addressing import make_place_of
from numbacaps.fused.rung_5_warp_specialized.fragments import (
    make_load_batch,
    make_multiply_batch,
    make_own_rows,
    make_prepare,
)
from numbacaps.fused.rung_5_warp_specialized.spec import Thread
from numbacaps.fused.rung_5_warp_specialized.store import make_store_tile
from numbacaps.fused.rung_5_warp_specialized.sum_again import make_sum_again
from numbacaps.fused.told import all_told


def make_consume(spec):
    """Device function of a consumer warpgroup: of every tile, the sums and the epilogue."""
    tile, box, window = spec.tile, spec.box, spec.window
    batch_rows, ring = spec.batch_rows, spec.box_ring
    WARPGROUPS_ACROSS, PW = map(specialized, (tile.TW // tile.PW, tile.PW))
    ROW_AT = specialized(spec.pixels.top[0] * box.row_step)
    COLUMN_AT = specialized(spec.pixels.left[0] * box.column_step)
    START, PITCH = map(specialized, (ring.data, ring.pitch // 4))
    STEPS, BATCH = map(specialized, (spec.k_steps, batch_rows))
    BATCHES = specialized(window.taps[0] // batch_rows)
    BATCH_AT = specialized(batch_rows * window.step[0] * box.row_step)
    AHEAD, SPLIT = specialized(spec.ahead), spec.split
    fragments, sums = spec.fragments, spec.pixel_sums * tile.PW
    FRAGMENTS, ALL_SUMS = map(specialized, (fragments, sums))
    REST, PART_SUMS = map(specialized, (fragments, sums) if SPLIT else (1, 1))
    wait_box, release_box, next_box = (
        make(spec.box_ring) for make in (make_wait, make_release, make_advance)
    )
    wait_taps, release_taps, next_taps, look_ahead = (
        make(spec.tap_ring) for make in (make_wait, make_release, make_advance, make_look_ahead)
    )
    own_rows, load_batch, prepare = make_own_rows(spec), make_load_batch(spec), make_prepare(spec)
    multiply_batch, store_tile = make_multiply_batch(spec), make_store_tile(spec)
    LOOKS, sum_again = bool(spec.looks), make_sum_again(spec) if spec.looks else None
    place_of = make_place_of(spec)

    @cuda.jit(device=True, inline="always")
    def consume(shared, begin, start, tiles, first_tile, results, looked, warp, lane):
        acc = local_array(ALL_SUMS, np.float32)
        part = local_array(PART_SUMS, np.float32)
        high = local_array(FRAGMENTS, np.float32)
        low = local_array(REST, np.float32)
        loaded = local_array(FRAGMENTS, np.float32)
        warpgroup = warp // 4
        row, column = warpgroup // WARPGROUPS_ACROSS, warpgroup % WARPGROUPS_ACROSS * PW
        thread = Thread(warp, lane, row, column)
        own = own_rows(thread)
        first_slot = (start - begin + START) // 4
        first_slot += row * ROW_AT + column * COLUMN_AT
        first, last, blocks = tiles
        box, box_phase = CONSUMER
        taps, taps_phase = CONSUMER
        for index in range(first, last, blocks):
            clear(acc, ALL_SUMS)
            clear(part, PART_SUMS)
            if AHEAD == 1:
                wait_box(shared, start, box, box_phase)
                load_batch(loaded, shared, first_slot + box * PITCH, own)
            for step in range(short(STEPS)):
                if AHEAD == 0:
                    wait_box(shared, start, box, box_phase)
                for batch in range(BATCHES):
                    if AHEAD == 0:
                        slots = first_slot + box * PITCH + batch * BATCH_AT
                        load_batch(loaded, shared, slots, own)
                    prepare(high, low, loaded, own)
                    for r in range(BATCH):
                        stage, phase = look_ahead(taps, taps_phase, r)
                        wait_taps(shared, start, stage, phase)
                    wgmma_fence()
                    multiply_batch((acc, part), (high, low), shared, start, (taps, taps_phase))
                    wgmma_commit()
                    if batch < BATCHES - 1:
                        if AHEAD == 1:
                            slots = first_slot + box * PITCH + (batch + 1) * BATCH_AT
                            load_batch(loaded, shared, slots, own)
                    else:
                        release_box(shared, start, box, lane)
                        box, box_phase = next_box(box, box_phase)
                        if AHEAD == 1 and step < STEPS - 1:
                            wait_box(shared, start, box, box_phase)
                            load_batch(loaded, shared, first_slot + box * PITCH, own)
                    wgmma_wait()
                    if SPLIT:
                        add(acc, part, ALL_SUMS)  # where no bits are cut off
                    for r in range(BATCH):
                        release_taps(shared, start, taps, lane)
                        taps, taps_phase = next_taps(taps, taps_phase)
            place = place_of(index, first_tile)
            store_tile(acc, results, place, thread)
            if LOOKS:
                cuda.syncwarp()  # neighbours store for each other
                if not all_told(acc, ALL_SUMS):
                    wait_for_last()  # whoever wrote what is read
                    c, _, images = results
                    sum_again(c, looked, images, place, thread)

    return consume
