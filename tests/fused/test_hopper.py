"""The kernels for TMA on the simulator; :mod:`numbacaps.device.turns` says what that shows."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

import reference
from numbacaps import Geometry
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.compiled import as_argument, launch_stream
from numbacaps.device.gpu import multiprocessors
from numbacaps.fused import implicit_gemm
from numbacaps.fused.pixel_packing import of_capsules
from numbacaps.fused.rung_3_register_tiles.launcher import (
    RegisterTilesLauncher,
    RegisterTilesSplitK,
)
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as bulk_reduction_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_5_warp_specialized.flat import FlatWgmma
from numbacaps.fused.rung_5_warp_specialized.launcher import (
    WarpSpecializedLauncher,
    WarpSpecializedSplitK,
)
from numbacaps.fused.rung_5_warp_specialized.lines import LinesLauncher, in_lines
from numbacaps.fused.rung_5_warp_specialized.packed_launcher import PackedLauncher
from numbacaps.fused.rung_6_swap_ab import tile as swapped_tiles
from numbacaps.fused.rung_6_swap_ab.flat import FlatSwapped
from numbacaps.fused.rung_6_swap_ab.launcher import SwapABLauncher
from tests.support.cases import nan, operands, oracle, sums

pytestmark = pytest.mark.tiers("simulator")


@pytest.fixture(autouse=True)
def short_rings(monkeypatch):
    """Rings of few rows of taps, so that they come round."""
    monkeypatch.setattr(bulk_tiles, "_MOST_TAP_ROWS", 3)


# Rows fetched whole or pixel by pixel, steps that fill no box, images that fill no 64 rows, groups, taps that
# run backwards over a stride.
GATHERED = {
    "whole rows": (Geometry(17, 5, 3, 5, 6, 2, 2, 1, 4, 2, 2, (2, 1), (1, 0)), "float32", 1),
    "pixels": (Geometry(9, 3, 3, 3, 5, 2, 3, 1, 8, 4, 4, (1, 2), (1, 1)), "float32", 1),
    "narrow": (Geometry(33, 4, 4, 4, 5, 2, 2, 1, 2, 2, 2), "float32", 1),
    "narrow in twos": (Geometry(33, 4, 4, 4, 8, 3, 3, 1, 2, 2, 2), "float16", 1),
    "odd": (Geometry(5, 4, 4, 3, 4, 2, 2, 1, 4, 4, 3), "float32", 1),
    "groups": (Geometry(3, 3, 2, 4, 4, 2, 2, 2, 3, 8, 4, (2, 1), (0, 1), (1, 2)), "float32", 1),
    "three terms": (Geometry(5, 2, 2, 4, 4, 2, 2, 1, 16, 4, 4), "float32", 3),
    "float16": (Geometry(33, 3, 4, 4, 5, 2, 2, 1, 2, 4, 4), "float16", 1),
    "bfloat16": (Geometry(9, 3, 3, 4, 4, 2, 2, 1, 8, 8, 4, (1, 1), (1, 0)), "bfloat16", 1),
    "more rows of taps than a ring has": (Geometry(5, 3, 2, 6, 3, 4, 1, 1, 4, 4, 4), "float32", 1),
}


@pytest.mark.slow(but=["odd-False"])
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("case", GATHERED)
def test_gathered(case, forward, rng):
    g, name, terms = GATHERED[case]
    _gather(g, name, terms, forward, rng)


# Lines that fill no 64 rows, or more; strides, dilations, edges, taps that run backwards over a stride, several images,
# groups, d1 that fills no 8 rows; one channel, cut into some, of which one box has not all.
LINES = {
    "a line": (Geometry(1, 2, 3, 3, 5, 2, 2, 1, 4, 4, 4), "float32", 1),
    "longer": (Geometry(2, 3, 3, 3, 19, 2, 3, 1, 4, 4, 4, 1, 1), "float32", 1),
    "steps": (Geometry(2, 2, 3, 3, 9, 2, 3, 1, 3, 4, 4, (1, 2), (0, 1), (1, 3)), "float32", 1),
    "strides": (Geometry(1, 2, 2, 7, 8, 3, 3, 1, 2, 4, 4, (2, 3), (1, 2)), "float32", 1),
    "groups": (Geometry(2, 3, 2, 4, 4, 2, 2, 2, 3, 8, 4, (2, 1), (0, 1), (1, 2)), "float32", 1),
    "cut": (Geometry(2, 1, 3, 3, 5, 2, 3, 2, 1, 24, 8, 1, (0, 1)), "float32", 3),
    "three terms": (Geometry(2, 2, 2, 4, 4, 2, 2, 1, 16, 4, 4), "float32", 3),
    "float16": (Geometry(2, 3, 4, 4, 5, 2, 2, 1, 2, 8, 8), "float16", 1),
    "cut float16": (Geometry(1, 1, 2, 3, 4, 2, 2, 2, 1, 32, 16, 1, (1, 0)), "float16", 1),
    "bfloat16": (Geometry(2, 3, 3, 4, 4, 2, 2, 1, 8, 8, 8, (1, 1), (1, 0)), "bfloat16", 1),
    "more rows of taps than a ring has": (Geometry(1, 3, 2, 6, 5, 5, 1, 1, 4, 4, 4), "float32", 1),
}


@pytest.mark.slow(but=["steps-True", "cut-False"])
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("case", LINES)
def test_lines(case, forward, rng):
    """The tile that is chosen, and one of several warpgroups."""
    g, name, terms = LINES[case]
    _gather(g, name, terms, forward, rng, launcher=LinesLauncher)
    least = bulk_tiles.BulkTile(3, 1, 1, 1, 16), "the test's"
    _gather(g, name, terms, forward, rng, least, launcher=LinesLauncher)


# Odd capsules, whose pixels are packed first: strides, groups, edges; channels of several boxes, filled up or not.
PACKED = {
    "threes": (Geometry(5, 4, 4, 3, 4, 2, 2, 1, 3, 3, 3), "float32", 1),
    "strides": (Geometry(3, 5, 3, 6, 5, 3, 2, 1, 5, 5, 2, (2, 1), (1, 0), (1, 2)), "float32", 1),
    "groups": (Geometry(3, 3, 2, 4, 4, 2, 2, 2, 3, 3, 5, 1, (0, 1)), "float32", 1),
    "three terms": (Geometry(5, 3, 2, 3, 4, 2, 2, 1, 7, 7, 7), "float32", 3),
    "one element": (Geometry(17, 24, 5, 3, 3, 2, 2, 1, 2, 1, 1), "float32", 1),
    "float16": (Geometry(9, 4, 3, 3, 4, 2, 2, 1, 3, 5, 3), "float16", 1),
    "bfloat16": (Geometry(5, 9, 2, 4, 3, 2, 2, 1, 9, 9, 9, (1, 2)), "bfloat16", 1),
}


_LAUNCHERS = {"images": WarpSpecializedLauncher, "lines": LinesLauncher}


@pytest.mark.slow(but=["threes-True-*"])
@pytest.mark.parametrize("launcher", _LAUNCHERS.values(), ids=_LAUNCHERS)
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("case", PACKED)
def test_packed_pixels(case, forward, launcher, rng):
    g, name, terms = PACKED[case]
    dtype = dtype_of(name)
    x, w, dy = operands(g, name, rng)
    products = [implicit_gemm.forward(g)] if forward else implicit_gemm.backward_input(g)
    seen = [of_capsules(one, g.G, dtype) for one in products]
    how = [_chosen(launcher, one, g, dtype, terms) for one in seen]
    gather = PackedLauncher(launcher, products, g.N, g.G, dtype, how, terms)
    result = nan((dy if forward else x).size, dtype)
    arrays = (to_device(array.ravel()) for array in (x if forward else dy, w))
    gather(*arrays, result, 0, nan(gather.packed, np.float32))
    which = 0 if forward else 1
    _check(result, oracle(g, x, w, dy)[which], sums(g)[which], name, terms)


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("rows", [2, 3, 4, 11, 13, 40])
def test_a_ring_has_the_rows_of_taps_that_a_thread_waits_for(rows, terms, monkeypatch):
    """A thread gives none back before all of a batch have come."""
    monkeypatch.setattr(bulk_tiles, "_MOST_TAP_ROWS", 12)
    g, t, found = Geometry(1, 4, 4, rows, 50, rows, 1, 1, 4, 4, 4), bulk_tiles, 0
    for product in implicit_gemm.forward(g), in_lines(implicit_gemm.forward(g), 1, np.dtype("f4")):
        for tile in t.tiles(product):
            if t.why_not(tile, product, 1, terms) is None:
                box = t.Box.of(product, 1, tile)
                rings = t.Rings.of(product, box, tile, terms)
                assert t.batch_rows(tile, product, box, terms) <= rings.tap_rows
                found += 1
    assert found


@pytest.mark.parametrize("warpgroups", [1, 2, 3, 4, 7])
def test_a_block_asks_for_registers_that_it_has(warpgroups):
    """What it has at its launch, in steps of 8 a thread: a warpgroup that asks for more waits for ever."""
    tile = bulk_tiles.BulkTile(warpgroups, 1, 1, 1, 8)
    most = 65536 // (128 * (warpgroups + 1)) // 8 * 8 * (warpgroups + 1)
    asked = bulk_tiles.PRODUCER_REGISTERS + warpgroups * tile.registers
    assert asked <= most and (tile.registers == 240 or asked > most - 8 * warpgroups)
    tile = bulk_reduction_tiles.ReductionTile(warpgroups, 1, 1, 8)
    helpers, others = tile.helper_registers, tile.registers
    assert helpers + warpgroups * others <= most and helpers % 8 == others % 8 == 0
    assert 32 <= helpers <= most // (warpgroups + 1)  # none are asked for, and those are enough


@pytest.mark.parametrize(
    "sizes", [(1, 1, 2, 1, 16), (2, 1, 2, 1, 16), (1, 1, 1, 1, 12), (8, 1, 1, 1, 8)]
)
def test_tiles_that_no_block_can_share_are_refused(sizes):
    product = implicit_gemm.forward(Geometry(1, 2, 3, 3, 5, 2, 2, 1, 4, 4, 4))
    for one in product, in_lines(product, 1, np.dtype(np.float32)):
        assert "no block of" in bulk_tiles.why_not(bulk_tiles.BulkTile(*sizes), one, 1, 1)
        assert "264 columns" in bulk_tiles.why_not(bulk_tiles.BulkTile(1, 1, 1, 1, 264), one, 1, 1)


@pytest.mark.slow
def test_columns_of_three_tiles_whose_last_wave_is_cut_into_parts(monkeypatch, rng):
    quick = replace(bulk_tiles.GH100, first_cycles=0)  # or no wave of so few cycles would be cut
    monkeypatch.setattr(bulk_tiles, "GH100", quick)
    tile = bulk_tiles.BulkTile(2, 1, 1, 1, 48)
    g = Geometry(8, 4, 18, 3, 4, 2, 2, 1, 8, 4, 8)
    gather = _gather(g, "float32", 1, True, rng, (tile, "the test's"))
    assert "the last 2 tiles of 1x1" in str(gather)


def _gather(g, name, terms, forward, rng, chosen=None, launcher=WarpSpecializedLauncher):
    """Check a pass, in the tile that is chosen for it or in this one."""
    dtype = dtype_of(name)
    x, w, dy = operands(g, name, rng)
    products = [implicit_gemm.forward(g)] if forward else implicit_gemm.backward_input(g)
    result = nan((dy if forward else x).size, dtype)
    gathered, kernel = (to_device(a.ravel()) for a in (x if forward else dy, w))
    for product in products:
        found = _chosen(launcher, product, g, dtype, terms)
        gather = launcher(product, g.N, g.G, dtype, *(chosen or found), terms)
        packed = nan(gather.packed, np.float32)
        stream, arrays = launch_stream(0), (gathered, kernel, result, packed)
        read, factor, wanted, room = map(as_argument, arrays)
        gather.pack(factor, as_argument(_as(packed, dtype)), stream)
        gather.multiply(read, factor, room, wanted, wanted, stream)
    which = 0 if forward else 1
    _check(result, oracle(g, x, w, dy)[which], sums(g)[which], name, terms)
    return gather


def _chosen(launcher, product, g, dtype, terms):
    """(tile, why) for what a launcher of rung 5 reads as a product."""
    images = g.N
    if launcher is LinesLauncher:
        product, images = in_lines(product, g.N, dtype), product.pixels.columns
    which = bulk_tiles.counted(product, dtype), images, g.G, terms, multiprocessors()
    return bulk_tiles.choose_tile(*which)


# Images that stay one turn, or two and change places; warpgroups that share channels, or rows that do not come out
# even; columns that fill no warpgroup, or two; strides, dilations (one whose taps are 0, 2 and 1 past a multiple of the
# stride), groups, edges, and odd capsules of the result.
SWAPPED = {
    "alone": (Geometry(2, 1, 4, 4, 4, 3, 3, 1, 4, 8, 16), (2, 1, 1, 1)),
    "turns": (Geometry(3, 2, 3, 4, 5, 2, 2, 1, 2, 8, 4), (1, 1, 1, 1)),
    "images in turns": (Geometry(5, 2, 3, 3, 4, 2, 2, 1, 3, 8, 3), (1, 1, 1, 2)),
    "rows": (Geometry(2, 1, 2, 8, 4, 2, 3, 1, 2, 16, 4, 1, 1), (2, 1, 2, 1)),
    "rows of many": (Geometry(3, 1, 2, 5, 3, 1, 2, 1, 2, 8, 4), (1, 1, 3, 1)),
    "channels": (Geometry(3, 4, 2, 4, 4, 2, 2, 1, 2, 8, 5), (2, 2, 1, 1)),
    "channels in turns": (Geometry(5, 2, 2, 3, 3, 2, 2, 1, 4, 8, 2), (2, 2, 1, 2)),
    "a channel each": (Geometry(1, 4, 2, 3, 4, 2, 2, 1, 3, 8, 3), (2, 4, 1, 1)),
    "stride": (Geometry(2, 1, 3, 7, 6, 3, 3, 1, 4, 16, 8, (2, 1), (1, 0)), (2, 1, 1, 1)),
    "strides": (Geometry(2, 1, 3, 9, 8, 3, 3, 1, 2, 8, 8, (3, 2), 1, (2, 3)), (3, 1, 1, 1)),
    "groups": (Geometry(2, 1, 2, 3, 4, 2, 2, 2, 2, 32, 6), (2, 1, 1, 1)),
    "two tiles of columns": (Geometry(2, 1, 9, 3, 3, 2, 2, 1, 4, 8, 8), (2, 1, 1, 1)),
    "columns": (Geometry(2, 1, 4, 3, 4, 2, 2, 1, 4, 8, 3, 1, (0, 1), (1, 2)), (2, 1, 1, 1)),
}


@pytest.mark.slow(but=["turns", "channels in turns", "strides", "groups", "two tiles of columns"])
@pytest.mark.parametrize("case", SWAPPED)
def test_swapped(case, rng):
    g, tile = SWAPPED[case]
    x, w, dy = operands(g, "float32", rng)
    product, tile = implicit_gemm.forward(g), swapped_tiles.SwappedTile(*tile)
    assert not swapped_tiles.why_not(tile, product, swapped_tiles.Slots.of(product))
    gather = SwapABLauncher(product, g.N, g.G, dtype_of("float32"), tile, "the test's")
    result = nan(dy.size, np.float32)
    gathered, kernel = (to_device(a.ravel()) for a in (x, w))
    gather(gathered, kernel, result, 0, None)
    _check(result, oracle(g, x, w, dy)[0], sums(g)[0], "float32", 1)


def test_flat_version_of_warp_specialization(rng):
    """Two pixels across and down, two channels and four taps: more stages than the pipeline has."""
    g = Geometry(16, 2, 4, 3, 3, 2, 2, 1, 4, 8, 4)
    x, w, dy = operands(g, "float32", rng)
    flat = FlatWgmma(implicit_gemm.forward(g), g.N, 8)
    result, packed = nan(dy.size, np.float32), nan(flat.packed, np.float32)
    flat(*(to_device(a.ravel()) for a in (x, w)), packed, result)
    _check(result, oracle(g, x, w, dy)[0], sums(g)[0], "float32", 1)


def test_flat_version_of_swapped_operands(rng):
    g = Geometry(2, 2, 8, 4, 5, 2, 3, 1, 2, 8, 8, 1, (1, 0), (1, 2))
    x, w, dy = operands(g, "float32", rng)
    flat = FlatSwapped(implicit_gemm.forward(g), g.N)
    result = nan(dy.size, np.float32)
    flat(*(to_device(a.ravel()) for a in (x, w)), result)
    _check(result, oracle(g, x, w, dy)[0], sums(g)[0], "float32", 1)


def _check(result, want, length, name, terms):
    """Against what it should be, of sums of this length, by the rounding of arrays and terms."""
    have = result.copy_to_host().reshape(want.shape).astype(np.float32)
    rounding = {1: "tf32", 3: "tf32x3"}[terms] if name == "float32" else name
    reference.assert_close(have, want, length, precision=rounding)


def _as(packed, dtype):
    """A simulated array's memory as elements of another type."""
    return packed if dtype.itemsize == 4 else type(packed)(packed._ary.view(dtype))


REDUCED = {
    "one term": (Geometry(3, 2, 2, 4, 3, 2, 2, 1, 4, 4, 4, (2, 1), (1, 0)), "float32", 1),
    "three terms": (Geometry(2, 2, 2, 3, 3, 2, 1, 1, 8, 4, 4, (1, 2), (0, 1)), "float32", 3),
    "float16": (Geometry(3, 2, 2, 3, 4, 2, 2, 1, 4, 8, 8), "float16", 1),
}


@pytest.mark.slow(but=["three terms"])
@pytest.mark.parametrize("case", REDUCED)
def test_kernel_gradient(case, rng):
    (g, name, terms), t = REDUCED[case], bulk_reduction_tiles
    dtype = dtype_of(name)
    x, w, dy = operands(g, name, rng)
    product = implicit_gemm.forward(g)
    pair = 4 // dtype.itemsize
    tile, strips, why = t.choose_tile(product, g.N, g.G, terms, pair=pair)
    assert tile, why
    reduce = WarpSpecializedSplitK(product, g.N, g.G, w.size, dtype, terms, tile, strips, why)
    dw, partial = nan(w.size, dtype), nan(reduce.partial_shape["partial"], np.float32)
    reduce(*(to_device(a.ravel()) for a in (x, dy)), dw, 0, partial)
    _check(dw, oracle(g, x, w, dy)[2], sums(g)[2], name, terms)


# Stores that neighbours exchange (narrow, dx), columns that fill no warpgroup, images that fill no 64 rows, groups, residues.
LOOKED = {
    "narrow": Geometry(17, 4, 4, 3, 4, 2, 2, 1, 2, 2, 2),
    "odd": Geometry(5, 4, 4, 3, 4, 2, 2, 1, 4, 4, 3),
    "groups": Geometry(3, 3, 2, 4, 4, 2, 2, 2, 3, 8, 4, (2, 1), (0, 1), (1, 2)),
    "packed": Geometry(5, 3, 2, 3, 4, 2, 2, 1, 7, 7, 7),
}
_SPOILT = np.nan, np.inf, -np.inf, np.finfo(np.float32).max


def _spoilt(g, read, rng):
    """Operands of a pass, one of which has an infinity, a NaN, the largest number, and a part that is tiny."""
    first, second = (rng.standard_normal(shape).astype(np.float32) for shape in read)
    first[-1] *= np.float32(2.0**-110)
    flat = first.ravel()
    flat[:: max(1, flat.size // 3)][: len(_SPOILT)] = _SPOILT[
        : len(flat[:: max(1, flat.size // 3)])
    ]
    return first, second


def _told_alike(have, want):
    """Whether NaN and infinities are where they should be, and the rest is as exact as float32."""
    np.testing.assert_array_equal(np.isnan(have), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(have), np.isposinf(want))
    np.testing.assert_array_equal(np.isneginf(have), np.isneginf(want))
    tiny = np.abs(want) < 2.0**-90
    for some in (tiny & np.isfinite(want), ~tiny & np.isfinite(want)):
        scale = np.abs(want[some]).max(initial=0) or 1
        np.testing.assert_allclose(have[some] / scale, want[some] / scale, atol=3e-6)
    assert not np.isfinite(want).all() and (tiny & (want != 0)).any()


@pytest.mark.slow(
    but=["odd-forward-images", "groups-backward_input-*", "narrow-backward_input-images"]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator adds by NumPy
@pytest.mark.parametrize("launcher", _LAUNCHERS.values(), ids=_LAUNCHERS)
@pytest.mark.parametrize("wanted", ["forward", "backward_input"])
@pytest.mark.parametrize("case", LOOKED)
def test_what_cannot_be_told_is_summed_again(case, wanted, launcher, rng):
    _check_looked(LOOKED[case], wanted, rng, packed=case == "packed", launcher=launcher)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator adds by NumPy
def test_what_cannot_be_told_is_summed_again_in_parts_of_tiles(monkeypatch, rng):
    quick = replace(bulk_tiles.GH100, first_cycles=0)
    monkeypatch.setattr(bulk_tiles, "GH100", quick)
    chosen = bulk_tiles.BulkTile(2, 1, 1, 1, 48), "the test's"
    g = Geometry(8, 4, 18, 3, 4, 2, 2, 1, 8, 4, 8)
    (gather,) = _check_looked(g, "forward", rng, chosen)
    assert "the last 2 tiles of 1x1" in str(gather)


def _check_looked(g, wanted, rng, chosen=None, packed=False, launcher=WarpSpecializedLauncher):
    """Check a pass that looks through its results, in the tile that is chosen for it or in this one; its launchers."""
    forward, dtype = wanted == "forward", np.dtype(np.float32)
    products = [implicit_gemm.forward(g)] if forward else implicit_gemm.backward_input(g)
    read = (g.input_shape if forward else g.output_shape), g.kernel_shape
    gathered, kernel = (to_device(one.ravel()) for one in _spoilt(g, read, rng))
    size = prod(g.output_shape if forward else g.input_shape)
    have, want = nan(size, np.float32), nan(size, np.float32)
    for product in products:
        RegisterTilesLauncher(product, g.N, g.G, dtype)(gathered, kernel, want, 0, None)

    def tile_of(product):
        return _chosen(launcher, product, g, dtype, 3)

    which, looked = (g.N, g.G, dtype), (wanted, g)
    if packed:
        tiles = [tile_of(of_capsules(one, g.G, dtype)) for one in products]
        made = [PackedLauncher(launcher, products, *which, tiles, 3, looked)]
    else:
        made = [
            launcher(one, *which, *(chosen or tile_of(one)), 3, looked=looked) for one in products
        ]
    for gather in made:
        gather(gathered, kernel, have, 0, nan(gather.packed, np.float32))
    _told_alike(*(one.copy_to_host() for one in (have, want)))
    return made


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator adds by NumPy
def test_sums_of_the_kernel_gradient_that_cannot_be_told(rng):
    (g, _, terms), t = REDUCED["three terms"], bulk_reduction_tiles
    product, dtype, size = implicit_gemm.forward(g), np.dtype(np.float32), prod(g.kernel_shape)
    x, _, dy = operands(g, "float32", rng)
    # Of three columns of the capsules; the fourth is as it was.
    x[0, 0, 1, 1, 0, 0, :3] = _SPOILT[:3]
    x[:, 1] *= np.float32(2.0**-110)
    tile, strips, why = t.choose_tile(product, g.N, g.G, terms, pair=1)
    which = product, g.N, g.G, size, dtype
    looked = "backward_kernel", g
    reduce = WarpSpecializedSplitK(*which, terms, tile, strips, why, looked=looked)
    ordinary, found = RegisterTilesSplitK(*which), []
    for one in (reduce, ordinary):
        dw, room = nan(size, np.float32), one.partial_shape.get("partial", (1,))
        one(*(to_device(a.ravel()) for a in (x, dy)), dw, 0, nan(room, np.float32))
        found.append(dw.copy_to_host())
    assert reduce.looks
    _told_alike(*found)
