"""Geometries to test at, and random operands for them.

The simulator gets small ones: a CUDA thread there runs Python. The GPU gets the same kinds at
sizes that fill it.
"""

import numpy as np

import reference
from numbacaps.algorithms.registry import available_algorithms, device_algorithms
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.gpu import GH100
from numbacaps.device.target import SIMULATED
from numbacaps.fused import implicit_gemm
from numbacaps.fused.rung_5_warp_specialized import tile as warp_specialized_tiles
from numbacaps.fused.rung_6_swap_ab import tile as swap_ab_tiles
from numbacaps.geometry import Geometry

MULTIPROCESSORS = 132  # of the GPUs that have warpgroups

#                     N  C  P  H  W KH KW  G D1 D2 D3  stride  padding dilation
SMALL = {
    "ones": Geometry(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    "matrix": Geometry(2, 2, 2, 4, 4, 3, 3, 1, 2, 2, 2),
    "primes": Geometry(1, 3, 2, 3, 5, 2, 3, 1, 3, 2, 5, (1, 2)),
    "strides": Geometry(2, 1, 2, 7, 6, 2, 3, 1, 2, 3, 1, (3, 2), (1, 1)),
    "dilated": Geometry(1, 2, 1, 6, 5, 2, 2, 2, 1, 2, 3, (2, 1), (0, 1), (3, 2)),
    # dilations that some residues of the stride have no tap of
    "residues": Geometry(1, 2, 1, 7, 6, 3, 3, 1, 2, 1, 2, (3, 2), (1, 1), (2, 2)),
    "padded": Geometry(2, 1, 3, 2, 3, 3, 2, 1, 2, 1, 2, (1, 1), (2, 1)),
    "rank3": Geometry(1, 1, 2, 3, 3, 2, 2, 3, 2, 3, 2, (1, 1), (1, 0)),
    "scalar": Geometry(2, 3, 2, 5, 4, 3, 2, 1, 1, 1, 1, (2, 2), (1, 1)),
    "whole": Geometry(2, 2, 3, 4, 3, 4, 3, 1, 1, 4, 2),  # the window is the image
    "gaps": Geometry(1, 1, 1, 7, 7, 1, 2, 1, 2, 2, 1, (3, 3)),  # pixels no window covers
    "wide": Geometry(2, 1, 1, 6, 5, 5, 5, 1, 1, 2, 1, (1, 1), (2, 1)),  # 25 windows an element
    "long": Geometry(2, 1, 2, 3, 3, 2, 2, 1, 3, 9, 8),  # products that keep K' in registers
}
LARGE = {
    "ones": Geometry(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    "matrix": Geometry(16, 16, 16, 14, 14, 3, 3, 1, 4, 4, 4),
    "primes": Geometry(7, 5, 3, 13, 17, 3, 5, 1, 3, 7, 5, (1, 2)),
    "strides": Geometry(8, 3, 11, 29, 23, 2, 3, 1, 2, 3, 1, (3, 2), (1, 1)),
    "dilated": Geometry(5, 4, 7, 19, 16, 3, 2, 2, 1, 6, 3, (2, 1), (0, 1), (3, 2)),
    "residues": Geometry(4, 3, 5, 17, 14, 3, 3, 1, 2, 4, 3, (3, 2), (1, 1), (2, 2)),
    "padded": Geometry(9, 6, 5, 11, 8, 5, 3, 1, 8, 2, 8, (1, 1), (4, 2)),
    "rank3": Geometry(3, 4, 6, 12, 9, 3, 3, 3, 4, 5, 2, (1, 1), (1, 0)),
    "scalar": Geometry(16, 32, 24, 15, 20, 3, 3, 1, 1, 1, 1, (2, 2), (1, 1)),
    "whole": Geometry(64, 8, 10, 5, 4, 5, 4, 1, 4, 16, 8),
    "gaps": Geometry(6, 2, 3, 31, 37, 2, 1, 1, 2, 2, 1, (3, 3)),
    "wide": Geometry(3, 2, 3, 19, 17, 9, 7, 1, 2, 3, 2, (1, 1), (4, 3)),
    "long": Geometry(5, 3, 4, 9, 8, 2, 3, 1, 3, 13, 11),
    "paper-layer-1": Geometry(128, 1, 1, 28, 28, 3, 3, 1, 1, 1, 32, (2, 2)),
    "paper-layer-2": Geometry(32, 1, 4, 13, 13, 3, 3, 1, 4, 8, 16),
    "paper-layer-3": Geometry(32, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2)),
    "big-capsules": Geometry(2, 2, 3, 6, 5, 2, 2, 1, 33, 40, 65),
}
GEOMETRIES = SMALL if SIMULATED else LARGE

# Algorithms that take the target's device arrays; the simulator's are NumPy's inside.
ON_DEVICE = available_algorithms() if SIMULATED else device_algorithms()

# (case, dtype): the simulator runs the same Python for both dtypes, so one case shows float64 there.
_IN_FLOAT64 = ("matrix",) if SIMULATED else ("matrix", "primes", "dilated", "rank3", "big-capsules")
CASES = [(case, "float32") for case in GEOMETRIES] + [(case, "float64") for case in _IN_FLOAT64]


def is_swapped(geometry):
    """Whether a forward pass in TF32 of H100's multiprocessors should have its kernel in registers."""
    product, which = implicit_gemm.forward(geometry), (geometry.N, geometry.G)
    tile, _, takes = swap_ab_tiles.choose_tile(product, *which, MULTIPROCESSORS)
    other, _ = warp_specialized_tiles.choose_tile(product, *which, 1, MULTIPROCESSORS)
    if tile is None or other is None:
        return tile is not None
    packed = GH100.pack_cycles + warp_specialized_tiles.cycles(
        other, product, *which, 1, MULTIPROCESSORS
    )
    return packed >= takes


def operands(geometry, dtype, rng):
    """Random x, w and dy of a geometry, as NumPy arrays."""
    shapes = (geometry.input_shape, geometry.kernel_shape, geometry.output_shape)
    return [rng.standard_normal(shape).astype(dtype_of(dtype)) for shape in shapes]


def oracle(geometry, x, w, dy):
    """The output, dx and dw that operands should give, in float64."""
    g, arrays = geometry, [array.astype(np.float64) for array in (x, w, dy)]
    how = (g.stride, g.padding, g.dilation)
    return (
        reference.capsule_convolution_einsum(*arrays[:2], *how),
        *reference.capsule_convolution_backward_einsum(*arrays, *how),
    )


def sums(geometry):
    """Longest sum behind an element of the output, of dx and of dw."""
    g = geometry
    return g.Q * g.D2, g.P * g.KH * g.KW * g.D3, g.N * g.L * g.D1


def nan(shape, dtype):
    """A device array of NaN: an element that a kernel does not write shows."""
    return to_device(np.full(shape, np.nan, dtype))
