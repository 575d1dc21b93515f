"""The two formulas of squash in use: what a capsule a is multiplied by, from |a|^2, and the gradient.

    name           y                                   where it is from
    "rational"     a * |a|^2 / (1 + |a|^2) / |a|       Sabour et al. 2017, equation 1
    "exponential"  a * (1 - exp(-|a|)) / |a|           the published network

The length in the denominator is sqrt(|a|^2 + 1e-7), which keeps the gradient finite; that of the exponential is so all over.
A squash y = a * f(|a|^2) has the gradient dy * f + a * (a . dy) * 2 f'(|a|^2).

An |a|^2 that overflows counts as the largest number of float32, and its gradient as that of a constant
(:mod:`numbacaps.fused.activation`).
"""

import numpy as np

from numbacaps.device.instructions import inverse_root
from numbacaps.device.target import cuda
from numbacaps.fused.activation import EPSILON, LARGEST, squash_factor, squash_slopes

__all__ = ["EPSILON", "FORMULAS"]
# Of a type that widens nothing.
_ZERO, _ONE, _TWO, _INFINITY = map(np.float32, (0, 1, 2, np.inf))


@cuda.jit(device=True, inline="always")
def _exponential(square, epsilon):
    return squash_factor(square + epsilon)


@cuda.jit(device=True, inline="always")
def _exponential_slopes(square, epsilon, dot):
    return squash_slopes(square + epsilon, dot)


@cuda.jit(device=True, inline="always")
def _rational(square, epsilon):
    square = LARGEST if square == _INFINITY else square  # NaN stays NaN
    return square / (_ONE + square) * inverse_root(square + epsilon)


@cuda.jit(device=True, inline="always")
def _rational_slopes(square, epsilon, dot):
    """2 f' is f'(n) / n of the length n: about -1 / n^3 where n is large, which float32 does not hold; so dot / n comes first."""
    overflows = square == _INFINITY
    square = LARGEST if overflows else square
    inverse, less = inverse_root(square + epsilon), _ONE / (_ONE + square)
    f = square * less * inverse
    along = _ZERO
    if not overflows:  # whose dot may be infinite
        along = (dot * inverse) * (_TWO * less * less - square * inverse * inverse * less)
    return f, along


# Name to device functions: factor(|a|^2, epsilon), and slopes(|a|^2, epsilon, a . dy), which are (f, (a . dy) * 2 f').
FORMULAS = {
    "rational": (_rational, _rational_slopes),
    "exponential": (_exponential, _exponential_slopes),
}
