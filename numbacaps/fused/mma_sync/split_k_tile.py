"""The tiles of :mod:`numbacaps.fused.mma_sync.split_k`; :mod:`numbacaps.fused.mma_sync.choose_split_k_tile` takes one of them."""

from dataclasses import dataclass

from numbacaps.device.target import SIMULATED
from numbacaps.fused.mma_sync.rows import pitches

_WORDS = 16  # of 4 bytes: pixels of a stage, side by side as the products take them
LARGEST_STAGE = 2 * _WORDS  # pixels: those of 2 bytes


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
