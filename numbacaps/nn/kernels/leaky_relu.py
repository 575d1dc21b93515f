"""LeakyReLU, forward and backward.

    y  = x   where x > 0,  slope * x   elsewhere
    dx = dy  where x > 0,  slope * dy  elsewhere (at 0 too)

Thread mapping: one thread an element of an image, which it walks image by image.
"""

from functools import cache

from numbacaps.device.instructions import let_next_start, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, early, flat, launch
from numbacaps.device.target import at, cuda


@cache
def make_leaky_relu(slope, dtype):
    """Kernel for one slope."""
    ZERO, SLOPE = dtype.type(0), dtype.type(slope)

    @kept_on_disk
    @cuda.jit
    def leaky_relu_kernel(
        x,  # in   (N, row)
        y,  # out  (N, row)
        row,
        N,
    ):
        let_next_start()
        i = cuda.grid(1)
        if i >= row:
            return
        n = cuda.blockIdx.y
        wait_for_last()
        while n < N:
            value = x[at(n * row + i)]
            y[at(n * row + i)] = value if value > ZERO else SLOPE * value
            n += cuda.gridDim.y

    return leaky_relu_kernel


@cache
def make_leaky_relu_backward(slope, dtype):
    """Kernel for one slope."""
    ZERO, SLOPE = dtype.type(0), dtype.type(slope)

    @kept_on_disk
    @cuda.jit
    def leaky_relu_backward_kernel(
        x,  # in   (N, row)
        dy,  # in   (N, row)
        dx,  # out  (N, row)
        row,
        N,
    ):
        let_next_start()
        i = cuda.grid(1)
        if i >= row:
            return
        n = cuda.blockIdx.y
        wait_for_last()
        while n < N:
            gradient = dy[at(n * row + i)]
            dx[at(n * row + i)] = gradient if x[at(n * row + i)] > ZERO else SLOPE * gradient
            n += cuda.gridDim.y

    return leaky_relu_backward_kernel


def leaky_relu(x, y, slope, stream=0, threads=THREADS):
    """Write LeakyReLU(x) to y.

    Parameters
    ----------
    x : device array (N, ...), float32 or float64
    y : device array of the same size and dtype, written; it may be ``x``
    slope : float
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        ``y`` has another size, or an array is not C-contiguous.
    """
    N, row = x.shape[0], x.size // x.shape[0]
    arguments = (flat("x", x, x.shape), flat("y", y, x.shape), row, N)
    kernel = early(make_leaky_relu(slope, x.dtype), arguments)
    launch(kernel, row, N, arguments, stream, threads)


def leaky_relu_backward(x, dy, dx, slope, stream=0, threads=THREADS):
    """Write the gradient that reaches x to dx.

    Parameters
    ----------
    x, dy : device arrays (N, ...), float32 or float64
    dx : device array of the same size and dtype, written; it may be ``dy``
    slope, stream, threads
        As :func:`leaky_relu`.

    Raises
    ------
    ValueError
        As :func:`leaky_relu`.
    """
    N, row = x.shape[0], x.size // x.shape[0]
    arrays = (flat(name, a, x.shape) for name, a in (("x", x), ("dy", dy), ("dx", dx)))
    arguments = (*arrays, row, N)
    kernel = early(make_leaky_relu_backward(slope, x.dtype), arguments)
    launch(kernel, row, N, arguments, stream, threads)
