"""Numbers with a fraction that kernels are compiled for, behind Numba where they are of float32."""

from functools import cache

import numpy as np

from numbacaps.device.instructions import float_of
from numbacaps.device.specialization import specialized_float32
from numbacaps.device.target import cuda


@cache
def make_constant(value, sums):
    """Device function ``constant()``: a number, as ``sums`` rounds it.

    Of float32 it is a specialization constant, so kernels that differ in it are typed once.
    """
    if sums != np.float32:
        VALUE = sums.type(value)

        @cuda.jit(device=True, forceinline=True)
        def constant():
            return VALUE

        return constant

    BITS = specialized_float32(value)

    @cuda.jit(device=True, forceinline=True)
    def constant_of_float32():
        return float_of(BITS)

    return constant_of_float32
