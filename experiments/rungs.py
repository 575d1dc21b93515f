"""The ladder of fused kernels, rung by rung, on one layer.

``python -m experiments.rungs`` writes ``experiments/results/<gpu>/rungs.csv``: every rung of
:mod:`numbacaps.fused` on the layer ``em``, forward and the kernel's gradient, each at the precisions that it
has (``stage`` is the rung's name), beside one ``conv2d`` through the fold.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from experiments.measuring import command, contestants, measure
from experiments.measuring.contestants import OurRun
from experiments.measuring.workloads import EM_ROUTING
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.launch import ceil_div, launch_tiles
from numbacaps.device.target import cuda
from numbacaps.device.workspace import Workspace
from numbacaps.fused import implicit_gemm
from numbacaps.fused.rung_1_direct import make_direct
from numbacaps.fused.rung_2_shared_tiles import make_shared_tiles
from numbacaps.fused.rung_3_register_tiles import tile as tiles
from numbacaps.fused.rung_3_register_tiles.launcher import (
    RegisterTilesLauncher,
    RegisterTilesSplitK,
)
from numbacaps.fused.rung_4_wgmma import tile as warpgroup_tiles
from numbacaps.fused.rung_4_wgmma.launcher import MmaSplitK, WgmmaLauncher
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as bulk_reduction_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_5_warp_specialized.launcher import (
    WarpSpecializedLauncher,
    WarpSpecializedSplitK,
)

WORKLOAD = "em"
_COMPARED = "torch_fold"
_THREADS = 128
_SQUARE = tiles.Tile(16, 16, 16, 1, 1)
_FLOAT = np.dtype(np.float32)


class _Launched:
    """A rung's kernel with its table, as :class:`numbacaps.fused.rung_3_register_tiles.launcher.RegisterTilesLauncher` has them."""

    packed = 0

    def __init__(self, kernel, grid, threads, product, images):
        self._kernel, self._grid, self._threads = kernel, grid, threads
        self._table, self._M = cuda.to_device(product.table), product.M(images)

    def __call__(self, gathered, kernel, result, stream, packed):
        operands = (gathered, kernel, result, self._table, self._M)
        launch_tiles(self._kernel, self._grid, self._threads, operands, stream)


def _direct(p, g):
    kernel = make_direct(p.pixels, p.inside, p.N, p.K, _FLOAT)
    return _Launched(kernel, (ceil_div(p.M(g.N) * p.N, _THREADS), g.G), _THREADS, p, g.N)


def _shared_tiles(p, g):
    kernel = make_shared_tiles(p.pixels, p.inside, p.N, p.K, _SQUARE, _FLOAT)
    grid = (ceil_div(p.M(g.N), _SQUARE.BM), ceil_div(p.N, _SQUARE.BN), g.G)
    return _Launched(kernel, grid, _SQUARE.threads, p, g.N)


def _register_tiles(p, g):
    return RegisterTilesLauncher(p, g.N, g.G, _FLOAT)


def _wgmma(p, g):
    return WgmmaLauncher(
        *(p, g.N, g.G, _FLOAT),
        *warpgroup_tiles.choose_tile(p, g.N, g.G, _FLOAT, multiprocessors()),
    )


def _bulk_wgmma(terms):
    def make(p, g):
        chosen = bulk_tiles.choose_tile(p, g.N, g.G, terms, multiprocessors())
        return WarpSpecializedLauncher(p, g.N, g.G, _FLOAT, *chosen, terms)

    return make


def _reduction(p, g):
    return RegisterTilesSplitK(p, g.N, g.G, g.P * g.Q * g.E2, _FLOAT)


def _mma_reduction(terms):
    return lambda p, g: MmaSplitK(p, g.N, g.G, g.P * g.Q * g.E2, _FLOAT, terms)


def _bulk_reduction(terms):
    def make(p, g):
        chosen = bulk_reduction_tiles.choose_tile(p, g.N, g.G, terms)
        return WarpSpecializedSplitK(p, g.N, g.G, g.P * g.Q * g.E2, _FLOAT, terms, *chosen)

    return make


class _RungPlan:
    """A rung in the place of a plan."""

    capturable = True

    def __init__(self, made):
        self._made, self._workspace = made, Workspace()

    @property
    def nbytes(self):
        return self._workspace.nbytes

    def launch_forward(self, x, w, out, stream):
        packed = self._made.packed
        room = self._workspace.arrays({"packed": (packed,)} if packed else {}, _FLOAT)
        flat = (array.reshape(array.size) for array in (x, w, out))
        self._made(*flat, stream, room.get("packed"))

    def launch_backward(self, x, w, dy, dx, dw, stream):
        room = self._workspace.arrays(self._made.partial_shape, _FLOAT)
        flat = (array.reshape(array.size) for array in (x, dy, dw))
        self._made(*flat, stream, room.get("partial"))


class RungRun(OurRun):
    """A rung in the place of an algorithm."""

    def plan_of(self, variant, geometry, workspace_limit=None):
        return _RungPlan(variant.make(implicit_gemm.forward(geometry), geometry))


@dataclass(frozen=True)
class Rung:
    """A rung at a precision, as a variant; ``make(product, geometry)`` is its kernel."""

    stage: str
    precision: str
    make: Callable
    algorithm: str = "fused"
    layout: str = "capsule"
    dtype: str = "float32"
    run: Callable = RungRun

    cells = contestants.Variant.cells

    def __str__(self):
        return f"{self.stage} {self.precision}"


RUNGS = {
    "forward": (
        Rung("direct", "ieee", _direct),
        Rung("shared_tiles", "ieee", _shared_tiles),
        Rung("register_tiles", "ieee", _register_tiles),
        Rung("wgmma", "tf32", _wgmma),
        Rung("warp_specialized", "tf32", _bulk_wgmma(1)),
        Rung("warp_specialized", "tf32x3", _bulk_wgmma(3)),
    ),
    "backward_kernel": (
        Rung("register_tiles_split_k", "ieee", _reduction),
        Rung("mma_split_k", "tf32", _mma_reduction(1)),
        Rung("mma_split_k", "tf32x3", _mma_reduction(3)),
        Rung("warp_specialized_split_k", "tf32", _bulk_reduction(1)),
        Rung("warp_specialized_split_k", "tf32x3", _bulk_reduction(3)),
    ),
}


def make_parser():
    """The command line's parser."""
    return command.parser("rungs", __doc__, (_COMPARED,), tuple(RUNGS))


def groups(parser, options):
    """The groups of rows that the options ask for."""
    compared = contestants.choose(options.algorithms, ["ieee", "tf32"])
    return [
        command.Group(
            *("rungs", WORKLOAD, EM_ROUTING[WORKLOAD], wanted),
            [*rungs, *compared],
            measure.measure,
            contestants.choose((_COMPARED,), ["ieee", "tf32"]),
        )
        for wanted, rungs in RUNGS.items()
        if wanted in options.passes
    ]


def main(arguments=None):
    return command.main("rungs", make_parser(), groups, arguments)


if __name__ == "__main__":
    sys.exit(main())
