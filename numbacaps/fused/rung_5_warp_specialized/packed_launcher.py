"""The launcher of the persistent kernel for capsules that TMA cannot copy: their pixels are packed first.

Packed, an array is what it would be if its capsules had 32 bytes; so the kernel is the one for such capsules
(:meth:`numbacaps.fused.pixel_packing.Layout.capsules`).
"""

import numpy as np

from numbacaps.device.compiled import aligned
from numbacaps.device.instructions import CHUNK
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.launcher import Launcher
from numbacaps.fused.pixel_packing import (
    Layout,
    PixelPacking,
    of_capsules,
    round_up,
    seen_as,
)

_WORDS = np.dtype(np.float32)


class PackedLauncher(Launcher):
    """The products of a gathering pass, of pixels that are packed once for all of them.

    The workspace has the packed kernel of each product, then the pixels.

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

    packs_alone = False  # pixels lie beside it

    def __init__(self, launcher, products, images, G, dtype, how, terms, looked=None):
        self._parts, self._begins, self.packed = [], [], 0
        for product, (tile, why) in zip(products, how):
            follows, read = bool(self._parts), of_capsules(product, G, dtype)
            which = product, images, G, dtype, tile, why, terms
            made = launcher(*which, follows=follows, read=read, looked=looked)
            self._parts.append(made)
            self._begins.append(self.packed)
            self.packed += round_up(self._parts[-1].packed, CHUNK // _WORDS.itemsize)
        self._dtype, self._pixels_at, first = dtype, self.packed, products[0]
        layout = Layout.capsules(first, images, G, dtype)
        self._pixels = PixelPacking(first, images, G, dtype, layout)
        self.packed += self._pixels.elements * dtype.itemsize // _WORDS.itemsize
        self.epilogue = Epilogue()

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Launch the packing of the kernel for each product."""
        for part, begin in zip(self._parts, self._begins):
            part.pack(kernel, seen_as(packed, self._dtype, begin), stream)

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Pack the pixels, and launch the products on arrays as arguments."""
        if not aligned(CHUNK, result):
            for part in self._parts:
                arrays = gathered, kernel, packed, result, activated
                part.by_ordinary_arithmetic.multiply(*arrays, stream)
            return
        pixels = seen_as(packed, self._dtype, self._pixels_at)
        self._pixels(gathered, pixels, 0, stream)
        for part, begin in zip(self._parts, self._begins):
            room = seen_as(packed, _WORDS, begin)
            arrays = pixels, kernel, room, result, result
            part.multiply(*arrays, stream, ahead=True, unpacked=gathered)

    def __str__(self):
        rung, _ = str(self._parts[0]).split(" ", 1)
        parts = (str(part).removeprefix(rung).strip() for part in self._parts)
        return f"{rung}_packed " + "; ".join(parts)
