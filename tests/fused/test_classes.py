"""What kernels are compiled for: few classes, each of which serves many sizes. Nothing is compiled here."""

import itertools

import numpy as np
import pytest

from numbacaps import Geometry
from numbacaps.device.dtypes import sum_dtype
from numbacaps.fused import implicit_gemm
from numbacaps.fused.rung_3_register_tiles.kernel import make_register_tiles
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesSplitK
from numbacaps.fused.rung_3_register_tiles.split_k import ahead_of, make_add_splits, make_reduction
from numbacaps.fused.rung_3_register_tiles.tile import choose_tile
from numbacaps.fused.rung_4_wgmma import split_k_tile as mma_tiles
from numbacaps.fused.rung_4_wgmma.split_k import make_mma_reduction
from numbacaps.fused.rung_4_wgmma.tile import run_bytes

pytestmark = pytest.mark.tiers("ptx")  # the simulator has tiles of its own

_F4 = np.dtype(np.float32)
_SIZES = range(1, 17)


def _swept():
    """Geometries of a layer whose capsules have every size."""
    for D1, D2, D3 in itertools.product(_SIZES, _SIZES, _SIZES):
        yield Geometry(32, 8, 8, 14, 14, 3, 3, 1, D1, D2, D3)


def _register_tiles(g):
    for product in (implicit_gemm.forward(g), *implicit_gemm.backward_input(g)):
        tile, _ = choose_tile(product.M(g.N) * g.G, product.N, product.K, _F4.itemsize)
        yield make_register_tiles(product.inside, tile, _F4)
    product = implicit_gemm.forward(g)
    tile, _, splits, _ = RegisterTilesSplitK.cut(product, g.N, g.G, _F4)
    yield make_reduction(product.inside, tile, _F4, _F4 if splits == 1 else sum_dtype(_F4))
    yield make_add_splits(ahead_of(splits), _F4)


def _mma_split_k(g):
    product = implicit_gemm.forward(g)
    runs = tuple(run_bytes(D, _F4.itemsize) for D in (g.D2, g.D3))
    tile, splits, *_ = mma_tiles.choose_tile(product, product.M(g.N), g.G)
    yield make_mma_reduction(product.inside, runs, tile, _F4)
    yield make_add_splits(ahead_of(splits), _F4)


# Rung to (the kernels of all passes of a geometry, the most that a sweep of capsules may take).
_RUNGS = {
    "register_tiles": (_register_tiles, 25),  # of 11 tiles
    "mma_split_k": (_mma_split_k, 50),
}


@pytest.mark.slow(but=["register_tiles"])
@pytest.mark.parametrize("rung", _RUNGS)
def test_a_sweep_of_capsules_takes_few_kernels(rung):
    kernels_of, most = _RUNGS[rung]
    kernels = {kernel for g in _swept() for kernel in kernels_of(g)}
    assert 1 < len(kernels) <= most


@pytest.mark.parametrize("rung", _RUNGS)
def test_geometries_share_kernels(rung):
    """Of other images and dilations, where tile and splits are alike."""
    kernels_of, _ = _RUNGS[rung]
    one = Geometry(32, 8, 8, 14, 14, 3, 3, 1, 4, 4, 4)
    other = Geometry(30, 8, 8, 18, 13, 3, 3, 1, 4, 4, 4, (1, 1), (0, 0), (2, 1))
    assert list(kernels_of(one)) == list(kernels_of(other))


@pytest.mark.parametrize(
    ("rows", "columns", "summed", "wanted"),
    [
        (36, 256, 30, (64, 8)),  # few blocks; an activation's groups of 8 columns fit
        (1152, 80, 30, (64, 8)),
        (10**6, 3, 30, (64, 4)),
        (36, 4, 30, (64, 4)),
        (10**6, 15, 30, (128, 16)),
        (10**6, 8, 30, (128, 8)),
        (10**6, 128, 30, (128, 128)),
        # 26 of 64 columns would be idle: in a short sum three tiles of 16 are faster, in a long one the wide tile.
        (25600, 38, 8, (128, 16)),
        (25600, 38, 200, (64, 64)),
        (12800, 96, 24, (128, 32)),
        (10**6, 91, 30, (128, 128)),
        (12000, 24, 24, (64, 16)),
        (12000, 24, 200, (32, 32)),
    ],
)
def test_a_tile_is_as_wide_as_its_columns_are_worth(rows, columns, summed, wanted):
    tile, _ = choose_tile(rows, columns, summed, _F4.itemsize)
    assert (tile.BM, tile.BN) == wanted
