"""The tiles of :mod:`numbacaps.fused.mma_sync.kernel`, and which one a product takes."""

from dataclasses import dataclass

from numbacaps.device.gpu import H100
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused.mma_sync.costs import Costs
from numbacaps.fused.mma_sync.rows import pitches, tight

# Registers of a thread that has places of 16 copies: between 64, the least that a tile has, and the next, 73. Of copies of 2 bytes
# ptxas 13.5 for 9.0 spills 96 to 400 bytes with 64 registers and 0 to 260 with 80 (2026-12-01; 128 x 128 with 8 warps more in both).
_MANY_REGISTERS = 72


@dataclass(frozen=True)
class Tile:
    """A block computes BM x BN, a warp WM x WN of it; STAGES of WORDS times 4 bytes of k are in shared
    memory.

    BLOCKS blocks are on a multiprocessor at a time.
    """

    BM: int
    BN: int
    WM: int
    WN: int
    WORDS: int
    STAGES: int
    BLOCKS: int

    @property
    def threads(self):
        """Threads of a block."""
        return 32 * (self.BM // self.WM) * (self.BN // self.WN)

    @property
    def pitch(self):
        """Words from one row of k to the next: eight rows begin on banks of their own."""
        return self.WORDS + 4

    def b_words(self, along_k, itemsize):
        """Words of a stage of the kernel: BN rows of k, or rows of BN columns for every k."""
        if along_k:
            return self.BN * self.pitch
        return self.WORDS * self.b_pitches(itemsize)[1] // 4

    def b_pitches(self, itemsize):
        """Elements from a k's row of columns to the next, and from four to the next four.

        With more memory, blocks of 64 columns would not fit a multiprocessor BLOCKS at a time.
        """
        return pitches(self.BN, itemsize) if self.BN != 64 else tight(self.BN)

    @property
    def most_copies(self):
        """Copies that a thread may have for a stage of the gathered array, because their places are in registers."""
        return 16 if H100.registers // (self.threads * self.BLOCKS) >= _MANY_REGISTERS else 8

    def copies(self, elements, itemsize):
        """Copies of a thread for a stage of the gathered array, so many elements at a time."""
        return self.BM * self.WORDS * (4 // itemsize) // elements // self.threads

    def stage_bytes(self, along_k, itemsize):
        """Bytes of a stage."""
        return 4 * (self.BM * self.pitch + self.b_words(along_k, itemsize))

    def shared_bytes(self, along_k, itemsize):
        """Shared memory that a block asks for."""
        return self.STAGES * self.stage_bytes(along_k, itemsize)

    def __str__(self):
        return (
            f"{self.BM}x{self.BN}, {self.WM}x{self.WN} a warp, {self.STAGES} stages of {self.WORDS}"
        )


# By terms. In three terms a thread has two sums of each element, so warps have fewer. Most tiles of few columns have 256 threads,
# because their rows may be many short copies: of 4 bytes in 16 columns of one term, of 2 bytes in 32.
TILES = (
    {1: (Tile(32, 32, 32, 16, 16, 2, 1),), 3: (Tile(32, 32, 16, 32, 16, 2, 1),)}
    if SIMULATED
    else {
        1: (
            Tile(128, 128, 64, 64, 16, 4, 2),
            Tile(128, 128, 64, 32, 16, 4, 2),
            Tile(128, 64, 32, 32, 32, 3, 2),
            Tile(64, 64, 32, 32, 32, 3, 4),
            Tile(64, 64, 32, 16, 16, 4, 3),
            Tile(128, 32, 32, 16, 16, 4, 3),
            Tile(128, 16, 16, 16, 16, 4, 4),
            Tile(64, 32, 32, 16, 32, 3, 5),
            Tile(32, 32, 16, 16, 32, 3, 7),
        ),
        3: (
            Tile(128, 128, 64, 32, 16, 4, 2),
            Tile(128, 64, 64, 32, 16, 4, 3),
            Tile(64, 64, 32, 32, 32, 3, 4),
            Tile(128, 32, 32, 32, 32, 3, 3),
            Tile(128, 32, 32, 16, 16, 4, 3),
            Tile(128, 16, 16, 16, 16, 4, 3),
            Tile(64, 32, 32, 16, 32, 3, 5),
            Tile(32, 32, 16, 16, 32, 3, 7),
        ),
    }
)
LARGEST_BM = max(tile.BM for some in TILES.values() for tile in some)
_FEWEST_STAGES = 2  # of a split
_MOST_SPLITS = 64
_MOST_ADDS = 1500  # steps of 8 that one sum takes, in three terms: each rounds


_COSTS = {  # by terms and bytes of an element
    (3, 4): Costs((0.090, 0.112, 0.132), {16: 0.27, 8: 0.7, 4: 1.6}),
    (1, 4): Costs((0.012, 0.020, 0.027), {16: 1.0, 8: 1.5, 4: 2.4}),
    (1, 2): Costs((0.015, 0.024, 0.035), {16: 0.97, 8: 1.2, 4: 1.9, 2: 7.4}),
}
# Cycles, too: an element of the result by its bytes, stored in a pair or by itself.
_STORED = {4: (0.37, 0.47), 2: (0.27, 0.42)}
_STAGE = 100  # of a block, besides copies and products
_BEGIN = 1200  # of a block, besides its stages
_FIRST = 2500  # of a launch alone
LAUNCH = 5500  # one more, behind it
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
        if tile.copies(s.a_run, s.itemsize) > tile.most_copies:
            continue
        stages = ceil_div(s.K, tile.WORDS * (4 // s.itemsize))
        blocks = s.G * sum(ceil_div(M, tile.BM) for M in s.M) * ceil_div(s.N, tile.BN)
        least = 1 if s.terms == 1 else max(1, ceil_div(stages * tile.WORDS // 8, _MOST_ADDS))
        at_once = tile.BLOCKS * multiprocessors
        most = min(_MOST_SPLITS, stages // _FEWEST_STAGES, ceil_div(at_once, blocks))
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
