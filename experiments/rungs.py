"""The ladder of fused kernels, rung by rung, on two layers.

``python -m experiments.rungs`` writes ``experiments/results/<gpu>/rungs.csv``: every rung of
:mod:`numbacaps.fused` on the layers ``em`` and ``caps8``, each pass at the precisions that it has (``stage`` is the
rung's name), beside one ``conv2d`` through the fold. Rungs from 3 on, and ``mma_sync``, are those of a plan, asked for by name.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from experiments.measuring import command, contestants, measure
from experiments.measuring.contestants import OurRun
from experiments.measuring.workloads import EM_ROUTING
from numbacaps.device.launch import ceil_div, launch_tiles
from numbacaps.device.target import cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.rung_1_direct import make_direct
from numbacaps.fused.rung_2_shared_tiles import make_shared_tiles
from numbacaps.fused.rung_3_register_tiles.tile import Tile
from numbacaps.plan import Plan

WORKLOADS = "em", "caps8"
_COMPARED = "torch_fold"
_PRECISIONS = ["ieee", "tf32", "float16"]
_THREADS = 128
_SQUARE = Tile(16, 16, 16, 1, 1)
_FLOAT = np.dtype(np.float32)


class _Lower:
    """Rung 1 or 2 in the place of a plan: its kernel, with its table."""

    capturable, nbytes = True, 0

    def __init__(self, kernel, grid, threads, product, images):
        self._kernel, self._grid, self._threads = kernel, grid, threads
        self._table, self._M = cuda.to_device(product.table), product.M(images)

    def launch_forward(self, x, w, out, stream):
        arrays = (array.reshape(array.size) for array in (x, w, out))
        operands = (*arrays, self._table, self._M)
        launch_tiles(self._kernel, self._grid, self._threads, operands, stream)


def _direct(p, g):
    kernel = make_direct(p.pixels, p.inside, p.N, p.K, _FLOAT)
    return _Lower(kernel, (ceil_div(p.M(g.N) * p.N, _THREADS), g.G), _THREADS, p, g.N)


def _shared_tiles(p, g):
    kernel = make_shared_tiles(p.pixels, p.inside, p.N, p.K, _SQUARE, _FLOAT)
    grid = (ceil_div(p.M(g.N), _SQUARE.BM), ceil_div(p.N, _SQUARE.BN), g.G)
    return _Lower(kernel, grid, _SQUARE.threads, p, g.N)


class RungRun(OurRun):
    """A rung in the place of an algorithm."""

    def _made(self, variant, geometry, wanted, operands, workspace_limit):
        return [plan_of(variant, geometry, wanted, workspace_limit)] * len(operands)


def plan_of(rung, geometry, wanted, workspace_limit=None):
    """The plan that computes a pass by a rung, or what stands in its place."""
    if rung.make:
        return rung.make(implicit_gemm.forward(geometry), geometry)
    precision = "ieee" if rung.precision == "float16" else rung.precision
    how = geometry, np.dtype(rung.dtype), "fused", precision, workspace_limit
    return Plan(*how, rungs=((wanted, rung.stage, None),))


@dataclass(frozen=True)
class Rung:
    """A rung at a precision, as a variant; of rungs 1 and 2 ``make(product, geometry)`` is what computes it."""

    stage: str
    precision: str
    make: Callable | None = None
    algorithm: str = "fused"
    layout: str = "capsule"
    run: Callable = RungRun

    cells = contestants.Variant.cells

    @property
    def dtype(self):
        return "float16" if self.precision == "float16" else "float32"

    def __str__(self):
        return f"{self.stage} {self.precision}"


def _at(stage, *precisions):
    return [Rung(stage, precision) for precision in precisions]


_TENSOR_CORES = "tf32", "tf32x3", "float16"
RUNGS = {
    "forward": (
        Rung("direct", "ieee", _direct),
        Rung("shared_tiles", "ieee", _shared_tiles),
        *_at("register_tiles", "ieee"),
        *_at("mma_sync", *_TENSOR_CORES),
        *_at("wgmma", "tf32"),
        *_at("warp_specialized", *_TENSOR_CORES),
    ),
    "backward_input": (
        *_at("register_tiles", "ieee"),
        *_at("mma_sync", *_TENSOR_CORES),
        *_at("wgmma", "tf32"),
        *_at("warp_specialized", *_TENSOR_CORES),
    ),
    "backward_kernel": (
        *_at("register_tiles_split_k", "ieee"),
        *_at("mma_sync_split_k", *_TENSOR_CORES),
        *_at("mma_split_k", "tf32"),
        *_at("warp_specialized_split_k", *_TENSOR_CORES),
    ),
}


def make_parser():
    """The command line's parser."""
    return command.parser("rungs", __doc__, (_COMPARED,), tuple(RUNGS))


def groups(parser, options):
    """The groups of rows that the options ask for."""
    compared = contestants.choose(options.algorithms, _PRECISIONS)
    return [
        command.Group(
            *("rungs", workload, EM_ROUTING[workload], wanted),
            [*rungs, *compared],
            measure.measure,
            contestants.choose((_COMPARED,), _PRECISIONS),
        )
        for workload in WORKLOADS
        for wanted, rungs in RUNGS.items()
        if wanted in options.passes
    ]


def main(arguments=None):
    return command.main("rungs", make_parser(), groups, arguments)


if __name__ == "__main__":
    sys.exit(main())
