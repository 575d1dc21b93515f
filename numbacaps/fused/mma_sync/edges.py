"""Whether a tap lies over an edge: a row and a column of an array are compared with its size at once.

They lie side by side in 32 bits, the row in the upper half, and to each a bit is added that its number never reaches:
``(2^14 + row) * 2^16 + 2^15 + column``. So going to a tap is one addition, and what is negative has lost its bit. Of the same
less the array's size, what still has its bit is past the end.
"""

import numpy as np

from numbacaps.device.instructions import short
from numbacaps.device.target import cuda

FARTHEST = 1 << 14  # rows and columns, with their taps and the array's size, are nearer to 0
_BITS = 0x4000_8000
NO_PIXEL = 0x4000_4000  # in place of a row and a column: whatever the tap, the column is negative
NOWHERE = -0x4000  # in place of a tap: whatever the pixel, the column is negative


@cuda.jit(device=True, inline="always")
def side_by_side(row, column):
    """A row and a column in 32 bits."""
    return short((row << 16) + column + _BITS)


@cuda.jit(device=True, inline="always")
def is_inside(reached, size):
    """Whether the array has the row and the column ``reached``; ``size`` is its rows times 2^16 and its columns."""
    has = np.uint32(reached) & ~np.uint32(short(reached - size))
    return np.uint32(has & np.uint32(_BITS)) == np.uint32(_BITS)
