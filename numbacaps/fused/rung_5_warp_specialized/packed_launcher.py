"""The launcher of the persistent kernel for capsules that TMA cannot copy: their pixels are packed first.

Packed, an array is what it would be if its capsules had 32 bytes; so the kernel is the one for such capsules
(:meth:`numbacaps.fused.pixel_packing.Layout.capsules`).
"""

from numbacaps.device.compiled import aligned
from numbacaps.device.instructions import CHUNK
from numbacaps.fused.pixel_packing import (
    Layout,
    PixelPacking,
    of_capsules,
    round_up,
    seen_as,
)
from numbacaps.fused.rung_5_warp_specialized.launcher import WarpSpecializedLauncher


class PackedLauncher(WarpSpecializedLauncher):
    """The same of pixels that it packs itself, behind the packed kernel in the workspace.

    Parameters
    ----------
    product, images, G, dtype, tile, why, terms
        As those of :class:`WarpSpecializedLauncher`.
    """

    rung = "warp_specialized_packed"

    def __init__(self, product, images, G, dtype, tile, why, terms):
        read = of_capsules(product, G, dtype)
        super().__init__(product, images, G, dtype, tile, why, terms, read=read)
        layout = Layout.capsules(product, images, G, dtype)
        self._pixels, self._dtype = PixelPacking(product, images, G, dtype, layout), dtype
        self._pixels_at = round_up(self.packed, CHUNK // 4)
        self.packed = self._pixels_at + self._pixels.elements * dtype.itemsize // 4

    def ready_for(self, gathered, kernel, result, activated):
        """Itself, or the product by ordinary arithmetic where the result does not begin as copies want it."""
        return self if aligned(CHUNK, result) else self._unaligned

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Pack the pixels, and launch the product on arrays as arguments."""
        pixels = seen_as(packed, self._dtype, self._pixels_at)
        self._pixels(gathered, pixels, 0, stream)
        super().multiply(pixels, kernel, packed, result, activated, stream, ahead=True)
