"""Squash behind LeakyReLU, forward and backward: the published network's activation in one kernel.

Over each group a of consecutive elements of a = LeakyReLU(x), with n = sqrt(|a|^2 + 1e-7):

    y  = a * f             f = (1 - exp(-n)) / n
    da = dy * f + a * (a . dy) * h    h = f'(n) / n = (exp(-n) - f) / n^2

and dx = da where x > 0, slope * da elsewhere. A slope of 1 leaves plain squash. The Jacobian is
whole: the authors' code keeps its diagonal alone. At a = 0 the value is 0 and the gradient dy * f.

``expm1`` keeps the digits of 1 - exp(-n) where n is small; what exp(-n) - f loses there, a * (a .
dy) of the size of n^2 takes away again.

Thread mapping: one thread an element of an image, which it walks image by image. A group's threads
each add up its elements, in their order: they lie in one or two cache lines.
"""

import math
from functools import cache

from numbacaps.activation import EPSILON, leaky, squash_factor
from numbacaps.kernel_cache import kept_on_disk
from numbacaps.launch import THREADS, flat, launch
from numbacaps.target import at, cuda


@cache
def make_squash(group, slope, dtype):
    """Kernel for groups of so many elements behind LeakyReLU of one slope."""
    GROUP = group
    SLOPE, REGULARISER = dtype.type(slope), dtype.type(EPSILON)

    @kept_on_disk
    @cuda.jit
    def squash_kernel(
        x,  # in   (N, row)
        y,  # out  (N, row)
        row,
        N,
    ):
        i = cuda.grid(1)
        if i >= row:
            return
        first = i - i % GROUP
        n = cuda.blockIdx.y
        while n < N:
            square = REGULARISER
            for e in range(GROUP):
                value = leaky(x[at(n * row + first + e)], SLOPE)
                square += value * value
            y[at(n * row + i)] = leaky(x[at(n * row + i)], SLOPE) * squash_factor(square)
            n += cuda.gridDim.y

    return squash_kernel


@cache
def make_squash_backward(group, slope, dtype):
    """Kernel for groups of so many elements behind LeakyReLU of one slope."""
    GROUP = group
    ZERO, SLOPE, REGULARISER = dtype.type(0), dtype.type(slope), dtype.type(EPSILON)

    @kept_on_disk
    @cuda.jit
    def squash_backward_kernel(
        x,  # in   (N, row)
        dy,  # in   (N, row)
        dx,  # out  (N, row)
        row,
        N,
    ):
        i = cuda.grid(1)
        if i >= row:
            return
        first = i - i % GROUP
        n = cuda.blockIdx.y
        while n < N:
            square = REGULARISER
            dot = ZERO
            for e in range(GROUP):
                value = x[at(n * row + first + e)]
                value = value if value > ZERO else SLOPE * value
                square += value * value
                dot += value * dy[at(n * row + first + e)]
            length = math.sqrt(square)
            f = -math.expm1(-length) / length
            h = (math.exp(-length) - f) / square
            value = x[at(n * row + i)]
            positive = value > ZERO
            value = value if positive else SLOPE * value
            gradient = dy[at(n * row + i)] * f + value * dot * h
            dx[at(n * row + i)] = gradient if positive else SLOPE * gradient
            n += cuda.gridDim.y

    return squash_backward_kernel


def squash(x, y, group, slope=1.0, stream=0, threads=THREADS):
    """Write squash(LeakyReLU(x)) to y.

    Parameters
    ----------
    x : device array (N, ...), float32 or float64
        An image's elements are a whole number of groups.
    y : device array of the same size and dtype, written; apart from ``x`` in memory
    group : int
        Consecutive elements that are squashed together.
    slope : float
        Of LeakyReLU; 1 for none.
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        ``group`` does not divide an image's elements, ``y`` has another size, or an array is not
        C-contiguous.
    """
    N, row = x.shape[0], _whole_groups(x, group)
    arguments = (flat("x", x, x.shape), flat("y", y, x.shape), row, N)
    launch(make_squash(group, slope, x.dtype), row, N, arguments, stream, threads)


def squash_backward(x, dy, dx, group, slope=1.0, stream=0, threads=THREADS):
    """Write the gradient that reaches x to dx.

    Parameters
    ----------
    x, dy : device arrays (N, ...), float32 or float64
    dx : device array of the same size and dtype, written; apart from ``x`` and ``dy`` in memory
    group, slope, stream, threads
        As :func:`squash`.

    Raises
    ------
    ValueError
        As :func:`squash`.
    """
    N, row = x.shape[0], _whole_groups(x, group)
    arrays = (flat(name, a, x.shape) for name, a in (("x", x), ("dy", dy), ("dx", dx)))
    kernel = make_squash_backward(group, slope, x.dtype)
    launch(kernel, row, N, (*arrays, row, N), stream, threads)


def _whole_groups(x, group):
    """Elements of an image, after checking that groups fill them."""
    row = x.size // x.shape[0]
    if group < 1 or row % group:
        raise ValueError(f"group is {group}; it takes a divisor of an image's {row} elements")
    return row
