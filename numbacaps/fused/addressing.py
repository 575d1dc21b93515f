"""Where a pixel of an implicit matrix product lies: the device functions that kernels share for it.

Rows of the product are counted image by image, in each row by row of pixels, column by column, d1 by d1. Each factory
takes the product's :class:`numbacaps.fused.implicit_gemm.Pixels` and returns a device function.
"""

from itertools import chain

import numpy as np

from numbacaps.device.division import divide, divisor
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


# Kernels that serve all sizes have the numbers of the pixels in a tuple instead (numbers_of), and these functions beside
# it. Where the numbers stand; of a divisor, in two places, and what divides by it in the second.
(
    A_G,
    A_IMAGE,
    A_ROW,
    A_COLUMN,
    A_D1,
    B_G,
    C_G,
    C_FIRST,
    C_IMAGE,
    C_ROW,
    C_COLUMN,
    C_D1,
    TOP_STEP,
    TOP_START,
    LEFT_STEP,
    LEFT_START,
    HEIGHT,
    WIDTH,
) = range(18)
D1, COLUMNS, ROWS, IMAGE_ROWS = range(18, 26, 2)
OVER_D1, OVER_COLUMNS, OVER_ROWS, OVER_IMAGE_ROWS = range(19, 27, 2)
PIXEL_NUMBERS = 26


def numbers_of(pixels):
    """The numbers of the pixels of a product with any."""
    p = pixels
    a_g, b_g, c_g = p.steps
    sizes = p.D1, p.columns, p.rows, p.D1 * p.columns * p.rows
    steps = a_g, *p.gathered, b_g, c_g, p.first, *p.other
    return tuple(map(int, (*steps, *p.top, *p.left, *p.extent, *chain(*map(divisor, sizes)))))


@cuda.jit(device=True, inline="always")
def find_pixel(m, of):
    """(images further on, row, column, d1) of row m, counted from where an image begins.

    A block finds the image that it begins in once. From there on 32 bits are enough.
    """
    m, d1 = divide(m, of[D1], of[OVER_D1])
    m, column = divide(m, of[COLUMNS], of[OVER_COLUMNS])
    image, row = divide(m, of[ROWS], of[OVER_ROWS])
    return short(image), short(row), short(column), short(d1)


@cuda.jit(device=True, inline="always")
def find_gathered(g, image, row, column, d1, of):
    """Where a pixel's window begins in the gathered array."""
    pixel = np.int64(row) * of[A_ROW] + np.int64(column) * of[A_COLUMN] + np.int64(d1) * of[A_D1]
    return np.int64(g) * of[A_G] + np.int64(image) * of[A_IMAGE] + pixel


@cuda.jit(device=True, inline="always")
def find_in_other(image, row, column, d1, of):
    """Where a pixel lies in the other array, mostly the result, from where its first pixel of the g does."""
    pixel = np.int64(row) * of[C_ROW] + np.int64(column) * of[C_COLUMN] + np.int64(d1) * of[C_D1]
    return np.int64(image) * of[C_IMAGE] + pixel


@cuda.jit(device=True, inline="always")
def find_first_tap(row, column, of):
    """The row and column of the gathered array that tap 0 of a pixel reads."""
    row, column = np.int64(row), np.int64(column)
    return row * of[TOP_STEP] + of[TOP_START], column * of[LEFT_STEP] + of[LEFT_START]
