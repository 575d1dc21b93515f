"""Division by a number that comes at run time, as a multiplication by a factor that the host has worked out.

A compiler does so for divisors that it knows. A kernel that serves all sizes knows none, and a division of its own takes
about 20 instructions.
"""

import numpy as np

from numbacaps.device.target import cuda

LARGEST = 2**31 - 1  # of what is divided, and of divisors


def divisor(d):
    """(d, factor): what :func:`divide` takes of a divisor.

    With 2^(s-1) < d <= 2^s, n // d is n * ceil(2^(31+s) / d) // 2^(31+s) for every n below 2^31. The factor has 32 bits, and
    s lies above them.
    """
    s = (d - 1).bit_length()
    return d, -(-(1 << (31 + s)) // d) | s << 32


@cuda.jit(device=True, inline="always")
def divide(n, d, factor):
    """(n // d, n % d) of an n from 0 to :data:`LARGEST`, in 32 bits without a sign."""
    n = np.uint32(n)
    product = np.uint64(np.uint32(n << 1)) * np.uint64(factor & 0xFFFFFFFF)
    quotient = np.uint32(np.uint32(product >> 32) >> (factor >> 32))
    return quotient, np.uint32(n - np.uint32(quotient * np.uint32(d)))
