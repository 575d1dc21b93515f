"""Where a pixel of an implicit matrix product lies: the device functions that kernels share for it.

Rows of the product are counted image by image, in each row by row of pixels, column by column, d1 by d1. Each factory
takes the product's :class:`numbacaps.fused.implicit_gemm.Pixels` and returns a device function.
"""

import numpy as np

from numbacaps.device.instructions import short
from numbacaps.device.target import cuda


def make_pixel_of(pixels):
    """``pixel_of(m)``: (image, row, column, d1) of row m of the product, in 64 bits."""
    ROWS, COLUMNS, D1 = pixels.rows, pixels.columns, pixels.D1

    @cuda.jit(device=True, inline="always")
    def pixel_of(m):
        column = m // D1 % COLUMNS
        row = m // (D1 * COLUMNS) % ROWS
        image = m // (D1 * COLUMNS * ROWS)
        return image, row, column, m % D1

    return pixel_of


@cuda.jit(device=True, inline="always")
def pixel_of_row(m, rows, columns, D1):
    """(images further on, row, column, d1) of row m, counted from where an image begins.

    A block finds the image that it begins in once. From there on 32 bits are enough, and dividing them takes a third
    of the instructions.
    """
    m = np.uint32(m)
    d1, m = np.uint32(m % D1), np.uint32(m // D1)
    column, m = np.uint32(m % columns), np.uint32(m // columns)
    row, image = np.uint32(m % rows), np.uint32(m // rows)
    return short(image), short(row), short(column), short(d1)


def make_gathered_at(pixels):
    """``gathered_at(g, image, row, column, d1)``: where a pixel's window begins in the gathered array."""
    G, _, _ = pixels.steps
    IMAGE, ROW, COLUMN, D1 = map(np.int64, pixels.gathered)  # rows and columns may have 32 bits

    @cuda.jit(device=True, inline="always")
    def gathered_at(g, image, row, column, d1):
        return g * G + image * IMAGE + row * ROW + column * COLUMN + d1 * D1

    return gathered_at


def make_result_at(pixels):
    """``result_at(g, image, row, column, d1)``: where a pixel lies in the other array, mostly the result."""
    _, _, G = pixels.steps
    IMAGE, ROW, COLUMN, D1 = map(np.int64, pixels.other)
    FIRST = pixels.first

    @cuda.jit(device=True, inline="always")
    def result_at(g, image, row, column, d1):
        return g * G + FIRST + image * IMAGE + row * ROW + column * COLUMN + d1 * D1

    return result_at


def make_first_tap(pixels):
    """``first_tap(row, column)``: the row and column of the gathered array that tap 0 of a pixel reads."""
    ROW_STEP, ROW_START = pixels.top
    COLUMN_STEP, COLUMN_START = pixels.left

    @cuda.jit(device=True, inline="always")
    def first_tap(row, column):
        return row * ROW_STEP + ROW_START, column * COLUMN_STEP + COLUMN_START

    return first_tap


def make_in_array(pixels, inside=False):
    """``in_array(h, w)``: whether the gathered array has that row and column; over its edge lie zeros.

    ``inside`` says that no tap of any pixel reaches over the edge.
    """
    HEIGHT, WIDTH = pixels.extent
    INSIDE = inside

    @cuda.jit(device=True, inline="always")
    def in_array(h, w):
        return INSIDE or (h >= 0 and h < HEIGHT and w >= 0 and w < WIDTH)

    return in_array
