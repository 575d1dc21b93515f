"""The tiles that warpgroup products can take, how they lie in shared memory, and why one cannot be taken."""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from numbacaps.device.gpu import H100
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused.epilogue import Lanes

BM = 64  # rows of a warpgroup's product
WARPGROUP = 128  # threads
LANES = Lanes(4, 8, width=2, rows=2)  # of 16 rows by 8 columns of a warp's sums
SHARED_LIMIT = H100.shared_bytes


@dataclass(frozen=True)
class WarpgroupTile:
    """A block computes TH x TW pixels of 64 rows by BN columns, CHUNKS * 16 bytes of k at a time.

    Its pixels are shared out evenly among WARPGROUPS; STAGES of k are in shared memory.
    """

    TH: int
    TW: int
    WARPGROUPS: int
    BN: int
    CHUNKS: int
    STAGES: int

    @property
    def threads(self):
        """Threads of a block."""
        return self.WARPGROUPS * WARPGROUP

    @property
    def pixels(self):
        """Pixels of a warpgroup."""
        return self.TH * self.TW // self.WARPGROUPS

    def shared_bytes(self, stage):
        """Shared memory of a block, and what aligning its beginning may take."""
        return self.STAGES * stage.bytes + 128

    def __str__(self):
        return (
            f"{self.TH}x{self.TW} pixels of {BM} rows by {self.BN}, {self.CHUNKS} chunks of k, "
            f"{self.STAGES} stages, {self.WARPGROUPS} warpgroups"
        )


@dataclass(frozen=True)
class Window:
    """The taps of a product as slots of a tile's patch: rows and columns are arithmetic progressions.

    Attributes
    ----------
    first : tuple of int
        Row and column of the patch's slot 0, from tap 0 of the tile's pixel 0.
    taps, start, step : tuple of int
        How many taps down and across, the slot row and column of the first, and from one to the next.
    """

    first: tuple
    taps: tuple
    start: tuple
    step: tuple

    @classmethod
    @lru_cache(maxsize=16)  # every tile that is thought of asks
    def of(cls, product):
        """The window of a :class:`numbacaps.fused.implicit_gemm.Product` with taps."""
        axes = product.tap_rows, product.tap_columns
        first = tuple(int(axis.min()) for axis in axes)
        return cls(
            first,
            tuple(len(axis) for axis in axes),
            tuple(int(axis[0]) - low for axis, low in zip(axes, first)),
            tuple(int(axis[1] - axis[0]) if len(axis) > 1 else 0 for axis in axes),
        )

    def patch(self, pixels, tile):
        """(rows, columns) of slots that a tile's windows cover."""
        return tuple(
            (size - 1) * step + abs(between) * (count - 1) + 1
            for size, step, between, count in zip(
                (tile.TH, tile.TW), (pixels.top[0], pixels.left[0]), self.step, self.taps
            )
        )


@dataclass(frozen=True)
class Stage:
    """How one stage lies in shared memory, in bytes: planes of slots of ``a``, then ``b``.

    Attributes
    ----------
    along_k : int
        From the slots of a chunk to those of the next, within a pair.
    pair : int
        From a pair of chunks to the next.
    a, bytes : int
        Of the first operand, and of both.
    pieces : int
        Chunks of the second operand.
    """

    along_k: int
    pair: int
    a: int
    bytes: int
    pieces: int

    @classmethod
    def of(cls, slots, taps, tile, beside):
        """The stage of a tile whose patch has this many slots; ``beside`` of :func:`chunks_beside`."""
        plane = slots * BM * CHUNK
        half = tile.CHUNKS // beside * plane + 64 * (beside - 1)  # on banks of their own
        a = half * beside
        pieces = taps * tile.CHUNKS * tile.BN
        both = -(-(a + pieces * CHUNK) // 128) * 128
        if beside == 2:
            return cls(half, plane, a, both, pieces)
        return cls(plane, 2 * plane, a, both, pieces)


def chunks_beside(D, itemsize):
    """Chunks that neighbouring threads copy, because they lie side by side in a channel: 1 or 2."""
    return 2 if D * itemsize % (2 * CHUNK) == 0 else 1


def run_bytes(D, itemsize):
    """Bytes that one copy can take: what a channel's D elements and a chunk have in common."""
    return gcd(CHUNK, D * itemsize)


# (TH, TW, WARPGROUPS, STAGES), from large to small. A block keeps one multiprocessor busy.
_SHAPES = (
    ((1, 1, 1, 2), (1, 2, 2, 3))
    if SIMULATED
    else (
        (2, 2, 2, 3),
        (2, 2, 2, 2),
        (1, 3, 3, 3),
        (1, 3, 3, 2),
        (1, 2, 2, 3),
        (1, 2, 2, 2),
        (1, 1, 1, 3),
        (1, 1, 1, 2),
    )
)
_MOST_COLUMNS = 128  # of a tile: 64 sums a thread for each of its pixels


def tiles(product, dtype):
    """The tiles to choose from for a :class:`numbacaps.fused.implicit_gemm.Product`.

    All have the columns and the k that the product asks for: whole channels, or whole parts of one.
    """
    columns = min(_MOST_COLUMNS, ceil_div(product.N, 8) * 8)
    elements = CHUNK // dtype.itemsize
    least = 2 * elements  # of k: two chunks make a pair
    depth = least if product.D % least == 0 else least * product.D // gcd(least, product.D)
    return [
        WarpgroupTile(TH, TW, warpgroups, columns, depth // elements, stages)
        for TH, TW, warpgroups, stages in _SHAPES
    ]


def why_not(tile, product, dtype):
    """Why a tile cannot be taken for a product; None where it can."""
    if product.taps == 0:
        return "no window reaches here"
    if run_bytes(product.D, dtype.itemsize) < 4:
        return f"{product.D} elements of {dtype} are no whole number of 4-byte copies"
    if product.pixels.D1 > BM:
        return f"D1 is {product.pixels.D1}, more than {BM} rows"
    if product.pixels.gathered[0] >= 2**31:
        return f"an image of {product.pixels.gathered[0]} elements; offsets in it have 32 bits"
    window = Window.of(product)
    rows, columns = window.patch(product.pixels, tile)
    beside = chunks_beside(product.D, dtype.itemsize)
    shared = tile.shared_bytes(Stage.of(rows * columns, product.taps, tile, beside))
    if shared > SHARED_LIMIT:
        return f"{shared} bytes of shared memory, more than {SHARED_LIMIT}"
    groups = tile.threads // (BM * beside)
    copies = ceil_div(tile.CHUNKS // beside * rows * columns, groups)
    if copies * CHUNK // run_bytes(product.D, dtype.itemsize) > _MOST_OFFSETS:
        return f"{copies} copies a thread, whose places would not stay in registers"
    return None


_MOST_OFFSETS = 48  # a thread remembers


def choose_tile(product, images, G, dtype, multiprocessors):
    """(tile, why): the tile that takes the fewest pixels one after another; or None, and why none can be taken.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    multiprocessors : int
    """
    best, reason = None, None
    for tile in tiles(product, dtype):
        why = why_not(tile, product, dtype)
        if why:
            reason = why
            continue
        blocks = G * blocks_of(tile, product, images) * ceil_div(product.N, tile.BN)
        takes = ceil_div(blocks, multiprocessors) * tile.TH * tile.TW
        if best is None or takes < best[0]:
            best = takes, tile, f"{blocks} blocks, the fewest pixels one after another"
    return best[1:] if best else (None, reason)


def blocks_of(tile, product, images):
    """Patches of all images."""
    p = product.pixels
    return ceil_div(images, BM // p.D1) * ceil_div(p.rows, tile.TH) * ceil_div(p.columns, tile.TW)
