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
            Tile(256, 128, 64, 64, 16, 4, 1),
            Tile(128, 128, 64, 64, 16, 4, 2),
            Tile(128, 128, 64, 32, 16, 4, 1),
            Tile(128, 128, 64, 64, 32, 3, 2),
            Tile(128, 128, 64, 32, 32, 3, 2),
            Tile(128, 64, 64, 32, 32, 3, 3),
            Tile(128, 64, 32, 32, 32, 3, 3),
            Tile(64, 64, 32, 32, 32, 3, 4),
            Tile(128, 32, 32, 32, 32, 3, 4),
            Tile(128, 16, 32, 16, 32, 3, 5),
            Tile(64, 32, 32, 16, 32, 3, 6),
            Tile(32, 32, 16, 16, 32, 3, 8),
        ),
        3: (
            Tile(256, 64, 64, 32, 16, 4, 1),
            Tile(128, 128, 64, 32, 16, 4, 1),
            Tile(128, 64, 64, 32, 16, 4, 2),
            Tile(128, 64, 32, 32, 16, 4, 2),
            Tile(128, 64, 32, 32, 32, 3, 2),
            Tile(64, 64, 32, 32, 32, 3, 3),
            Tile(128, 32, 32, 32, 32, 3, 3),
            Tile(128, 16, 32, 16, 32, 3, 5),
            Tile(64, 32, 32, 16, 32, 3, 5),
            Tile(32, 32, 16, 16, 32, 3, 8),
        ),
    }
)
_MOST_COPIES = 16  # of a thread, for a stage of the gathered array: their places are in registers
_FEWEST_STAGES = 8  # of a split
_AROUND = 6  # stages that a block's beginning and end take
_MOST_SPLITS = 64
_MOST_ADDS = 1500  # k steps of 8 that one sum takes, in three terms: each rounds


def choose_tile(M, N, K, terms, itemsize, multiprocessors, run, forced=None):
    """(tile, splits, why): what should take the least time.

    It depends on the GPU by ``multiprocessors`` alone.

    Parameters
    ----------
    M, N, K : int
        Rows (of all g and products), columns, depth.
    terms, itemsize, multiprocessors : int
    run : int
        Elements that one copy takes of the gathered array.
    forced : Tile, optional
    """
    best = None
    for tile in [forced] if forced else TILES[terms]:
        if tile.BM * tile.WORDS * (4 // itemsize) // run > _MOST_COPIES * tile.threads:
            continue
        stages = ceil_div(K, tile.WORDS * (4 // itemsize))
        blocks = ceil_div(M, tile.BM) * ceil_div(N, tile.BN)
        at_once = tile.BLOCKS * multiprocessors
        # A stage: products, or what is brought for them.
        stage = max(tile.BM * tile.BN * terms, 32 * (tile.BM + tile.BN), 2048)
        least = 1 if terms == 1 else ceil_div(stages * tile.WORDS // 8, _MOST_ADDS)
        most = max(least, min(_MOST_SPLITS, stages // _FEWEST_STAGES, ceil_div(at_once, blocks)))
        for splits in range(least, most + 1):
            waves = ceil_div(blocks * splits, at_once)
            together = min(tile.BLOCKS, ceil_div(blocks * splits, multiprocessors))
            takes = waves * together * (ceil_div(stages, splits) + _AROUND) * stage
            if splits > 1:
                takes += 40 * 2048 + 2 * 4 * M * N * (splits + 1) // multiprocessors
            if best is None or takes < best[0]:
                best = takes, tile, splits, blocks
    _, tile, splits, blocks = best
    return tile, splits, f"{blocks} tiles"
