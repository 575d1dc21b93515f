"""What all public functions that compute return, for arrays of any library."""

import numpy as np

from numbacaps import (
    capsule_conv2d,
    capsule_conv2d_backward,
    capsule_routing,
    capsule_routing_backward,
    capsule_votes,
    capsule_votes_backward,
)
from numbacaps.device.bfloat16 import dtype_of


def operands(rng, N=2, dtype="float32"):
    """x, w and dy of a small convolution, by NumPy."""
    shapes = (N, 2, 3, 3, 2, 3), (3, 2, 2, 2, 3, 2), (N, 3, 2, 2, 2, 2)
    return [rng.standard_normal(shape).astype(dtype_of(dtype)) for shape in shapes]


def results(put, rng, N):
    """A list, of the arrays that ``put(array)`` makes of NumPy's."""
    x, w, dy = operands(rng, N, "float64")
    d_votes, activations = capsule_votes(x, w, algorithm="numpy"), np.ones(x.shape[:4])
    of_all_channels = np.ascontiguousarray(w[:, :1])
    given = x, w, dy, d_votes, activations, of_all_channels
    x, w, dy, d_votes, activations, of_all_channels = map(put, given)
    em, summed = {"routing": "em", "activations": activations}, {"votes": "sum"}
    fused, indexed, stored = ({"algorithm": name} for name in ("fused", "indexed", "stored"))
    gradients = capsule_routing_backward(x, w, dy, **em, **fused)
    of_summed = capsule_routing_backward(x, of_all_channels, dy, **summed, **stored)
    return [
        capsule_conv2d(x, w, **fused),
        *capsule_conv2d_backward(x, w, dy, **fused),
        capsule_votes(x, w, **indexed),
        *capsule_votes_backward(x, w, d_votes, **indexed),
        *capsule_routing(x, w, **em, couplings=True, **fused),
        *(gradients.x, gradients.w, gradients.activations),
        *(of_summed.x, of_summed.w),
    ]
