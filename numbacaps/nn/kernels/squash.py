"""Squash behind LeakyReLU, forward and backward: the published network's activation in one kernel.

Over each group a of consecutive elements of a = LeakyReLU(x), with n = sqrt(|a|^2 + 1e-7):

    y  = a * f             f = (1 - exp(-n)) / n
    da = dy * f + a * (a . dy) * h    h = f'(n) / n = (exp(-n) - f) / n^2

and dx = da where x > 0, slope * da elsewhere. A slope of 1 leaves plain squash. The Jacobian is
whole: the authors' code keeps its diagonal alone. At a = 0 the value is 0 and the gradient dy * f.

``expm1`` keeps the digits of 1 - exp(-n) where n is small; what exp(-n) - f loses there, a * (a .
dy) of the size of n^2 takes away again. Where n is large h is about -1 / n^3, which float32 does not hold; so the
gradient is told in two factors (:func:`numbacaps.fused.activation.squash_slopes`).

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
from numbacaps.device.launch import THREADS, early, flat, launch
from numbacaps.device.target import cuda
from numbacaps.fused.activation import (
    EPSILON,
    leaky,
    squash_factor,
    squash_gradient,
    squash_slopes,
)
from numbacaps.nn.kernels.warp_shares import shares


@cache
def make_squash(group, width, lanes, slope, dtype):
    """Kernel for groups of ``group`` elements behind LeakyReLU of one slope.

    ``lanes``, a power of two, take ``width`` elements each at a time; the group is a multiple of both.
    """
    WIDTH, LANES, TURNS, BITS = width, lanes, group // (width * lanes), lanes.bit_length() - 1
    ZERO, SLOPE, REGULARISER = dtype.type(0), dtype.type(slope), dtype.type(EPSILON)

    @kept_on_disk
    @cuda.jit
    def squash_kernel(
        x,  # in   (N, row)
        y,  # out  (N, row)
        row,
        N,
    ):
        let_next_start()
        run = cuda.local.array(WIDTH, dtype)
        i, lane = cuda.grid(1), cuda.threadIdx.x % 32
        first = (i // LANES * (LANES * TURNS) + i % LANES) * WIDTH
        inside = first < row
        n = cuda.blockIdx.y
        wait_for_last()
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
            factor = squash_factor(square + REGULARISER)
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
def make_squash_backward(group, width, lanes, slope, dtype):
    """Kernel for groups of ``group`` elements behind LeakyReLU of one slope; see :func:`make_squash`."""
    WIDTH, LANES, TURNS, BITS = width, lanes, group // (width * lanes), lanes.bit_length() - 1
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
        let_next_start()
        run, d_run = cuda.local.array(WIDTH, dtype), cuda.local.array(WIDTH, dtype)
        i, lane = cuda.grid(1), cuda.threadIdx.x % 32
        first = (i // LANES * (LANES * TURNS) + i % LANES) * WIDTH
        inside = first < row
        n = cuda.blockIdx.y
        wait_for_last()
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
            f, along = squash_slopes(square + REGULARISER, dot)
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


def squash(x, y, group: int, slope: float = 1.0, stream=0, threads: int = THREADS) -> None:
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
    _launch(make_squash, {"x": x, "y": y}, group, slope, stream, threads)


def squash_backward(
    x, dy, dx, group: int, slope: float = 1.0, stream=0, threads: int = THREADS
) -> None:
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
    _launch(make_squash_backward, {"x": x, "dy": dy, "dx": dx}, group, slope, stream, threads)


def _launch(make, arrays, group, slope, stream, threads):
    """Launch the kernel of a factory on arrays by name."""
    x = arrays["x"]
    N, row = x.shape[0], _whole_groups(x, group)
    runs = [flat(name, array, x.shape) for name, array in arrays.items()]
    width, lanes = shares(group, threads, runs)
    arguments = (*runs, row, N)
    kernel = early(make(group, width, lanes, slope, x.dtype), arguments)
    launch(kernel, row // group * lanes, N, arguments, stream, threads)


def _whole_groups(x, group):
    """Elements of an image, after checking that groups fill them."""
    row = x.size // x.shape[0]
    if group < 1 or row % group:
        raise ValueError(f"group is {group}; it takes a divisor of an image's {row} elements")
    return row
