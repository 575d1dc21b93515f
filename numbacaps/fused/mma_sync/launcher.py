"""The launcher of the warps' tensor core kernel: one launch for a pass, whatever its residues."""

from functools import cached_property
from math import gcd

import numpy as np

from numbacaps.device.compiled import Compiled
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div, launch_tiles
from numbacaps.device.target import cuda
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.launcher import aligned
from numbacaps.fused.mma_sync.add_splits import THREADS, make_add_splits
from numbacaps.fused.mma_sync import split_k_tile
from numbacaps.fused.mma_sync.kernel import Spec, make_mma_sync
from numbacaps.fused.mma_sync.split_k import SplitKSpec, make_mma_sync_split_k
from numbacaps.fused.mma_sync.table import make_table
from numbacaps.fused.mma_sync.tile import WORDS, choose_tile

_SUMS = np.dtype(np.float32)


class MmaSyncLauncher:
    """The products of a gathering pass, all of them in one launch: forward, or the residues of dx.

    Parameters
    ----------
    products : sequence of numbacaps.fused.implicit_gemm.Product
        Their capsules' rows have the same lengths.
    images, G : int
    dtype : numpy.dtype
    terms : int
        1, or 3 of float32.
    size : int
        Elements of the result.
    chosen : (tile, splits, why), optional
    """

    def __init__(self, products, images, G, dtype, terms, size, chosen=None):
        self._dtype, self.terms, self.size = dtype, terms, size
        first = products[0]
        self._columns_are_rows = first.n.kernel[1] != 1  # of the kernel, along k
        reach = CHUNK // dtype.itemsize
        # What one copy, or one store, takes, in elements.
        self._a_run = gcd(reach, first.D)
        self._b_run = gcd(reach, first.D if self._columns_are_rows else first.n.D)
        self._paired = first.pixels.other[3] % 2 == 0
        M = sum(product.M(images) for product in products) * G
        K = max(product.K for product in products)
        sizes = M, first.N, K, terms, dtype.itemsize, multiprocessors()
        self.tile, self.splits, self.why = chosen or choose_tile(*sizes)
        self.per_split = ceil_div(ceil_div(K, WORDS * 4 // dtype.itemsize), self.splits)
        self._images, self._products = images, products
        rows = max(product.M(images) for product in products)
        self.grid = (
            ceil_div(rows, self.tile.BM),
            ceil_div(first.N, self.tile.BN),
            G * len(products) * self.splits,
        )
        self.shared = self.tile.shared_bytes(self._columns_are_rows, dtype.itemsize)
        self.packed = self.splits * size if self.splits > 1 else 0  # elements of workspace
        self.epilogue = Epilogue()
        self._result = dtype if self.splits == 1 else _SUMS
        self._whole = self._made(self._a_run, self._b_run, self._paired)
        if self.splits > 1:
            add = make_add_splits(dtype)
            self._add = Compiled(add, (_SUMS, dtype), 2, early=True)

    def _made(self, a_run, b_run, paired):
        """(kernel, its table) where copies take this many elements."""
        itemsize = self._dtype.itemsize
        which = a_run * itemsize, b_run * itemsize, self._columns_are_rows, paired, self.tile
        kernel = make_mma_sync(Spec(self._dtype, self._result, self.terms, *which))
        types = self._dtype, self._dtype, self._result, np.int32
        table = make_table(self._products, self._images, a_run)
        return Compiled(kernel, types, 4, self.shared, early=True), cuda.to_device(table.numbers)

    @cached_property
    def _unaligned(self):
        return self._made(1, 1, False)

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Nothing: it reads the kernel as it lies."""

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the products on runs of elements; ``packed`` is room for the splits' sums."""
        out = result if self.splits == 1 else packed
        fits = all(map(aligned, (gathered, kernel, out)))
        made, table = self._whole if fits else self._unaligned
        numbers = len(self._products), self.splits, self.per_split, self.size
        arguments = (gathered, kernel, out, table, *numbers)
        launch_tiles(made, self.grid, self.tile.threads, arguments, stream, self.shared)
        if self.splits > 1:
            grid = ceil_div(self.size, THREADS)
            launch_tiles(self._add, grid, THREADS, (packed, result, self.splits, self.size), stream)

    def __str__(self):
        terms = f", {self.terms} terms" if self.terms > 1 else ""
        splits = f", {self.splits} splits" if self.splits > 1 else ""
        return f"mma_sync {self.tile}{terms}{splits} ({self.why})"


class MmaSyncSplitK:
    """The product of the kernel's gradient.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
        Of the forward pass.
    images, G, size : int
        ``size`` elements of the kernel.
    dtype : numpy.dtype
    terms : int
        1, or 3 of float32.
    chosen : (tile, splits, pixels a split, why), optional
    """

    def __init__(self, product, images, G, size, dtype, terms, chosen=None):
        self._product, self._images, self._dtype = product, images, dtype
        self.terms, self.size = terms, size
        reach = CHUNK // dtype.itemsize
        runs = gcd(reach, product.D), gcd(reach, product.n.D)
        sizes = product.M(images), product.N, product.K, G, terms
        chosen = chosen or split_k_tile.choose_tile(*sizes, runs, dtype.itemsize)
        self.tile, self.splits, self.per_split, self.why = chosen
        down, across = ceil_div(product.K, self.tile.BM), ceil_div(product.N, self.tile.BN)
        self.grid = (down, across, G * self.splits)
        self.shared = self.tile.shared_bytes(dtype.itemsize)
        several = self.splits > 1
        self.partial_shape = {"partial": (self.splits * size,)} if several else {}
        self._result = _SUMS if several else dtype
        self._whole = self._made(*runs, product.n.D % 2 == 0)
        if several:
            self._add = Compiled(make_add_splits(dtype), (_SUMS, dtype), 2, early=True)

    def _made(self, a_run, c_run, paired):
        """(kernel, its table) where copies take this many elements."""
        which = a_run * self._dtype.itemsize, c_run * self._dtype.itemsize, paired, self.tile
        kernel = make_mma_sync_split_k(SplitKSpec(self._dtype, self._result, self.terms, *which))
        types = self._dtype, self._dtype, self._result, np.int32
        table = make_table([self._product], self._images, a_run)
        return Compiled(kernel, types, 3, self.shared, early=True), cuda.to_device(table.numbers)

    @cached_property
    def _unaligned(self):
        return self._made(1, 1, False)

    def __call__(self, x, dy, dw, stream, partial):
        """Launch it on runs of elements; ``partial`` is room for the splits' sums."""
        out = dw if self.splits == 1 else partial
        made, table = self._whole if all(map(aligned, (x, dy, out))) else self._unaligned
        arguments = (x, dy, out, table, self.splits, self.per_split, self.size)
        launch_tiles(made, self.grid, self.tile.threads, arguments, stream, self.shared)
        if self.splits > 1:
            grid = ceil_div(self.size, THREADS)
            launch_tiles(self._add, grid, THREADS, (partial, dw, self.splits, self.size), stream)

    def __str__(self):
        terms = f", {self.terms} terms" if self.terms > 1 else ""
        splits = f", {self.splits} splits" if self.splits > 1 else ""
        return f"mma_sync_split_k {self.tile}{terms}{splits} ({self.why})"
