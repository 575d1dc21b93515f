"""The launchers of the warps' tensor core kernels: one launch of products for a pass, whatever its residues.

Operands are read as they lie, or packed first for the widest copies (:mod:`numbacaps.fused.mma_sync.pack`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.compiled import Compiled
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div, launch_tiles
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.launcher import aligned
from numbacaps.fused.mma_sync import pack, split_k_tile
from numbacaps.fused.mma_sync.add_splits import THREADS, make_add_splits
from numbacaps.fused.mma_sync.kernel import Spec, make_mma_sync
from numbacaps.fused.mma_sync.split_k import SplitKSpec, make_mma_sync_split_k
from numbacaps.fused.mma_sync.table import (
    ABSENT,
    Walk,
    make_table,
    packed_walk,
    pixel_rows,
    why_not,
)
from numbacaps.fused.mma_sync.tile import LARGEST_BM, Sizes, choose_tile

_SUMS = np.dtype(np.float32)


def _seen_as(array, dtype):
    """Workspace as elements of a dtype; a compiled kernel knows only where it begins."""
    return array.view(stored(dtype)) if SIMULATED else array


def _up(count, each):
    return ceil_div(count, each) * each


class PixelPacking:
    """The packing of the array that a product gathers.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    """

    def __init__(self, product, images, G, dtype):
        p, each = product.pixels, CHUNK // dtype.itemsize
        H, W = p.extent
        k = np.arange(_up(product.channels * product.D, each))
        lies = k // product.D * product.channel_steps[0] + k % product.D
        table = np.where(k < product.channels * product.D, lies, ABSENT)
        self._table = cuda.to_device(table.astype(np.int32))
        pixels, image = H * W * p.D1, product.channels * H * W * G * p.D1 * product.D
        self.elements = G * images * pixels * k.size
        self._numbers = pixels, p.D1, G, product.D, image, k.size
        self._grid = ceil_div(pixels, pack.THREADS), k.size // each, images * G
        types = dtype, dtype, np.int32
        self._kernel = Compiled(pack.make_pack_pixels(dtype), types, 6, early=True)

    def __call__(self, source, packed, stream):
        """Launch it."""
        arguments = (source, packed, self._table, *self._numbers)
        launch_tiles(self._kernel, self._grid, pack.THREADS, arguments, stream)


class MatrixPacking:
    """The packing of the kernel for some products: a row of columns for every k of each.

    Parameters
    ----------
    walks : sequence of numbacaps.fused.mma_sync.table.Walk
    G : int
    dtype : numpy.dtype
    """

    def __init__(self, walks, G, dtype):
        each = CHUNK // dtype.itemsize
        lies, columns = np.concatenate([walk.kernel for walk in walks]), walks[0].in_kernel
        self.row = _up(columns.size, each)
        filling = np.full(self.row - columns.size, ABSENT)
        table = np.concatenate([lies, columns, filling]).astype(np.int32)
        self._table = cuda.to_device(table)
        self.elements = G * lies.size * self.row
        self._numbers = lies.size, self.row, walks[0].steps[1]
        self._grid = max(1, ceil_div(lies.size * self.row // each, pack.THREADS)), G
        types = dtype, dtype, np.int32
        self._kernel = Compiled(pack.make_pack_matrix(dtype), types, 3, early=True)

    def walks(self, walks):
        """The same walks through the packed kernel."""
        made, first = [], 0
        for walk in walks:
            kernel = (first + np.arange(walk.K)) * self.row
            steps = walk.steps[0], self._numbers[0] * self.row, walk.steps[2]
            columns = np.arange(walk.in_kernel.size)
            made.append(replace(walk, kernel=kernel, in_kernel=columns, steps=steps))
            first += walk.K
        return made

    def __call__(self, source, packed, stream):
        """Launch it."""
        arguments = (source, packed, self._table, *self._numbers)
        launch_tiles(self._kernel, self._grid, pack.THREADS, arguments, stream)


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


def choose(products, images, G, dtype, terms, packs=None, tile=None):
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
    """
    best, reason, first, itemsize = None, None, products[0], dtype.itemsize
    rows = tuple(product.M(images) for product in products)
    for way in WAYS if packs is None else (packs,):
        if way == ("pixels", "matrix") and packs is None and first.taps == 0:
            continue
        walks = walks_of(products, images, dtype, way)
        reason = why_not(walks, images, LARGEST_BM)
        if reason:
            continue
        K, p = max(walk.K for walk in walks), first.pixels
        packed = sum(walk.K for walk in walks) * first.N * G if "matrix" in way else 0
        if "pixels" in way:
            row = _up(first.channels * first.D, CHUNK // itemsize)
            packed += images * p.extent[0] * p.extent[1] * p.D1 * row * G
        a_run, b_run, _ = runs_of(first, dtype, way)
        sizes = Sizes(
            *(rows, first.N, K, G, terms, itemsize, a_run, b_run),
            paired=p.other[3] % 2 == 0,
            packed=packed * itemsize,
        )
        found = choose_tile(sizes, multiprocessors(), tile)
        if found and (best is None or found[0] < best.predicted):
            best = How(way, found[1], found[2], found[0], f"about {int(found[0])} cycles")
    return best, reason


class MmaSyncLauncher:
    """The products of a gathering pass, all of them in one launch: forward, or the residues of dx.

    Parameters
    ----------
    products : sequence of numbacaps.fused.implicit_gemm.Product
        Of one gathered array and one kernel.
    images, G : int
    dtype : numpy.dtype
    terms : int
        1, or 3 of float32.
    size : int
        Elements of the result.
    how : How
        What :func:`choose` says.
    """

    def __init__(self, products, images, G, dtype, terms, size, how):
        self._dtype, self.terms, self.size, self._images = dtype, terms, size, images
        self.tile, self.splits, self.packs, self.why = how.tile, how.splits, how.packs, how.why
        itemsize, first = dtype.itemsize, products[0]
        a_run, b_run, self._along_k = runs_of(first, dtype, how.packs)
        self._result_pairs = first.pixels.other[3] % 2 == 0
        self._pixels = self._matrix = None
        walks = walks_of(products, images, dtype, how.packs)
        if "pixels" in how.packs:
            self._pixels = PixelPacking(first, images, G, dtype)
        if "matrix" in how.packs:
            self._matrix = MatrixPacking(walks, G, dtype)
            walks = self._matrix.walks(walks)
        self._walks = walks
        K = max(walk.K for walk in walks)
        self._per_split = ceil_div(ceil_div(K, self.tile.WORDS * 4 // itemsize), self.splits)
        rows = max(product.M(images) for product in products)
        down, across = ceil_div(rows, self.tile.BM), ceil_div(first.N, self.tile.BN)
        self.grid = down, across, G * len(products) * self.splits
        self.shared = self.tile.shared_bytes(self._along_k, itemsize)
        self._result = dtype if self.splits == 1 else _SUMS
        # The workspace, in elements of float32: sums, pixels, kernel.
        sums = self.splits * size if self.splits > 1 else 0
        pixels = self._pixels.elements if self._pixels else 0
        self._pixels_at = _up(sums, 4)
        self._matrix_at = self._pixels_at + _up(ceil_div(pixels * itemsize, 4), 4)
        matrix = self._matrix.elements if self._matrix else 0
        self.packed = self._matrix_at + _up(ceil_div(matrix * itemsize, 4), 4)
        self.epilogue = Epilogue()
        self._whole = self._made(a_run, b_run, self._result_pairs)
        if self.splits > 1:
            add = make_add_splits(dtype)
            self._add = Compiled(add, (_SUMS, dtype), 2, early=True)

    def _made(self, a_run, b_run, paired):
        """(kernel, its table) where copies take this many elements."""
        itemsize = self._dtype.itemsize
        which = a_run * itemsize, b_run * itemsize, self._along_k, paired, self.tile
        kernel = make_mma_sync(Spec(self._dtype, self._result, self.terms, *which))
        types = self._dtype, self._dtype, self._result, np.int32
        table = make_table(self._walks, self._images, a_run)
        return Compiled(kernel, types, 6, self.shared, early=True), cuda.to_device(table)

    @cached_property
    def _unaligned(self):
        return self._made(1, 1, False)

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Pack the kernel, if it is packed at all."""
        if self._matrix:
            self._matrix(kernel, _seen_as(packed[self._matrix_at :], self._dtype), stream)

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the products on runs of elements."""
        out = result if self.splits == 1 else packed
        a_first = b_first = 0
        if self._pixels:
            self._pixels(gathered, _seen_as(packed[self._pixels_at :], self._dtype), stream)
            gathered = _seen_as(packed, self._dtype)
            a_first = self._pixels_at * 4 // self._dtype.itemsize
        if self._matrix:
            kernel = _seen_as(packed, self._dtype)
            b_first = self._matrix_at * 4 // self._dtype.itemsize
        fits = all(map(aligned, (gathered, kernel, out)))
        made, table = self._whole if fits else self._unaligned
        numbers = len(self._walks), self.splits, self._per_split, self.size, a_first, b_first
        arguments = (gathered, kernel, out, table, *numbers)
        launch_tiles(made, self.grid, self.tile.threads, arguments, stream, self.shared)
        if self.splits > 1:
            grid = ceil_div(self.size, THREADS)
            launch_tiles(self._add, grid, THREADS, (packed, result, self.splits, self.size), stream)

    def __str__(self):
        terms = f", {self.terms} terms" if self.terms > 1 else ""
        splits = f", {self.splits} splits" if self.splits > 1 else ""
        packs = f", {' and '.join(self.packs)} packed" if self.packs else ""
        return f"mma_sync {self.tile}{terms}{splits}{packs} ({self.why})"


class MmaSyncSplitK:
    """The product of the kernel's gradient.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
        Of the forward pass.
    images, G, size : int
        ``size`` elements of the kernel.
    dtype : numpy.dtype
    terms : int
        1, or 3 of float32.
    packs : bool, optional
        Pack x and dy first.
    tile : tile, optional
    """

    def __init__(self, product, images, G, size, dtype, terms, packs=False, tile=None):
        self._images, self._dtype, self.terms, self.size = images, dtype, terms, size
        self.packs, each = packs, CHUNK // dtype.itemsize
        itemsize = dtype.itemsize
        self._pairs = product.n.D % 2 == 0
        pixels = others = 0
        if packs:
            self._pixels = PixelPacking(product, images, G, dtype)
            self._others = PixelPacking(_as_gathered(product, G), images, G, dtype)
            walk = packed_walk(product, images, each)
            row = _up(product.N, each)
            *steps, g = pixel_rows(_as_gathered(product, G), images, row)
            columns, walk_steps = np.arange(product.N), (*walk.steps[:2], g)
            self._walk = replace(walk, other=tuple(steps), in_other=columns, steps=walk_steps)
            pixels, others, runs = self._pixels.elements, self._others.elements, (each, each)
        else:
            self._walk = Walk.of(product)
            runs = gcd(each, product.D), gcd(each, product.n.D)
        sizes = product.M(images), product.N, self._walk.K, G, terms
        chosen = split_k_tile.choose_tile(*sizes, runs, itemsize, tile)
        self.tile, self.splits, self._per_split, self.why = chosen
        down, across = ceil_div(self._walk.K, self.tile.BM), ceil_div(product.N, self.tile.BN)
        self.grid = (down, across, G * self.splits)
        self.shared = self.tile.shared_bytes(itemsize)
        sums = self.splits * size if self.splits > 1 else 0
        self._pixels_at = _up(sums, 4)
        self._others_at = self._pixels_at + _up(ceil_div(pixels * itemsize, 4), 4)
        room = self._others_at + _up(ceil_div(others * itemsize, 4), 4)
        self.partial_shape = {"partial": (room,)} if room else {}
        self._result = _SUMS if self.splits > 1 else dtype
        self._whole = self._made(*runs, self._pairs)
        if self.splits > 1:
            self._add = Compiled(make_add_splits(dtype), (_SUMS, dtype), 2, early=True)

    def _made(self, a_run, c_run, paired):
        """(kernel, its table) where copies take this many elements."""
        which = a_run * self._dtype.itemsize, c_run * self._dtype.itemsize, paired, self.tile
        kernel = make_mma_sync_split_k(SplitKSpec(self._dtype, self._result, self.terms, *which))
        types = self._dtype, self._dtype, self._result, np.int32
        table = make_table([self._walk], self._images, a_run)
        return Compiled(kernel, types, 4, self.shared, early=True), cuda.to_device(table)

    @cached_property
    def _unaligned(self):
        return self._made(1, 1, False)

    @cached_property
    def _unpaired(self):
        return self._made(CHUNK // self._dtype.itemsize, CHUNK // self._dtype.itemsize, False)

    def __call__(self, x, dy, dw, stream, partial):
        """Launch it on runs of elements; ``partial`` is its workspace."""
        out = dw if self.splits == 1 else partial
        made, table = self._whole
        c_first = 0
        if self.packs:
            room = _seen_as(partial[self._pixels_at :], self._dtype)
            self._pixels(x, room, stream)
            self._others(dy, _seen_as(partial[self._others_at :], self._dtype), stream)
            c_first = (self._others_at - self._pixels_at) * 4 // self._dtype.itemsize
            x = dy = room
            if not aligned(out) and self._pairs:
                made, table = self._unpaired
        elif not all(map(aligned, (x, dy, out))):
            made, table = self._unaligned
        arguments = (x, dy, out, table, self.splits, self._per_split, self.size, c_first)
        launch_tiles(made, self.grid, self.tile.threads, arguments, stream, self.shared)
        if self.splits > 1:
            grid = ceil_div(self.size, THREADS)
            launch_tiles(self._add, grid, THREADS, (partial, dw, self.splits, self.size), stream)

    def __str__(self):
        terms = f", {self.terms} terms" if self.terms > 1 else ""
        splits = f", {self.splits} splits" if self.splits > 1 else ""
        packs = ", operands packed" if self.packs else ""
        return f"mma_sync_split_k {self.tile}{terms}{splits}{packs} ({self.why})"


def _as_gathered(product, G):
    """What packing has to know of the array on the other side of a forward product."""
    p = product.pixels
    D = product.n.D
    pixels = replace(p, extent=(p.rows, p.columns))
    steps = (product.n.other, 1)
    return replace(product, pixels=pixels, channels=product.N // D, D=D, channel_steps=steps)
