"""The launcher of the warps' tensor core kernel: one launch of products for a pass, whatever its residues.

Operands are read as they lie, or packed first for the widest copies (:mod:`numbacaps.fused.pack_pixels`, :mod:`numbacaps.fused.mma_sync.pack`).
"""

from dataclasses import dataclass
from math import gcd

import numpy as np

from numbacaps.device.compiled import Compiled, aligned, as_argument
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.upload import uploaded
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.launcher import Launcher
from numbacaps.fused.mma_sync.add_splits import AddSplits
from numbacaps.fused.mma_sync.choose_tile import Sizes, choose_tile
from numbacaps.fused.mma_sync.kernel import Spec, make_mma_sync
from numbacaps.fused.mma_sync.packing import MatrixPacking
from numbacaps.fused.mma_sync.table import Walk, make_table, packed_walk, why_not
from numbacaps.fused.mma_sync.tile import LARGEST_BM, TILES
from numbacaps.fused.pixel_packing import (
    Layout,
    PixelPacking,
    round_up,
    seen_as,
    why_not_packed,
)
from numbacaps.made_once import made_once

_SUMS = np.dtype(np.float32)


@dataclass(frozen=True)
class How:
    """How the products of a pass are computed.

    Attributes
    ----------
    packs : tuple of str
        What is packed first: ``"pixels"`` of the gathered array, ``"matrix"``, the kernel.
    tile : numbacaps.fused.mma_sync.tile.Tile
    splits : int
    predicted : float
        Cycles.
    why : str
    """

    packs: tuple
    tile: object
    splits: int
    predicted: float
    why: str


WAYS = ((), ("matrix",), ("pixels", "matrix"))  # of packing


def walks_of(products, images, dtype, packs):
    """The walks of products whose pixels are packed, or are not."""
    if "pixels" in packs:
        return [packed_walk(product, images, CHUNK // dtype.itemsize) for product in products]
    return [Walk.of(product) for product in products]


def runs_of(product, dtype, packs):
    """(elements of the gathered array, of the kernel) that one copy takes, and whether the kernel's lie along k."""
    each = CHUNK // dtype.itemsize
    a_run = each if "pixels" in packs else gcd(each, product.D)
    if "matrix" in packs:
        return a_run, each, False
    along_k = product.n.kernel[1] != 1
    return a_run, gcd(a_run, product.D) if along_k else gcd(each, product.n.D), along_k


def choose(products, images, G, dtype, terms, packs=None, tile=None, whole=True):
    """The :class:`How` that should take the least time; or None, and why there is none.

    Parameters
    ----------
    products : sequence of numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    terms : int
    packs : tuple of str, optional
        The way of packing to take.
    tile : numbacaps.fused.mma_sync.tile.Tile, optional
        The tile to take.
    whole : bool
        The products write all of the result.
    """
    best, reason, first, itemsize = None, None, products[0], dtype.itemsize
    rows = tuple(product.M(images) for product in products)
    for way in WAYS if packs is None else (packs,):
        walks = walks_of(products, images, dtype, way)
        reason = why_not(walks, images, LARGEST_BM)
        if "pixels" in way:
            reason = reason or why_not_packed(first, G, dtype)
        if reason:
            continue
        K, p = max(walk.K for walk in walks), first.pixels
        packed = sum(walk.K for walk in walks) * first.N * G if "matrix" in way else 0
        if "pixels" in way:
            row = round_up(first.channels * first.D, CHUNK // itemsize)
            packed += images * p.extent[0] * p.extent[1] * p.D1 * row * G
        a_run, b_run, _ = runs_of(first, dtype, way)
        sizes = Sizes(
            *(rows, first.N, K, G, terms, itemsize, a_run, b_run),
            paired=p.other[3] % 2 == 0,
            packed=packed * itemsize,
            whole=whole,
        )
        found = choose_tile(sizes, multiprocessors(), tile)
        if found and (best is None or found[0] < best.predicted):
            best = How(way, found[1], found[2], found[0], f"about {int(found[0])} cycles")
    return best, reason


class MmaSyncLauncher(Launcher):
    """The products of a gathering pass, all that have taps in one launch: forward, or the residues of dx.

    Parameters
    ----------
    products : sequence of numbacaps.fused.implicit_gemm.Product
        Of one gathered array and one kernel.
    images, G : int
    dtype : numpy.dtype
    terms : int
        1, or 3 of float32.
    size : int
        Elements of the result, or of a split's sums.
    how : How
        What :func:`choose` says.
    finish : numbacaps.fused.col2im.Col2im, optional
        What makes the result of sums, which lie in the workspace in float32.
    looked : tuple, optional
        As of :class:`numbacaps.fused.mma_sync.add_splits.AddSplits`.
    """

    def __init__(self, products, images, G, dtype, terms, size, how, finish=None, looked=None):
        self._dtype, self.terms, self.size, self._images = dtype, terms, size, images
        self.tile, self.splits, self.packs, self.why = how.tile, how.splits, how.packs, how.why
        itemsize, first = dtype.itemsize, products[0]
        a_run, b_run, self._along_k = runs_of(first, dtype, how.packs)
        self._result_pairs = first.pixels.other[3] % 2 == 0
        self._pixels = self._matrix = None
        walks = walks_of(products, images, dtype, how.packs)
        if "pixels" in how.packs:
            layout = Layout.channels_last(first, images, G, dtype)
            self._pixels = PixelPacking(first, images, G, dtype, layout)
        if "matrix" in how.packs:
            self._matrix = MatrixPacking(walks, G, dtype)
            walks = self._matrix.walks(walks)
        self._walks = walks
        self._K, self._N, self._G = max(walk.K for walk in walks), first.N, G
        if finish is None and self.splits > 1:
            finish = AddSplits(size, dtype, self.splits, looked)
        self._finish, self._result = finish, _SUMS if finish else dtype
        # The workspace, in elements of float32: sums, pixels, kernel.
        sums = self.splits * size if finish else 0
        pixels = self._pixels.elements if self._pixels else 0
        self._pixels_at = round_up(sums, 4)
        self._matrix_at = self._pixels_at + round_up(ceil_div(pixels * itemsize, 4), 4)
        matrix = self._matrix.elements if self._matrix else 0
        self.packed = self._matrix_at + round_up(ceil_div(matrix * itemsize, 4), 4)
        self.packs_alone = not (sums or pixels)
        self.epilogue, self._behind = Epilogue(), ""
        self._whole = self._made(a_run, b_run, self._result_pairs, self.tile)

    def _made(self, a_run, b_run, paired, tile):
        """(launch, its table as an argument, its first numbers, the table) where copies take this many elements."""
        itemsize = self._dtype.itemsize
        which = a_run * itemsize, b_run * itemsize, self._along_k, paired, tile
        kernel = make_mma_sync(Spec(self._dtype, self._result, self.terms, *which))
        types = self._dtype, self._dtype, self._result, np.int32
        shared = tile.shared_bytes(self._along_k, itemsize)
        made = Compiled(kernel, types, 6, shared, early=True)
        per_split = ceil_div(ceil_div(self._K, tile.WORDS * 4 // itemsize), self.splits)
        table = uploaded(make_table(self._walks, self._images, a_run))
        rows = max(walk.product.M(self._images) for walk in self._walks)
        deep = self._G * self.splits * len(self._walks)
        grid = ceil_div(rows, tile.BM), ceil_div(self._N, tile.BN), deep
        launch, numbers = made.on(grid, tile.threads, shared), (len(self._walks), self.splits)
        return launch, as_argument(table), (*numbers, per_split), table

    @made_once
    def _unaligned(self):
        """For arrays that copies of one element alone can read: in the last tile whose threads have registers for them."""
        itemsize = self._dtype.itemsize
        tile = next(tile for tile in reversed(TILES[self.terms]) if tile.takes(1, 1, itemsize))
        return self._made(1, 1, False, tile)

    @property
    def looks(self):
        """Whether it sums again what three terms cannot tell."""
        return self.terms == 3 and (self._finish is None or self._finish.looks)

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Pack the kernel, if it is packed at all."""
        if self._matrix:
            first = self._matrix_at * 4 // self._dtype.itemsize
            self._matrix(kernel, seen_as(packed, self._dtype), first, stream)

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the products on arrays as arguments."""
        read, out = (gathered, kernel), packed if self._finish else result
        a_first = b_first = 0
        if self._pixels:
            a_first = self._pixels_at * 4 // self._dtype.itemsize
            room = seen_as(packed, self._dtype)
            self._pixels(gathered, room, a_first, stream)
            gathered = room
        if self._matrix:
            b_first = self._matrix_at * 4 // self._dtype.itemsize
            kernel = seen_as(packed, self._dtype)
        fits = aligned(CHUNK, gathered, kernel, out)
        launch, table, numbers, _ = self._whole if fits else self._unaligned
        launch(stream, (*gathered, *kernel, *out, *table, *numbers, self.size, a_first, b_first))
        if self._finish:
            self._finish(packed, result, read, stream)

    def __str__(self):
        told = ", looked through" if self.looks else ""
        terms = f", {self.terms} terms{told}" if self.terms > 1 else ""
        packs = f", {' and '.join(self.packs)} packed" if self.packs else ""
        return f"mma_sync {self.tile}{terms}{packs}{self._finish or ''} ({self.why})"
