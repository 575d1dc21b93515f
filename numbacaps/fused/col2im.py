"""The input's gradient as columns and their sum: a product for every tap, then col2im.

    columns[m, (tap, c, d2)] = sum over (p, d3) of dy[m, (p, d3)] * w[(p, d3), (tap, c, d2)]
    dx[pixel, (c, d2)]       = sum over the taps that reach the pixel of columns[m of that tap, (tap, c, d2)]

Gathered, a pixel of dx takes all taps of its residue, zeros for those outside of dy, and has C*D2 columns, which fill a
tile badly where they are few. Here nothing is multiplied in vain and columns are many, but they are written and
read: M * KH*KW*C*D2 numbers of float32 lie in the workspace; where that would be too much,
a few images at a time (:mod:`numbacaps.fused.micro_batches`). Every sum has the same order each time.
"""

from functools import cache
from itertools import chain
from math import gcd

import numpy as np

from numbacaps.device.compiled import Compiled, as_argument
from numbacaps.device.division import divide, divisor
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import let_next_start, short, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, ceil_div
from numbacaps.device.target import at, cuda
from numbacaps.device.upload import uploaded
from numbacaps.fused import anew
from numbacaps.fused.anew import SUMS
from numbacaps.fused.told import is_told

MOST_BYTES = 480 << 20  # of a micro-batch's columns
TIMED_BYTES = 256 << 20  # of all columns, up to which the models were compared with times
MOST_ELEMENTS = 2**31 - THREADS  # of dx, which threads count in 32 bits
ELEMENTS = 4  # of a thread
_TOGETHER = 3  # taps whose loads are under way together
_SOME = _TOGETHER * ELEMENTS
# Launch bounds of col2im_and_look_kernel: 3 blocks fit a multiprocessor, so a thread has at most 80 registers.
_BOUNDS = THREADS, 3
# Where the numbers of a geometry stand in their array, and of an axis, in two places.
N, C, G, D1, D2, LANES = range(6)
SIZE, OUT, WINDOW, STRIDE, PADDING, DILATION, TAP_STEP, OUT_STEP = range(6, 22, 2)
OVER = 22  # so far behind each of them: what divides by it
# Elements of columns from one tap, or one m, to the next; and from a tap of a pixel to its next one across or down.
TAP, M, ACROSS, DOWN = range(2 * OVER, 2 * OVER + 4)


def numbers_of(geometry):
    """What the kernel reads of a geometry: an int64 array.

    Of each axis it has, too, how many taps there are from one that reaches a pixel to the next, and how many output
    positions those lie apart.
    """
    g = geometry
    shared = [gcd(stride, dilation) for stride, dilation in zip(g.stride, g.dilation)]
    taps, outs = ([one // both for one, both in zip(of, shared)] for of in (g.stride, g.dilation))
    axes = (g.H, g.W), (g.OH, g.OW), (g.KH, g.KW), g.stride, g.padding, g.dilation, taps, outs
    numbers = [g.N, g.C, g.G, g.D1, g.D2, lanes_of(g), *chain(*axes)]
    tap, m = g.C * g.D2, g.Q * g.D2
    across = taps[1] * tap - outs[1] * g.D1 * m
    down = taps[0] * g.KW * tap - outs[0] * g.OW * g.D1 * m
    factors = (divisor(max(1, one))[1] for one in numbers)
    return np.array([*numbers, *factors, tap, m, across, down], np.int64)


def lanes_of(geometry):
    """Threads that share a pixel's d1."""
    return ceil_div(geometry.C * geometry.D2, ELEMENTS)


def most_taps(geometry):
    """Taps that may reach one pixel."""
    g = geometry
    steps = (s // gcd(s, d) for s, d in zip(g.stride, g.dilation))
    down, across = (ceil_div(size, step) for size, step in zip((g.KH, g.KW), steps))
    return down * across


def columns_of(geometry):
    """Elements of all columns."""
    g = geometry
    return g.N * g.L * g.G * g.D1 * g.Q * g.D2


@cuda.jit(device=True, inline="always")
def _divided(n, of, by):
    """(quotient, rest) by a number of the geometry."""
    return divide(n, of[at(by)], of[at(OVER + by)])


@cuda.jit(device=True, inline="always")
def taps_that_reach(place, of, axis):
    """(first tap, its output position, how many) of those that reach a pixel's row or column."""
    dilation = short(of[at(DILATION + axis)])
    tap_step, out_step = short(of[at(TAP_STEP + axis)]), short(of[at(OUT_STEP + axis)])
    reached, tap = short(place + of[at(PADDING + axis)]), short(0)
    position, beside = _divided(reached, of, STRIDE + axis)
    while tap < tap_step and reached >= 0 and beside != 0:
        reached, tap = short(reached - dilation), short(tap + 1)
        position, beside = _divided(reached, of, STRIDE + axis)
    if tap == tap_step or reached < 0:
        return short(0), short(0), short(0)
    position = short(position)
    past = short(position - of[at(OUT + axis)] + 1)  # positions behind the last
    if past > 0:
        skipped = short(_divided(past + out_step - 1, of, OUT_STEP + axis)[0])
        tap, position = short(tap + skipped * tap_step), short(position - skipped * out_step)
    before = short(of[at(WINDOW + axis)] - 1 - tap)
    if position < 0 or before < 0:
        return short(0), short(0), short(0)
    taps, _ = _divided(before, of, TAP_STEP + axis)
    positions, _ = _divided(position, of, OUT_STEP + axis)
    return tap, position, short(min(taps, positions) + 1)


@cuda.jit(device=True, inline="always")
def _add_taps(columns, of, splits, size, total):
    """The sums of a thread's elements: of a pixel's d1, ``lanes`` apart. It finds their taps once, and their loads wait together.

    Returns (whether there is such a pixel; the first element's place in a row of (c, d2); how many there are from it on;
    ``lanes``; where the pixel's d1 begins in dx, in rows of D2; rows from a channel to the next).
    """
    apart = cuda.local.array(ELEMENTS, np.int32)
    some = cuda.local.array(_SOME, np.float32)
    i = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    c_all, d1_all, g_all = of[at(C)], of[at(D1)], of[at(G)]
    h_all, w_all = of[at(SIZE)], of[at(SIZE + 1)]
    i, lane = _divided(i, of, LANES)
    i, d1 = _divided(i, of, D1)
    i, g = _divided(i, of, G)
    i, w = _divided(i, of, SIZE + 1)
    n, h = _divided(i, of, SIZE)
    kh, oh, rows = taps_that_reach(h, of, 0)
    kw, ow, taps = taps_that_reach(w, of, 1)
    m = (((np.int64(g) * of[at(N)] + n) * of[at(OUT)] + oh) * of[at(OUT + 1)] + ow) * d1_all + d1
    first = m * of[at(M)] + short(kh * of[at(WINDOW + 1)] + kw) * of[at(TAP)] + lane
    across, down, lanes = of[at(ACROSS)], of[at(DOWN)], short(of[at(LANES)])
    left = short(of[at(TAP)] - lane)  # of a tap, from the thread's first element on
    for j in range(ELEMENTS):
        apart[j] = j * lanes if j * lanes < left else 0
        total[j] = np.float32(0)
    wait_for_last()  # the columns are there
    if n < of[at(N)]:
        for _ in range(splits):
            of_row = first
            for _ in range(rows):
                lies, to_come = of_row, taps
                while to_come >= _TOGETHER:
                    for k in range(_SOME):
                        some[k] = columns[at(lies + (k // ELEMENTS) * across + apart[k % ELEMENTS])]
                    for k in range(_SOME):
                        total[k % ELEMENTS] += some[k]
                    lies += _TOGETHER * across
                    to_come = short(to_come - _TOGETHER)
                while to_come > 0:
                    for j in range(ELEMENTS):
                        total[j] += columns[at(lies + apart[j])]
                    lies += across
                    to_come = short(to_come - 1)
                of_row += down
            first += size
    let_next_start()
    pixel = (np.int64(n) * c_all * h_all + h) * w_all + w
    to = (pixel * g_all + g) * d1_all + d1
    return n < of[at(N)], lane, left, lanes, to, h_all * w_all * g_all * d1_all


@cuda.jit(device=True, inline="always")
def _place(lane, to, of_channel, of):
    """Where an element of a row of (c, d2) lies in dx."""
    c, d2 = _divided(lane, of, D2)
    return (to + np.int64(c) * of_channel) * of[at(D2)] + d2


@cache
def make_col2im(dtype):
    """Kernel that adds the columns of each pixel; (c, d2) fastest, as columns lie."""
    _, write = conversions(dtype)

    @kept_on_disk
    @cuda.jit
    def col2im_kernel(
        columns,  # in   (splits, G, N, OH, OW, D1, KH, KW, C, D2)
        dx,  # out  (N, C, H, W, G, D1, D2)
        of,  # in   numbers_of
        splits,
        size,  # elements of a split
    ):
        total = cuda.local.array(ELEMENTS, np.float32)
        there, lane, left, lanes, to, of_channel = _add_taps(columns, of, splits, size, total)
        if there:
            for j in range(ELEMENTS):
                if j * lanes < left:
                    dx[at(_place(lane + j * lanes, to, of_channel, of))] = write(total[j])

    return col2im_kernel


@cache
def make_col2im_and_look():
    """The same of float32, at the default: sums that three terms cannot tell are taken again, from dy and w."""
    input_at = SUMS["backward_input"]

    @kept_on_disk
    @cuda.jit(launch_bounds=_BOUNDS)
    def col2im_and_look_kernel(
        columns,  # in   (splits, G, N, OH, OW, D1, KH, KW, C, D2)
        dx,  # out  (N, C, H, W, G, D1, D2)
        of,  # in   numbers_of
        dy,  # in   (N, P, OH, OW, G, D1, D3)
        w,  # in   (P, C, KH, KW, G, D2, D3)
        of_sums,  # in   numbacaps.fused.anew.numbers_of
        splits,
        size,  # elements of a split
    ):
        total = cuda.local.array(ELEMENTS, np.float32)
        there, lane, left, lanes, to, of_channel = _add_taps(columns, of, splits, size, total)
        if there:
            told = True
            for j in range(ELEMENTS):
                if j * lanes < left:
                    dx[at(_place(lane + j * lanes, to, of_channel, of))] = total[j]
                    told &= is_told(total[j])
            if not told:  # the sums stay in registers: what was stored is read again
                last = lane + min(left, ELEMENTS * lanes)
                for element in range(lane, last, lanes):
                    place = _place(element, to, of_channel, of)
                    if not is_told(dx[at(place)]):
                        dx[at(place)] = np.float32(input_at(place, dy, w, of_sums))

    return col2im_and_look_kernel


class Col2im:
    """The kernel made ready for a geometry: what finishes the product of its columns.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
        Of dx.
    splits : int
        Of the product.
    looks : bool
        Sums of three terms are looked through; ``dtype`` is float32.
    """

    def __init__(self, geometry, dtype, splits, looks=False):
        self._numbers, self.looks = [uploaded(numbers_of(geometry))], looks
        self._sizes = splits, columns_of(geometry)
        g, float32 = geometry, np.dtype(np.float32)
        grid = ceil_div(g.N * g.H * g.W * g.G * g.D1 * lanes_of(g), THREADS)
        kernel, types = make_col2im(dtype), (float32, dtype, np.int64)
        if looks:
            self._numbers.append(uploaded(anew.numbers_of(geometry)))
            kernel, types = make_col2im_and_look(), (*types, float32, float32, np.int64)
        self._arguments = [as_argument(one) for one in self._numbers]
        self._launch = Compiled(kernel, types, 2, early=True).on(grid, THREADS)

    def __call__(self, columns, dx, read, stream):
        """Launch it on arrays as arguments; ``read`` are dy and w."""
        (of, *of_sums), (dy, w) = self._arguments, read
        looked = (*dy, *w, *of_sums[0]) if self.looks else ()
        self._launch(stream, (*columns, *dx, *of, *looked, *self._sizes))

    def __str__(self):
        splits = f", {self._sizes[0]} splits" if self._sizes[0] > 1 else ""
        return f"{splits}, then col2im"
