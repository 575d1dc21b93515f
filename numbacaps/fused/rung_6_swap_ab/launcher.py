"""Launcher of the kernel whose operands are swapped, so that a small kernel stays in registers."""

from numbacaps.device.compiled import Compiled, aligned
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.tensor_map import MAP_WORDS, TensorMaps
from numbacaps.fused.launcher import Launcher
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesLauncher
from numbacaps.fused.rung_4_wgmma.tile import BM, LANES
from numbacaps.fused.rung_6_swap_ab import tile as swapped_tiles
from numbacaps.fused.rung_6_swap_ab.kernel import make_swapped_wgmma
from numbacaps.fused.rung_6_swap_ab.spec import SwapSpec
from numbacaps.made_once import made_once


class SwapABLauncher(Launcher):
    """The same of a kernel so small that it stays in registers, and is not packed; in TF32, without an activation.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    tile : numbacaps.fused.rung_6_swap_ab.tile.SwappedTile
    why : str
    """

    packed = 0

    def __init__(self, product, images, G, dtype, tile, why):
        p, t = product, swapped_tiles
        super().__init__(None, p, BM, LANES)
        self.tile, self.why, self._images = tile, why, images
        self._ordinary = (p, images, G, dtype)
        slots = t.Slots.of(p)
        self._maps = TensorMaps((*slots.tensor(p, images, G), True))
        self.shared = t.shared_bytes(tile, p, slots)
        kernel = make_swapped_wgmma(SwapSpec.of(p, tile))
        arrays = (dtype, dtype, dtype)
        compiled = Compiled(kernel, arrays, 1, self.shared, MAP_WORDS, early=True)
        self.grid = (t.blocks_of(p, images, G, multiprocessors()), ceil_div(p.N, BM), G)
        self._launch = compiled.on(self.grid, tile.threads, self.shared)

    def ready_for(self, *arrays):
        """Itself, or the product by ordinary arithmetic where an array does not begin as copies want it."""
        return self if aligned(CHUNK, *arrays) else self._unaligned

    @made_once
    def _unaligned(self):
        return RegisterTilesLauncher(*self._ordinary)

    def pack(self, kernel, packed, stream):
        """Nothing: it reads the kernel as it lies."""

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the product on arrays as arguments."""
        words = self._maps(gathered)
        self._launch(stream, (*kernel, *result, *words, *gathered, self._images))

    def __str__(self):
        return f"swap_ab {self.tile} ({self.why})"
