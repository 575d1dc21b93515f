"""What the kernels of :mod:`numbacaps.fused.rung_5_warp_specialized.split_k` are compiled for, as one record."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numbacaps.device.ring import Ring
from numbacaps.fused.implicit_gemm import Pixels
from numbacaps.fused.rung_4_wgmma.tile import Window
from numbacaps.fused.rung_5_warp_specialized.split_k_box import boxes
from numbacaps.fused.rung_5_warp_specialized.split_k_tile import (
    BARRIERS,
    TRANSPOSE_WARPS,
    ReductionTile,
    Rings,
    Strips,
)


@dataclass(frozen=True)
class ReductionSpec:
    """A product of the forward pass, read the other way, its tile, and what follows from both.

    Attributes
    ----------
    pixels : numbacaps.fused.implicit_gemm.Pixels
    window : numbacaps.fused.rung_4_wgmma.tile.Window
    channels, D, N, K, groups : int
        As the product's, and how many products (G) there are.
    boxes : tuple of numbacaps.fused.rung_5_warp_specialized.split_k_box.Box
        Of x and of dy.
    rings : numbacaps.fused.rung_5_warp_specialized.split_k_tile.Rings
    strips : numbacaps.fused.rung_5_warp_specialized.split_k_tile.Strips
    tile : numbacaps.fused.rung_5_warp_specialized.split_k_tile.ReductionTile
    terms : int
        1 or 3.
    dtype : numpy.dtype
        Of the arrays; sums are of float32.
    """

    pixels: Pixels
    window: Window
    channels: int
    D: int
    N: int
    K: int
    groups: int
    boxes: tuple
    rings: Rings
    strips: Strips
    tile: ReductionTile
    terms: int
    dtype: np.dtype

    @classmethod
    def of(cls, product, G, dtype, terms, tile, strips):
        """The record of a product."""
        p = product
        sizes = p.channels, p.D, p.N, p.K, G
        rings = Rings.of(p, tile, G, terms)
        of_both = boxes(tile, p, G)
        return cls(p.pixels, Window.of(p), *sizes, of_both, rings, strips, tile, terms, dtype)

    @property
    def consumer_warps(self):
        """Warps that multiply; those that transpose come behind them, then the producer."""
        return self.tile.tap_rows * 4

    @property
    def split(self):
        """Whether operands are split in a high and a low part."""
        return self.terms > 1

    @property
    def parts(self):
        """Parts of each operand."""
        return 2 if self.split else 1

    @property
    def reach(self):
        """Rows of x below a pixel's first that are fetched before its row of dy."""
        return max(self.window.step[0] * (self.window.taps[0] - 1), self.pixels.top[0] - 1)

    @property
    def k_groups(self):
        """Products that the images and d1 of a pixel make."""
        return self.boxes[0].images * self.pixels.D1 // self.tile.K

    @property
    def matrix_words(self):
        """Words of 4 bytes of one product's second operand."""
        return self.tile.BN * 8

    @property
    def sums(self):
        """Sums of all taps of a row that a thread holds."""
        return self.tile.BN // 2 * self.window.taps[1]

    @property
    def filled_rows(self):
        """Of a product's 64 rows; a pair of elements of 2 bytes counts as one."""
        return self.boxes[0].channels * (self.D // self.tile.PAIR)

    @property
    def x_ring(self):
        """The pipeline of rows of x, which TMA fetches."""
        r = self.rings
        return Ring(r.x, 0, BARRIERS, r.x_bytes, self.boxes[0].bytes, self.consumer_warps)

    @property
    def dy_ring(self):
        """The pipeline of rows of dy, from TMA to the warps that transpose."""
        r, before = self.rings, self.x_ring
        data = before.data + r.x * r.x_bytes
        return Ring(r.dy, before.end, data, r.dy_bytes, self.boxes[1].bytes, TRANSPOSE_WARPS)

    @property
    def transposed_ring(self):
        """The pipeline of transposed rows of dy, from those warps to the consumers."""
        r, before = self.rings, self.dy_ring
        data, warps = before.data + r.dy * r.dy_bytes, self.consumer_warps
        return Ring(
            r.transposed, before.end, data, r.transposed_bytes, 0, warps, producers=TRANSPOSE_WARPS
        )


class Part(NamedTuple):
    """A block's part of the work: its first channel and p, its g, and its first strip and the one behind its last."""

    channel: int
    p: int
    g: int
    first: int
    last: int
