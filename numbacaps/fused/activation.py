"""LeakyReLU, then squash: what a network's layer does to its convolution's sums, wherever it is computed.

Over each group a of consecutive elements of a = LeakyReLU(x), with n = sqrt(|a|^2 + 1e-7):

    y = a * (1 - exp(-n)) / n

``expm1`` keeps the digits of 1 - exp(-n) where n is small. A reciprocal square root stands for root
and division: those of IEEE branch, which costs more than all else here.

An |a|^2 that overflows, that of float32 from |a| = 1.8e19 on, counts as the largest number of float32, and its
gradient as that of a constant: so results and gradients of finite numbers are finite. Such a y is longer than 1.
"""

from dataclasses import dataclass

import numpy as np

from numbacaps.device.instructions import expm1, inverse_root
from numbacaps.device.target import cuda

EPSILON = 1e-7  # keeps the length's gradient finite; the published value
# Of a type that widens nothing.
_ZERO, _ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)
LARGEST = np.finfo(np.float32).max  # what |a|^2 counts as where it overflows


@dataclass(frozen=True)
class Activation:
    """What is wanted of a layer's sums.

    Attributes
    ----------
    slope : float
        Of LeakyReLU; 1 for none.
    group : int
        Consecutive elements of a capsule that are squashed together.
    keeps_sums : bool
        The sums before it are wanted too: gradients read them.
    backward : bool
        Its gradient is wanted, behind a product that computes what reaches its results.
    """

    slope: float
    group: int
    keeps_sums: bool = True
    backward: bool = False


@cuda.jit(device=True, inline="always")
def leaky(x, slope):
    """LeakyReLU of an element."""
    return x if x > _ZERO else slope * x


@cuda.jit(device=True, inline="always")
def squash_factor(square):
    """What squash multiplies a group by, from |a|^2 + :data:`EPSILON`."""
    square = LARGEST if square == _INFINITY else square  # NaN stays NaN
    inverse = inverse_root(square)
    return -expm1(-square * inverse) * inverse


@cuda.jit(device=True, inline="always")
def squash_slopes_of_result(square):
    """(f, k) of squash's gradient told by the result y = a * f: dy * f + y * (y . dy) * k; from |a|^2 + :data:`EPSILON`.

    With n the length, f is :func:`squash_factor` and k is f'(n) / (n * f^2) = (exp(-n) - f) / (1 - exp(-n))^2; 0 where
    |a|^2 overflows.
    """
    overflows = square == _INFINITY
    square = LARGEST if overflows else square
    inverse = inverse_root(square)
    less = expm1(-square * inverse)
    f = -less * inverse
    other = inverse_root(less * less)
    k = (_ONE + less - f) * (other * other)
    return f, _ZERO if overflows else k


@cuda.jit(device=True, inline="always")
def squash_slopes(square, dot):
    """(f, along) of squash's gradient dy * f + a * along, from |a|^2 + :data:`EPSILON` and a . dy.

    With n the length, f is :func:`squash_factor` and along is (a . dy) * h, where h = f'(n) / n = (exp(-n) - f) / n^2.
    Where n is large h is about -1 / n^3, which float32 does not hold; so it is taken in two factors, f and f * k of
    :func:`squash_slopes_of_result`.
    """
    f, k = squash_slopes_of_result(square)
    along = _ZERO
    if k != _ZERO:  # an overflow, whose dot may be infinite
        along = dot * f * (f * k)
    return f, along


@cuda.jit(device=True, inline="always")
def squash_gradient(x, dy, f, along, slope):
    """What reaches an element x before LeakyReLU and squash; f and ``along`` are its group's :func:`squash_slopes`."""
    gradient = dy * f + leaky(x, slope) * along
    return gradient if x > _ZERO else slope * gradient
