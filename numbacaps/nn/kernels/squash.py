"""Squash behind LeakyReLU, forward and backward, of a network's arrays: the published network's activation.

Over each group a of consecutive elements of a = LeakyReLU(x), with n = sqrt(|a|^2 + 1e-7):

    y  = a * f             f = (1 - exp(-n)) / n
    da = dy * f + a * (a . dy) * h    h = f'(n) / n = (exp(-n) - f) / n^2

and dx = da where x > 0, slope * da elsewhere. The kernels are in :mod:`numbacaps.squash.kernels`.
"""

from numbacaps.device.launch import THREADS, early, flat, launch
from numbacaps.device.warp_shares import shares
from numbacaps.squash.kernels import make_squash, make_squash_backward


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
