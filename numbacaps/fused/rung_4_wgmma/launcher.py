"""Launchers of wgmma whose threads copy for themselves, and of mma.sync for the kernel's gradient."""

import numpy as np

from numbacaps.device.compiled import Compiled, aligned, as_argument, as_words
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.upload import uploaded
from numbacaps.fused.launcher import SplitKLauncher
from numbacaps.fused.packing_launcher import PackingLauncher
from numbacaps.fused.rung_3_register_tiles import split_k
from numbacaps.fused.rung_3_register_tiles.launcher import Splits
from numbacaps.fused.rung_4_wgmma import split_k_tile as mma_tiles
from numbacaps.fused.rung_4_wgmma import tile as warpgroup_tiles
from numbacaps.fused.rung_4_wgmma.kernel import make_wgmma
from numbacaps.fused.rung_4_wgmma.split_k import make_mma_reduction
from numbacaps.fused.rung_4_wgmma.tile import Stage, Window, chunks_beside, run_bytes
from numbacaps.made_once import made_once


class WgmmaLauncher(PackingLauncher):
    """The same by warpgroup products of the tensor cores, whose threads copy for themselves.

    It computes no gradient of an activation.
    """

    def __init__(self, product, images, G, dtype, tile, why, activation=None, follows=False):
        p = product
        activation = None if activation and activation.backward else activation
        depth = tile.CHUNKS * CHUNK // dtype.itemsize
        super().__init__(p, images, G, dtype, tile, why, depth, 1, 1, activation, follows)
        window = Window.of(p)
        rows, across = window.patch(p.pixels, tile)
        stage = Stage.of(rows * across, p.taps, tile, chunks_beside(p.D, dtype.itemsize))
        self.shared = tile.shared_bytes(stage)
        self.table = uploaded(p.table)
        which = (p.pixels, window, p.shape, tile, dtype)
        types = (dtype, dtype, dtype, dtype, np.int64)
        kernel = Compiled(make_wgmma(*which, self.epilogue), types, 1, self.shared)
        blocks = warpgroup_tiles.blocks_of(tile, p, images)
        self.grid = (blocks, ceil_div(p.N, tile.BN), G)
        self._launch = kernel.on(self.grid, tile.threads, self.shared)
        self._always = *as_argument(self.table), images

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the product on arrays as arguments."""
        self._launch(stream, (*gathered, *packed, *result, *activated, *self._always))

    def __str__(self):
        return f"wgmma {self.tile} ({self.why}){self._behind}"


class MmaSplitK(SplitKLauncher):
    """The same by products of the tensor cores.

    Arrays that do not begin at a multiple of 16 bytes are copied 4 bytes at a time, by a kernel that is
    made when the first one comes.

    Parameters
    ----------
    product, images, G, size, dtype
        As those of :class:`RegisterTilesSplitK`.
    """

    def __init__(self, product, images, G, size, dtype):
        self._inside, self._dtype = product.inside, dtype
        self.M = product.M(images)
        tile, count, self.per_split, self.why = mma_tiles.choose_tile(product, self.M, G)
        self.tile = tile
        down, across = ceil_div(product.K, tile.BM), ceil_div(product.N, tile.BN)
        self.splits = Splits(count, size, dtype)
        self.partial_shape = self.splits.shape
        self.grid = (down, across, G * count)
        self.table = uploaded(product.table)
        numbers = split_k.numbers(product, images, size, count, self.per_split)
        self._numbers, self._always = as_words(numbers), as_argument(self.table)
        depths = product.D, product.pixels.other[3]  # D2 and D3
        self._launch = self._made(tuple(run_bytes(D, dtype.itemsize) for D in depths))

    def _made(self, runs):
        """Launches of the kernel whose copies take this many bytes of each operand."""
        kernel = make_mma_reduction(self._inside, runs, self.tile, self._dtype)
        types, shared = (self._dtype, self._dtype, self._dtype, np.int64), self.tile.shared_bytes
        compiled = Compiled(kernel, types, 0, shared, split_k.NUMBERS, early=True)
        return compiled.on(self.grid, self.tile.threads, shared)

    @made_once
    def _unaligned(self):
        return self._made((4, 4))

    def reduce(self, x, dy, dw, partial, stream):
        """Launch it on arrays as arguments; ``partial`` is room for the splits' sums."""
        whole = dw if self.splits.count == 1 else partial
        launch = self._launch if aligned(CHUNK, x, dy, whole) else self._unaligned
        launch(stream, (*x, *dy, *self._numbers, *whole, *self._always))
        self.splits.add(partial, dw, stream)

    def __str__(self):
        return f"mma_split_k {self.tile}, {self.splits} ({self.why})"
