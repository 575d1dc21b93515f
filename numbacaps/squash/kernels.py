"""Squash behind LeakyReLU, forward and backward: a network's activation in one kernel.

Over each group of consecutive elements, with a = LeakyReLU(x) and f of :mod:`numbacaps.squash.formulas`:

    y  = a * f
    da = dy * f + a * (a . dy) * 2 f'

and dx = da where x > 0, slope * da elsewhere. A slope of 1 leaves plain squash. The Jacobian is
whole: the published network's authors keep its diagonal alone. At a = 0 the value is 0 and the gradient dy * f.

Of the exponential formula 2 f' is (exp(-n) - f) / n^2 with n the length. ``expm1`` keeps the digits of 1 - exp(-n) where n is
small; what exp(-n) - f loses there, a * (a . dy) of the size of n^2 takes away again.

Thread mapping: neighbouring lanes share a group of an image, each takes up to 16 bytes at a time and
reads them again to write. Their sums meet by shuffles, in a fixed order. A lane walks image by image.
"""

from functools import cache

from numbacaps.device.instructions import (
    let_next_start,
    load_run,
    shuffle,
    store_run,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.fused.activation import leaky, squash_gradient
from numbacaps.squash.formulas import EPSILON, FORMULAS


@cache
def make_squash(group, width, lanes, slope, dtype, formula="exponential"):
    """Kernel for groups of ``group`` elements behind LeakyReLU of one slope.

    ``lanes``, a power of two, take ``width`` elements each at a time; the group is a multiple of both.
    """
    WIDTH, TURNS = width, specialized(group // (width * lanes))
    LANES, BITS = map(specialized, (lanes, lanes.bit_length() - 1))
    ZERO, SLOPE, REGULARISER = dtype.type(0), dtype.type(slope), dtype.type(EPSILON)
    squash_factor, _ = FORMULAS[formula]

    @kept_on_disk
    @cuda.jit
    def squash_kernel(
        x,  # in   (N, row)
        y,  # out  (N, row)
        row,
        N,
    ):
        run = cuda.local.array(WIDTH, dtype)
        i, lane = cuda.grid(1), cuda.threadIdx.x % 32
        first = (i // LANES * (LANES * TURNS) + i % LANES) * WIDTH
        inside = first < row
        n = cuda.blockIdx.y
        wait_for_last()
        let_next_start()
        while n < N:
            square = ZERO
            if inside:
                for turn in range(TURNS):
                    load_run(WIDTH, run, x, n * row + first + turn * (LANES * WIDTH))
                    for e in range(WIDTH):
                        value = leaky(run[e], SLOPE)
                        square += value * value
            for bit in range(BITS):
                square += shuffle(square, lane ^ 1 << bit)
            factor = squash_factor(square, REGULARISER)
            if inside:
                for turn in range(TURNS):
                    where = n * row + first + turn * (LANES * WIDTH)
                    load_run(WIDTH, run, x, where)
                    for e in range(WIDTH):
                        run[e] = leaky(run[e], SLOPE) * factor
                    store_run(WIDTH, y, where, run)
            n += cuda.gridDim.y

    return squash_kernel


@cache
def make_squash_backward(group, width, lanes, slope, dtype, formula="exponential"):
    """Kernel for groups of ``group`` elements behind LeakyReLU of one slope; see :func:`make_squash`."""
    WIDTH, TURNS = width, specialized(group // (width * lanes))
    LANES, BITS = map(specialized, (lanes, lanes.bit_length() - 1))
    ZERO, SLOPE, REGULARISER = dtype.type(0), dtype.type(slope), dtype.type(EPSILON)
    _, squash_slopes = FORMULAS[formula]

    @kept_on_disk
    @cuda.jit
    def squash_backward_kernel(
        x,  # in   (N, row)
        dy,  # in   (N, row)
        dx,  # out  (N, row)
        row,
        N,
    ):
        run, d_run = cuda.local.array(WIDTH, dtype), cuda.local.array(WIDTH, dtype)
        i, lane = cuda.grid(1), cuda.threadIdx.x % 32
        first = (i // LANES * (LANES * TURNS) + i % LANES) * WIDTH
        inside = first < row
        n = cuda.blockIdx.y
        wait_for_last()
        let_next_start()
        while n < N:
            square, dot = ZERO, ZERO
            if inside:
                for turn in range(TURNS):
                    where = n * row + first + turn * (LANES * WIDTH)
                    load_run(WIDTH, run, x, where)
                    load_run(WIDTH, d_run, dy, where)
                    for e in range(WIDTH):
                        value = leaky(run[e], SLOPE)
                        square += value * value
                        dot += value * d_run[e]
            for bit in range(BITS):
                square += shuffle(square, lane ^ 1 << bit)
                dot += shuffle(dot, lane ^ 1 << bit)
            f, along = squash_slopes(square, REGULARISER, dot)
            if inside:
                for turn in range(TURNS):
                    where = n * row + first + turn * (LANES * WIDTH)
                    load_run(WIDTH, run, x, where)
                    load_run(WIDTH, d_run, dy, where)
                    for e in range(WIDTH):
                        d_run[e] = squash_gradient(run[e], d_run[e], f, along, SLOPE)
                    store_run(WIDTH, dx, where, d_run)
            n += cuda.gridDim.y

    return squash_backward_kernel
