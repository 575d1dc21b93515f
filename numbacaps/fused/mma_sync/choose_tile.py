"""Which tile of :mod:`numbacaps.fused.mma_sync.tile` a product takes, by a model of cycles.

The kernel does not import this file, so a better model makes no result of the kernel older.
"""

from dataclasses import dataclass

from numbacaps.device.launch import MAX_GRID_Y, ceil_div
from numbacaps.fused.mma_sync.costs import Costs
from numbacaps.fused.mma_sync.tile import TILES

_FEWEST_STAGES = 2  # of a split
_MOST_SPLITS = 64
_MOST_ADDS = 1500  # steps of 8 that one sum takes, in three terms: each rounds


# Cycles. The rows of float32 are of the fit that Costs names. The row of 2 bytes, and the constants behind ``_STORED``, were chosen by hand from
# times of 18 drawn products in float16 (H200, 2026-12-01), 16 of them with capsules of odd sizes, with every tile and way of packing. The tile
# that they choose takes 3.6 % longer than the fastest; times differ from the model by 19 %, root mean square. The rows of float32 were not
# fitted anew beside these constants.
_COSTS = {  # by terms and bytes of an element
    (3, 4): Costs((0.090, 0.112, 0.132), {16: 0.27, 8: 0.7, 4: 1.6}),
    (1, 4): Costs((0.012, 0.020, 0.027), {16: 1.0, 8: 1.5, 4: 2.4}),
    (1, 2): Costs((0.020, 0.024, 0.030), {16: 0.97, 8: 1.2, 4: 1.9, 2: 4.3}),
}
# Cycles, too: an element of the result by its bytes, stored in a pair or by itself. Chosen by eye from times of 10 drawn products, of which
# 8 have large results, forward, with every tile (H200, 2026-12-01).
_STORED = {4: (0.37, 0.40), 2: (0.22, 0.35)}
_STAGE = 100  # of a block, besides copies and products
_BEGIN = 700  # of a block, besides its stages
_FIRST = 1500  # of a launch alone
LAUNCH = 4500  # one more, behind it
# Bytes read and written a cycle.
_SUMMED = 20  # sums of splits
_PACKED = 9


@dataclass(frozen=True)
class Sizes:
    """What the choice of a tile depends on.

    Attributes
    ----------
    M : tuple of int
        Rows of each product of a launch.
    N, K, G : int
        Columns, depth, and how many of them there are.
    terms, itemsize : int
    a_run, b_run : int
        Elements that one copy takes of the gathered array and of the kernel.
    paired : bool
        Results are stored in pairs.
    packed : int
        Bytes that packing writes.
    whole : bool
        The products write all of the result; only then can splits be added all over it.
    """

    M: tuple
    N: int
    K: int
    G: int
    terms: int
    itemsize: int
    a_run: int
    b_run: int
    paired: bool
    packed: int
    whole: bool


def choose_tile(sizes, multiprocessors, forced=None):
    """(cycles, tile, splits): what should take the least time.

    Parameters
    ----------
    sizes : Sizes
    multiprocessors : int
    forced : Tile, optional
        The one to take.
    """
    s, best = sizes, None
    for tile in [forced] if forced else TILES[s.terms]:
        if not tile.takes(s.a_run, s.b_run, s.itemsize):
            continue
        stages = ceil_div(s.K, tile.WORDS * (4 // s.itemsize))
        blocks = s.G * sum(ceil_div(M, tile.BM) for M in s.M) * ceil_div(s.N, tile.BN)
        least = 1 if s.terms == 1 else max(1, ceil_div(stages * tile.WORDS // 8, _MOST_ADDS))
        at_once = tile.BLOCKS * multiprocessors
        most = min(_MOST_SPLITS, stages // _FEWEST_STAGES, ceil_div(at_once, blocks))
        most = min(most, MAX_GRID_Y // (s.G * len(s.M)))
        most = max(least, most) if s.whole else least
        for splits in range(least, most + 1):
            takes = _cycles(tile, s, blocks, stages, splits, multiprocessors)
            if best is None or takes < best[0]:
                best = takes, tile, splits
    return best


def _cycles(tile, s, blocks, stages, splits, multiprocessors):
    """About how many cycles a product takes."""
    costs, (paired, single) = _COSTS[s.terms, s.itemsize], _STORED[s.itemsize]
    a_row, b_row = (costs.copied[run * s.itemsize] for run in (s.a_run, s.b_run))
    copied = tile.BM * a_row + tile.BN * b_row
    stage = (costs.products_of(tile) + copied) * tile.WORDS / 16 + _STAGE
    stored = tile.BM * min(tile.BN, s.N) * (paired if s.paired else single)
    busy = ceil_div(stages, splits) * stage + stored + _BEGIN
    # A multiprocessor's blocks share it; the last waits for itself once more.
    takes = (ceil_div(blocks * splits, multiprocessors) + 1) * busy + _FIRST
    if splits > 1:
        sums = 4 * s.G * sum(s.M) * s.N * (splits + 1)
        takes += LAUNCH + sums / (_SUMMED * multiprocessors)
    if s.packed:
        takes += packing_cycles(s.packed, multiprocessors)
    return takes


def packing_cycles(nbytes, multiprocessors):
    """Estimated cycles of a packing launch that writes ``nbytes`` bytes."""
    return LAUNCH + 2 * nbytes / (_PACKED * multiprocessors)
