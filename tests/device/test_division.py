"""Division by numbers that come at run time, at the edges of what it takes."""

import numpy as np
import pytest

from numbacaps.device.division import LARGEST, divide, divisor

_POWERS = [2**i for i in range(32)]
_DIVISORS = sorted({d for p in _POWERS for d in (p - 1, p, p + 1) if d > 0} | {LARGEST, 7, 11, 641})


@pytest.mark.parametrize("d", _DIVISORS)
def test_it_is_exact(d, rng):
    near = [d * k + e for k in (0, 1, 2, LARGEST // d - 1, LARGEST // d) for e in (-1, 0, 1)]
    n = np.array([0, 1, LARGEST - 1, LARGEST, *near, *rng.integers(0, LARGEST, 1000)])
    n = n[(n >= 0) & (n <= LARGEST)]
    quotient, remainder = divide(n.astype(np.uint32), *divisor(d))
    np.testing.assert_array_equal(quotient, n // d)
    np.testing.assert_array_equal(remainder, n % d)
