"""Which pixel a row of the implicit matrix product is, as kernels of ordinary arithmetic and of warps ask.

Rows are counted image by image, in each row by row of pixels, column by column, d1 by d1. A block finds the image that
it begins in once; from there on 32 bits are enough, and dividing them takes a third of the instructions.
"""

import numpy as np

from numbacaps.device.instructions import short
from numbacaps.device.target import cuda


@cuda.jit(device=True, inline="always")
def pixel_of_row(m, rows, columns, D1):
    """(images further on, row, column, d1) of row m, counted from where an image begins."""
    m = np.uint32(m)
    d1, m = np.uint32(m % D1), np.uint32(m // D1)
    column, m = np.uint32(m % columns), np.uint32(m // columns)
    row, image = np.uint32(m % rows), np.uint32(m // rows)
    return short(image), short(row), short(column), short(d1)
