"""What one band has made, written where it belongs in the whole, or added to what is there.

    whole[first + sum over axes of coordinate * stride] = part[i]   (+ what is there, if i < added),   i in C order

It is :func:`numbacaps.device.strided_copy.gather` the other way round. Sums of 2-byte elements are rounded once for each addition.

Thread mapping: one thread an element, consecutive threads on consecutive elements of the part.
"""

from functools import cache

from numbacaps.device.bfloat16 import bits
from numbacaps.device.dtypes import conversions
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import launch
from numbacaps.device.strided_copy import merge_axes, offset_of, strided
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
        added,  # elements at the part's beginning that are added; the others overwrite what is there
    ):
        i = cuda.grid(1)
        if i >= part.size:
            return
        offset = offset_of(i, first, shape, strides)
        value = read(part[at(i)])
        if i < added:
            value += read_whole(whole[at(offset)])
        whole[at(offset)] = write(value)

    return routing_place_kernel


def place(part, whole, order, stream, added=0):
    """Write a C-contiguous device array into a strided one.

    Parameters
    ----------
    part : device array
    whole : numbacaps.device.strided_copy.Part or numbacaps.arrays.Operand
        Where it is written, on the device.
    order : tuple of int
        For each axis of the part, which axis of the whole it is.
    stream : Numba stream
    added : int
        The first ``added`` elements of the part, in C order, are added to what is there. The others overwrite it.
    """
    memory, first = whole.memory()
    arguments = (bits(part.reshape(part.size)), bits(memory), first)
    arguments += (*merge_axes(*strided(whole, order)), added)
    launch(make_place(part.dtype, whole.dtype), part.size, 1, arguments, stream)
