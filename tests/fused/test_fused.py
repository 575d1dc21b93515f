"""The fused kernels, rung by rung, and how one is chosen."""

from dataclasses import replace

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps import Geometry
from numbacaps.algorithms import fused
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.launch import ceil_div, launch_tiles
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.activation import Activation
from numbacaps.fused.precision import has_warpgroups
from numbacaps.fused.rung_1_direct import make_direct
from numbacaps.fused.rung_2_shared_tiles import make_shared_tiles
from numbacaps.fused.rung_3_register_tiles import tile as tiles
from numbacaps.fused.rung_3_register_tiles.split_k import ADD_THREADS
from numbacaps.fused.rung_4_wgmma import split_k_tile as mma_tiles
from numbacaps.fused.rung_4_wgmma import tile as warpgroup_tiles
from numbacaps.fused.rung_4_wgmma.launcher import MmaSplitK, WgmmaLauncher
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as bulk_reduction_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_5_warp_specialized.add_tiles import fours_of_block
from numbacaps.fused.rung_5_warp_specialized.launcher import (
    WarpSpecializedLauncher,
    WarpSpecializedSplitK,
)
from numbacaps.fused.rung_6_swap_ab import tile as swapped_tiles
from numbacaps.fused.rung_6_swap_ab.launcher import SwapABLauncher
from numbacaps.plan import Plan
from tests.support.cases import GEOMETRIES, is_swapped, nan, operands, oracle, sums
from tests.support.kernels import tile_sums_kernel

pytestmark = pytest.mark.tiers("simulator", "gpu")
_F4 = np.dtype(np.float32)

# What the tensor cores' kernels tell apart: the run that one copy takes (4, 8, 16 bytes and two
# chunks side by side), strides, padding, dilation, groups, d1 that does not divide 64.
# A case of every kernel for the tensor cores that is small enough for compute-sanitizer, which finds it by its name.
_SANITIZED = {"primes-float32": Geometry(3, 2, 5, 7, 5, 2, 3, 1, 4, 8, 4, (1, 2))}
WARPGROUPS = {
    "one-float": Geometry(2, 5, 3, 2, 3, 2, 2, 1, 2, 1, 3),
    "two-floats": Geometry(1, 3, 2, 3, 2, 3, 2, 1, 4, 2, 2, (2, 1), (1, 0)),
    "three-floats": Geometry(1, 2, 1, 1, 3, 1, 2, 1, 3, 3, 1),
    "one-chunk": Geometry(17, 2, 2, 2, 2, 2, 2, 1, 4, 4, 4),
    "two-chunks": Geometry(1, 2, 3, 2, 2, 2, 1, 1, 8, 8, 1, (1, 1), (1, 0)),
    "groups": Geometry(1, 2, 2, 3, 3, 2, 2, 2, 3, 4, 2, (2, 1), (0, 1), (1, 2)),
    **({} if SIMULATED else _SANITIZED),
}
_LARGER = {} if SIMULATED else {"N": 37, "C": 11, "P": 19, "H": 17, "W": 13}


def _warpgroups(case):
    g = WARPGROUPS[case]
    return g if case in _SANITIZED else replace(g, **_LARGER)


def _launch_direct(product, g, arrays):
    M = product.M(g.N)
    kernel = make_direct(product.pixels, product.inside, product.N, product.K, _F4)
    table = cuda.to_device(product.table)
    threads = 32 if SIMULATED else 128
    kernel[(ceil_div(M * product.N, threads), g.G), threads](*arrays, table, M)


def _launch_shared(product, g, arrays):
    M = product.M(g.N)
    side = 4 if SIMULATED else 16
    tile = tiles.Tile(side, side, side, 1, 1)
    kernel = make_shared_tiles(product.pixels, product.inside, product.N, product.K, tile, _F4)
    grid = (ceil_div(M, tile.BM), ceil_div(product.N, tile.BN), g.G)
    launch_tiles(kernel, grid, tile.threads, (*arrays, cuda.to_device(product.table), M))


@pytest.mark.sanitize
@pytest.mark.parametrize("launch", [_launch_direct, _launch_shared])
@pytest.mark.parametrize("case", ["primes", "strides", "dilated", "rank3"])
def test_lower_rungs(case, launch, rng):
    g = GEOMETRIES[case]
    x, w, dy = operands(g, "float32", rng)
    want_y, want_dx, _ = oracle(g, x, w, dy)
    x, w, dy = (cuda.to_device(array.ravel()) for array in (x, w, dy))
    out, dx = nan(dy.shape, _F4), nan(x.shape, _F4)
    launch(implicit_gemm.forward(g), g, (x, w, out))
    for product in implicit_gemm.backward_input(g):
        launch(product, g, (dy, w, dx))
    terms = sums(g)
    reference.assert_close(out.copy_to_host().reshape(want_y.shape), want_y, terms[0])
    reference.assert_close(dx.copy_to_host().reshape(want_dx.shape), want_dx, terms[1])


def _skip_without_tf32():
    if not has_warpgroups():
        pytest.skip("this GPU has no warpgroup products")


def _check_passes(g, dtype, precision, rng, rungs=()):
    """All three passes, as the algorithm runs them, against the oracle; the plan."""
    x, w, dy = operands(g, dtype, rng)
    want = oracle(g, x, w, dy)
    X, W, DY = map(to_device, (x, w, dy))
    out, dx, dw = (nan(array.shape, array.dtype) for array in (dy, x, w))
    plan = Plan(g, x.dtype, "fused", precision, rungs=rungs)
    plan.launch_forward(X, W, out, 0)
    plan.launch_backward(X, W, DY, dx, dw, 0)
    rounding = dtype if out.dtype.itemsize == 2 else precision
    for array, wanted, terms in zip((out, dx, dw), want, sums(g)):
        have = array.copy_to_host().astype(np.float32)
        reference.assert_close(have, wanted, terms, precision=rounding)
    return plan


@pytest.mark.slow(but=["two-floats-tf32", "three-floats-tf32x3", "groups-*"])
@pytest.mark.sanitize
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("case", WARPGROUPS)
def test_precisions(case, precision, rng):
    _skip_without_tf32()
    _check_passes(_warpgroups(case), "float32", precision, rng)


# Capsules whose pixels are 8 bytes, of 2 an element: rows are fetched whole, results stored four pixels at once.
_NARROW = {
    "narrow": Geometry(128, 8, 32, 28, 28, 3, 3, 1, 2, 2, 2),
    "narrow in twos": Geometry(33, 35, 37, 8, 10, 3, 3, 1, 2, 2, 2),
}
# In the kernel's gradient the lanes of a product have four images, half of eight rows d1, a quarter of sixteen.
_ROWS = {
    "one row": Geometry(48, 16, 16, 9, 10, 3, 3, 1, 1, 4, 4),
    "eight rows": Geometry(17, 8, 8, 9, 10, 3, 3, 1, 8, 8, 8),
    "sixteen rows": Geometry(9, 4, 4, 9, 8, 3, 3, 1, 16, 16, 16),
}
# Pixels of 8 bytes again, and boxes that would begin in the middle of 16.
_BESIDE = Geometry(64, 16, 32, 12, 12, 3, 3, 1, 2, 2, 2, 1, (1, 1))
_BESIDE_FLOAT32 = Geometry(64, 16, 32, 12, 12, 3, 3, 1, 1, 2, 2, 1, (1, 1))
# In the input's gradient of this one the first tap lies a pixel to the left.
_BESIDE_A_TAP = Geometry(64, 8, 8, 9, 10, 2, 2, 1, 2, 2, 2, (1, 2), 0, (1, 3))


@pytest.mark.sanitize
@pytest.mark.parametrize("case", ["primes", "strides", "dilated", "rank3"])
def test_bfloat16_by_ordinary_arithmetic(case, rng):
    _check_passes(GEOMETRIES[case], "bfloat16", "ieee", rng)


@pytest.mark.slow(
    but=[
        "padded-float16",
        "narrow in twos-float16",
        "sixteen rows-float16",
        "paper-layer-3-bfloat16",
        "narrow-bfloat16",
    ]
)
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *(
            (case, "float16")
            for case in ("matrix", "padded", "paper-layer-2", "paper-layer-3", *_NARROW, *_ROWS)
        ),
        *((case, "bfloat16") for case in ("matrix", "paper-layer-3", "narrow")),
    ],
)
def test_two_bytes_on_tensor_cores(case, dtype, rng):
    _skip_without_tf32()
    g = {**GEOMETRIES, **_NARROW, **_ROWS}[case]
    _check_passes(g, dtype, "ieee", rng)
    explained = fused.passes(g, dtype_of(dtype)).explain()
    assert "warp_specialized" in explained and "warp_specialized_split_k" in explained


@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.parametrize(
    ("g", "dtype", "precision"),
    [
        (_BESIDE, "float16", "ieee"),
        (_BESIDE_FLOAT32, "float32", "tf32"),
        (_BESIDE_A_TAP, "float16", "ieee"),
        (_BESIDE_A_TAP, "bfloat16", "ieee"),
    ],
)
def test_boxes_begin_at_16_bytes(g, dtype, precision, rng):
    """The copy engine reads from multiples of 16 bytes alone; what would begin beside them is not for it."""
    _skip_without_tf32()
    _check_passes(g, dtype, precision, rng)


def _gathers(make, g, rng):
    """Both passes that gather, by what ``make(product)`` yields, against the oracle at a precision."""
    x, w, dy = operands(g, "float32", rng)
    want_y, want_dx, _ = oracle(g, x, w, dy)
    X, W, DY = (cuda.to_device(array.ravel()) for array in (x, w, dy))
    for products, read, want, terms in (
        ([implicit_gemm.forward(g)], X, want_y, sums(g)[0]),
        (implicit_gemm.backward_input(g), DY, want_dx, sums(g)[1]),
    ):
        for gathers, precision in make(products):
            result = nan(want.size, _F4)
            for gather in gathers:
                gather(read, W, result, 0, nan(gather.packed, _F4))
            result = result.copy_to_host().reshape(want.shape)
            reference.assert_close(result, want, terms, precision=precision)


@pytest.mark.sanitize
@pytest.mark.parametrize("case", WARPGROUPS)
def test_warpgroup_products(case, rng):
    """The rung whose threads copy for themselves, whatever a plan would choose."""
    _skip_without_tf32()
    g = _warpgroups(case)

    def make(products):
        found = [warpgroup_tiles.choose_tile(product, g.N, g.G, _F4, 132) for product in products]
        which = zip(products, found)
        yield [WgmmaLauncher(p, g.N, g.G, _F4, *tile) for p, tile in which], "tf32"

    _gathers(make, g, rng)


# What TMA tells apart: rows fetched whole or pixel by pixel, channels that fill no box,
# groups, images and d1 that fill no 64 rows, large windows, taps that run backwards over a stride.
BULK = {
    "whole-rows": Geometry(37, 11, 19, 17, 13, 3, 2, 1, 4, 2, 2, (2, 1), (1, 0)),
    "one-float": Geometry(19, 9, 3, 11, 9, 2, 3, 1, 4, 1, 4),
    "three-floats": Geometry(13, 5, 7, 9, 12, 3, 3, 1, 4, 3, 4, (1, 1), (1, 1)),
    "pixels": Geometry(21, 7, 33, 15, 12, 3, 3, 1, 4, 4, 4, (1, 2), (2, 1), (2, 1)),
    "two-groups-of-k": Geometry(5, 3, 9, 8, 10, 3, 3, 1, 16, 16, 16),
    "groups": Geometry(9, 5, 6, 9, 11, 2, 3, 3, 3, 8, 4, (2, 1), (0, 1), (1, 2)),
    "large-window": Geometry(7, 4, 5, 15, 16, 7, 5, 1, 8, 8, 8, (1, 1), (3, 2)),
    "last-round": Geometry(40, 3, 32, 22, 29, 3, 3, 1, 4, 4, 4),  # in smaller tiles
    **_SANITIZED,
}


@pytest.mark.slow(
    but=[
        "whole-rows-1",
        "three-floats-3",
        "pixels-1",
        "groups-3",
        "large-window-1",
        "last-round-3",
        "primes-float32-*",
    ]
)
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("case", BULK)
def test_bulk_copies(case, terms, rng):
    """The tile that a plan chooses, the largest that can be taken, and the smallest."""
    _skip_without_tf32()
    g = BULK[case]

    def make(products):
        legal = [
            tiles_
            for tiles_ in zip(*map(bulk_tiles.tiles, products))
            if not any(bulk_tiles.why_not(t, p, g.G, terms) for t, p in zip(tiles_, products))
        ]
        chosen = tuple(bulk_tiles.choose_tile(p, g.N, g.G, terms, 132)[0] for p in products)
        assert None not in chosen
        for tiles_ in {chosen, legal[0], legal[-1]}:
            which = zip(products, tiles_)
            gathers = [WarpSpecializedLauncher(p, g.N, g.G, _F4, t, "", terms) for p, t in which]
            yield gathers, {1: "tf32", 3: "tf32x3"}[terms]

    _gathers(make, g, rng)


# Capsules that TMA cannot copy: odd ones, strides, edges, groups, capsules longer than a block's threads, results whose
# rows are odd.
_PACKED = {
    "sevens": Geometry(37, 11, 7, 17, 13, 3, 2, 1, 7, 7, 7, (2, 1), (1, 0)),
    "groups": Geometry(9, 5, 6, 9, 11, 2, 3, 3, 3, 9, 5, (2, 1), (0, 1), (1, 2)),
    "long": Geometry(5, 3, 9, 6, 7, 3, 3, 1, 4, 131, 13, 1, 1),
    "one image": Geometry(1, 45, 3, 15, 14, 3, 3, 1, 13, 3, 1),
}


@pytest.mark.slow(but=["groups-*"])
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float32", "tf32"), ("float32", "tf32x3"), ("float16", "ieee"), ("bfloat16", "ieee")],
)
@pytest.mark.parametrize("case", _PACKED)
def test_packed_pixels(case, dtype, precision, rng):
    _skip_without_tf32()
    rungs = tuple((one, "warp_specialized_packed", None) for one in ("forward", "backward_input"))
    plan = _check_passes(_PACKED[case], dtype, precision, rng, rungs)
    explained = plan.explain()
    assert all(
        f"{one}: warp_specialized_packed" in explained for one in ("forward", "backward_input")
    )


@pytest.mark.slow(but=["groups-*-warp_specialized_im2col"])
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize("rung", ["warp_specialized_im2col", "warp_specialized_lines_im2col"])
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float32", "tf32"), ("float32", "tf32x3"), ("float16", "ieee"), ("bfloat16", "ieee")],
)
@pytest.mark.parametrize("case", _PACKED)
def test_im2col(case, dtype, precision, rung, rng):
    """Forward; and the gradient of x, of a window of one pixel, and of one parent with any window."""
    _skip_without_tf32()
    g = _PACKED[case]
    plan = _check_passes(g, dtype, precision, rng, (("forward", rung, None),))
    assert f"forward: {rung}" in plan.explain()
    one = replace(g, KH=1, KW=1, stride=(1, 1), padding=(0, 0))
    rungs = tuple((wanted, rung, None) for wanted in ("forward", "backward_input"))
    plan = _check_passes(one, dtype, precision, rng, rungs)
    assert f"backward_input: {rung}" in plan.explain()
    one = replace(g, P=1, stride=(1, 1))
    plan = _check_passes(one, dtype, precision, rng, (("backward_input", rung, None),))
    assert f"backward_input: {rung}" in plan.explain()


@pytest.mark.slow
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("rows", [12, 13, 17])
def test_windows_of_more_rows_than_a_ring_has(rows, precision, rng):
    _skip_without_tf32()
    g = Geometry(64, 16, 16, 32, 8, rows, 1, 1, 4, 4, 4, 1, (rows // 2, 0))
    rungs = tuple((one, "warp_specialized", None) for one in ("forward", "backward_input"))
    _check_passes(g, "float32", precision, rng, rungs)


# Few images, whose lines fill the rows of products: strides, dilations, edges, groups, lines that are longer than a product
# has rows; votes that are summed over a window; odd capsules, whose pixels are packed first.
_LINES = {
    "few": Geometry(3, 11, 19, 17, 13, 3, 2, 1, 4, 4, 4, (2, 1), (1, 0)),
    "long": Geometry(1, 5, 9, 6, 150, 3, 3, 1, 4, 8, 8, 1, 1),
    "steps": Geometry(2, 7, 33, 15, 40, 3, 3, 1, 4, 4, 4, (1, 2), (2, 1), (2, 1)),
    "groups": Geometry(2, 5, 6, 9, 30, 2, 3, 3, 3, 8, 8, (2, 1), (0, 1), (1, 2)),
    "sums": Geometry(1, 5, 4, 40, 37, 5, 5, 1, 1, 32, 32, 1, 2).of_channels,
    "high": Geometry(1, 16, 16, 29, 128, 13, 1, 1, 4, 4, 4, 1, (6, 0)),  # more rows than a ring
    **_SANITIZED,
}
_PACKED_LINES = {
    "sevens": Geometry(2, 11, 7, 17, 33, 3, 2, 1, 7, 7, 7, (2, 1), (1, 0)),
    "groups": Geometry(1, 5, 6, 9, 11, 2, 3, 3, 3, 9, 5, (2, 1), (0, 1), (1, 2)),
}


@pytest.mark.slow(but=["few-*", "sums-*-tf32x3", "packed groups-*-tf32"])
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float32", "tf32"), ("float32", "tf32x3"), ("float16", "ieee"), ("bfloat16", "ieee")],
)
@pytest.mark.parametrize("case", [*_LINES, *(f"packed {case}" for case in _PACKED_LINES)])
def test_lines(case, dtype, precision, rng):
    _skip_without_tf32()
    rung, g = "warp_specialized_lines", _LINES.get(case)
    if g is None:
        rung, g = f"{rung}_packed", _PACKED_LINES[case.removeprefix("packed ")]
    rungs = tuple((one, rung, None) for one in ("forward", "backward_input"))
    explained = _check_passes(g, dtype, precision, rng, rungs).explain()
    heads = [line for line in explained.splitlines() if line.startswith(("forward", "backward_i"))]
    assert len(heads) > 1 and all(line.endswith(f": {rung}") for line in heads), explained


# What the kernel in registers tells apart: capsules' rows of 32, 64 and 128 bytes, strides, dilations, edges, groups,
# columns that fill no warpgroup, d1 that fills no 8 rows, odd capsules of the result, more images than blocks.
SWAPPED = {
    "rows-of-32": Geometry(150, 4, 5, 9, 8, 3, 3, 1, 4, 8, 16),
    "rows-of-64": Geometry(41, 2, 8, 13, 11, 3, 3, 1, 4, 16, 8, (2, 2), (1, 0)),
    "rows-of-128": Geometry(19, 2, 3, 7, 9, 2, 1, 1, 3, 32, 7, 1, (1, 1)),
    "steps": Geometry(23, 4, 7, 15, 17, 2, 3, 1, 5, 8, 6, (3, 2), (2, 1), (2, 3)),
    "groups": Geometry(9, 1, 4, 8, 7, 3, 3, 3, 2, 16, 24, (1, 2), (0, 1)),
    "one-pixel": Geometry(300, 4, 10, 3, 3, 3, 3, 1, 4, 16, 8),
    "one-row": Geometry(5, 2, 2, 6, 5, 2, 2, 1, 1, 8, 1),
    **_SANITIZED,
    "eight-apart": Geometry(6, 2, 3, 20, 17, 2, 3, 1, 2, 8, 4, (8, 7), (1, 0), (3, 2)),
}


@pytest.mark.slow(but=["steps", "groups", "one-row", "primes-float32"])
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize("case", SWAPPED)
def test_kernel_in_registers(case, rng):
    """The tile that is chosen, and the first and the last of those that share rows, or channels."""
    _skip_without_tf32()
    g, t = SWAPPED[case], swapped_tiles
    product = implicit_gemm.forward(g)
    legal = [tile for tile in t.tiles(product) if not t.why_not(tile, product, t.Slots.of(product))]
    of_rows = [tile for tile in legal if tile.CHANNEL_PARTS == 1]
    of_channels = [tile for tile in legal if tile.CHANNEL_PARTS > 1]
    chosen = {t.choose_tile(product, g.N, g.G, 132)[0]}
    for some in (of_rows, of_channels):
        chosen |= {*some[:1], *some[-1:]}
    x, w, dy = operands(g, "float32", rng)
    X, W = (cuda.to_device(array.ravel()) for array in (x, w))
    want = oracle(g, x, w, dy)[0]
    for tile in chosen:
        result = nan(want.size, _F4)
        SwapABLauncher(product, g.N, g.G, _F4, tile, "")(X, W, result, 0, None)
        result = result.copy_to_host().reshape(want.shape)
        reference.assert_close(result, want, sums(g)[0], precision="tf32")


@pytest.mark.skipif(SIMULATED, reason="an address takes a GPU")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_kernel_in_registers_beside_16_bytes(which, rng):
    """Arrays that copies, or loads of two, cannot take."""
    _skip_without_tf32()
    g = SWAPPED["groups"]
    rungs = (("forward", "swap_ab", None),)
    gather = fused.passes(g, _F4, "tf32", rungs=rungs).forward_launchers[0]
    assert "swap_ab" in str(gather)
    x, w, dy = operands(g, "float32", rng)
    want = oracle(g, x, w, dy)[0]
    arrays = [nan(array.size + 1, _F4) for array in (x, w, want)]
    arrays = [array[1:] if i == which else array[:-1] for i, array in enumerate(arrays)]
    for array, values in zip(arrays, (x, w)):
        array.copy_to_device(values.ravel())
    gather(*arrays, 0, None)
    result = arrays[2].copy_to_host().reshape(want.shape)
    reference.assert_close(result, want, sums(g)[0], precision="tf32")


# What the kernel's gradient tells apart on the tensor cores: runs of 4, 8 and 16 bytes of either
# operand, windows that reach over the edge and that do not, groups, pixels that fill no stage.
GRADIENTS = (
    {
        "runs-of-one": Geometry(1, 1, 3, 4, 3, 2, 2, 1, 1, 3, 5, (1, 1), (1, 0)),
        "runs-of-two": Geometry(2, 3, 2, 3, 4, 2, 2, 1, 3, 2, 6, (1, 2)),
        "runs-of-four": Geometry(2, 3, 2, 4, 4, 2, 2, 1, 3, 4, 8, (2, 1), (1, 1), (2, 1)),
        "groups": Geometry(1, 2, 2, 3, 3, 2, 2, 2, 3, 4, 2, (2, 1), (0, 1), (1, 2)),
    }
    if SIMULATED
    else {
        "runs-of-one": Geometry(7, 5, 3, 13, 17, 3, 5, 1, 3, 7, 5, (1, 2)),
        "runs-of-two": Geometry(9, 6, 5, 11, 8, 5, 3, 1, 8, 2, 6, (1, 1), (4, 2)),
        "runs-of-four": Geometry(13, 11, 7, 19, 16, 3, 2, 1, 3, 4, 8, (2, 1), (1, 1), (3, 2)),
        "groups": Geometry(5, 4, 7, 19, 16, 3, 2, 3, 4, 12, 4, (2, 1), (0, 1), (3, 2)),
        "one-channel": Geometry(37, 1, 1, 23, 29, 3, 3, 1, 1, 1, 32, (2, 2)),
        "one-tap": Geometry(17, 1, 1, 5, 5, 1, 1, 1, 1, 1, 1),
        "one-pixel": Geometry(1, 16, 10, 3, 3, 3, 3, 1, 1, 16, 16),
        "scalars": Geometry(16, 32, 24, 15, 20, 3, 3, 1, 1, 1, 1, (2, 2), (1, 1)),
        "many-columns": Geometry(3, 7, 19, 9, 8, 2, 2, 1, 4, 16, 16),
        "big-capsules": Geometry(2, 2, 3, 6, 5, 2, 2, 1, 33, 40, 65),
        **_SANITIZED,
    }
)


def _kernel_gradient(g, rng, shift=0):
    """(dw, as it should be), and the product; operands begin so many elements into an allocation."""
    x, w, dy = operands(g, "float32", rng)
    size = w.size
    reduce = MmaSplitK(implicit_gemm.forward(g), g.N, g.G, size, _F4)
    arrays = [nan(array.size + shift, _F4)[shift:] for array in (x, dy, w)]
    for array, values in zip(arrays, (x, dy)):
        array.copy_to_device(values.ravel())
    partial = nan(reduce.partial_shape.get("partial", (1,)), _F4)
    reduce(*arrays, 0, partial)
    return arrays[2].copy_to_host().reshape(w.shape), oracle(g, x, w, dy)[2], reduce


@pytest.mark.slow(but=["runs-of-one", "runs-of-two", "runs-of-four", "groups"])
@pytest.mark.sanitize
@pytest.mark.parametrize("case", GRADIENTS)
def test_kernel_gradient(case, rng):
    _skip_without_tf32()
    g = GRADIENTS[case]
    dw, want, reduce = _kernel_gradient(g, rng)
    reference.assert_close(dw, want, sums(g)[2], precision="tf32")
    assert str(reduce.tile) in str(reduce)


@pytest.mark.skipif(SIMULATED, reason="these tiles have too many threads")
@pytest.mark.parametrize("tile", mma_tiles.TILES)
def test_kernel_gradient_by_every_tile(tile, rng, monkeypatch):
    _skip_without_tf32()
    monkeypatch.setattr(mma_tiles, "TILES", (tile,))
    for case in ("runs-of-one", "runs-of-four"):
        dw, want, _ = _kernel_gradient(GRADIENTS[case], rng)
        reference.assert_close(dw, want, sums(GRADIENTS[case])[2], precision="tf32")


@pytest.mark.skipif(SIMULATED, reason="an address takes a GPU")
def test_kernel_gradient_at_an_address_that_copies_cannot_take(rng):
    """It has the same bits: only the copies are shorter."""
    _skip_without_tf32()
    g = GRADIENTS["runs-of-four"]
    results = [_kernel_gradient(g, np.random.default_rng(5), shift)[0] for shift in (0, 1)]
    np.testing.assert_array_equal(*results)


# What TMA tells apart there: rows fetched whole or pixel by pixel, of either array, windows that
# reach over the edge, strides that leave rows out, channels that fill no 64 rows, strips cut short.
BULK_GRADIENTS = {
    "pixels": Geometry(21, 19, 11, 15, 12, 3, 3, 1, 4, 4, 4, (1, 2), (2, 1), (2, 1)),
    "whole-rows": Geometry(37, 35, 19, 17, 13, 3, 2, 1, 4, 2, 2, (2, 1), (1, 0)),
    "one-float": Geometry(19, 9, 9, 11, 9, 2, 3, 1, 4, 1, 8),
    "plain-d1": Geometry(17, 5, 7, 8, 9, 2, 2, 1, 1, 16, 4, 1, (1, 1)),
    "large-capsules": Geometry(5, 3, 9, 8, 10, 3, 3, 1, 16, 16, 16),
    "rows-left-out": Geometry(6, 3, 6, 13, 12, 1, 2, 1, 4, 48, 8, (3, 2), (0, 1), (1, 3)),
    "groups": Geometry(9, 5, 6, 9, 11, 2, 3, 3, 4, 8, 4, (2, 1), (0, 1), (1, 2)),
    "large-window": Geometry(7, 4, 5, 15, 16, 5, 3, 1, 8, 8, 8, (1, 1), (3, 2)),
    "one-pixel": Geometry(40, 16, 10, 3, 3, 3, 3, 1, 4, 16, 8),
    **_SANITIZED,
}


@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("case", BULK_GRADIENTS)
def test_kernel_gradient_by_bulk_copies(case, terms, rng):
    """By the tile that a plan chooses, by the largest that can be taken, and by the smallest."""
    _skip_without_tf32()
    g, t = BULK_GRADIENTS[case], bulk_reduction_tiles
    x, w, dy = operands(g, "float32", rng)
    want = oracle(g, x, w, dy)[2]
    X, DY = (cuda.to_device(array.ravel()) for array in (x, dy))
    product = implicit_gemm.forward(g)
    legal = [tile for tile in t.tiles(product) if not t.why_not(tile, product, g.G, terms)]
    chosen = t.choose_tile(product, g.N, g.G, terms)[0]
    for tile in {chosen, legal[0], legal[-1]}:
        strips = t.choose_strips(tile, product, g.N, g.G, terms)[0]
        which = (product, g.N, g.G, w.size, _F4, terms, tile, strips, "")
        reduce = WarpSpecializedSplitK(*which)
        dw, partial = nan(w.size, _F4), nan(reduce.partial_shape["partial"], _F4)
        reduce(X, DY, dw, 0, partial)
        precision = {1: "tf32", 3: "tf32x3"}[terms]
        result = dw.copy_to_host().reshape(w.shape)
        reference.assert_close(result, want, sums(g)[2], precision=precision)
        assert str(tile) in str(reduce)


@pytest.mark.skipif(SIMULATED, reason="an address takes a GPU")
def test_bulk_copies_of_the_kernel_gradient_at_an_address_that_they_cannot_take(rng):
    """Whatever the workspace holds is enough for the kernel that copies less at a time."""
    _skip_without_tf32()
    g = BULK_GRADIENTS["pixels"]
    x, w, dy = operands(g, "float32", rng)
    X, W, DY = nan(x.size + 1, _F4)[1:], cuda.to_device(w), cuda.to_device(dy)
    X.copy_to_device(x.ravel())
    dw = nan(w.shape, _F4)
    Plan(g, _F4, "fused", "tf32").launch_backward(X, W, DY, None, dw, 0)
    want = oracle(g, x, w, dy)[2]
    reference.assert_close(dw.copy_to_host(), want, sums(g)[2], precision="tf32")


def test_a_kernel_gradient_has_factors_of_tf32():
    """A factor with more bits comes out without them."""
    _skip_without_tf32()
    g = Geometry(1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4)
    reduce = MmaSplitK(implicit_gemm.forward(g), 1, 1, 16, _F4)
    x, dy = (cuda.to_device(np.full(16, value, _F4)) for value in (1 + 2.0**-12, 1))
    dw = nan(16, _F4)
    reduce(x, dy, dw, 0, nan(1, _F4))
    np.testing.assert_array_equal(dw.copy_to_host(), np.full(16, 4, _F4))


def test_tf32_is_cut_not_float32(rng):
    """The tensor cores read 10 bits behind the point: a value that needs more comes out changed."""
    _skip_without_tf32()
    x, w = np.full((1, 1, 1, 1, 4, 16), 1 + 2.0**-12, _F4), np.ones((1, 1, 1, 1, 16, 4), _F4)
    whole = 16 + 2.0**-8
    for precision, want in (("ieee", whole), ("tf32x3", whole), ("tf32", 16)):
        y = numbacaps.capsule_conv2d(x, w, algorithm="fused", precision=precision)
        np.testing.assert_array_equal(y, np.full_like(y, want))


@pytest.mark.skipif(SIMULATED, reason="an address takes a GPU")
@pytest.mark.parametrize("shifted", ["x", "out"])
def test_an_address_that_copies_cannot_take(shifted, rng):
    """A view that begins in the middle of 16 bytes is computed all the same."""
    _skip_without_tf32()
    g = _warpgroups("one-chunk")
    x, w, dy = operands(g, "float32", rng)
    arrays = {"x": cuda.to_device(x.ravel()), "out": nan(dy.size, _F4)}
    view = cuda.device_array(arrays[shifted].size + 1, _F4)[1:]
    view.copy_to_device(arrays[shifted])
    arrays[shifted] = view
    plan = Plan(g, _F4, "fused", "tf32")
    plan.launch_forward(arrays["x"], cuda.to_device(w), arrays["out"], 0)
    out = arrays["out"].copy_to_host().reshape(dy.shape)
    reference.assert_close(out, oracle(g, x, w, dy)[0], sums(g)[0], precision="tf32")


def test_every_element_lies_where_the_tables_say():
    """The products in NumPy, table by table, against the oracle."""
    rng = np.random.default_rng(3)
    for g in [*GEOMETRIES.values()][:8] if SIMULATED else [GEOMETRIES["rank3"]]:
        x, w, dy = (array.astype(np.float64) for array in operands(g, "float64", rng))
        want_y, want_dx, want_dw = oracle(g, x, w, dy)
        out, dx, dw = (np.full(array.size, np.nan) for array in (dy, x, w))
        for product, gathered, result in (
            (implicit_gemm.forward(g), x, out),
            *((product, dy, dx) for product in implicit_gemm.backward_input(g)),
        ):
            for group in range(g.G):
                A, kernel, other = _laid_out(product, g, group, gathered.ravel())
                result[other] = A @ w.ravel()[kernel]
        product = implicit_gemm.forward(g)
        for group in range(g.G):
            A, kernel, other = _laid_out(product, g, group, x.ravel())
            dw[kernel] = A.T @ dy.ravel()[other]
        for array, want in ((out, want_y), (dx, want_dx), (dw, want_dw)):
            assert reference.relative_error(array.reshape(want.shape), want) < 1e-12


def _laid_out(product, g, group, gathered):
    """(A, where B lies, where C lies) of a product."""
    p, K = product.pixels, product.K
    offset, down, across, kernel_k = np.split(product.table[: 4 * K], 4)
    kernel_n, other_n = np.split(product.table[4 * K :], 2)
    if product.taps:
        steps, taps = product.kernel_steps, (len(product.tap_rows), len(product.tap_columns))
        channel, row, column, d = np.indices((product.channels, *taps, product.D)).reshape(4, -1)
        place = channel * steps.channel + row * steps.row + column * steps.column + d * steps.d
        assert (kernel_k == steps.first + place).all()
    axes = np.indices((g.N, p.rows, p.columns, p.D1)).reshape(4, -1)
    base = group * p.steps[0] + np.tensordot(p.gathered, axes, 1)
    other = group * p.steps[2] + p.first + np.tensordot(p.other, axes, 1)
    h = (axes[1] * p.top[0] + p.top[1])[:, None] + down
    w = (axes[2] * p.left[0] + p.left[1])[:, None] + across
    inside = (h >= 0) & (h < p.extent[0]) & (w >= 0) & (w < p.extent[1])
    assert product.inside == bool(inside.all())
    A = np.where(inside, gathered[np.where(inside, base[:, None] + offset, 0)], 0)
    return A, group * p.steps[1] + kernel_k[:, None] + kernel_n, other[:, None] + other_n


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 65, 4, 1), "D1 is 65"),
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 1, 3, 1), "no multiples of 16 bytes"),
        (Geometry(1, 1, 1, 4, 4, 3, 2, 1, 1, 2, 2, 1, (1, 1)), "not at 16 bytes"),
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 64, 8, 1), "a box of 512 indices"),
        (Geometry(1, 1, 1, 900, 900, 3, 3, 1, 1, 4, 1, 1, 0, (200, 200)), "a box of 401 indices"),
        (Geometry(1, 1, 1, 64, 64, 31, 31, 1, 4, 4, 4), "shared memory"),
    ],
)
def test_why_the_copy_engine_cannot_be_used(geometry, reason):
    tile, why = bulk_tiles.choose_tile(implicit_gemm.forward(geometry), 1, 1, 1, 132)
    assert tile is None and reason in why


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 1, 4, 1), "capsules' rows of 4 elements"),
        (Geometry(1, 1, 1, 900, 3, 1, 1, 1, 1, 8, 1), "a box of 900 indices"),
        (Geometry(1, 1, 1, 30, 3, 1, 1, 1, 1, 8, 1, (9, 1)), "every 9th slot"),
        (Geometry(1, 1, 300000, 1, 1, 1, 1, 1, 4, 8, 16), "4800000 columns"),
        (Geometry(1, 1, 1, 1, 1, 1, 1, 70000, 4, 8, 8), "70000 g"),
        (Geometry(1, 4, 1, 60, 60, 1, 1, 1, 8, 8, 1), "a product of 480 rows"),
        (Geometry(1, 64, 1, 3, 3, 3, 3, 1, 1, 8, 1), "elements of the kernel"),
        (Geometry(1, 65, 1, 3, 3, 1, 1, 1, 1, 8, 1), "not 4 equal parts"),
        (Geometry(1, 132, 1, 3, 3, 1, 1, 1, 1, 8, 1), "1 images of 132 channels"),
        (Geometry(1, 4, 1, 60, 30, 1, 1, 1, 4, 8, 1), "shared memory"),
    ],
)
def test_why_the_kernel_cannot_be_in_registers(geometry, reason):
    product = implicit_gemm.forward(geometry)
    tile, why, cycles = swapped_tiles.choose_tile(product, 1, geometry.G, 132)
    assert tile is cycles is None and reason in why


_SMALL = Geometry(128, 8, 4, 5, 5, 3, 3, 1, 4, 8, 16)  # paper layer 4


def test_a_kernel_in_registers_is_not_shared_both_ways():
    product, tile = implicit_gemm.forward(_SMALL), swapped_tiles.SwappedTile(1, 2, 2, 1)
    assert "at once" in swapped_tiles.why_not(tile, product, swapped_tiles.Slots.of(product))


def test_small_kernels_are_in_registers():
    """Of the published network those of all layers but the first; none of many elements or short rows."""
    layer_2 = Geometry(128, 1, 4, 13, 13, 3, 3, 1, 4, 8, 16)
    assert all(map(is_swapped, (_SMALL, layer_2)))
    assert is_swapped(Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2)))
    assert is_swapped(Geometry(128, 4, 10, 3, 3, 3, 3, 1, 4, 16, 8))
    assert not is_swapped(Geometry(128, 32, 32, 14, 14, 3, 3, 1, 4, 4, 4))
    assert not is_swapped(Geometry(2, 16, 16, 9, 9, 3, 3, 1, 8, 8, 8))
    assert not is_swapped(replace(layer_2, N=1))  # a block would have all of its pixels


@pytest.mark.skipif(SIMULATED, reason="on the simulator there is one rung of the tensor cores")
def test_only_tf32_forward_without_an_activation_has_the_kernel_in_registers():
    _skip_without_tf32()
    for precision in ("ieee", "tf32", "tf32x3"):
        for activation in (None, Activation(0.1, 8)):
            prepared = fused.passes(_SMALL, _F4, precision, activation)
            has_it = "swap_ab" in str(prepared.forward_launchers[0])
            assert has_it == (precision == "tf32" and activation is None)
            assert "swap_ab" not in str(prepared.input_launchers[0])


def test_columns_of_the_input_s_gradient_are_not_for_registers():
    (product,) = implicit_gemm.backward_input(Geometry(1, 1, 1, 3, 3, 2, 2, 1, 4, 8, 8))
    assert "side by side" in swapped_tiles.choose_tile(product, 1, 1, 132)[1]


def test_a_box_begins_at_its_first_tap():
    """Which may lie to the left of the pixel."""
    whole = 0
    for product in implicit_gemm.backward_input(_BESIDE_A_TAP):
        product = bulk_tiles.counted(product, np.dtype(np.float16))
        left = product.pixels.left[1] + int(product.tap_columns.min())
        for tile in bulk_tiles.tiles(product):
            box = bulk_tiles.Box.of(product, 1, tile)
            if box.whole_rows and bulk_tiles.why_not(tile, product, 1, 1) is None:
                assert left * box.pixel % 4 == tile.TW * box.pixel % 4 == 0
                whole += 1
    assert whole


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 3, 4, 4), "D1 is 3"),
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 4, 12, 4), "D2 is 12"),
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 4, 80, 4), "D2 is 80"),
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 1, 2, 4), "no multiples of 16 bytes"),
        (Geometry(1, 1, 16, 4, 4, 3, 3, 1, 1, 2, 2, 1, (1, 1)), "not at 16 bytes"),
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 4, 4, 3), "do not fill warps evenly"),
        (Geometry(1, 1, 4, 9, 9, 8, 1, 1, 4, 4, 4), "8 rows of taps"),
        (Geometry(1, 1, 4, 900, 900, 3, 3, 1, 4, 4, 4, 1, 0, (1, 200)), "a box of 401 indices"),
        (Geometry(1, 1, 4, 90, 90, 2, 2, 1, 4, 4, 4, 1, 0, (40, 1)), "too much shared memory"),
        (Geometry(1, 1, 4, 90, 90, 3, 23, 1, 4, 4, 4), "registers a thread"),
        (Geometry(0, 1, 4, 9, 9, 2, 2, 1, 4, 4, 4), "no images"),
    ],
)
def test_why_the_copy_engine_cannot_be_used_for_the_kernel_gradient(geometry, reason):
    product = implicit_gemm.forward(geometry)
    tile, strips, why = bulk_reduction_tiles.choose_tile(product, geometry.N, 1, 1)
    assert tile is strips is None and reason in why


@pytest.mark.parametrize("splits", [1, 2, 3, 9])
@pytest.mark.parametrize("pair", [1, 2])
def test_every_sum_of_a_tile_is_written_once(pair, splits):
    """Whatever lies in the tile's places that are no element of the gradient."""
    product = implicit_gemm.forward(Geometry(2, 3, 2, 5, 5, 1, 1, 1, 4, 4, 4))
    tile = bulk_reduction_tiles.ReductionTile(1, 1, 1, 8, pair)
    kernel, count = tile_sums_kernel(product, tile, splits, _F4)
    partial = np.concatenate([np.arange(count) + 2.0**14 * split for split in range(splits)])
    partial, dw = cuda.to_device(partial.astype(_F4)), nan(product.K * product.N, _F4)
    launch_tiles(
        kernel,
        ceil_div(count // 4, fours_of_block(splits)),
        ADD_THREADS,
        (partial, cuda.to_device(product.table), dw),
    )
    all_splits = 2.0**14 * splits * (splits - 1) / 2
    places, rest = np.divmod(dw.copy_to_host() - all_splits, splits)
    assert not rest.any() and len(set(places)) == places.size and places.min() >= 0
    assert places.max() < count
    # Neighbours of an even column are the tensor cores' neighbours: (P, C, 1, 1, D2, D3), D3 last.
    pairs = places.reshape(-1, 2)
    np.testing.assert_array_equal(pairs[:, 1], pairs[:, 0] + 1)


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("case", BULK_GRADIENTS)
def test_strips_cover_every_pixel_once(case, terms):
    g, t = BULK_GRADIENTS[case], bulk_reduction_tiles
    product = implicit_gemm.forward(g)
    legal = [tile for tile in t.tiles(product) if not t.why_not(tile, product, g.G, terms)]
    assert legal
    for tile in legal:
        s = t.choose_strips(tile, product, g.N, g.G, terms)[0]
        images = t.boxes(tile, product, g.G)[0].images
        assert (s.down - 1) * s.rows < g.OH <= s.down * s.rows
        assert (s.across - 1) * tile.PW < g.OW <= s.across * tile.PW
        assert s.count == ceil_div(g.N, images) * s.down * s.across
        assert (s.splits - 1) * s.per_split < s.count <= s.splits * s.per_split


def test_sums_of_three_terms_are_cut_shorter():
    """A capsule of 16 x 16 has few tiles; split no more than they need, each would be 2400 adds."""
    g, t = Geometry(32, 16, 16, 32, 32, 3, 3, 1, 16, 16, 16), bulk_reduction_tiles
    product, adds = implicit_gemm.forward(g), {}
    for terms in (1, 3):
        tile = t.ReductionTile(3, 6, 1, 32)
        s = t.choose_strips(tile, product, g.N, g.G, terms)[0]
        images = t.boxes(tile, product, g.G)[0].images
        adds[terms] = s.per_split * s.rows * images * g.D1 // tile.K
    assert adds == {1: 2400, 3: 1200}


@pytest.mark.parametrize("rows", [1, 5, 300, 10**6])
@pytest.mark.parametrize("columns", [1, 7, 64, 1000])
def test_a_tile_is_always_found(rows, columns):
    tile, why = tiles.choose_tile(rows, columns, 100, 8)
    leftover = tile in tiles.TILES[-2:]  # they take whatever no other can
    assert why and (leftover or tiles.why_not(tile, rows, columns, 100, 8) is None)


@pytest.mark.parametrize("terms", [1, 3])
def test_the_last_round_is_taken_in_parts(terms):
    """Where few multiprocessors would have a whole tile; the parts together are the tiles."""
    product = implicit_gemm.forward(BULK["last-round"])
    tile = bulk_tiles.choose_tile(product, 40, 1, terms, 132)[0]
    turns, part = bulk_tiles.choose_tail(tile, product, 40, 1, terms, 132)
    assert 0 < turns == bulk_tiles.tiles_of(tile, product, 40, 1) % 132
    assert (part.BN, part.DEPTH) == (tile.BN, tile.DEPTH)
    pixels = bulk_tiles.parts_of(tile, part) * part.TH * part.TW
    assert pixels == tile.TH * tile.TW > part.TH * part.TW
    few = bulk_tiles.choose_tail(tile, product, 1, 1, terms, 10**6)
    assert few == (0, None)  # all of them are one round


def test_why_a_tile_cannot_be_taken():
    large = tiles.Tile(256, 256, 32, 8, 8)
    assert "bytes of shared memory" in tiles.why_not(large, 10**6, 10**6, 100, 8)
    uneven = tiles.Tile(24, 16, 8, 2, 2)
    assert "threads" in tiles.why_not(uneven, 10**6, 10**6, 100, 4)


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (Geometry(1, 1, 1, 3, 3, 1, 1, 1, 65, 4, 1), "D1 is 65"),
        (Geometry(1, 1, 1, 2**15, 2**15, 1, 1, 1, 1, 4, 1), "offsets in it have 32 bits"),
        (Geometry(1, 1, 1, 900, 900, 9, 9, 1, 1, 4, 1, (90, 90)), "shared memory"),
    ],
)
def test_why_warpgroups_cannot_be_used(geometry, reason):
    product = implicit_gemm.forward(geometry)
    tile, why = warpgroup_tiles.choose_tile(product, 1, 1, _F4, 132)
    assert tile is None and reason in why


def test_splits_cover_every_pixel_once():
    for tiles_, M, BK in ((1, 1, 8), (3, 1000, 8), (500, 1000, 8), (7, 10**6, 16)):
        splits, per_split = tiles.choose_splits(tiles_, M, BK)
        assert per_split % BK == 0
        assert (splits - 1) * per_split < M <= splits * per_split


@pytest.mark.parametrize("case", GEOMETRIES)
def test_splits_of_warps_cover_every_pixel_once(case):
    g = GEOMETRIES[case]
    product = implicit_gemm.forward(g)
    for M in (1, 1000, product.M(g.N), 10**6):
        tile, splits, per_split, _ = mma_tiles.choose_tile(product, M, g.G)
        assert per_split % tile.BK == 0
        assert (splits - 1) * per_split < M <= splits * per_split


def test_why_a_tile_of_warps_cannot_be_taken():
    assert "evenly" in mma_tiles.why_not(mma_tiles.MmaTile(96, 64, 16, 32, 64, 3, 1))
    assert "shared memory" in mma_tiles.why_not(mma_tiles.MmaTile(256, 256, 32, 64, 64, 4, 1))
    assert not any(map(mma_tiles.why_not, mma_tiles.TILES))
