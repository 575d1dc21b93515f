"""The tiles that the fused kernels of ordinary arithmetic can take, and why one cannot be taken."""

from dataclasses import dataclass

from numbacaps.device.gpu import H100, SHARED_WITHOUT_ASKING
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused.epilogue import Lanes

# Measured: in sums of fewer products, idle columns of a tile of 32 or 64 cost more than the others save, and 64x16 is
# faster than 32x32.
SHORT = 128
# Fewest blocks of a tile: two for each multiprocessor of an H100, whatever GPU it is.
_BLOCKS = 1 if SIMULATED else 2 * H100.multiprocessors


@dataclass(frozen=True)
class Tile:
    """A block computes BM x BN of the result, BK of the sum at a time; a thread TM x TN of it."""

    BM: int
    BN: int
    BK: int
    TM: int
    TN: int

    @property
    def threads(self):
        """Threads of a block."""
        return (self.BM // self.TM) * (self.BN // self.TN)

    @property
    def blocks(self):
        """Blocks that a multiprocessor shall have registers for at once, of sums of 4 bytes."""
        return 2 if self.TM * self.TN == 64 else 3

    @property
    def lanes(self):
        """How a warp's lanes share neighbouring columns."""
        across = self.BN // self.TN
        return Lanes(across, min(32, self.threads) // across)

    def shared_bytes(self, itemsize):
        """Shared memory of a block, the pitch of its first tile counted in."""
        return self.BK * (self.BM + 4 + self.BN) * itemsize

    def __str__(self):
        return f"{self.BM}x{self.BN}x{self.BK}, {self.TM}x{self.TN} a thread"


# From large to small: fewer, larger tiles read less, more tiles keep more of the GPU busy.
TILES = (
    (Tile(8, 8, 4, 2, 2),)
    if SIMULATED
    else (
        Tile(128, 128, 8, 8, 8),
        Tile(128, 64, 8, 8, 4),
        Tile(64, 64, 8, 4, 4),
        Tile(128, 32, 8, 4, 4),
        Tile(64, 32, 8, 4, 2),
        Tile(32, 32, 16, 2, 2),
        Tile(128, 16, 8, 4, 4),
        Tile(64, 16, 8, 4, 2),
        Tile(128, 8, 16, 4, 2),
        Tile(64, 8, 16, 4, 1),
        Tile(64, 4, 16, 4, 1),
    )
)


def why_not(tile, rows, columns, summed, itemsize):
    """Why a tile cannot be taken; None where it can. The arguments are those of :func:`choose_tile`."""
    if any(tile.threads % side for side in (tile.BM, tile.BN, tile.BK)):
        return f"{tile.threads} threads do not load whole rows and columns of its tiles"
    if tile.BM * tile.BK % tile.threads or tile.BN * tile.BK % tile.threads:
        return f"{tile.threads} threads do not share its loads evenly"
    shared = tile.shared_bytes(itemsize)
    if shared > SHARED_WITHOUT_ASKING:
        return f"{shared} bytes of shared memory, more than {SHARED_WITHOUT_ASKING}"
    if 2 * columns <= tile.BN:
        return f"{columns} columns would leave more than half of {tile.BN} idle"
    wide, narrow = (ceil_div(columns, BN) * BN for BN in (tile.BN, 16))
    if summed < SHORT and tile.BN in (32, 64) and 4 * wide > 5 * narrow:
        return f"{columns} columns would leave {wide - columns} of {wide} idle"
    if summed < SHORT and tile.BM == tile.BN == 32:
        return f"slower than 64x16 in sums of {summed} products"
    if ceil_div(rows, tile.BM) * ceil_div(columns, tile.BN) < _BLOCKS:
        return f"fewer than {_BLOCKS} blocks"
    return None


def choose_tile(rows, columns, summed, itemsize):
    """(tile, why): the first that can be taken, and what kept the one before it from being.

    Parameters
    ----------
    rows, columns : int
        Of the result; M and N of a pass that gathers.
    summed : int
        Products of a sum; K of a pass that gathers.
    itemsize : int
        Bytes of what is multiplied.
    """
    why = "the largest tile"
    for tile in TILES[:-2]:
        reason = why_not(tile, rows, columns, summed, itemsize)
        if reason is None:
            return tile, why
        why = f"{tile.BM}x{tile.BN}: {reason}"
    usual, narrow = (TILES[0], *TILES)[-2:]  # one of them takes whatever is left
    return (narrow if 2 * columns <= usual.BN else usual), why


def choose_splits(tiles, M, BK):
    """(splits, pixels of each): enough blocks for the GPU, and enough pixels for each block.

    It depends on the geometry alone, so that the order of the sum is the same on every GPU.
    """
    most = 3 if SIMULATED else max(1, M // (8 * BK))
    splits = max(1, min(most, 3 if SIMULATED else ceil_div(_BLOCKS, tiles)))
    per_split = ceil_div(ceil_div(M, splits), BK) * BK
    return ceil_div(M, per_split), per_split
