"""The tiles of :mod:`numbacaps.fused.mma_sync.kernel`, and which one a product takes."""

from dataclasses import dataclass

from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED


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
        return self.WORDS * (4 // itemsize) * self.b_pitch(itemsize)

    def b_pitch(self, itemsize):
        """Words from one k to the next, where rows are of columns."""
        return self.BN * itemsize // 4 + (8 if itemsize == 4 else 4)

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


# By terms. In three terms a thread has two sums of each element, so warps have fewer.
TILES = (
    {1: (Tile(32, 32, 32, 16, 16, 2, 1),), 3: (Tile(32, 32, 16, 32, 16, 2, 1),)}
    if SIMULATED
    else {
        1: (
            Tile(128, 128, 64, 64, 16, 4, 2),
            Tile(128, 64, 32, 32, 32, 3, 2),
            Tile(64, 64, 32, 32, 32, 3, 4),
            Tile(128, 32, 32, 32, 32, 3, 3),
            Tile(128, 16, 32, 16, 32, 3, 5),
            Tile(64, 32, 32, 16, 32, 3, 5),
            Tile(32, 32, 16, 16, 32, 3, 7),
        ),
        3: (
            Tile(128, 128, 64, 32, 16, 4, 1),
            Tile(128, 64, 64, 32, 16, 4, 2),
            Tile(64, 64, 32, 32, 32, 3, 3),
            Tile(128, 32, 32, 32, 32, 3, 3),
            Tile(128, 16, 32, 16, 32, 3, 5),
            Tile(64, 32, 32, 16, 32, 3, 5),
            Tile(32, 32, 16, 16, 32, 3, 7),
        ),
    }
)
LARGEST_BM = max(tile.BM for some in TILES.values() for tile in some)
MOST_COPIES = 16  # of a thread, for a stage of the gathered array: their places are in registers
_FEWEST_STAGES = 8  # of a split
_MOST_SPLITS = 64
_MOST_ADDS = 1500  # steps of 8 that one sum takes, in three terms: each rounds

# For the count of time, in cycles of a multiprocessor. H100, 2026-11-24, fitted to 12 geometries.
_MULTIPLIED = 430  # products of 4 bytes a cycle
_ROW = {16: 3.3, 8: 4.8, 4: 5.5, 2: 14}  # a row of 64 bytes, by the bytes of a copy
_BEGIN = 1500  # of a block, besides its stages
_WRITTEN = 28  # bytes of results
_SCATTERED = (
    2.5  # times longer take rows of a kernel as it lies, and results that are stored one by one
)
_PACKED = 10  # bytes read and written by packing
_LAUNCH = 2000  # one more


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
        if tile.copies(s.a_run, s.itemsize) > MOST_COPIES:
            continue
        stages = ceil_div(s.K, tile.WORDS * (4 // s.itemsize))
        blocks = s.G * sum(ceil_div(M, tile.BM) for M in s.M) * ceil_div(s.N, tile.BN)
        least = 1 if s.terms == 1 else max(1, ceil_div(stages * tile.WORDS // 8, _MOST_ADDS))
        at_once = tile.BLOCKS * multiprocessors
        most = max(least, min(_MOST_SPLITS, stages // _FEWEST_STAGES, ceil_div(at_once, blocks)))
        for splits in range(least, most + 1):
            takes = _cycles(tile, s, blocks, stages, splits, multiprocessors)
            if best is None or takes < best[0]:
                best = takes, tile, splits
    return best


def _cycles(tile, s, blocks, stages, splits, multiprocessors):
    """About how many cycles a product takes."""
    multiplied = tile.BM * tile.BN * 16 * s.terms / _MULTIPLIED
    kernel = _ROW[s.b_run * s.itemsize] * (1 if s.packed else _SCATTERED)
    copied = tile.BM * _ROW[s.a_run * s.itemsize] + tile.BN * kernel
    stage = max(multiplied, copied) * tile.WORDS / 16
    written = tile.BM * min(tile.BN, s.N) * s.itemsize / _WRITTEN * (1 if s.paired else _SCATTERED)
    busy = ceil_div(stages, splits) * stage + written + _BEGIN
    # A multiprocessor's blocks share it, but each waits for itself at least as long as two take.
    each = ceil_div(blocks * splits, multiprocessors)
    takes = max(each, min(tile.BLOCKS, 2)) * busy + _LAUNCH
    if splits > 1:
        sums = 4 * s.G * sum(s.M) * s.N * (splits + 1)
        takes += _LAUNCH + sums / (_WRITTEN * multiprocessors)
    if s.packed:
        takes += _LAUNCH + 2 * s.packed / (_PACKED * multiprocessors)
    return takes
