"""Which pixel a row of the product is."""

import numpy as np

from numbacaps.device.division import divide
from numbacaps.device.instructions import short
from numbacaps.device.target import at, cuda
from numbacaps.fused.mma_sync.table import (
    OVER_COLUMNS,
    OVER_D1,
    OVER_ROWS,
    PIXEL_COLUMNS,
    PIXEL_D1,
    PIXEL_ROWS,
)


@cuda.jit(device=True, inline="always")
def _divided(n, table, by, over):
    """(n // d, n % d) of a d of the table."""
    factor = np.int64(table[at(over + 1)]) << 32 | np.int64(np.uint32(table[at(over)]))
    return divide(n, table[at(by)], factor)


@cuda.jit(device=True, inline="always")
def pixel_of_row(m, table, head):
    """(images further on, row, column, d1) of row m, counted from where an image begins.

    A block finds the image that it begins in once. From there on 32 bits are enough. ``head`` is where the product's
    header begins.
    """
    m, d1 = _divided(m, table, head + PIXEL_D1, head + OVER_D1)
    m, column = _divided(m, table, head + PIXEL_COLUMNS, head + OVER_COLUMNS)
    image, row = _divided(m, table, head + PIXEL_ROWS, head + OVER_ROWS)
    return short(image), short(row), short(column), short(d1)
