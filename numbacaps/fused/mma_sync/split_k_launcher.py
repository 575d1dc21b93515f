"""The launcher of the kernel's gradient by warps; x and dy are each read as they lie, or packed first."""

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from numbacaps.device.compiled import Compiled, aligned, as_argument
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.upload import uploaded
from numbacaps.fused.launcher import SplitKLauncher
from numbacaps.fused.mma_sync.add_splits import AddSplits
from numbacaps.fused.mma_sync.choose_split_k_tile import choose_tile
from numbacaps.fused.mma_sync.split_k import SplitKSpec, make_mma_sync_split_k
from numbacaps.fused.mma_sync.split_k_tile import LARGEST_STAGE, copied_at_once
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
from numbacaps.made_once import made_once

PACKINGS = (), ("x",), ("dy",), ("x", "dy")  # what can be packed first
_SUMS = np.dtype(np.float32)


@dataclass(frozen=True)
class SplitKHow:
    """How a kernel's gradient is computed.

    Attributes
    ----------
    packs : tuple of str
        Which of "x" and "dy" are packed first.
    tile : numbacaps.fused.mma_sync.split_k_tile.SplitKTile
    splits, per_split : int
        Parts of the sum, and pixels of each.
    why : str
    predicted : float
        Cycles by the model.
    """

    packs: tuple
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
    packs : tuple of str, optional
        What to pack, one of :data:`PACKINGS`.
    """
    best, reason, itemsize = None, None, dtype.itemsize
    each, M, N = CHUNK // itemsize, product.M(images), product.N
    gathered = {"x": product, "dy": _as_gathered(product, G)}
    for packing in PACKINGS if packs is None else (packs,):
        walk = _walk_of(product, images, G, each, packing)
        reason = why_not([walk], images, LARGEST_BM)
        for name in packing:
            reason = reason or why_not_packed(gathered[name], G, dtype)
        if reason:
            continue
        most = most_pixels(walk, images)
        if most < 1:
            reason = (
                f"images of {_image_of(walk)} elements; offsets in those of a split have 32 bits"
            )
            continue
        packed = [_rows_of(gathered[name], images, each) * G * itemsize for name in packing]
        sizes = M, N, walk.K, G, terms, _runs_of(product, each, packing), itemsize, packed
        found = choose_tile(*sizes, tile, most=most)
        if found and (best is None or found[0] < best.predicted):
            best = SplitKHow(packing, *found[1:], found[0])
    if best is None:
        return None, reason or "copies that are not shared evenly, or too many blocks"
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
        self._walk = _walk_of(product, images, G, each, how.packs)
        gathered = {"x": product, "dy": _as_gathered(product, G)}
        packings = {name: _packing_of(gathered[name], images, G, dtype) for name in how.packs}
        down, across = ceil_div(self._walk.K, self.tile.BM), ceil_div(product.N, self.tile.BN)
        self.grid = (down, across, G * self.splits)
        self.shared = self.tile.shared_bytes(itemsize)
        room = round_up(self.splits * size if self.splits > 1 else 0, 4)
        self._packings = {}  # name to (packing, where it begins in the workspace, in elements)
        for name, packing in packings.items():
            self._packings[name] = packing, room * 4 // itemsize
            room += round_up(ceil_div(packing.elements * itemsize, 4), 4)
        self.partial_shape = {"partial": (room,)} if room else {}
        self._result = _SUMS if self.splits > 1 else dtype
        runs = _runs_of(product, each, how.packs)
        self._runs = copied_at_once(self.tile, runs, itemsize)
        self._whole = self._made(*self._runs, self._pairs)
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

    @made_once
    def _unaligned(self):
        """The same where what is not packed does not begin at a multiple of 16 bytes."""
        runs = (run if name in self.packs else 1 for name, run in zip(("x", "dy"), self._runs))
        return self._made(*runs, False)

    @property
    def looks(self):
        """Whether it sums again what three terms cannot tell."""
        return self.terms == 3 and (self._finish is None or self._finish.looks)

    def reduce(self, x, dy, dw, partial, stream):
        """Launch it on arrays as arguments; ``partial`` is its workspace."""
        read, out = {"x": x, "dy": dy}, dw if self.splits == 1 else partial
        begins = dict.fromkeys(read, 0)
        launch, table, _ = self._whole
        as_they_lie = dict(read)
        for name, (packing, first) in self._packings.items():
            room = seen_as(partial, self._dtype)
            packing(as_they_lie.pop(name), room, first, stream)
            read[name], begins[name] = room, first
        if not aligned(CHUNK, *as_they_lie.values(), out):
            launch, table, _ = self._unaligned
        numbers = self.splits, self._per_split, self.size, *begins.values()
        launch(stream, (*read["x"], *read["dy"], *out, *table, *numbers))
        if self._finish:
            self._finish(partial, dw, (x, dy), stream)

    def __str__(self):
        told = ", looked through" if self.looks else ""
        terms = f", {self.terms} terms{told}" if self.terms > 1 else ""
        packs = f", {' and '.join(self.packs)} packed" if self.packs else ""
        return f"mma_sync_split_k {self.tile}{terms}{packs}{self._finish or ''} ({self.why})"


def _runs_of(product, each, packs):
    """Elements that one copy takes of x and of dy; of packed rows ``each``, which fill 16 bytes."""
    lengths = {"x": product.D, "dy": product.n.D}
    return tuple(each if name in packs else gcd(each, D) for name, D in lengths.items())


def _walk_of(product, images, G, each, packs):
    """The walk through x and dy, of which some are packed."""
    walk = packed_walk(product, images, each) if "x" in packs else Walk.of(product)
    if "dy" not in packs:
        return walk
    *steps, g = pixel_rows(_as_gathered(product, G), images, round_up(product.N, each))
    columns = np.arange(product.N)
    return replace(walk, other=tuple(steps), in_other=columns, steps=(*walk.steps[:2], g))


def _image_of(walk):
    """Elements of an image of x or of dy, the larger."""
    return max(walk.gathered[0], walk.other[0])


def most_pixels(walk, images):
    """Pixels that a split may have: those of its images lie fewer than 2^31 elements from where the first image begins."""
    fitting = (2**31 - 1) // max(1, _image_of(walk))
    p = walk.product.pixels
    pixels = p.rows * p.columns * p.D1
    # A split that begins within an image reaches one image more, and others by rounding up to whole stages.
    more = 1 + ceil_div(LARGEST_STAGE, max(1, pixels))
    return images * pixels if fitting >= images else (fitting - more) * pixels


def _rows_of(gathered, images, each):
    """Elements of an array, for each g, whose pixels are packed into rows that are filled up."""
    p, row = gathered.pixels, round_up(gathered.channels * gathered.D, each)
    return images * p.extent[0] * p.extent[1] * p.D1 * row


def _packing_of(gathered, images, G, dtype):
    return PixelPacking(
        gathered, images, G, dtype, Layout.channels_last(gathered, images, G, dtype)
    )


def _as_gathered(product, G):
    """What packing has to know of the array on the other side of a forward product."""
    p = product.pixels
    D = product.n.D
    pixels = replace(p, extent=(p.rows, p.columns))
    steps = (product.n.other, 1)
    return replace(product, pixels=pixels, channels=product.N // D, D=D, channel_steps=steps)
