"""Arrays that do not begin where copies of 16 bytes can go through kernels that do without such copies.

On the simulator every array counts as aligned, so here it is told which one is not.
"""

import numpy as np
import pytest

from numbacaps import Geometry
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.gpu import multiprocessors
from numbacaps.fused import implicit_gemm, packing_launcher
from numbacaps.fused.activation import Activation
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesSplitK
from numbacaps.fused.rung_4_wgmma import launcher as wgmma
from numbacaps.fused.rung_5_warp_specialized import launcher as specialized
from numbacaps.fused.rung_5_warp_specialized import split_k_tile, tile
from numbacaps.fused.rung_6_swap_ab import launcher as swap_ab
from numbacaps.fused.rung_6_swap_ab.tile import SwappedTile

_G = Geometry(2, 2, 2, 4, 4, 3, 3, 1, 4, 8, 8)
_FORWARD, _F4 = implicit_gemm.forward(_G), dtype_of("float32")
_ODD = "the array that is not aligned"


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """Launchers are told that every array begins at a multiple of 16 bytes but for one."""

    def aligned(multiple, *arguments):
        assert multiple == 16
        return not any(_ODD in argument for argument in arguments)

    for module in (packing_launcher, wgmma, specialized, swap_ab):
        monkeypatch.setattr(module, "aligned", aligned)


def _arguments(odd, count):
    """Arrays as kernels take them; one of them is not aligned."""
    return [(_ODD if number == odd else f"array {number}",) for number in range(count)]


def _specialized(activation=None):
    found = tile.choose_tile(tile.counted(_FORWARD, _F4), _G.N, _G.G, 1, multiprocessors())
    which = _FORWARD, _G.N, _G.G, _F4, *found
    return specialized.WarpSpecializedLauncher(*which, 1, activation)


def _swapped():
    return swap_ab.SwapABLauncher(_FORWARD, _G.N, _G.G, _F4, SwappedTile(2, 1, 1, 1), "the test's")


@pytest.mark.parametrize(("make", "copied"), [(_specialized, (0, 2, 3)), (_swapped, (0, 1, 2, 3))])
def test_of_a_product(make, copied):
    """The kernel's operand, which is packed, may begin anywhere."""
    launcher = make()
    for odd in range(4):
        ready = launcher.ready_for(*_arguments(odd, 4))
        assert (ready is launcher) == (odd not in copied), odd
    assert launcher.ready_for(*_arguments(None, 4)) is launcher


def test_with_an_activation_they_are_refused():
    launcher = _specialized(Activation(0.1, 8))
    assert launcher.epilogue.activates
    with pytest.raises(ValueError, match="begin at multiples of 16 bytes"):
        launcher.ready_for(*_arguments(0, 4))


def _specialized_sum():
    found = split_k_tile.choose_tile(_FORWARD, _G.N, _G.G, 1, pair=1)
    which = _FORWARD, _G.N, _G.G, int(np.prod(_G.kernel_shape)), _F4, 1
    return specialized.WarpSpecializedSplitK(*which, *found)


def _mma_sum():
    which = _FORWARD, _G.N, _G.G, int(np.prod(_G.kernel_shape)), _F4
    made = wgmma.MmaSplitK(*which)
    made.splits.add = lambda *_: None
    return made


@pytest.mark.parametrize("odd", [None, 0, 1, 3])
@pytest.mark.parametrize("make", [_specialized_sum, _mma_sum])
def test_of_a_sum_over_images(make, odd, monkeypatch):
    reduce, launched = make(), []

    class Other:
        """The kernel that takes every array: called, or asked to sum."""

        def __call__(self, *_):
            launched.append("unaligned")

        def reduce(self, *_):
            launched.append("unaligned")

    x, dy, dw, partial = _arguments(odd, 4)
    if make is _mma_sum and reduce.splits.count == 1:
        dw, partial = partial, dw
    vars(reduce)["_unaligned"] = Other()
    vars(reduce)["_launch"] = lambda *_: launched.append("aligned")
    vars(reduce)["_add"] = lambda *_: None
    vars(reduce)["_maps"] = lambda *_: ()
    reduce.reduce(x, dy, dw, partial, 0)
    assert launched == ["aligned" if odd is None else "unaligned"]


def test_of_a_sum_over_images_whose_results_are_looked_through():
    """Ordinary arithmetic sums it, whose results can be told."""
    which = _FORWARD, _G.N, _G.G, int(np.prod(_G.kernel_shape)), _F4
    found = split_k_tile.choose_tile(_FORWARD, _G.N, _G.G, 3, pair=1)
    reduce = specialized.WarpSpecializedSplitK(*which, 3, *found, looked=("backward_kernel", _G))
    assert isinstance(reduce._unaligned, RegisterTilesSplitK) and reduce.looks
