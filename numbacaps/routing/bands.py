"""Bands: a few images, or some output rows of one image, whose summed votes are stored together.

Votes that are summed over the window take more memory than operands and results do, so a call stores those of one band, routes
them, and goes on with the next band in the same memory. A band is a routing problem of its own: its rows of the input, with
the rows of padding that its windows reach.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from numbacaps.device.launch import ceil_div
from numbacaps.geometry import Geometry

_ALWAYS = 64 << 20  # bytes that a band may take in any case
_SHARE = 4  # or this part of operands and results
_KEPT = 256  # problems


@dataclass(frozen=True)
class Band:
    """Images, or output rows of one image.

    Attributes
    ----------
    geometry : numbacaps.geometry.Geometry
        The problem of this band.
    images : slice
    rows : slice
        Of the output.
    read : slice
        Rows of the input, of ``geometry.H``; the others are zeros, in front of them and behind.
    above : int
        How many are in front.
    shared : int
        How many of the rows that it reads a band above has read, too.
    is_whole : bool
        It has all rows of its images.
    """

    geometry: Geometry
    images: slice
    rows: slice
    read: slice
    above: int
    shared: int
    is_whole: bool

    @property
    def height(self):
        """Rows that it reads."""
        return self.read.stop - self.read.start

    @property
    def is_padded(self):
        """Whether some of its input's rows are zeros that the input does not have."""
        return self.height < self.geometry.H

    @property
    def positions(self):
        """A slice of the output's positions."""
        OW = self.geometry.OW
        return slice(self.rows.start * OW, self.rows.stop * OW)


@lru_cache(_KEPT)
def bands_of(geometry, itemsize, gradients=False):
    """The bands of a problem, in the order in which they are routed.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    itemsize : int
        Bytes of an element.
    gradients : bool
        Whether they are of the backward pass, which stores the gradients of input and votes as well.

    Returns
    -------
    tuple of Band
        One, with everything, where that takes no more than 64 MiB or a quarter of operands and results.
    """
    g, times = geometry, 2 if gradients else 1
    most = max(_ALWAYS, times * g.min_bytes(itemsize) // _SHARE) // (times * itemsize)
    images = most // _elements(g.of_one_image)
    if images:
        return tuple(_of_images(g, some) for some in _equal(g.N, images))
    rows = _equal(g.OH, _most_rows(g, most))
    return tuple(_of_rows(g, n, some) for n in range(g.N) for some in rows)


def _elements(geometry):
    """Of the input and the summed votes."""
    return prod(geometry.input_shape) + prod(geometry.summed_votes_shape)


def _most_rows(geometry, most):
    """Output rows of an image for whose elements there is room; one at the least."""
    g = geometry
    of_input, of_votes = g.W * g.C * g.E1, g.P * g.OW * g.C * g.E3
    step = g.stride[0]
    return max(1, (most - (_span(g) - step) * of_input) // (step * of_input + of_votes))


def _equal(count, most):
    """``count`` things in slices of ``most`` at the most, all as long if that makes them no shorter than half, else about."""
    most = max(1, min(most, count))
    each = next((n for n in range(most, most // 2, -1) if count % n == 0), None)
    each = each or ceil_div(count, ceil_div(count, most))
    return [slice(first, min(first + each, count)) for first in range(0, count, each)]


def _of_images(geometry, images):
    rows, read = slice(0, geometry.OH), slice(0, geometry.H)
    return Band(replace(geometry, N=images.stop - images.start), images, rows, read, 0, 0, True)


def _of_rows(geometry, image, rows):
    """Some output rows of an image. The last ones have all rows of the input that are left, so gradients of all are written."""
    g = geometry
    (down, across), step = g.padding, g.stride[0]
    first = rows.start * step - down  # row of the input
    end = g.H + down if rows.stop == g.OH else _end(g, rows.stop)
    start, stop = (min(max(row, 0), g.H) for row in (first, end))
    own = replace(g, N=1, H=end - first, padding=(0, across))
    above = min(max(start - first, 0), own.H)
    seen = min(max(_end(g, rows.start), start), stop) if rows.start else start
    images = slice(image, image + 1)
    return Band(own, images, rows, slice(start, stop), above, seen - start, False)


def _end(geometry, rows):
    """Behind the last row of the input that a band of the output's first ``rows`` rows has."""
    return (rows - 1) * geometry.stride[0] - geometry.padding[0] + _span(geometry)


def _span(geometry):
    """Rows of the input for an output row, and as many as the windows move on."""
    g = geometry
    return max(g.dilation[0] * (g.KH - 1) + 1, g.stride[0])
