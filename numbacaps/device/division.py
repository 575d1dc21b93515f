"""Division by a number that comes at run time, as a multiplication by a factor that the host has worked out.

A compiler does so for divisors that it knows. A kernel that serves all sizes knows none, and a division of its own takes
about 20 instructions.
"""

import numpy as np

from numbacaps.device.target import cuda

LARGEST = 2**32 - 1  # of what is divided, and of divisors


def divisor(d):
    """(d, factor): what :func:`divide` takes of a divisor.

    With 2^(s-1) < d <= 2^s, n // d is n * ceil(2^(32+s) / d) // 2^(32+s) for every n below 2^32. That multiplier is 2^32 and 32
    bits more; the factor has these, and s above them.
    """
    s = (d - 1).bit_length()
    return d, (((1 << s) - d) << 32) // d + 1 | s << 32


@cuda.jit(device=True, inline="always")
def divide(n, d, factor):
    """(n // d, n % d) of an n from 0 to :data:`LARGEST`, in 32 bits without a sign."""
    n = np.uint32(n)
    high = np.uint64(n) * np.uint64(factor & 0xFFFFFFFF) >> np.uint64(32)
    quotient = np.uint32(np.uint64(high + n) >> np.uint64(factor >> 32))
    return quotient, np.uint32(n - np.uint32(quotient * np.uint32(d)))
