"""Shapes, slabs and counts, against numbers worked out by hand."""

import re
from dataclasses import asdict, replace
from math import prod

import numpy as np
import pytest

from numbacaps import Geometry
from numbacaps.stages import STAGES
from numbacaps.stages.slab import Slab, slabs, whole

_LAYER_3 = Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2))


def test_the_published_layers():
    """GEMM dimensions and MFLOP of the five-layer network at batch 128."""
    layers = [
        Geometry(128, 1, 1, 28, 28, 3, 3, 1, 1, 1, 32, (2, 2)),
        Geometry(128, 1, 4, 13, 13, 3, 3, 1, 4, 8, 16),
        _LAYER_3,
        Geometry(128, 8, 4, 5, 5, 3, 3, 1, 4, 8, 16),
        Geometry(128, 4, 10, 3, 3, 3, 3, 1, 4, 16, 8),
    ]
    assert [layer.gemm for layer in layers] == [
        (21632, 32, 9),
        (61952, 64, 72),
        (12800, 64, 576),
        (4608, 64, 576),
        (512, 80, 576),
    ]
    assert [round(layer.flop / 1e6, 1) for layer in layers] == [12.5, 570.9, 943.7, 339.7, 47.2]
    assert [2 * m * n * k for m, n, k in (layer.gemm for layer in layers)] == [
        layer.flop for layer in layers
    ]


def test_shapes():
    g = _LAYER_3
    assert (g.OH, g.OW, g.L, g.Q) == (5, 5, 25, 36)
    assert (g.E1, g.E2, g.E3) == (64, 128, 32)
    assert g.output_shape == (128, 8, 5, 5, 1, 4, 8)
    assert g.votes_shape == (128, 8, 5, 5, 4, 3, 3, 1, 4, 8)
    assert whole(g).products_shape == (128, 8, 25, 36, 1, 4, 8)
    assert g.min_bytes(4) == 4 * (128 * 4 * 121 * 64 + 8 * 36 * 128 + 128 * 8 * 25 * 32)


def test_output_size_with_everything():
    g = Geometry(1, 1, 1, 10, 9, 3, 2, 1, 1, 1, 1, (2, 3), (1, 2), (3, 4))
    assert (g.OH, g.OW) == ((10 + 2 - 6 - 1) // 2 + 1, (9 + 4 - 4 - 1) // 3 + 1)


def test_ints_are_pairs():
    sizes = (1, 1, 1, 9, 9, 3, 3, 1, 1, 1, 1)
    assert Geometry(*sizes, 2, 1, 3) == Geometry(*sizes, (2, 2), (1, 1), (3, 3))


def test_traffic_of_every_stage():
    slab = Slab(_LAYER_3, 2, 3, 1, 2)  # 3 images, 2 of 5 rows: 10 positions
    columns, extended = 3 * 10 * 36 * 64, 3 * 8 * 10 * 36 * 64
    assert slab.traffic("input_extend", 4) == (4 * (columns + extended), 0)
    products = 3 * 8 * 10 * 36 * 32
    kernels = 8 * 10 * 36 * 128
    assert slab.traffic("strided_batched_matmul", 8) == (
        8 * (extended + kernels + products),
        2 * products * 16,
    )
    for stage in STAGES:
        moved, flop = slab.traffic(stage, 4)
        assert moved > 0 and flop >= 0


def _cut(geometry, limit):
    """Slabs where an image's row costs one element."""
    cut = slabs(geometry, lambda slab: slab.images * slab.rows, limit)
    return [(slab.first_image, slab.images, slab.first_row, slab.rows) for slab in cut]


def test_slabs():
    g = Geometry(5, 1, 1, 4, 4, 1, 1, 1, 1, 1, 1)
    assert _cut(g, 100) == [(0, 5, 0, 4)]
    assert _cut(g, 11) == [(0, 2, 0, 4), (2, 2, 0, 4), (4, 1, 0, 4)]
    assert _cut(g, 3)[:3] == [(0, 1, 0, 3), (0, 1, 3, 1), (1, 1, 0, 3)]
    assert len(_cut(g, 1)) == 20
    with pytest.raises(MemoryError):
        _cut(g, 0)


def test_counts_beyond_32_bits():
    g = Geometry(1 << 16, 32, 32, 64, 64, 3, 3, 1, 16, 16, 16)
    assert g.flop > 1 << 50
    assert whole(g).traffic("input_extend", 4)[0] > 1 << 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C": 0}, "C is 0; it takes 1 or more"),
        ({"N": -1}, "N is -1; it takes 0 or more"),
        ({"stride": (0, 1)}, r"stride is \(0, 1\); it takes 1 or more"),
        ({"padding": (0, -1)}, r"padding is \(0, -1\); it takes 0 or more"),
        ({"dilation": (1, 0)}, r"dilation is \(1, 0\); it takes 1 or more"),
        ({"KH": 12}, "w spans 12 of the input's height; x has 11"),
    ],
)
def test_refusals(change, message):
    sizes = {name: getattr(_LAYER_3, name) for name in ("N", "C", "P", "H", "W", "KH", "KW")}
    with pytest.raises(ValueError, match=message):
        Geometry(**(sizes | {"G": 1, "D1": 1, "D2": 1, "D3": 1} | change))


@pytest.mark.parametrize("size", [1.0, True, "1", None, np.float64(1)])
@pytest.mark.parametrize("name", ["N", "C", "D3"])
def test_sizes_are_ints(name, size):
    sizes = asdict(_LAYER_3)
    with pytest.raises(TypeError, match=f"{name} is {re.escape(repr(size))}; it takes an int"):
        Geometry(**(sizes | {name: size}))
    of_numpy = Geometry(**(sizes | {name: np.int64(sizes[name])}))
    assert of_numpy == _LAYER_3 and type(getattr(of_numpy, name)) is int


def test_a_window_as_large_as_the_input_makes_every_capsule_a_channel(rng):
    g = Geometry(2, 3, 4, 5, 2, 5, 2, 2, 2, 3, 2, (3, 1))
    h = g.without_window
    assert (h.C, h.H, h.W, h.KH, h.KW, h.stride) == (30, 1, 1, 1, 1, (1, 1))
    x, w = rng.standard_normal(g.input_shape), rng.standard_normal(g.kernel_shape)
    want = np.einsum("nchwgij,pchwgjk->npgik", x, w).reshape(g.output_shape)
    same = np.einsum("ncabgij,pcabgjk->npgik", x.reshape(h.input_shape), w.reshape(h.kernel_shape))
    np.testing.assert_allclose(same.reshape(g.output_shape), want)
    assert prod(h.output_shape) == prod(g.output_shape)


@pytest.mark.parametrize(
    "other", [{"padding": 1}, {"dilation": (2, 1), "H": 9}, {"KH": 4}, {"KH": 1, "KW": 1}]
)
def test_other_windows_stay(other):
    g = replace(Geometry(1, 2, 2, 5, 2, 5, 2, 1, 2, 2, 2), **other)
    assert g.without_window is g
