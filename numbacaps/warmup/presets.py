"""The layers that a warm-up knows by name: convolutions, and routing; and a network that no single kernel computes."""

from typing import NamedTuple

from numbacaps.geometry import Geometry


class Routed(NamedTuple):
    """A layer with routing.

    Attributes
    ----------
    x_shape, w_shape : tuple of int
        As :func:`numbacaps.routing_plan` takes them.
    options : tuple of (str, value)
        Those of its options that are not the default.
    """

    x_shape: tuple
    w_shape: tuple
    options: tuple = ()


def _square(N, C, P, H, stride, D1, D2, D3, K=3):
    """A square image under a window of K x K."""
    return Geometry(N, C, P, H, H, K, K, 1, D1, D2, D3, stride)


def _alike(D, N, C, P, H, K, stride):
    """The same of capsules of D x D."""
    return _square(N, C, P, H, stride, D, D, D, K)


PRESETS = {
    "network": {  # the published network's layers that are capsules
        "layer 2": _square(128, 1, 4, 13, 1, 4, 8, 16),
        "layer 3": _square(128, 4, 8, 11, 2, 4, 16, 8),
        "layer 4": _square(128, 8, 4, 5, 1, 4, 8, 16),
        "layer 5": _square(128, 4, 10, 3, 1, 4, 16, 8),
    },
    "workloads": {  # layers of EM routing, and wider ones
        "em": _square(128, 32, 32, 14, 1, 4, 4, 4),
        "em-wide": _square(128, 32, 32, 28, 1, 4, 4, 4),
        "caps2": _square(128, 32, 32, 28, 1, 2, 2, 2),
        "caps8": _square(64, 16, 16, 32, 1, 8, 8, 8),
        "caps16": _square(32, 16, 16, 32, 1, 16, 16, 16),
        "em-caps1": _square(128, 32, 32, 14, 2, 4, 4, 4),
        "em-caps2": _square(128, 32, 32, 6, 1, 4, 4, 4),
    },
    # Layers that together with the others take most of the kernels that drawn convolutions take.
    "capsules": {
        "5, one image, 1x1, stride 2": _alike(5, 1, 32, 32, 14, 1, 2),
        "1 x 8 to 8 x 16, 5x5": _square(8, 16, 16, 28, 1, 1, 8, 16, K=5),
        "3, 5x5, stride 2": _alike(3, 8, 32, 32, 28, 5, 2),
        "3, fewer channels, 5x5, stride 2": _alike(3, 8, 16, 16, 28, 5, 2),
        "3, 3x3": _alike(3, 8, 16, 16, 28, 3, 1),
        "5, few channels, 5x5, stride 2": _alike(5, 128, 4, 8, 14, 5, 2),
        "5, small images, 5x5, stride 2": _alike(5, 32, 16, 16, 8, 5, 2),
        "5, many small images, 5x5, stride 2": _alike(5, 128, 16, 16, 8, 5, 2),
        "12, 5x5": _alike(12, 32, 16, 16, 8, 5, 1),
        "3, few channels, 3x3, stride 2": _alike(3, 128, 4, 8, 8, 3, 2),
        "5, 1x1, stride 2": _alike(5, 128, 16, 16, 14, 1, 2),
        "7 to one parent, 3x3": _alike(7, 128, 16, 1, 14, 3, 1),
        "14 to two parents, 3x3, stride 2": _alike(14, 128, 8, 2, 14, 3, 2),
        # By im2col at every precision: element by element, with images as rows; and two elements at a time, in lines.
        "13, 2x2, stride 3": _alike(13, 64, 20, 31, 6, 2, 3),
        "10, few channels, 5x5, stride 2": _alike(10, 32, 3, 52, 14, 5, 2),
        # Every network begins with one.
        "of an image, 5x5, stride 2": _square(128, 1, 8, 28, 2, 1, 1, 16, K=5),
    },
    # Capsules, parents and children are numbers behind a form, so a few layers have the forms of most.
    "routing": {
        "DigitCaps": Routed((128, 1152, 1, 1, 1, 8), (10, 1152, 1, 1, 8, 16)),
        "3x3 window, dynamic": Routed(
            (64, 32, 14, 14, 4, 4), (32, 32, 3, 3, 4, 4), (("stride", 2),)
        ),
        "3x3 window, EM": Routed(
            (64, 32, 14, 14, 4, 4), (32, 32, 3, 3, 4, 4), (("routing", "em"), ("stride", 2))
        ),
        "class capsules, EM": Routed(
            (64, 32, 4, 4, 4, 4), (5, 32, 4, 4, 4, 4), (("routing", "em"),)
        ),
    },
}

# Groups of 3, which no kernel of a whole network squashes. Sizes are numbers behind a form, so it has the forms of most others.
LAYERED = (
    {"channels": 2, "kernel": (1, 15), "window": 5, "stride": 2, "capsule": (5, 3), "squash": 3},
    {"channels": 5, "kernel": (3, 9), "window": 4, "stride": 2, "squash": 3},
    {"channels": 10, "kernel": (9, 5), "window": 5, "squash": 25},
)
IMAGE = 1, 28, 28, 1, 1
