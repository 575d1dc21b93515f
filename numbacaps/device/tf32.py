"""float32 as TF32, the 10 bits of mantissa that tensor cores read, in one part or two.

In one part a factor is brought near enough to its rounding; the tensor cores cut off the rest. In two
parts a product of float32 becomes three of TF32, of which the largest comes last:

    a * b = low(a) * high(b) + high(a) * low(b) + high(a) * high(b)
"""

from numbacaps.device.instructions import TF32_NEARER, cut_tf32
from numbacaps.device.target import cuda

_NEARER = TF32_NEARER


@cuda.jit(device=True, inline="always")
def nearer(value):
    """What, cut to TF32, is on average neither too small nor too large."""
    return value * _NEARER


@cuda.jit(device=True, inline="always")
def split(value):
    """(high, low): a number that TF32 has, and what is left, which the tensor cores cut."""
    high = cut_tf32(value * _NEARER)
    return high, value - high
