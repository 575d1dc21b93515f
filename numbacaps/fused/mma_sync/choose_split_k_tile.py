"""Which tile of :mod:`numbacaps.fused.mma_sync.split_k_tile` a kernel's gradient takes, and how its sum is cut into splits.

The kernel does not import this file, so a better model makes no result of the kernel older.
"""

import numpy as np

from numbacaps.device.gpu import H100
from numbacaps.device.launch import MAX_GRID_Y, ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused.mma_sync.add_splits import loaded_at_once
from numbacaps.fused.mma_sync.costs import Costs
from numbacaps.fused.mma_sync.split_k_tile import TILES, copied_at_once

# Of the GPU that the choice is for, whatever GPU it is: splits decide the order of the sum.
_MULTIPROCESSORS = 1 if SIMULATED else H100.multiprocessors
_MOST_SPLITS = 3 if SIMULATED else 8 * H100.multiprocessors
_FEWEST_STAGES = 1 if SIMULATED else 4  # of a split
_MOST_ADDS = 1500  # steps of 8 that one sum takes, in three terms: each rounds

# Cycles, fitted to times of drawn products with every way of packing. 4 bytes (H100, 2026-11-26): 29 products, every tile but
# that of 16 columns. The tile that is chosen takes 0.6 to 1.8 % longer than the fastest; times differ from the model by 12 to 18 %,
# root mean square; that was with other constants than those below, beside which these rows were not fitted anew. 2 bytes, and the
# constants below (H200, 2026-12-01, chosen by hand): 18 products in float16, every tile, up to 1,000 splits. The chosen tile takes 4 %
# longer than the fastest; times differ by 17 %.
_COSTS = {  # by terms and bytes of an element
    (3, 4): Costs((0.106, 0.103, 0.120), {16: 0.46, 8: 1.08, 4: 1.80}),
    (1, 4): Costs((0.038, 0.040, 0.055), {16: 0.79, 8: 1.25, 4: 1.92}),
    (1, 2): Costs((0.031, 0.025, 0.038), {16: 0.6, 8: 0.7, 4: 0.9, 2: 2.3}),
}
# Blocks more that a multiprocessor's last one takes the time of.
_ALONE = {(3, 4): 0.36, (1, 4): 0.43, (1, 2): 0}
# What a stage waits, however many blocks are on a multiprocessor at once: where all copies are asynchronous, and where some are not.
_WAIT = {(3, 4): (0, 0), (1, 4): (0, 0), (1, 2): (500, 1100)}
_STAGE = 103  # of a block, besides copies and products
_START = 3400  # of a launch, and its end
_PACKING = 4600  # a launch more
_ROUND = 2200  # of the launch that adds splits: loads that it has under way at once
# Bytes read and written a cycle.
_SUMMED = 4.5  # partial sums
_PACKED = 11


def choose_tile(M, N, K, G, terms, elements, itemsize, packed, forced=None, *, most):
    """(cycles, tile, splits, pixels a split, why): what should take the least time.

    It depends on the geometry alone, so that the order of the sum is the same on every GPU.

    Parameters
    ----------
    M, N, K, G : int
        Pixels that are summed over, columns, taps, and products.
    terms : int
        1 or 3.
    elements : tuple of int
        That one copy may take of x and of dy.
    itemsize : int
    packed : sequence of int
        Bytes that each packing writes.
    forced : SplitKTile, optional
    most : int
        Pixels that a split may have.

    Returns
    -------
    tuple, or None
        None where threads would not share the copies evenly, or there would be more blocks than a grid has.
    """
    best, kind = None, (terms, itemsize)
    costs, alone = _COSTS[kind], _ALONE[kind]
    takes_packing = len(packed) * _PACKING + 2 * sum(packed) / (_PACKED * _MULTIPROCESSORS)
    for tile in [forced] if forced else TILES[terms]:
        copied = copied_at_once(tile, elements, itemsize)
        if copied is None:
            continue
        a_bytes, c_bytes = (each * itemsize for each in copied)
        BK = tile.pixels(itemsize)
        stage = costs.products_of(tile) + _STAGE
        stage += tile.BM * costs.copied[a_bytes] + tile.BN * costs.copied[c_bytes]
        wait = _WAIT[kind][min(a_bytes, c_bytes) < 4]
        tiles = G * ceil_div(K, tile.BM) * ceil_div(N, tile.BN)
        least = max(ceil_div(M, most), 1 if terms == 1 else ceil_div(M, 8 * _MOST_ADDS))
        if least * G > MAX_GRID_Y:
            continue
        useful = min(_MOST_SPLITS, MAX_GRID_Y // G, M // (_FEWEST_STAGES * BK))
        splits = np.arange(least, max(least, useful) + 1)
        each = ceil_div(tiles * splits, _MULTIPROCESSORS)
        steps = ceil_div(ceil_div(M, splits), BK)
        cycles = steps * ((each + alone) * stage + ceil_div(each, tile.BLOCKS) * wait)
        rounds = ceil_div(splits, loaded_at_once(splits))
        sums = 4 * K * N * G * (splits + 1) / (_SUMMED * _MULTIPROCESSORS)
        cycles = _START + takes_packing + cycles + (splits > 1) * (_ROUND * rounds + sums)
        i = int(np.argmin(cycles))
        if best is None or cycles[i] < best[0]:
            best = float(cycles[i]), tile, int(splits[i]), tiles
    if best is None:
        return None
    cycles, tile, splits, tiles = best
    BK = tile.pixels(itemsize)
    per_split = ceil_div(ceil_div(M, splits), BK) * BK
    filled = K * N * G / (tiles * tile.BM * tile.BN)
    why = f"{tiles} tiles, {filled:.0%} filled, about {int(cycles)} cycles"
    return cycles, tile, ceil_div(M, per_split), per_split, why
