"""The tiles of :mod:`numbacaps.fused.mma_sync.split_k`, and how its sum is cut into splits."""

from dataclasses import dataclass

from numbacaps.device.gpu import H100
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused.mma_sync.costs import Costs
from numbacaps.fused.mma_sync.rows import pitches

# Of the GPU that the choice is for, whatever GPU it is: splits decide the order of the sum.
_MULTIPROCESSORS = 1 if SIMULATED else H100.multiprocessors
_MOST_SPLITS = 3 if SIMULATED else 4 * H100.multiprocessors
_FEWEST_STAGES = 1 if SIMULATED else 4  # of a split
_WORDS = 16  # of 4 bytes: pixels of a stage, side by side as the products take them


# Cycles, fitted to times of drawn products with every way of packing. 4 bytes (H100, 2026-11-26): 29 products, every tile but
# that of 16 columns. The tile that is chosen takes 0.6 to 1.8 % longer than the fastest; times differ from the model by 12 to 18 %,
# root mean square. 2 bytes (H200, 2026-11-30): 20 products, every tile, the other constants as they are. The chosen tile takes 3 %
# longer than the fastest; times differ by 14 %.
_COSTS = {  # by terms and bytes of an element
    (3, 4): Costs((0.106, 0.103, 0.120), {16: 0.46, 8: 1.08, 4: 1.80}),
    (1, 4): Costs((0.038, 0.040, 0.055), {16: 0.79, 8: 1.25, 4: 1.92}),
    (1, 2): Costs((0.031, 0.037, 0.058), {16: 0.93, 8: 1.95, 4: 2.20, 2: 5.63}),
}
# Blocks more that a multiprocessor's last one takes the time of.
_ALONE = {(3, 4): 0.36, (1, 4): 0.43, (1, 2): 0.30}
_STAGE = 103  # of a block, besides copies and products
_START = 9000  # and end, with the launch that adds splits
_PACKING = 2500  # a launch more
_SPLIT = 71  # one more partial sum of each element
# Bytes read and written a cycle.
_SUMMED = 8.5  # partial sums
_PACKED = 8.2


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

    def stage(self, itemsize):
        """Elements of a stage: of taps, and of columns."""
        fours = self.pixels(itemsize) // 4
        return tuple(fours * four_rows for _, four_rows in self.pitches(itemsize))

    def pitches(self, itemsize):
        """Of taps, and of columns: elements from a pixel to the next, and from four to the next four."""
        return tuple(pitches(row, itemsize) for row in (self.BM, self.BN))

    def shared_bytes(self, itemsize):
        """Shared memory that a block asks for: the stages."""
        return self.STAGES * sum(self.stage(itemsize)) * itemsize

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
            SplitKTile(128, 128, 64, 32, 4, 2),
            SplitKTile(128, 64, 64, 32, 4, 3),
            SplitKTile(64, 64, 32, 32, 4, 4),
            SplitKTile(128, 16, 32, 16, 4, 4),
            SplitKTile(64, 32, 32, 16, 4, 6),
            SplitKTile(32, 32, 16, 16, 4, 8),
        ),
        3: (
            SplitKTile(128, 128, 64, 32, 4, 2),
            SplitKTile(128, 64, 64, 32, 4, 3),
            SplitKTile(64, 64, 32, 32, 4, 4),
            SplitKTile(128, 16, 32, 16, 4, 4),
            SplitKTile(64, 32, 32, 16, 4, 5),
            SplitKTile(32, 32, 16, 16, 4, 8),
        ),
    }
)
_MOST_ADDS = 1500  # steps of 8 that one sum takes, in three terms: each rounds


def copied_at_once(tile, elements, itemsize):
    """Elements of x and of dy that one copy takes, at most ``elements``; None where threads cannot share the copies evenly.

    A tile of few columns has too few wide copies of dy for its threads.
    """
    of_x, of_dy = elements
    while of_dy and not _fits(tile, (of_x, of_dy), itemsize):
        of_dy //= 2
    return (of_x, of_dy) if of_dy else None


def _fits(tile, elements, itemsize):
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


def choose_tile(M, N, K, G, terms, elements, itemsize, packed, forced=None):
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

    Returns
    -------
    tuple, or None
        None where threads would not share the copies evenly.
    """
    best, costs, alone = None, _COSTS[terms, itemsize], _ALONE[terms, itemsize]
    takes_packing = len(packed) * _PACKING + 2 * sum(packed) / (_PACKED * _MULTIPROCESSORS)
    for tile in [forced] if forced else TILES[terms]:
        copied = copied_at_once(tile, elements, itemsize)
        if copied is None:
            continue
        a_row, c_row = (costs.copied[each * itemsize] for each in copied)
        BK = tile.pixels(itemsize)
        stage = costs.products_of(tile) + tile.BM * a_row + tile.BN * c_row + _STAGE
        tiles = G * ceil_div(K, tile.BM) * ceil_div(N, tile.BN)
        least = 1 if terms == 1 else ceil_div(M, 8 * _MOST_ADDS)
        most = max(least, min(_MOST_SPLITS, M // (_FEWEST_STAGES * BK)))
        for splits in range(least, most + 1):
            each = ceil_div(tiles * splits, _MULTIPROCESSORS) + alone
            cycles = _START + each * ceil_div(ceil_div(M, splits), BK) * stage + takes_packing
            if splits > 1:
                sums = 4 * K * N * G * (splits + 1) / (_SUMMED * _MULTIPROCESSORS)
                cycles += _SPLIT * splits + sums
            if best is None or cycles < best[0]:
                best = cycles, tile, splits, tiles
    if best is None:
        return None
    cycles, tile, splits, tiles = best
    BK = tile.pixels(itemsize)
    per_split = ceil_div(ceil_div(M, splits), BK) * BK
    filled = K * N * G / (tiles * tile.BM * tile.BN)
    why = f"{tiles} tiles, {filled:.0%} filled, about {int(cycles)} cycles"
    return cycles, tile, ceil_div(M, per_split), per_split, why
