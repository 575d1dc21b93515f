"""The pixels of an input along one axis, by the taps that read them.

With a stride a tap reads every ``stride``-th pixel. So pixels whose places, counted from the padding's edge, leave the
same rest when divided by the stride, the same residue, are read by the same taps.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Residue:
    """Along one axis the pixels whose windows have the same taps: every ``stride``-th.

    Attributes
    ----------
    count, step : int
        How many pixels, and from one to the next.
    place : int
        The first of them.
    first : int
        Pixel i is the ``first + i``-th step of the stride from the padding's edge.
    taps, shifts : int64 arrays
        Their taps; tap t of pixel i was read at output position ``first + i + shifts[t]``.
    """

    count: int
    step: int
    place: int
    first: int
    taps: np.ndarray
    shifts: np.ndarray


def residues(geometry, axis):
    """The residues along an axis that have pixels and taps, by number.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    axis : int
        0 of rows, 1 of columns.

    Returns
    -------
    list of Residue
    """
    g = geometry
    size, window = ((g.H, g.KH), (g.W, g.KW))[axis]
    stride, padding, dilation = g.stride[axis], g.padding[axis], g.dilation[axis]
    taps_of = {}
    for tap in range(window):
        taps_of.setdefault(tap * dilation % stride, []).append(tap)
    found = []
    for residue, taps in sorted(taps_of.items()):
        first = -((residue - padding) // stride)  # the first that does not lie before the array
        count = (size - 1 + padding - residue) // stride - first + 1
        shifts = [-((tap * dilation - residue) // stride) for tap in taps]
        taps, shifts = (np.array(one, np.int64) for one in (taps, shifts))
        if count > 0:
            place = stride * first + residue - padding
            found.append(Residue(count, stride, place, first, taps, shifts))
    return found
