"""The tiles of :mod:`numbacaps.fused.mma_sync.split_k`, and how its sum is cut into splits."""

from dataclasses import dataclass

from numbacaps.device.gpu import H100
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED

# Of the GPU that the choice is for, whatever GPU it is: splits decide the order of the sum.
_MULTIPROCESSORS = 1 if SIMULATED else H100.multiprocessors
_MOST_SPLITS = 3 if SIMULATED else 4 * H100.multiprocessors
_FEWEST_STAGES = 1 if SIMULATED else 4  # of a split
_WORDS = 16  # of 4 bytes: pixels of a stage, side by side as the products take them

# For the rough count of time, in multiplications of a multiprocessor; as rung_4_wgmma's split_k_tile has them.
_AROUND = 8  # stages that a block's beginning and end take
_WAIT = 200_000  # the least that a stage takes
_ALONE = 1.7  # how many blocks it takes the time of, where more would have room beside it
_PARTIAL = 2  # an element of a split's sum, written and read


@dataclass(frozen=True)
class SplitKTile:
    """A block computes BM taps by BN columns, a warp WM x WN of it; STAGES of pixels are in shared memory.

    A multiprocessor has room for BLOCKS blocks at once.
    """

    BM: int
    BN: int
    WM: int
    WN: int
    STAGES: int
    BLOCKS: int

    @property
    def threads(self):
        """Threads of a block."""
        return 32 * (self.BM // self.WM) * (self.BN // self.WN)

    def pixels(self, itemsize):
        """Pixels of a stage."""
        return _WORDS * 4 // itemsize

    def pitches(self, itemsize):
        """Elements from one pixel to the next in shared memory, of taps and of columns."""
        return self.BM + 8, self.BN + 8

    def shared_bytes(self, itemsize):
        """Shared memory that a block asks for: the stages."""
        return self.STAGES * self.pixels(itemsize) * sum(self.pitches(itemsize)) * itemsize

    def share(self, side, elements, itemsize):
        """How threads share the copies of a stage that is ``side`` elements wide.

        Returns
        -------
        tuple of int
            Copies of a pixel that a thread makes, and how many pixels there are from one that it
            takes part in to the next.
        """
        abreast = 32 // itemsize
        block = 4 * abreast // elements  # threads that copy 32 bytes of four pixels
        own = max(1, side // abreast * block // self.threads)
        return own, 4 * (self.threads // (side // abreast // own * block))

    def __str__(self):
        return f"{self.BM}x{self.BN}, {self.WM}x{self.WN} a warp, {self.STAGES} stages"


TILES = (
    {1: (SplitKTile(32, 32, 32, 16, 2, 1),), 3: (SplitKTile(32, 32, 16, 32, 2, 1),)}
    if SIMULATED
    else {
        1: (
            SplitKTile(128, 128, 64, 64, 4, 2),
            SplitKTile(128, 64, 64, 32, 4, 3),
            SplitKTile(64, 64, 32, 32, 4, 4),
            SplitKTile(64, 32, 32, 16, 4, 6),
            SplitKTile(32, 32, 16, 16, 4, 8),
        ),
        3: (
            SplitKTile(128, 128, 64, 32, 4, 1),
            SplitKTile(128, 64, 64, 32, 4, 2),
            SplitKTile(64, 64, 32, 32, 4, 3),
            SplitKTile(64, 32, 32, 16, 4, 5),
            SplitKTile(32, 32, 16, 16, 4, 8),
        ),
    }
)
_MOST_ADDS = 1500  # steps of 8 that one sum takes, in three terms: each rounds


def fits(tile, elements, itemsize):
    """Whether threads share the copies evenly, ``elements`` of x and of dy at a time."""
    for side, each in zip((tile.BM, tile.BN), elements):
        own, apart = tile.share(side, each, itemsize)
        pixels = tile.pixels(itemsize)
        if (
            not apart
            or pixels % apart
            or side * pixels != own * each * tile.threads * (pixels // apart)
        ):
            return False
    return True


def choose_tile(M, N, K, G, terms, elements, itemsize, forced=None):
    """(tile, splits, pixels a split, why): what should take the least time, by a rough count.

    It depends on the geometry alone, so that the order of the sum is the same on every GPU.

    Parameters
    ----------
    M, N, K, G : int
        Pixels that are summed over, columns, taps, and products.
    terms : int
        1 or 3.
    elements : tuple of int
        That one copy takes of x and of dy.
    itemsize : int
    forced : SplitKTile, optional

    Returns
    -------
    tuple, or None
        None where threads would not share the copies evenly.
    """
    best = None
    for tile in [forced] if forced else TILES[terms]:
        if not fits(tile, elements, itemsize):
            continue
        BK = tile.pixels(itemsize)
        tiles = G * ceil_div(K, tile.BM) * ceil_div(N, tile.BN)
        least = 1 if terms == 1 else ceil_div(M, 8 * _MOST_ADDS)
        most = max(least, min(_MOST_SPLITS, M // (_FEWEST_STAGES * BK)))
        for splits in range(least, most + 1):
            cost = _cost(tile, BK, tiles, M, splits) + _PARTIAL * K * N * G * splits
            if best is None or cost < best[0]:
                best = cost, tile, splits, tiles
    if best is None:
        return None
    _, tile, splits, tiles = best
    BK = tile.pixels(itemsize)
    per_split = ceil_div(ceil_div(M, splits), BK) * BK
    filled = K * N * G / (tiles * tile.BM * tile.BN)
    return tile, ceil_div(M, per_split), per_split, f"{tiles} tiles, {filled:.0%} filled"


def _cost(tile, BK, tiles, M, splits):
    """Multiplications that a multiprocessor could have made in the time that the blocks take."""
    blocks = tiles * splits
    together = min(tile.BLOCKS, ceil_div(blocks, _MULTIPROCESSORS))  # on a multiprocessor
    waves = ceil_div(blocks, _MULTIPROCESSORS * together)
    stages = ceil_div(ceil_div(M, splits), BK) + _AROUND
    # What is read for each multiplication is the more, the smaller the tile.
    stage = tile.BM * tile.BN * 16 * (1 + 32 / tile.BM + 32 / tile.BN)
    return waves * stages * max(max(together, min(tile.BLOCKS, _ALONE)) * stage, _WAIT)
