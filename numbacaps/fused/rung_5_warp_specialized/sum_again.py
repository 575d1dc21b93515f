"""At the default, results of three terms that cannot be told (:mod:`numbacaps.fused.told`) summed again, behind the epilogue.

The sums have left the registers by then, so the loop takes none that products could use. What a thread summed lies where
the epilogue put it, and is read back: to ask for a sum by a number that the compiler does not know would move all of them
to local memory.
"""

import numpy as np

from numbacaps.device.instructions import short, unforeseen
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.anew import SUMS
from numbacaps.fused.rung_5_warp_specialized.addressing import make_place_of_column
from numbacaps.fused.told import is_told


def make_sum_again(spec):
    """Device function ``sum_again(c, looked, images, place, thread)`` of a consumer's thread.

    ``looked`` is what the pass reads, as :mod:`numbacaps.fused.anew` has it: two arrays and the numbers of the geometry.
    """
    pixels, sums, tile = spec.pixels, spec.pixel_sums, spec.tile
    PIXEL_SUMS, ALL_SUMS, BN = map(specialized, (sums, sums * tile.PW, tile.BN))
    D1, FILLED, N = map(specialized, (pixels.D1, spec.filled_rows, spec.n.N))
    ROWS, COLUMNS = map(specialized, (pixels.rows, pixels.columns))
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = map(specialized, pixels.other)
    C_FIRST, C_G = map(specialized, (pixels.first, pixels.steps[2]))
    place_of_column, sum_at = make_place_of_column(spec.n), SUMS[spec.looks]

    @cuda.jit(device=True, forceinline=True)
    def sum_again(c, looked, images, place, thread):
        a, b, of = looked
        h = place.row + thread.row
        for i in range(unforeseen(short(ALL_SUMS))):
            of_pixel = i % PIXEL_SUMS
            row = thread.warp % 4 * 16 + thread.lane // 4 + of_pixel // 2 % 2 * 8
            n = place.n_tile * BN + of_pixel // 4 * 8 + thread.lane % 4 * 2 + of_pixel % 2
            w = place.column + thread.column + i // PIXEL_SUMS
            image = place.image + row // D1
            inside = row < FILLED and image < images and h < ROWS and w < COLUMNS and n < N
            if inside:
                to = place.g * C_G + C_FIRST + image * C_IMAGE + row % D1 * C_D1
                to = np.int64(to + h * C_ROW + w * C_COLUMN + place_of_column(n))
                if not is_told(c[at(to)]):
                    c[at(to)] = np.float32(sum_at(to, a, b, of))

    return sum_again
