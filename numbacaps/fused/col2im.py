"""The input's gradient as columns and their sum: a product for every tap, then col2im.

    columns[m, (tap, c, d2)] = sum over (p, d3) of dy[m, (p, d3)] * w[(p, d3), (tap, c, d2)]
    dx[pixel, (c, d2)]       = sum over the taps that reach the pixel of columns[m of that tap, (tap, c, d2)]

Gathered, a pixel of dx takes all taps of its residue, zeros for those outside of dy, and has C*D2 columns, which fill a
tile badly where they are few. Here nothing is multiplied in vain and columns are many, but they are written and
read: M * KH*KW*C*D2 numbers of float32 lie in the workspace. Every sum has the same order each time.
"""

from functools import cache
from itertools import chain
from math import gcd

import numpy as np

from numbacaps.device.compiled import Compiled, as_argument
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import let_next_start, short, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, ceil_div
from numbacaps.device.target import at, cuda
from numbacaps.device.upload import uploaded

MOST_BYTES = 256 << 20  # of columns
MOST_ELEMENTS = 2**31 - THREADS  # of dx, which threads count in 32 bits
_TOGETHER = 3  # columns of a row of taps that a thread loads at once
# Where the numbers of a geometry stand in their array, and of an axis, in three more places of two.
N, C, G, D1, D2 = range(5)
SIZE, OUT, WINDOW, STRIDE, PADDING, DILATION, TAP_STEP, OUT_STEP = range(5, 21, 2)


def numbers_of(geometry):
    """What the kernel reads of a geometry: an int32 array.

    Of each axis it has, too, how many taps there are from one that reaches a pixel to the next, and how many output
    positions those lie apart.
    """
    g = geometry
    shared = [gcd(stride, dilation) for stride, dilation in zip(g.stride, g.dilation)]
    steps = ([one // both for one, both in zip(of, shared)] for of in (g.stride, g.dilation))
    axes = (g.H, g.W), (g.OH, g.OW), (g.KH, g.KW), g.stride, g.padding, g.dilation, *steps
    return np.array([g.N, g.C, g.G, g.D1, g.D2, *chain(*axes)], np.int32)


def columns_of(geometry):
    """Elements of all columns."""
    g = geometry
    return g.N * g.L * g.G * g.D1 * g.Q * g.D2


@cuda.jit(device=True, inline="always")
def taps_that_reach(place, of, axis):
    """(first tap, its output position, how many) of those that reach a pixel's row or column."""
    stride, dilation = of[STRIDE + axis], of[DILATION + axis]
    tap_step, out_step = of[TAP_STEP + axis], of[OUT_STEP + axis]
    reached, tap = short(place + of[PADDING + axis]), short(0)
    while tap < tap_step and reached >= 0 and np.uint32(reached) % np.uint32(stride) != 0:
        reached, tap = short(reached - dilation), short(tap + 1)
    if tap == tap_step or reached < 0:
        return short(0), short(0), short(0)
    position = short(np.uint32(reached) // np.uint32(stride))
    past = short(position - of[OUT + axis] + 1)  # positions behind the last
    if past > 0:
        skipped = short(np.uint32(past + out_step - 1) // np.uint32(out_step))
        tap, position = short(tap + skipped * tap_step), short(position - skipped * out_step)
    if position < 0 or tap >= of[WINDOW + axis]:
        return short(0), short(0), short(0)
    taps = np.uint32(of[WINDOW + axis] - 1 - tap) // np.uint32(tap_step)
    positions = np.uint32(position) // np.uint32(out_step)
    return tap, position, short(min(taps, positions) + 1)


@cache
def make_col2im(dtype):
    """Kernel that adds the columns of each pixel; a thread an element, (c, d2) fastest, as columns lie."""
    _, write = conversions(dtype)
    BLOCK, TOGETHER = THREADS, _TOGETHER
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def col2im_kernel(
        columns,  # in   (splits, G, N, OH, OW, D1, KH, KW, C, D2)
        dx,  # out  (N, C, H, W, G, D1, D2)
        of,  # in   numbers_of
        splits,
        size,  # elements of a split
    ):
        let_next_start()
        some = cuda.local.array(TOGETHER, np.float32)
        i = np.uint32(cuda.blockIdx.x * BLOCK + cuda.threadIdx.x)
        c_all, d2_all, d1_all = np.uint32(of[C]), np.uint32(of[D2]), np.uint32(of[D1])
        g_all, h_all, w_all = np.uint32(of[G]), np.uint32(of[SIZE]), np.uint32(of[SIZE + 1])
        d2, i = np.uint32(i % d2_all), np.uint32(i // d2_all)
        c, i = np.uint32(i % c_all), np.uint32(i // c_all)
        d1, i = np.uint32(i % d1_all), np.uint32(i // d1_all)
        g, i = np.uint32(i % g_all), np.uint32(i // g_all)
        w, i = np.uint32(i % w_all), np.uint32(i // w_all)
        h, n = np.uint32(i % h_all), np.uint32(i // h_all)
        kh, oh, rows = taps_that_reach(h, of, 0)
        kw, ow, taps = taps_that_reach(w, of, 1)
        # From a tap of a pixel to its next one of the same row, and of the next row.
        tap = np.int64(c_all * d2_all)
        row = tap * of[WINDOW] * of[WINDOW + 1]  # of m
        along = of[TAP_STEP + 1] * tap - of[OUT_STEP + 1] * (d1_all * row)
        down = of[TAP_STEP] * (tap * of[WINDOW + 1]) - of[OUT_STEP] * (of[OUT + 1] * (d1_all * row))
        m = ((np.int64(g) * of[N] + n) * of[OUT] + oh) * of[OUT + 1] + ow
        first = (
            (m * d1_all + d1) * row + (np.int64(kh) * of[WINDOW + 1] + kw) * tap + (c * d2_all + d2)
        )
        total = ZERO
        wait_for_last()  # the columns are there
        if n < of[N]:
            for _ in range(splits):
                of_row = first
                for _ in range(rows):
                    lies, left = of_row, taps
                    while left >= TOGETHER:  # their loads are under way together
                        for ahead in range(TOGETHER):
                            some[ahead] = columns[at(lies)]
                            lies += along
                        for ahead in range(TOGETHER):
                            total += some[ahead]
                        left = short(left - TOGETHER)
                    while left > 0:
                        total += columns[at(lies)]
                        lies += along
                        left = short(left - 1)
                    of_row += down
                first += size
            to = ((np.int64(n) * c_all + c) * h_all + h) * w_all + w
            dx[at(((to * g_all + g) * d1_all + d1) * d2_all + d2)] = write(total)

    return col2im_kernel


class Col2im:
    """The kernel made ready for a geometry: what finishes the product of its columns.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
        Of dx.
    splits : int
        Of the product.
    """

    def __init__(self, geometry, dtype, splits):
        self._numbers = uploaded(numbers_of(geometry))
        self._argument = as_argument(self._numbers)
        self._sizes = splits, columns_of(geometry)
        g = geometry
        grid = ceil_div(g.N * g.C * g.H * g.W * g.E1, THREADS)
        types = np.dtype(np.float32), dtype, np.int32
        self._launch = Compiled(make_col2im(dtype), types, 2, early=True).on(grid, THREADS)

    def __call__(self, columns, dx, stream):
        """Launch it on arrays as arguments."""
        self._launch(stream, (*columns, *dx, *self._argument, *self._sizes))

    def __str__(self):
        splits = f", {self._sizes[0]} splits" if self._sizes[0] > 1 else ""
        return f"{splits}, then col2im"
