"""What the lessons convolve: the digit as capsules of 4 x 4 pixels, and a random kernel."""

import numpy as np

from experiments.walk.image import DIGIT, cut_patches, read_image
from numbacaps import Geometry
from numbacaps.device.target import cuda

_DRAW = np.random.default_rng(0)

X = cut_patches(read_image(DIGIT), (4, 4), 1, np.float32).capsules[:, :, :, :, None]
W = _DRAW.standard_normal((2, 1, 3, 3, 1, 4, 4), dtype=np.float32) / 6
GEOMETRY = Geometry(1, 1, 2, *X.shape[2:4], 3, 3, 1, 4, 4, 4, stride=2)


def unwritten(shape):
    """A device array of NaN, so that an element that no kernel writes is seen."""
    return cuda.to_device(np.full(shape, np.nan, np.float32))
