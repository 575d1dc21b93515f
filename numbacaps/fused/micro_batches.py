"""A pass by micro-batches: a few images at a time, where the workspace of all of them would be too large."""

from math import gcd, prod

from numbacaps.device.compiled import run_as_argument, where
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.launcher import Launcher


def images_at_once(geometry, itemsize, most):
    """Images of a micro-batch of the input's gradient.

    Micro-batches are about equally large, and begin at multiples of 16 bytes in ``dy`` and in ``dx``: kernels copy 16 bytes at
    once only from there.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    itemsize : int
        Bytes of an element.
    most : int
        Images for which there is room.

    Returns
    -------
    int
        All images where there is room for them; 0 where there are no such micro-batches.
    """
    g = geometry
    if g.N <= most:
        return g.N
    sizes = (prod(shape[1:]) * itemsize for shape in (g.input_shape, g.output_shape))
    unit = max(
        CHUNK // gcd(CHUNK, size) for size in sizes
    )  # images from one such place to the next
    most -= most % unit
    if most == 0 or g.N % unit:
        return 0
    return ceil_div(ceil_div(g.N, ceil_div(g.N, most)), unit) * unit


def slice_of(argument, begin, size):
    """``size`` elements of an array from ``begin`` on, as :func:`numbacaps.device.compiled.as_argument` has both."""
    if SIMULATED:
        return (argument[0][begin : begin + size],)
    itemsize = argument[-1]
    return run_as_argument(where(argument) + begin * itemsize, size, itemsize)


class MicroBatchLauncher(Launcher):
    """The launches of a micro-batch, again and again in the same workspace; the kernel is packed once.

    The last one ends with the last image. So it may begin with images that the one before it had, which get the same results again.

    Parameters
    ----------
    launcher : numbacaps.fused.launcher.Launcher
        Of a micro-batch.
    images, at_once : int
        All images, and those of a micro-batch.
    gathered, result : int
        Elements of an image.
    """

    packs_alone = False

    def __init__(self, launcher, images, at_once, gathered, result):
        self._launcher, self._sizes = launcher, (gathered, result)
        self._at_once, self._begins = at_once, begins(images, at_once)
        self.packed, self.epilogue, self._behind = launcher.packed, Epilogue(), ""

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Pack the kernel, if it is packed at all."""
        self._launcher.pack(kernel, packed, stream)

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch all micro-batches on arrays as arguments."""
        for begin in self._begins:
            read, to = (
                slice_of(array, begin * size, self._at_once * size)
                for array, size in zip((gathered, result), self._sizes)
            )
            self._launcher.multiply(read, kernel, packed, to, to, stream, ahead)

    def __str__(self):
        count = len(self._begins)
        return f"{self._launcher}, for each of {count} micro-batches of {self._at_once} images"


def begins(images, at_once):
    """The first image of each micro-batch."""
    return [min(first, images - at_once) for first in range(0, images, at_once)]
