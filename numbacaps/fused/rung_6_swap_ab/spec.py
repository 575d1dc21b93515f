"""What a kernel of :mod:`numbacaps.fused.rung_6_swap_ab.kernel` is compiled for, as one record."""

from dataclasses import dataclass

from numbacaps.device.launch import ceil_div
from numbacaps.device.ring import Ring
from numbacaps.fused.implicit_gemm import Columns, KernelSteps, Pixels
from numbacaps.fused.rung_4_wgmma.tile import Window
from numbacaps.fused.rung_6_swap_ab import tile as tiles
from numbacaps.fused.rung_6_swap_ab.tile import BARRIERS, SWIZZLES, Slots, SwappedTile


@dataclass(frozen=True)
class SwapSpec:
    """A product, its tile, and what follows from both.

    Attributes
    ----------
    pixels : numbacaps.fused.implicit_gemm.Pixels
    window : numbacaps.fused.rung_4_wgmma.tile.Window
    slots : numbacaps.fused.rung_6_swap_ab.tile.Slots
    channels, D : int
    n : numbacaps.fused.implicit_gemm.Columns
    steps : numbacaps.fused.implicit_gemm.KernelSteps
    rows, image_bytes, ahead : int
        :func:`numbacaps.fused.rung_6_swap_ab.tile.product_rows`, and of these names.
    tile : numbacaps.fused.rung_6_swap_ab.tile.SwappedTile
    """

    pixels: Pixels
    window: Window
    slots: Slots
    channels: int
    D: int
    n: Columns
    steps: KernelSteps
    rows: int
    image_bytes: int
    ahead: int
    tile: SwappedTile

    @classmethod
    def of(cls, product, tile):
        """The record of a product."""
        p, slots = product, Slots.of(product)
        sizes = (
            tiles.product_rows(tile, p, slots),
            tiles.image_bytes(tile, p, slots),
            tiles.ahead(p),
        )
        which = (p.pixels, Window.of(p), slots, p.channels, p.D, p.n, p.kernel_steps)
        return cls(*which, *sizes, tile)

    @property
    def part_channels(self):
        """Channels of a warpgroup."""
        return self.channels // self.tile.CHANNEL_PARTS

    @property
    def k_groups(self):
        """Products of 8 k's that a capsule's row makes."""
        return self.D // 8

    @property
    def channel_fragments(self):
        """Elements of the kernel that a thread holds of a channel."""
        return self.window.taps[0] * self.window.taps[1] * self.k_groups * 4

    @property
    def fragments(self):
        """Elements of the kernel that a thread holds."""
        return self.part_channels * self.channel_fragments

    @property
    def sums(self):
        """Sums that a thread holds."""
        return self.rows // 2

    @property
    def used_rows(self):
        """Rows of a product up to a tile's last pixel."""
        return ((self.tile.TH - 1) * self.slots.columns + self.pixels.columns) * self.pixels.D1

    @property
    def tiles(self):
        """Tiles of an image."""
        return ceil_div(self.pixels.rows, self.tile.TH)

    @property
    def paired(self):
        """Whether neighbouring columns are loaded, and stored, at once."""
        return self.n.D % 2 == 0

    @property
    def ring(self):
        """The pipeline of images. A stage has a full barrier for each channel; all threads meet before one is refilled."""
        size = self.slots.boxes * self.slots.box_bytes  # of a channel
        return Ring(self.tile.IMAGES, 0, BARRIERS, self.image_bytes, size, consumers=0)


def swizzle_bits(row):
    """The bits of a matrix descriptor that say how rows of this many bytes are swizzled.

    Addresses are swizzled and boxes begin at multiples of the pattern, so the descriptor's base offset is 0
    wherever in a box it points.
    """
    bits = SWIZZLES[row] << 62
    return bits - (bits >> 63 << 64)
