"""What is done to each element of a fragment, the registers in which a thread holds its part of a matrix.

The tensor cores read of a float32 the bits that TF32 has, and ignore the others. Three products of TF32 are nearly
one of float32 (tf32x3): both operands are split, and low(a) * low(b) is left out::

    a * b = low(a) * high(b) + high(a) * low(b) + high(a) * high(b)
"""

import numpy as np

from numbacaps.device.instructions import TF32_NEARER, cut_tf32, unroll_loops
from numbacaps.device.target import cuda


@cuda.jit(device=True, forceinline=True)
def clear(values, count):
    """Zeros."""
    for i in range(count):
        values[i] = np.float32(0)


@cuda.jit(device=True, forceinline=True)
def add(sums, values, count):
    """``values`` added to ``sums``, element by element."""
    unroll_loops()
    for i in range(count):
        sums[i] += values[i]


@cuda.jit(device=True, forceinline=True)
def nearer_tf32(value):
    """What TF32 cuts to a number that is, on average, neither too small nor too large."""
    return value * TF32_NEARER


@cuda.jit(device=True, forceinline=True)
def low_tf32(value):
    """What TF32 has no bits for: the low part; :func:`numbacaps.device.instructions.cut_tf32` is the high one."""
    return nearer_tf32(value - cut_tf32(value))
