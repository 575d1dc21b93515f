"""The launcher of the kernel's gradient by warps; x and dy are read as they lie, or packed first."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

import numpy as np

from numbacaps.device.compiled import Compiled, aligned, as_argument
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.upload import uploaded
from numbacaps.fused.launcher import SplitKLauncher
from numbacaps.fused.mma_sync import split_k_tile
from numbacaps.fused.mma_sync.add_splits import AddSplits
from numbacaps.fused.mma_sync.split_k import SplitKSpec, make_mma_sync_split_k
from numbacaps.fused.mma_sync.table import (
    Walk,
    make_table,
    packed_walk,
    pixel_rows,
    why_not,
)
from numbacaps.fused.mma_sync.tile import LARGEST_BM
from numbacaps.fused.pixel_packing import (
    Layout,
    PixelPacking,
    round_up,
    seen_as,
    why_not_packed,
)

_SUMS = np.dtype(np.float32)


@dataclass(frozen=True)
class SplitKHow:
    """How a kernel's gradient is computed.

    Attributes
    ----------
    packs : bool
        x and dy are packed first.
    tile : numbacaps.fused.mma_sync.split_k_tile.SplitKTile
    splits, per_split : int
        Parts of the sum, and pixels of each.
    why : str
    predicted : float
        Cycles by the model.
    """

    packs: bool
    tile: object
    splits: int
    per_split: int
    why: str
    predicted: float


def choose_split_k(product, images, G, size, dtype, terms, tile=None, packs=None):
    """The :class:`SplitKHow` that should take the least time; or None, and why there is none.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
        Of the forward pass.
    images, G, size : int
    dtype : numpy.dtype
    terms : int
    tile : numbacaps.fused.mma_sync.split_k_tile.SplitKTile, optional
        The tile to take.
    packs : bool, optional
        Whether to pack.
    """
    best, reason, itemsize = None, None, dtype.itemsize
    each, p = CHUNK // itemsize, product.pixels
    for packing in (False, True) if packs is None else (packs,):
        walk = packed_walk(product, images, each) if packing else Walk.of(product)
        reason = why_not([walk], images, LARGEST_BM)
        if packing:
            both = product, _as_gathered(product, G)
            reason = reason or next(filter(None, (why_not_packed(p, G, dtype) for p in both)), None)
        if reason:
            continue
        M, N = product.M(images), product.N
        runs, packed = (gcd(each, product.D), gcd(each, product.n.D)), 0
        if packing:
            runs, pixels = (each, each), images * p.extent[0] * p.extent[1] * p.D1
            packed = pixels * round_up(product.channels * product.D, each)
            packed = itemsize * G * (packed + M * round_up(N, each))
        sizes = M, N, walk.K, G, terms, runs, itemsize, packed
        found = split_k_tile.choose_tile(*sizes, tile)
        if found and (best is None or found[0] < best.predicted):
            best = SplitKHow(packing, *found[1:], found[0])
    if best is None:
        return None, reason or "copies that are not shared evenly"
    return best, None


class MmaSyncSplitK(SplitKLauncher):
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
    how : SplitKHow
        What :func:`choose_split_k` says.
    looked : tuple, optional
        As of :class:`numbacaps.fused.mma_sync.add_splits.AddSplits`.
    """

    def __init__(self, product, images, G, size, dtype, terms, how, looked=None):
        self._images, self._dtype, self.terms, self.size = images, dtype, terms, size
        self.tile, self.splits, self._per_split = how.tile, how.splits, how.per_split
        self.packs, self.why, each = how.packs, how.why, CHUNK // dtype.itemsize
        itemsize = dtype.itemsize
        self._pairs = product.n.D % 2 == 0
        pixels = others = 0
        if how.packs:
            self._pixels, self._others = (
                PixelPacking(one, images, G, dtype, Layout.channels_last(one, images, G, dtype))
                for one in (product, _as_gathered(product, G))
            )
            walk = packed_walk(product, images, each)
            row = round_up(product.N, each)
            *steps, g = pixel_rows(_as_gathered(product, G), images, row)
            columns, walk_steps = np.arange(product.N), (*walk.steps[:2], g)
            self._walk = replace(walk, other=tuple(steps), in_other=columns, steps=walk_steps)
            pixels, others, runs = self._pixels.elements, self._others.elements, (each, each)
        else:
            self._walk = Walk.of(product)
            runs = gcd(each, product.D), gcd(each, product.n.D)
        down, across = ceil_div(self._walk.K, self.tile.BM), ceil_div(product.N, self.tile.BN)
        self.grid = (down, across, G * self.splits)
        self.shared = self.tile.shared_bytes(itemsize)
        sums = self.splits * size if self.splits > 1 else 0
        self._pixels_at = round_up(sums, 4)
        self._others_at = self._pixels_at + round_up(ceil_div(pixels * itemsize, 4), 4)
        room = self._others_at + round_up(ceil_div(others * itemsize, 4), 4)
        self.partial_shape = {"partial": (room,)} if room else {}
        self._first = self._pixels_at * 4 // itemsize if how.packs else 0  # of x in its array
        self._result = _SUMS if self.splits > 1 else dtype
        self._whole = self._made(*runs, self._pairs)
        split = self.splits > 1
        self._finish = AddSplits(size, dtype, self.splits, looked) if split else None

    def _made(self, a_run, c_run, paired):
        """(launch, its table as an argument, the table) where copies take this many elements."""
        which = a_run * self._dtype.itemsize, c_run * self._dtype.itemsize, paired, self.tile
        kernel = make_mma_sync_split_k(SplitKSpec(self._dtype, self._result, self.terms, *which))
        types = self._dtype, self._dtype, self._result, np.int32
        table = make_table([self._walk], self._images, a_run)
        made = Compiled(kernel, types, 5, self.shared, early=True)
        table = uploaded(table)
        return made.on(self.grid, self.tile.threads, self.shared), as_argument(table), table

    @cached_property
    def _unaligned(self):
        return self._made(1, 1, False)

    @cached_property
    def _unpaired(self):
        return self._made(CHUNK // self._dtype.itemsize, CHUNK // self._dtype.itemsize, False)

    @property
    def looks(self):
        """Whether it sums again what three terms cannot tell."""
        return self.terms == 3 and (self._finish is None or self._finish.looks)

    def reduce(self, x, dy, dw, partial, stream):
        """Launch it on arrays as arguments; ``partial`` is its workspace."""
        read, out = (x, dy), dw if self.splits == 1 else partial
        launch, table, _ = self._whole
        c_first = 0
        if self.packs:
            room, each = seen_as(partial, self._dtype), self._dtype.itemsize
            c_first = self._others_at * 4 // each
            self._pixels(x, room, self._first, stream)
            self._others(dy, room, c_first, stream)
            x = dy = room
            if self._pairs and not aligned(CHUNK, out):
                launch, table, _ = self._unpaired
        elif not aligned(CHUNK, x, dy, out):
            launch, table, _ = self._unaligned
        numbers = self.splits, self._per_split, self.size, self._first, c_first
        launch(stream, (*x, *dy, *out, *table, *numbers))
        if self._finish:
            self._finish(partial, dw, read, stream)

    def __str__(self):
        told = ", looked through" if self.looks else ""
        terms = f", {self.terms} terms{told}" if self.terms > 1 else ""
        packs = ", operands packed" if self.packs else ""
        return f"mma_sync_split_k {self.tile}{terms}{packs}{self._finish or ''} ({self.why})"


def _as_gathered(product, G):
    """What packing has to know of the array on the other side of a forward product."""
    p = product.pixels
    D = product.n.D
    pixels = replace(p, extent=(p.rows, p.columns))
    steps = (product.n.other, 1)
    return replace(product, pixels=pixels, channels=product.N // D, D=D, channel_steps=steps)
