"""The convolutions that a warm-up knows by name."""

from numbacaps.geometry import Geometry


def _square(N, C, P, H, stride, D1, D2, D3):
    """A square image under a window of 3x3."""
    return Geometry(N, C, P, H, H, 3, 3, 1, D1, D2, D3, stride)


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
}
