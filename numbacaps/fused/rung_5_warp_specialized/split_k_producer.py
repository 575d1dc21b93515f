"""The producer warp: one thread asks TMA for rows of x, and for each row of dy when x has what it meets."""

from numbacaps.device.instructions import short, tensor_copy
from numbacaps.device.ring import PRODUCER, make_acquire, make_advance
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


def make_produce(spec):
    """Device function ``produce(shared, start, x_map, dy_map, part)`` of the producer's thread."""
    of_x, strips, pixels = spec.boxes[0], spec.strips, spec.pixels
    PW, IMAGES, REACH = map(specialized, (spec.tile.PW, of_x.images, spec.reach))
    ROW_STEP, TOP, COLUMN_STEP, LEFT = map(specialized, (*pixels.top, *pixels.left))
    STRIP_ROWS, DOWN, ACROSS = map(specialized, (strips.rows, strips.down, strips.across))
    X_ROWS = specialized((strips.rows - 1) * pixels.top[0] + spec.reach + 1)
    first_axes = [(0, box.pixel, 0) if box.whole_rows else (box.pixel, 0, 1) for box in spec.boxes]
    X_BY_G, X_BY_E, X_BY_COLUMN = map(specialized, first_axes[0])
    DY_BY_G, DY_BY_E, DY_BY_COLUMN = map(specialized, first_axes[1])
    acquire_x, next_x = make_acquire(spec.x_ring), make_advance(spec.x_ring)
    acquire_dy, next_dy = make_acquire(spec.dy_ring), make_advance(spec.dy_ring)

    @cuda.jit(device=True, forceinline=True)
    def produce(shared, start, x_map, dy_map, part):
        x, x_phase = PRODUCER
        dy, dy_phase = PRODUCER
        for strip in range(short(part.first), short(part.last)):
            column = short(strip % ACROSS * PW)
            row0 = short(strip // ACROSS % DOWN * STRIP_ROWS)
            image = short(strip // (ACROSS * DOWN) * IMAGES)
            left = short(column * COLUMN_STEP + LEFT)
            top = short(row0 * ROW_STEP + TOP)
            x_e = short(part.g * X_BY_G + left * X_BY_E)
            left = short(left * X_BY_COLUMN)
            dy_e = short(part.g * DY_BY_G + column * DY_BY_E)
            column = short(column * DY_BY_COLUMN)
            for row in range(X_ROWS):
                full, to = acquire_x(shared, start, x, x_phase)
                h = top + row
                tensor_copy(shared, to, x_map, x_e, part.channel, image, left, h, full)
                x, x_phase = next_x(x, x_phase)
                below = row - REACH
                if below >= 0 and below % ROW_STEP == 0:
                    full, to = acquire_dy(shared, start, dy, dy_phase)
                    h = row0 + below // ROW_STEP
                    tensor_copy(shared, to, dy_map, dy_e, part.p, image, column, h, full)
                    dy, dy_phase = next_dy(dy, dy_phase)

    return produce
