"""The convolutions that the experiments run: the published network, and layers that others use."""

from numbacaps import Geometry


def square(N, C, P, H, KH, stride, D1, D2, D3):
    """A geometry with a square image and window, one group and no padding."""
    return Geometry(N, C, P, H, H, KH, KH, 1, D1, D2, D3, stride)


# The paper's Table 1 is of a network of this shape (batch 128 is our assumption: it states none).
PUBLISHED = {
    "layer 1": square(128, 1, 1, 28, 3, 2, 1, 1, 32),
    "layer 2": square(128, 1, 4, 13, 3, 1, 4, 8, 16),
    "layer 3": square(128, 4, 8, 11, 3, 2, 4, 16, 8),
    "layer 4": square(128, 8, 4, 5, 3, 1, 4, 8, 16),
    "layer 5": square(128, 4, 10, 3, 3, 1, 4, 16, 8),
}

# Small enough for the plain Python loops of the reference to end.
ONE_IMAGE = {"layer 5, one image": square(1, 4, 10, 3, 3, 1, 4, 16, 8)}

# Layers of the size of matrix capsules with EM routing, and capsules from 2x2 to 16x16.
EM_ROUTING = {
    "em": square(128, 32, 32, 14, 3, 1, 4, 4, 4),
    "em-wide": square(128, 32, 32, 28, 3, 1, 4, 4, 4),
    "caps2": square(128, 32, 32, 28, 3, 1, 2, 2, 2),
    "caps8": square(64, 16, 16, 32, 3, 1, 8, 8, 8),
    "caps16": square(32, 16, 16, 32, 3, 1, 16, 16, 16),
    "EM ConvCaps1": square(128, 32, 32, 14, 3, 2, 4, 4, 4),
    "EM ConvCaps2": square(128, 32, 32, 6, 3, 1, 4, 4, 4),
}
