"""Copy a strided device array into one run of elements.

Kernels take C-contiguous arrays with the capsule axes in the order (G, D1, D2). An array that is
strided, or whose product names its axes in another order, is brought there by this copy.

    out[i] = source[first + sum over axes of coordinate * stride],   i in C order

Thread mapping: one thread an element, consecutive threads on consecutive elements of the result.
"""

from functools import cache

from numbacaps.device.bfloat16 import bits
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import launch
from numbacaps.device.target import at, cuda


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
        offset, rest = first, i
        for step in range(len(shape)):
            axis = len(shape) - 1 - step
            offset += rest % shape[axis] * strides[axis]
            rest //= shape[axis]
        out[at(i)] = memory[at(offset)]

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


def gather(operand, order, stream, out=None):
    """A C-contiguous device array with the operand's axes in another order.

    Parameters
    ----------
    operand : numbacaps.arrays.Operand
        On the device.
    order : tuple of int
        For each axis of the result, which of the operand's it is.
    stream : Numba stream
    out : numbacaps.arrays.Operand, optional
        Where to write it, C-contiguous and of the operand's dtype; by default it is a new array.
    """
    shape = tuple(operand.shape[axis] for axis in order)
    strides = tuple(operand.strides[axis] // operand.dtype.itemsize for axis in order)
    memory, first = operand.memory()
    made = out.reshaped(shape) if out else cuda.device_array(shape, operand.dtype, stream=stream)
    arguments = (bits(memory), bits(made.reshape(made.size)), first, *merge_axes(shape, strides))
    launch(make_gather(), made.size, 1, arguments, stream)
    return made
