"""What the parts of the warps' kernels take, by which their tiles are chosen."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Cycles of a multiprocessor that is full of blocks, for 64 bytes of k, or of pixels.

    Those of float32 in :mod:`numbacaps.fused.mma_sync.choose_tile`: H100, 2026-11-25; fitted to times of drawn products, 44 or 22 of each
    kind, with every way of packing and the tiles of those days. Where a product was no part of the fit, the tile that they choose takes 4 to 13 % longer
    than the fastest, least in three terms. Tiles of few columns came later, and were chosen by the same costs: 2 % longer than the fastest (H200, 2026-11-30). How
    the others were found stands beside them.

    Attributes
    ----------
    multiplied : tuple of float
        An element of a tile, where a warp has 2048 elements, 1024, or fewer.
    copied : dict of int to float
        A row, by the bytes that one copy takes.
    """

    multiplied: tuple
    copied: dict

    def products_of(self, tile):
        """The products of a tile, which has BM x BN elements, WM x WN of a warp."""
        of_warp = tile.WM * tile.WN
        element = self.multiplied[0 if of_warp >= 2048 else 1 if of_warp >= 1024 else 2]
        return tile.BM * tile.BN * element
