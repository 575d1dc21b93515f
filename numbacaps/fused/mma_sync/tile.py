"""The tiles of :mod:`numbacaps.fused.mma_sync.kernel`; :mod:`numbacaps.fused.mma_sync.choose_tile` takes one of them."""

from dataclasses import dataclass

from numbacaps.device.gpu import H100, MOST_REGISTERS
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused.mma_sync.rows import pitches, tight

_MOST_COPIES = 16  # of the gathered array, of a thread for a stage
_OTHER_REGISTERS = 12  # of a thread, besides those that :meth:`Tile.takes` counts


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

    def takes(self, a_run, b_run, itemsize):
        """Whether a thread has enough registers to copy a stage.

        Registers hold its sums, two numbers for each copy of the gathered array, and elements of 2 bytes that are loaded but not yet stored.

        Parameters
        ----------
        a_run, b_run : int
            Elements that one copy takes: of the gathered array, of the kernel.
        itemsize : int
        """
        copies = self.copies(a_run, itemsize)
        of_b = ceil_div(self.BN * self.WORDS * (4 // itemsize), b_run * self.threads)
        kept = copies * (a_run * itemsize == 2) + of_b * (b_run * itemsize == 2)
        needed = self.BM * self.BN // self.threads + 2 * copies + kept + _OTHER_REGISTERS
        registers = min(MOST_REGISTERS, H100.registers // (self.threads * self.BLOCKS))
        return copies <= _MOST_COPIES and needed <= registers

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
