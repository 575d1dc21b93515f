"""Launchers of register tiles: gathering passes, the kernel's gradient, and the sum of its splits."""

import numpy as np

from numbacaps.device.compiled import Compiled, as_argument, as_words
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.launch import ceil_div
from numbacaps.device.upload import uploaded
from numbacaps.fused.launcher import Launcher, SplitKLauncher
from numbacaps.fused.rung_3_register_tiles import split_k
from numbacaps.fused.rung_3_register_tiles.kernel import NUMBERS, make_register_tiles, numbers
from numbacaps.fused.rung_3_register_tiles.split_k import ADD_THREADS, ADDED
from numbacaps.fused.rung_3_register_tiles.tile import choose_splits, choose_tile


class RegisterTilesLauncher(Launcher):
    """A product that gathers one operand, by ordinary arithmetic: forward, or a residue of dx.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    activation : numbacaps.fused.activation.Activation, optional
        What is wanted behind it, where its kernel can.
    chosen : tuple, optional
        (tile, why); by default what :func:`choose_tile` says.
    """

    packed = 0  # elements of workspace

    def __init__(self, product, images, G, dtype, activation=None, chosen=None):
        self.M = product.M(images)
        chosen = chosen or choose_tile(self.M * G, product.N, product.K, sum_dtype(dtype).itemsize)
        tile, self.why = chosen
        self.tile = tile
        super().__init__(activation, product, tile.BN, tile.lanes)
        self.table = uploaded(product.table_by_taps)
        made = make_register_tiles(product.inside, tile, dtype, self.epilogue)
        types = (dtype, dtype, dtype, dtype, np.int64)
        kernel = Compiled(made, types, 0, words=NUMBERS, early=True)
        self.grid = (ceil_div(self.M, tile.BM), ceil_div(product.N, tile.BN), G)
        self._launch = kernel.on(self.grid, tile.threads)
        self._numbers, self._always = as_words(numbers(product, images)), as_argument(self.table)

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Nothing: it reads the kernel as it lies."""

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the product on arrays as arguments; ``ahead`` says that the kernel was packed some time ago."""
        operands = *gathered, *kernel, *self._numbers, *result, *activated
        self._launch(stream, (*operands, *self._always))

    def __str__(self):
        return f"register_tiles {self.tile} ({self.why}){self._behind}"


class Splits:
    """The sum of the kernel's gradient, cut into splits that a second kernel adds.

    Parameters
    ----------
    splits, size : int
        ``size`` elements of the kernel.
    dtype : numpy.dtype
    """

    def __init__(self, splits, size, dtype):
        self.count, self._sizes = splits, (splits, size)
        self.shape = {"partial": (splits * size,)} if splits > 1 else {}
        if splits > 1:
            types = (sum_dtype(dtype), dtype)
            kernel = split_k.make_add_splits(split_k.ahead_of(splits), dtype)
            add = Compiled(kernel, types, 2, early=True)
            self._add = add.on(ceil_div(size, ADDED), ADD_THREADS)

    def add(self, partial, dw, stream):
        """Launch the second kernel on arrays as arguments, where there is more than one split."""
        if self.count > 1:
            self._add(stream, (*partial, *dw, *self._sizes))

    def __str__(self):
        return f"{self.count} splits"


class RegisterTilesSplitK(SplitKLauncher):
    """The product of the kernel's gradient by ordinary arithmetic.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
        Of the forward pass.
    images, G, size : int
        ``size`` elements of the kernel.
    dtype : numpy.dtype
    """

    def __init__(self, product, images, G, size, dtype):
        self.M = product.M(images)
        sums = sum_dtype(dtype)
        tile, self.why, count, self.per_split = self.cut(product, images, G, dtype)
        self.tile = tile
        down, across = ceil_div(product.K, tile.BM), ceil_div(product.N, tile.BN)
        self.splits = Splits(count, size, dtype)
        self.partial_shape = self.splits.shape
        self.grid = (down, across, G * count)
        self.table = uploaded(product.table)
        result = sums if count > 1 else dtype
        kernel = split_k.make_reduction(product.inside, tile, dtype, result)
        types = (dtype, dtype, result, np.int64)
        made = Compiled(kernel, types, 0, words=split_k.NUMBERS)
        self._launch = made.on(self.grid, tile.threads)
        numbers = split_k.numbers(product, images, size, count, self.per_split)
        self._numbers, self._always = as_words(numbers), as_argument(self.table)

    @staticmethod
    def cut(product, images, G, dtype):
        """(tile, why, splits, rows of a split)."""
        M, itemsize = product.M(images), sum_dtype(dtype).itemsize
        tile, why = choose_tile(product.K * G, product.N, M, itemsize)
        blocks = ceil_div(product.K, tile.BM) * ceil_div(product.N, tile.BN) * G
        return tile, why, *choose_splits(blocks, M, tile.BK)

    def reduce(self, x, dy, dw, partial, stream):
        """Launch it on arrays as arguments; ``partial`` is room for the splits' sums."""
        whole = dw if self.splits.count == 1 else partial
        self._launch(stream, (*x, *dy, *self._numbers, *whole, *self._always))
        self.splits.add(partial, dw, stream)

    def __str__(self):
        return f"register_tiles_split_k {self.tile}, {self.splits} ({self.why})"
