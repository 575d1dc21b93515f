"""Whether a tap lies over an edge: a row and a column of an array are compared with its size at once.

They lie side by side in 32 bits: ``row * 2^16 + column``. So going to a tap is one addition. Where the column is negative, bit 15 is
set; where the row is, or the row is 0 and the column negative, bit 31. Of the last row and column less the ones reached, one of these
is set where those are past the end.
"""

import numpy as np

from numbacaps.device.instructions import short
from numbacaps.device.target import cuda

FARTHEST = 1 << 14  # rows and columns, with their taps and the array's size, are nearer to 0
_SIGNS = 0x8000_8000
NO_PIXEL = -FARTHEST  # in place of a row and a column: whatever the tap, the column is negative
NOWHERE = -FARTHEST  # in place of a tap: whatever the pixel, the column is negative


@cuda.jit(device=True, inline="always")
def side_by_side(row, column):
    """A row and a column in 32 bits."""
    return short((row << 16) + column)


@cuda.jit(device=True, inline="always")
def is_inside(reached, last):
    """Whether the array has the row and the column ``reached``; ``last`` are its last ones. All are side by side."""
    signs = np.uint32(reached) | np.uint32(short(last - reached))
    return np.uint32(signs & np.uint32(_SIGNS)) == 0
