"""What one band has made, written where it belongs in the whole, or added to what is there.

    whole[first + sum over axes of coordinate * stride] = part[i]   (+ what is there, for the first ``seen`` i), i in C order

It is :func:`numbacaps.device.strided_copy.gather` the other way round. Sums of 2-byte elements are rounded once for each addition.

Thread mapping: one thread an element, consecutive threads on consecutive elements of the part.
"""

from functools import cache
from math import prod

import numpy as np

from numbacaps.device.bfloat16 import bits
from numbacaps.device.dtypes import conversions
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import launch
from numbacaps.device.strided_copy import merge_axes
from numbacaps.device.target import at, cuda


@cache
def make_place(of_part, of_whole):
    """Kernel for the dtypes of both; compiled anew for each number of axes."""
    (read, _), (read_whole, write) = conversions(of_part), conversions(of_whole)

    @kept_on_disk
    @cuda.jit
    def routing_place_kernel(
        part,  # in   (size,)
        whole,  # in and out  all that the place spans
        first,  # where the place begins in that memory
        shape,  # of the part
        strides,  # of the place along the part's axes, in elements
        seen,  # elements of the part that are added
    ):
        i = cuda.grid(1)
        if i >= part.size:
            return
        offset, rest = first, i
        for step in range(len(shape)):
            axis = len(shape) - 1 - step
            offset += rest % shape[axis] * strides[axis]
            rest //= shape[axis]
        value = read(part[at(i)])
        if i < seen:
            value += read_whole(whole[at(offset)])
        whole[at(offset)] = write(value)

    return routing_place_kernel


class Part:
    """Some of a C-contiguous device array, for :func:`place` and for :func:`numbacaps.device.strided_copy.gather`.

    To slice a Numba array takes the host a step for every run of elements that do not lie side by side, a second for some images.

    Parameters
    ----------
    array : device array
    indices : slice
        Of its first axes.

    Attributes
    ----------
    shape, strides : tuple of int
        Strides in bytes.
    dtype : numpy.dtype
    """

    def __init__(self, array, *indices):
        self.dtype, shape = np.dtype(array.dtype), tuple(array.shape)
        ranges = [range(count)[some] for count, some in zip(shape, indices)]
        steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.shape = *map(len, ranges), *shape[len(ranges) :]
        self.strides = tuple(step * self.dtype.itemsize for step in steps)
        first = sum(one.start * step for one, step in zip(ranges, steps))
        self._memory = array.reshape(array.size), first

    def memory(self):
        """As :meth:`numbacaps.arrays.Operand.memory`: all of the array."""
        return self._memory


def place(part, whole, order, stream, seen=0):
    """Write a C-contiguous device array to a place whose axes come in another order.

    Parameters
    ----------
    part : device array
    whole : Part or numbacaps.arrays.Operand
        The place, of any strides.
    order : tuple of int
        For each axis of the part, which of the place's it is.
    stream : Numba stream
    seen : int
        So many of the part's first elements are added to what is there.
    """
    shape = tuple(whole.shape[axis] for axis in order)
    strides = tuple(whole.strides[axis] // whole.dtype.itemsize for axis in order)
    memory, first = whole.memory()
    arguments = bits(part.reshape(part.size)), bits(memory), first, *merge_axes(shape, strides)
    launch(make_place(part.dtype, whole.dtype), part.size, 1, (*arguments, seen), stream)
