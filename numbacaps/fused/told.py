"""Which results of three terms can be told, and which have to be summed again.

In three terms of TF32 a float32 is the sum of a high and a low part. Of an infinity and of a NaN the low part is none:
where ordinary arithmetic gives an infinity, three terms give NaN. Numbers near float32's largest overflow as they are
split; of very small ones the low part is lost. All of that shows in the result: it is not finite, or smaller than
:data:`SMALLEST`. The kernel that has results last looks through them: a product itself, or what adds up its splits or
columns, by :mod:`numbacaps.fused.anew`; ``mma_sync`` by :mod:`numbacaps.fused.mma_sync.again`. To sum again is slow, and
numbers of everyday sizes do not need it.
"""

import numpy as np

from numbacaps.device.instructions import unroll_loops
from numbacaps.device.target import cuda

# A low part has 2^-136's multiples; a result keeps 24 bits above it.
SMALLEST = np.float32(2.0**-100)
_LARGEST = np.finfo(np.float32).max
_ZERO = np.float32(0)


@cuda.jit(device=True, inline="always")
def is_told(value):
    """Whether three terms can tell a float32 result: it is 0, or finite and not too small."""
    magnitude = abs(value)
    return (magnitude <= _LARGEST) & ((magnitude >= SMALLEST) | (magnitude == _ZERO))


@cuda.jit(device=True, forceinline=True)
def all_told(acc, sums):
    """Whether each of a thread's sums can be told."""
    unroll_loops()
    told = True
    for i in range(sums):
        told &= is_told(acc[i])
    return told
