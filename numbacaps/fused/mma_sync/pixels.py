"""Which pixel a row of the product is, where it lies, and where it stands by the edges of the gathered array."""

import numpy as np

from numbacaps.device.division import divide
from numbacaps.device.instructions import short
from numbacaps.device.target import at, cuda
from numbacaps.fused.mma_sync.edges import side_by_side
from numbacaps.fused.mma_sync.table import (
    A_COLUMN,
    A_D1,
    A_IMAGE,
    A_ROW,
    HEIGHT,
    LEFT_START,
    LEFT_STEP,
    OVER_COLUMNS,
    OVER_D1,
    OVER_ROWS,
    PIXEL_COLUMNS,
    PIXEL_D1,
    PIXEL_ROWS,
    TOP_START,
    TOP_STEP,
    WIDTH,
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


@cuda.jit(device=True, inline="always")
def place_of_pixel(image, row, column, d1, table, steps):
    """Where a pixel lies in an array whose four steps stand in the table from ``steps`` on."""
    return (
        np.int64(image) * table[at(steps)]
        + np.int64(row) * table[at(steps + A_ROW - A_IMAGE)]
        + np.int64(column) * table[at(steps + A_COLUMN - A_IMAGE)]
        + d1 * table[at(steps + A_D1 - A_IMAGE)]
    )


@cuda.jit(device=True, inline="always")
def edge_of_pixel(row, column, table, head):
    """Where a pixel stands in the gathered array, as taps are added to it (:mod:`numbacaps.fused.mma_sync.edges`)."""
    h = row * table[at(head + TOP_STEP)] + table[at(head + TOP_START)]
    w = column * table[at(head + LEFT_STEP)] + table[at(head + LEFT_START)]
    return side_by_side(h, w)


@cuda.jit(device=True, inline="always")
def last_pixel(table, head):
    """The last row and column of the gathered array, as what a tap reaches is compared with them."""
    return side_by_side(table[at(head + HEIGHT)] - 1, table[at(head + WIDTH)] - 1)
