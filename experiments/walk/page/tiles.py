"""The tiles that the fused kernels take for a run, and where a block keeps them in shared memory.

A word of shared memory is four bytes, or one element of float64. In its place a tile of the left
operand has element (m, k) at word ``m * left[0] + k * left[1]``, one of the right operand element
(k, n) at ``k * right[0] + n * right[1]``.
"""

import numpy as np

from numbacaps.device.dtypes import sum_dtype
from numbacaps.fused import implicit_gemm
from numbacaps.fused.mma_sync import launcher as mma_sync
from numbacaps.fused.rung_3_register_tiles import tile as register_tiles

_TF32_BYTES = 4


def tiles(plan):
    """What the forward pass of a run is cut into, by two rungs of the ladder.

    Parameters
    ----------
    plan : experiments.walk.records.Plan

    Returns
    -------
    list of dict
        ``name``, ``words`` (how the rung multiplies); ``BM``, ``BN``, ``BK``, ``threads``; ``TM``,
        ``TN`` of a thread or ``WM``, ``WN`` of a warp; ``stages`` of shared memory, ``words`` a stage,
        where the right operand's place ``begins``, and ``left``, ``right``, as above; whether it ``ran``.
    """
    product = implicit_gemm.forward(plan.geometry)
    found = [_register_tiles(product, plan)]
    if np.dtype(plan.options.dtype) == np.float32:
        found += _mma_sync(product, plan.geometry)
    return found


def _register_tiles(product, plan):
    """Rung 3: the tiles that the page's run of the algorithm "fused" had."""
    g, itemsize = plan.geometry, sum_dtype(np.dtype(plan.options.dtype)).itemsize
    rows, columns = product.M(g.N) * g.G, product.N
    tile, _ = register_tiles.choose_tile(rows, columns, product.K, itemsize)
    pitch = tile.BM + 4
    return {
        "name": "register tiles",
        "ran": "fused" in plan.options.algorithms,
        "multiplies": f"a thread computes {tile.TM} × {tile.TN} numbers in its registers",
        **{name: getattr(tile, name) for name in ("BM", "BN", "BK", "TM", "TN", "threads")},
        "stages": 1,
        "words": tile.BK * (pitch + tile.BN),
        "begins": tile.BK * pitch,
        "left": [1, pitch],
        "right": [tile.BN, 1],
    }


def _mma_sync(product, g):
    """The tensor cores by warps, with the kernel as it lies."""
    how, _ = mma_sync.choose([product], g.N, g.G, np.dtype(np.float32), 1, packs=())
    if how is None:
        return []
    tile, along_k = how.tile, mma_sync.runs_of(product, np.dtype(np.float32), ())[2]
    # In 4 bytes rows of columns are all equally far apart.
    right = [1, tile.pitch] if along_k else [tile.b_pitches(_TF32_BYTES)[0], 1]
    return [
        {
            "name": "tensor cores (mma_sync)",
            "ran": False,
            "multiplies": f"a warp computes {tile.WM} × {tile.WN} numbers by tensor cores",
            **{name: getattr(tile, name) for name in ("BM", "BN", "WM", "WN", "threads")},
            "BK": tile.WORDS,
            "stages": tile.STAGES,
            "words": tile.stage_bytes(along_k, _TF32_BYTES) // 4,
            "begins": tile.BM * tile.pitch,
            "left": [tile.pitch, 1],
            "right": right,
        }
    ]
