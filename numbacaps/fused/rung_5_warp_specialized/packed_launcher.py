"""The launchers of the persistent kernel that lay the gathered array out first: for capsules that TMA cannot copy, or reads slowly.

Laid out, an array is what it would be if its capsules had 32 bytes; so the kernel is the one for such capsules. Either the
channels of each pixel lie side by side (:meth:`numbacaps.fused.pixel_packing.Layout.capsules`), or all that the pixel's
window reads (:mod:`numbacaps.fused.im2col`).
"""

import numpy as np

from numbacaps.device.compiled import aligned
from numbacaps.device.instructions import CHUNK
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.im2col_packing import Im2col, in_rows, of_matrix
from numbacaps.fused.launcher import Launcher
from numbacaps.fused.pixel_packing import (
    Layout,
    PixelPacking,
    of_capsules,
    round_up,
    seen_as,
)
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesLauncher
from numbacaps.made_once import made_once

_WORDS = np.dtype(np.float32)


class PackedLauncher(Launcher):
    """The products of a gathering pass, of pixels that are packed once for all of them.

    The workspace has the packed kernel of each product, then the pixels. :class:`Im2colLauncher` overrides what differs for
    a matrix.

    Parameters
    ----------
    launcher : class
        Of each product: :class:`WarpSpecializedLauncher`, or that of lines.
    products : sequence of numbacaps.fused.implicit_gemm.Product
        Of one gathered array and one kernel.
    images, G : int
    dtype : numpy.dtype
    how : sequence of (numbacaps.fused.rung_5_warp_specialized.tile.BulkTile, str)
        The tile of each product, and why it was chosen.
    terms : int
        1, or 3 of float32.
    looked : tuple of (pass, numbacaps.geometry.Geometry), optional
        Whose results of three terms are looked through.
    """

    packs_alone = False  # what is laid out lies beside it
    word = "packed"
    _read = staticmethod(of_capsules)  # the product as it reads what is laid out

    @staticmethod
    def _of_kernel(product):
        """The product whose kernel is packed."""
        return product

    @staticmethod
    def _packing(product, images, G, dtype):
        """The launch that lays the gathered array out."""
        layout = Layout.capsules(product, images, G, dtype)
        return PixelPacking(product, images, G, dtype, layout)

    def __init__(self, launcher, products, images, G, dtype, how, terms, looked=None):
        self._parts, self._begins, self.packed = [], [], 0
        for product, (tile, why) in zip(products, how):
            follows, read = bool(self._parts), self._read(product, G, dtype)
            which = self._of_kernel(product), images, G, dtype, tile, why, terms
            made = launcher(*which, follows=follows, read=read, looked=looked)
            self._parts.append(made)
            self._begins.append(self.packed)
            self.packed += round_up(made.packed, CHUNK // _WORDS.itemsize)
        self._dtype, self._begin = dtype, self.packed
        self._lay_out = self._packing(products[0], images, G, dtype)
        self.packed += self._lay_out.elements * dtype.itemsize // _WORDS.itemsize
        self._products, self._of_each = products, (images, G, dtype)
        self.epilogue = Epilogue()

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Launch the packing of the kernel for each product."""
        for part, begin in zip(self._parts, self._begins):
            part.pack(kernel, seen_as(packed, self._dtype, begin), stream)

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Lay the gathered array out, and launch the products on arrays as arguments."""
        if not aligned(CHUNK, result):
            for ordinary in self._by_ordinary_arithmetic:
                ordinary.multiply(gathered, kernel, packed, result, activated, stream)
            return
        laid_out = seen_as(packed, self._dtype, self._begin)
        self._lay_out(gathered, laid_out, 0, stream)
        for part, begin in zip(self._parts, self._begins):
            room = seen_as(packed, _WORDS, begin)
            arrays = laid_out, kernel, room, result, result
            part.multiply(*arrays, stream, ahead=True, unpacked=gathered)

    @made_once
    def _by_ordinary_arithmetic(self):
        """The products for a result that TMA's kernel cannot write."""
        return [RegisterTilesLauncher(product, *self._of_each) for product in self._products]

    def __str__(self):
        rung, _ = str(self._parts[0]).split(" ", 1)
        parts = (str(part).removeprefix(rung).strip() for part in self._parts)
        return f"{rung}_{self.word} " + "; ".join(parts)


class Im2colLauncher(PackedLauncher):
    """:class:`PackedLauncher` for the im2col matrix of one product; its parameters are the same."""

    word = "im2col"
    _read, _of_kernel = staticmethod(of_matrix), staticmethod(in_rows)
    _packing = Im2col
