"""What an element of an array is multiplied and added in, and how kernels read and write it."""

import numpy as np

from numbacaps.device.bfloat16 import is_bfloat16
from numbacaps.device.instructions import from_bfloat16, to_bfloat16


def sum_dtype(dtype):
    """What elements of a dtype are multiplied and added in."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def conversions(dtype):
    """(read, write): for kernels to call, from an element to what it is multiplied in, and from a sum to an element."""
    if is_bfloat16(dtype):
        return from_bfloat16, to_bfloat16
    return sum_dtype(dtype).type, dtype.type
