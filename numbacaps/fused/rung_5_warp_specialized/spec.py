"""What a kernel of :mod:`numbacaps.fused.rung_5_warp_specialized.kernel` is compiled for, as one record."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numbacaps.device.launch import ceil_div
from numbacaps.device.ring import BARRIER, Ring
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.implicit_gemm import Columns, Pixels
from numbacaps.fused.rung_4_wgmma.tile import Window
from numbacaps.fused.rung_5_warp_specialized import tile as tiles
from numbacaps.fused.rung_5_warp_specialized.tile import BARRIERS, Box, BulkTile, Rings


@dataclass(frozen=True)
class KernelSpec:
    """A product, its tile, and what follows from both.

    Attributes
    ----------
    pixels : numbacaps.fused.implicit_gemm.Pixels
    window : numbacaps.fused.rung_4_wgmma.tile.Window
    n : numbacaps.fused.implicit_gemm.Columns
    channels, D, groups : int
        As the product's, and how many products (G) there are. Of 2 bytes an element ``D`` counts pairs.
    whole, tile : numbacaps.fused.rung_5_warp_specialized.tile.BulkTile
        Tiles are numbered in whole ones; a block takes a part of one, which may be all of it.
    box : numbacaps.fused.rung_5_warp_specialized.tile.Box
        What one TMA copy brings.
    rings : numbacaps.fused.rung_5_warp_specialized.tile.Rings
    columns_in : int
        :func:`numbacaps.fused.rung_5_warp_specialized.tile.columns_read`.
    batch_rows : int
        Tap rows whose products a warpgroup starts at once; a divisor of all.
    ahead : bool
        The next batch is loaded while one is multiplied; otherwise other warpgroups multiply meanwhile.
    run : int
        :func:`numbacaps.fused.rung_5_warp_specialized.tile.run`.
    terms : int
        1 or 3.
    dtype : numpy.dtype
        Of the arrays; sums are of float32.
    epilogue : numbacaps.fused.epilogue.Epilogue
    looks : str
        The pass, a key of :data:`numbacaps.fused.anew.SUMS`, whose results of three terms are looked through; "" if none are.
    """

    pixels: Pixels
    window: Window
    n: Columns
    channels: int
    D: int
    groups: int
    whole: BulkTile
    tile: BulkTile
    box: Box
    rings: Rings
    columns_in: int
    batch_rows: int
    ahead: bool
    run: int
    terms: int
    dtype: np.dtype
    epilogue: Epilogue
    looks: str = ""

    @classmethod
    def of(cls, product, G, dtype, terms, tile, whole=None, epilogue=Epilogue(), looks=""):
        """The record of a product as :func:`numbacaps.fused.rung_5_warp_specialized.tile.counted`."""
        p, box = product, Box.of(product, G, tile)
        return cls(
            pixels=p.pixels,
            window=Window.of(p),
            n=p.n,
            channels=p.channels,
            D=p.D,
            groups=G,
            whole=whole or tile,
            tile=tile,
            box=box,
            rings=Rings.of(p, box, tile, terms),
            columns_in=tiles.columns_read(tile, p),
            batch_rows=tiles.batch_rows(tile, p, box, terms),
            ahead=tiles.ahead(tile, terms),
            run=tiles.run(p.D),
            terms=terms,
            dtype=dtype,
            epilogue=epilogue,
            looks=looks,
        )

    @property
    def consumer_warps(self):
        """Warps that multiply; the first producer warp comes behind them."""
        return self.tile.warpgroups * 4

    @property
    def split(self):
        """Whether operands are split in a high and a low part."""
        return self.terms > 1

    @property
    def parts(self):
        """Parts of each operand."""
        return 2 if self.split else 1

    @property
    def k_groups(self):
        """Products of 8 k's that a tap's channels in a box make."""
        return self.box.channels * self.D // 8

    @property
    def k_steps(self):
        """Boxes for all channels."""
        return ceil_div(self.channels, self.box.channels)

    @property
    def n_tiles(self):
        """Tiles side by side for all columns."""
        return ceil_div(self.n.N, self.tile.BN)

    @property
    def pixel_sums(self):
        """Sums of a pixel that a thread holds."""
        return self.tile.BN // 2

    @property
    def fragments(self):
        """Elements of the first operand that a thread holds at once."""
        return self.batch_rows * self.k_groups * self.columns_in * 4

    @property
    def filled_rows(self):
        """Of a product's 64 rows."""
        return self.box.images * self.pixels.D1

    @property
    def box_ring(self):
        """The pipeline of boxes, which TMA fetches."""
        rings, warps = self.rings, self.consumer_warps
        return Ring(rings.boxes, 0, BARRIERS, rings.box_bytes, self.box.bytes, warps)

    @property
    def tap_ring(self):
        """The pipeline of the packed kernel's tap rows."""
        rings, boxes = self.rings, self.rings.boxes
        barriers, data = 2 * BARRIER * boxes, BARRIERS + boxes * rings.box_bytes
        size = rings.tap_row_bytes
        return Ring(rings.tap_rows, barriers, data, size, size, self.consumer_warps)


class Place(NamedTuple):
    """Where a tile lies: its g, its tile of columns, and its first image, row and column of pixels."""

    g: int
    n_tile: int
    image: int
    row: int
    column: int


class Thread(NamedTuple):
    """A consumer's thread: its warp and lane, and its warpgroup's row and first column in the tile."""

    warp: int
    lane: int
    row: int
    column: int
