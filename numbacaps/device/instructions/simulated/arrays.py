"""Arrays of a thread's own, and of a block's, as :mod:`numbacaps.device.instructions.ptx.arrays` makes them."""

import sys

import numpy as np

from numbacaps.device.instructions.simulated.block import block, fresh_array


def local_array(size, dtype):
    """An array of a thread's own."""
    return np.empty(size, dtype)


def shared_array(size, dtype):
    """An array that the block's threads share: the same one wherever they come by the same line."""
    return array_of_line(sys._getframe(1), size, dtype)


def array_of_line(frame, size, dtype):
    """The block's array for the line that a frame is at. Who watches a kernel stands in for this."""
    line, arrays = (frame.f_code.co_filename, frame.f_lineno), block()
    if line not in arrays:
        arrays[line] = fresh_array(size, dtype)
    return arrays[line]
