"""How close is close enough: one error, one table of tolerances, one assertion.

The error is relative to the largest expected value. An element-wise relative error would ask for
digits that a sum with cancelling terms does not have.
"""

import math

import numpy as np

# Spacing of the numbers next to 1 in each dtype that has a tolerance.
_EPSILON = {
    np.dtype(np.float32): 2.0**-23,
    np.dtype(np.float64): 2.0**-52,
}
# How far a precision moves an operand before it is multiplied, relative; tensor cores may truncate.
_OPERAND = {
    "ieee": 0.0,
    "tf32x3": 2.0**-21,
    "tf32": 2.0**-10,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
# Of routing in float32. Its own error is up to 7e-6, where variances divide.
ROUTING = 1e-4
# After many iterations of EM routing it is more: then as many times that of plain PyTorch with stored votes in float32.
ROUTING_TIMES = 4


def _differences(actual, expected):
    """Absolute differences in float64, inf wherever either side is not finite."""
    if actual.shape != expected.shape:
        raise ValueError(f"actual: shape is {actual.shape}, must be {expected.shape}")
    finite = np.isfinite(actual) & np.isfinite(expected)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(finite, np.abs(actual - expected), np.inf)


def relative_error(actual, expected):
    """Largest difference, relative to the largest expected value.

    Parameters
    ----------
    actual, expected : array_like
        Of the same shape; compared in float64.

    Returns
    -------
    float
        ``max|actual - expected| / max|expected|``, or ``max|actual|`` if `expected` is all zeros.
        It is inf if either side holds a NaN or an infinity, even if both hold it at the same
        place, and 0.0 for empty arrays.

    Raises
    ------
    ValueError
        If the shapes differ; nothing broadcasts.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    differences = _differences(actual, expected)
    if not differences.size:
        return 0.0
    error = float(np.max(differences))
    scale = float(np.max(np.abs(expected)))
    if math.isinf(error):
        return math.inf
    return error / scale if scale else error


def tolerance(dtype, terms, precision="ieee"):
    """Largest `relative_error` that rounding explains.

    A sum of T rounded products makes about T rounding errors. They have either sign, so together
    they grow as the square root of T, and so do the partial sums, and so does the largest expected
    value. What is left of the ratio is ``sqrt(T)`` spacings of the dtype, times a small factor.
    The constant part covers rounding the operands and the result of a short sum.

    Rounding the operands to a shorter precision moves every product by up to two of its spacings, all
    to the same side where the hardware truncates; one more covers a result of that precision.

    This holds for terms that are not chosen to cancel. Where every expected value is far smaller
    than the terms summed into it, it is too strict.

    Parameters
    ----------
    dtype : dtype_like
        float32 or float64: what is summed in.
    terms : int
        Number of products summed into one element: C*KH*KW*D2 for the output, P*KH*KW*D3 for the
        input's gradient, N*OH*OW*D1 for the kernel's.
    precision : str
        What the operands are rounded to: "ieee" (their own dtype), "tf32x3", "tf32", "float16" or
        "bfloat16".

    Returns
    -------
    float
        ``epsilon * (4 + 2*sqrt(terms))``, and 3 spacings of the precision's.

    Raises
    ------
    TypeError
        If `dtype` is another.
    ValueError
        If `terms` is negative or `precision` is another.
    """
    dtype = np.dtype(dtype)
    if dtype not in _EPSILON:
        names = " or ".join(str(key) for key in _EPSILON)
        raise TypeError(f"dtype: takes {names}, not {dtype}")
    if terms < 0:
        raise ValueError(f"terms: must not be negative, not {terms}")
    if precision not in _OPERAND:
        raise ValueError(f"precision: takes {', '.join(_OPERAND)}, not {precision!r}")
    return _EPSILON[dtype] * (4 + 2 * math.sqrt(terms)) + 3 * _OPERAND[precision]


def assert_close(actual, expected, terms, precision="ieee"):
    """Assert that `actual` is `expected` up to the rounding of its dtype and precision.

    Parameters
    ----------
    actual : ndarray of float32 or float64
        Its dtype picks the tolerance.
    expected : array_like
        Of the same shape.
    terms : int
        Number of products summed into one element, as for `tolerance`.
    precision : str
        What the operands were rounded to, as for `tolerance`.

    Raises
    ------
    AssertionError
        If the error is above the tolerance, with both, and the worst element. A NaN or an infinity
        on either side never passes.
    ValueError
        If the shapes differ.
    TypeError
        If `actual` has another dtype.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    limit = tolerance(actual.dtype, terms, precision)
    error = relative_error(actual, expected)
    if not error <= limit:
        differences = _differences(actual.astype(np.float64), expected.astype(np.float64))
        worst = tuple(int(i) for i in np.unravel_index(np.argmax(differences), actual.shape))
        raise AssertionError(
            f"relative error {error:.3e} is above the tolerance {limit:.3e} "
            f"({actual.dtype}, {precision}, {terms} terms); worst element {worst}: "
            f"actual {actual[worst]!r}, expected {expected[worst]!r}"
        )
