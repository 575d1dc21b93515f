"""The tiles that the kernel's gradient can take on the tensor cores, and why one cannot be taken."""

from dataclasses import dataclass

from numbacaps.device.gpu import H100
from numbacaps.device.launch import MAX_GRID_Y, ceil_div
from numbacaps.device.target import SIMULATED

# Of the GPU that the table is for, whatever GPU it is: splits decide the order of the sum.
_MULTIPROCESSORS = 1 if SIMULATED else H100.multiprocessors
_MOST_SPLITS = 3 if SIMULATED else 2 * H100.multiprocessors
_FEWEST_STAGES = 1 if SIMULATED else 4  # of a split
_MOST_PIXELS = 1 << 30  # of a split

# For the rough count of time, in multiplications of a multiprocessor; in use since 2026-11-21. On which
# card and how they were found was not written down.
_AROUND = 8  # stages that a block's beginning and end take
_WAIT = 200_000  # the least that a stage takes
_ALONE = 1.7  # how many blocks it takes the time of, where more would have room beside it
_PARTIAL = 2  # an element of a split's sum, written and read


@dataclass(frozen=True)
class MmaTile:
    """A block computes BM taps by BN columns, BK pixels at a time; a warp WM x WN of it.

    STAGES of BK pixels are in shared memory; a multiprocessor has room for BLOCKS blocks at once.
    """

    BM: int
    BN: int
    BK: int
    WM: int
    WN: int
    STAGES: int
    BLOCKS: int

    @property
    def threads(self):
        """Threads of a block."""
        return 32 * (self.BM // self.WM) * (self.BN // self.WN)

    @property
    def pitches(self):
        """Elements from one pixel to the next in shared memory, of taps and of columns."""
        return self.BM + 8, self.BN + 8

    @property
    def shared_bytes(self):
        """Shared memory that a block asks for: the stages, in float32."""
        return 4 * self.STAGES * self.BK * sum(self.pitches)

    def share(self, side, elements):
        """How threads share the copies of a stage that is ``side`` elements wide.

        Parameters
        ----------
        side : int
            BM or BN.
        elements : int
            1, 2 or 4: what one copy takes.

        Returns
        -------
        tuple of int
            Copies of a pixel that a thread makes, and how many pixels there are from one that it
            takes part in to the next.
        """
        block = 4 * 8 // elements  # threads that copy 8 elements of four pixels
        own = max(1, side // 8 * block // self.threads)
        return own, 4 * (self.threads // (side // 8 // own * block))

    def __str__(self):
        return f"{self.BM}x{self.BN}x{self.BK}, {self.WM}x{self.WN} a warp, {self.STAGES} stages"


# From large to small.
TILES = (
    (MmaTile(32, 32, 8, 32, 32, 3, 1),)
    if SIMULATED
    else (
        MmaTile(128, 128, 16, 64, 64, 4, 2),
        MmaTile(128, 64, 16, 64, 32, 4, 3),
        MmaTile(64, 64, 16, 32, 32, 4, 4),
        MmaTile(64, 32, 16, 32, 32, 4, 6),
        MmaTile(32, 32, 16, 32, 32, 4, 10),
    )
)


def why_not(tile):
    """Why a tile cannot be taken at all; None where it can."""
    for side in (tile.BM, tile.BN):
        for elements in (1, 2, 4):
            own, apart = tile.share(side, elements)
            if not apart or side * tile.BK != own * elements * tile.threads * (tile.BK // apart):
                return f"{tile.threads} threads do not share its copies evenly"
    if tile.shared_bytes > H100.shared_bytes:
        return f"{tile.shared_bytes} bytes of shared memory, more than {H100.shared_bytes}"
    return None


def choose_tile(product, M, G):
    """The tile and the splits that should take the least time, by a rough count.

    It depends on the geometry alone, so that the order of the sum is the same on every GPU.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
        Of the forward pass.
    M, G : int
        Pixels that are summed over, and products.

    Returns
    -------
    (MmaTile, int, int, str)
        The tile, how many splits, how many pixels each, and why.
    """
    best = None
    for tile in TILES:
        if why_not(tile) or ceil_div(product.N, tile.BN) > MAX_GRID_Y:
            continue
        tiles = G * ceil_div(product.K, tile.BM) * ceil_div(product.N, tile.BN)
        for splits in _all_splits(tile, M, G):
            cost = _cost(tile, tiles, M, splits) + _PARTIAL * product.K * product.N * G * splits
            if best is None or cost < best[0]:
                best = cost, tile, splits, tiles
    _, tile, splits, tiles = best
    per_split = ceil_div(ceil_div(M, splits), tile.BK) * tile.BK
    return tile, ceil_div(M, per_split), per_split, _why(tile, tiles, product.K * product.N * G)


def _all_splits(tile, M, G):
    """The numbers of splits to choose from: each has few enough pixels for 32 bits, all of them blocks of a grid."""
    fewest = ceil_div(M, _MOST_PIXELS) or 1
    most = min(_MOST_SPLITS, M // (_FEWEST_STAGES * tile.BK), MAX_GRID_Y // G)
    return range(fewest, 1 + max(fewest, most))


def _cost(tile, tiles, M, splits):
    """Multiplications that a multiprocessor could have made in the time that the blocks take."""
    blocks = tiles * splits
    together = min(tile.BLOCKS, ceil_div(blocks, _MULTIPROCESSORS))  # on a multiprocessor
    waves = ceil_div(blocks, _MULTIPROCESSORS * together)
    stages = ceil_div(ceil_div(M, splits), tile.BK) + _AROUND
    # What is read for each multiplication is the more, the smaller the tile.
    stage = tile.BM * tile.BN * tile.BK * (1 + 32 / tile.BM + 32 / tile.BN)
    return waves * stages * max(max(together, min(tile.BLOCKS, _ALONE)) * stage, _WAIT)


def _why(tile, tiles, elements):
    filled = elements / (tiles * tile.BM * tile.BN)
    return f"{tiles} tiles, {filled:.0%} filled"
