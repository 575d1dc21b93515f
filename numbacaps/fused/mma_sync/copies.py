"""A thread's copies to shared memory: asynchronous from 4 bytes on, an ordinary load and store of 2."""

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import cp_async_cached
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


def make_copy(run, dtype):
    """``copy(shared, start, to, array, source, is_there)``: ``run`` bytes; zeros where nothing is there.

    ``to`` counts bytes from where shared memory starts, ``source`` elements of the array.
    """
    RUN, SIZE, ASYNCHRONOUS = specialized(run), dtype.itemsize, run >= 4
    _, as_operand = conversions(dtype)
    ZERO = np.float32(0)

    @cuda.jit(device=True, inline="always")
    def copy(shared, start, to, array, source, is_there):
        if ASYNCHRONOUS:
            cp_async_cached(RUN, shared, start + to, array, source, is_there)
        else:
            shared[at(to // SIZE)] = array[at(source)] if is_there else as_operand(ZERO)

    return copy
