"""Lesson 5: what a tiled product reads."""

import numpy as np

from experiments.lessons.counting import elements, shared_tiles
from experiments.lessons.exercise import Case, Exercise, Mistake
from numbacaps import Geometry
from numbacaps.device.launch import ceil_div


def _cases():
    found = []
    for sizes, BM, BN in (
        ((1, 1, 2, 4, 4, 2, 2, 1, 2, 2, 2, 1), 4, 2),
        ((1, 2, 3, 5, 4, 2, 3, 1, 1, 2, 3, 2), 3, 5),
    ):
        g = Geometry(*sizes)
        x, w = np.ones(g.input_shape, np.float32), np.ones(g.kernel_shape, np.float32)
        _, launches = shared_tiles(g, x, w, BM, BN)
        said = f"elements_read(g, {BM}, {BN}) with M, N, K = {g.gemm}"
        found.append(Case((g, BM, BN), elements(launches), said))
    return found


def _read(g, times_a, times_b):
    M, N, K = g.gemm
    return times_a * M * K + times_b * N * K


def _not_rounded(g, BM, BN):
    M, N, _ = g.gemm
    return _read(g, N / BN, M / BM)


EXERCISE = Exercise(
    wants="takes a geometry, BM and BN; returns how many elements of input and kernel all blocks read",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda g, BM, BN: _read(g, g.gemm[1], g.gemm[0]),
            "this is what is read without tiles; in shared memory BN threads use an element of the input, BM of the kernel",
        ),
        Mistake(
            lambda g, BM, BN: _read(g, 1, 1),
            "a block cannot see what another has loaded: each column of blocks reads the input again",
        ),
        Mistake(
            lambda g, BM, BN: _read(g, ceil_div(g.gemm[0], BM), ceil_div(g.gemm[1], BN)),
            "the input is read once for each block of columns, the kernel once for each block of rows",
        ),
        Mistake(
            _not_rounded,
            "the last blocks reach over the edge: their number is N / BN rounded up, M / BM likewise",
        ),
        Mistake(
            lambda g, BM, BN: _read(g, g.gemm[1] // BN, g.gemm[0] // BM),
            "the last blocks reach over the edge: round up, not down",
        ),
    ),
    hint="M, N, K = g.gemm; count the blocks in each direction, and what one block reads in the whole sum",
)
