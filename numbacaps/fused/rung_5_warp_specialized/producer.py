"""The producer warps: one thread asks TMA for boxes of the gathered array, another for the packed kernel.

They are two, so that boxes are on their way while the kernel is still being packed.
"""

from numbacaps.device.instructions import (
    bulk_copy,
    clock,
    let_next_start,
    short,
    tensor_copy,
    wait_for_last,
)
from numbacaps.device.ring import PRODUCER, make_acquire, make_advance
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.fused.rung_5_warp_specialized.addressing import make_place_of

_NAP = 100  # nanoseconds


@cuda.jit(device=True, inline="always")
def stagger(tiles, later):
    """Let blocks that have a tile less than others begin one after the other, so that not all write at once."""
    first, last, blocks = tiles
    longer = last % blocks  # blocks that have a tile more than the others
    spare = (first - longer) * later
    if spare > 0:
        begun = clock()
        while clock() - begun < spare:
            cuda.nanosleep(_NAP)


def make_produce_boxes(spec):
    """Device function of the producer of boxes, one thread: of every tile, one box a step of k."""
    pixels, window, box = spec.pixels, spec.window, spec.box
    ROW_STEP, COLUMN_STEP = map(specialized, (pixels.top[0], pixels.left[0]))
    TOP = specialized(pixels.top[1] + window.first[0])
    LEFT = specialized(pixels.left[1] + window.first[1])
    first_axis = (0, box.pixel, 0) if box.whole_rows else (pixels.steps[0], 0, 1)
    E_BY_G, E_BY_LEFT, BY_LEFT = map(specialized, first_axis)
    STEPS, CHANNELS = map(specialized, (spec.k_steps, box.channels))
    IN_LINES = pixels.in_lines
    acquire, advance = make_acquire(spec.box_ring), make_advance(spec.box_ring)
    place_of = make_place_of(spec)

    @cuda.jit(device=True, inline="always")
    def produce_boxes(shared, start, box_map, tiles, first_tile):
        first, last, blocks = tiles
        stage, phase = PRODUCER
        for index in range(first, last, blocks):
            place = place_of(index, first_tile)
            top = place.row * ROW_STEP + TOP
            left = (place.image if IN_LINES else place.column) * COLUMN_STEP + LEFT
            e = place.g * E_BY_G + left * E_BY_LEFT
            second = left if IN_LINES else place.image
            third = place.column if IN_LINES else left * BY_LEFT
            for step in range(short(STEPS)):
                full, to = acquire(shared, start, stage, phase)
                tensor_copy(shared, to, box_map, e, second, third, top, step * CHANNELS, full)
                stage, phase = advance(stage, phase)

    return produce_boxes


def make_produce_tap_rows(spec):
    """Device function of the producer of the packed kernel, one thread: of every box, all tap rows."""
    size, rows = spec.rings.tap_row_bytes, spec.window.taps[0]
    BYTES, ELEMENTS = map(specialized, (size, size // 4))
    N_TILES, TAP_ROWS = map(specialized, (spec.n_tiles, spec.k_steps * rows))  # of all steps
    acquire, advance = make_acquire(spec.tap_ring), make_advance(spec.tap_ring)
    place_of = make_place_of(spec)

    @cuda.jit(device=True, inline="always")
    def produce_tap_rows(shared, start, b, tiles, first_tile, waits):
        if waits > 0:
            wait_for_last()  # the kernel is packed
        let_next_start()  # another product of the same pass, which has a result of its own
        first, last, blocks = tiles
        stage, phase = PRODUCER
        for index in range(first, last, blocks):
            place = place_of(index, first_tile)
            b_from = (place.g * N_TILES + place.n_tile) * (TAP_ROWS * ELEMENTS)
            for _ in range(short(TAP_ROWS)):
                full, to = acquire(shared, start, stage, phase)
                bulk_copy(shared, to, b, b_from, BYTES, full)
                b_from += ELEMENTS
                stage, phase = advance(stage, phase)
        wait_for_last()  # who waits for this kernel waits for those before it too

    return produce_tap_rows
