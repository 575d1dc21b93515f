"""Copy a strided device array into one run of elements.

Kernels take C-contiguous arrays with the capsule axes in the order (G, D1, D2). An array that is
strided, or whose product names its axes in another order, is brought there by this copy.

    out[i] = source[first + sum over axes of coordinate * stride],   i in C order

Thread mapping: one thread an element, consecutive threads on consecutive elements of the result.
"""

from functools import cache
from math import prod

import numpy as np

from numbacaps.device.bfloat16 import bits
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import launch
from numbacaps.device.target import at, cuda


@cuda.jit(device=True, forceinline=True)
def offset_of(i, first, shape, strides):
    """Where element ``i``, in C order, of a strided array lies in the memory in which that begins at ``first``."""
    offset, rest = first, i
    for step in range(len(shape)):
        axis = len(shape) - 1 - step
        offset += rest % shape[axis] * strides[axis]
        rest //= shape[axis]
    return offset


@cache
def make_gather():
    """Kernel that reads strided memory in C order; compiled anew for each number of axes."""

    @kept_on_disk
    @cuda.jit
    def gather_kernel(
        memory,  # in   all that the source spans
        out,  # out  (size,)
        first,  # where the source begins in its memory
        shape,  # of the result
        strides,  # of the source along the result's axes, in elements
    ):
        i = cuda.grid(1)
        if i >= out.size:
            return
        out[at(i)] = memory[at(offset_of(i, first, shape, strides))]

    return gather_kernel


def merge_axes(shape, strides):
    """The same elements in the same order with fewer axes: adjoining runs become one axis."""
    merged = []
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return tuple(zip(*merged)) if merged else ((1,), (1,))


def strided(operand, order):
    """(shape, strides in elements) of an operand whose axes come in an order."""
    shape = tuple(operand.shape[axis] for axis in order)
    return shape, tuple(operand.strides[axis] // operand.dtype.itemsize for axis in order)


class Part:
    """Some indices of a C-contiguous device array, as an operand of copies.

    Slicing a Numba array itself takes the host a step for each run of adjoining elements: milliseconds to seconds.

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


def gather(operand, order, stream, out=None):
    """A C-contiguous device array with the operand's axes in another order.

    Parameters
    ----------
    operand : numbacaps.arrays.Operand or Part
        On the device.
    order : tuple of int
        For each axis of the result, which of the operand's it is.
    stream : Numba stream
    out : numbacaps.arrays.Operand, optional
        Where to write it, C-contiguous and of the operand's dtype; by default it is a new array.
    """
    shape, strides = strided(operand, order)
    memory, first = operand.memory()
    made = out.reshaped(shape) if out else cuda.device_array(shape, operand.dtype, stream=stream)
    arguments = (bits(memory), bits(made.reshape(made.size)), first, *merge_axes(shape, strides))
    launch(make_gather(), made.size, 1, arguments, stream)
    return made
