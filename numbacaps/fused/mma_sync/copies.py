"""A thread's copies to shared memory: asynchronous (``cp.async``) from 4 bytes on.

No asynchronous copy takes 2 bytes. Such an element is loaded to a register before the products of a stage, and stored after them. So all loads of
a thread wait for memory at the same time, while the products run.
"""

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import cp_async_cached
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


def kept_of(run, copies):
    """Elements that a thread keeps in registers while its copies of a stage, ``run`` bytes each, are under way; 1 where it keeps none."""
    return 1 if run >= 4 else copies


def make_copy(run, dtype):
    """(begin, end) of a copy of ``run`` bytes, which writes zeros where nothing is there.

    ``begin(kept, i, shared, start, to, array, source, is_there)`` is for a thread's copy i of a stage, then ``end(kept, i, shared, to)``.
    ``to`` counts bytes from where shared memory starts, ``source`` elements of the array.
    """
    RUN, SIZE, ASYNCHRONOUS = specialized(run), dtype.itemsize, run >= 4
    _, as_operand = conversions(dtype)
    ZERO = np.float32(0)

    @cuda.jit(device=True, inline="always")
    def begin(kept, i, shared, start, to, array, source, is_there):
        if ASYNCHRONOUS:
            cp_async_cached(RUN, shared, start + to, array, source, is_there)
        else:
            kept[i] = array[at(source)] if is_there else as_operand(ZERO)

    @cuda.jit(device=True, inline="always")
    def end(kept, i, shared, to):
        if not ASYNCHRONOUS:
            shared[at(to // SIZE)] = kept[i]

    return begin, end
