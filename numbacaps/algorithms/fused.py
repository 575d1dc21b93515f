"""The fold as one kernel a pass: operands gathered from capsule layout, nothing but results written.

:mod:`numbacaps.fused` holds the kernels; here one is chosen for a geometry and a precision, its
offsets are worked out and sent to the GPU once, and it is launched.
"""

import time
from functools import cached_property, lru_cache
from weakref import WeakValueDictionary

import numpy as np

from numbacaps.device.bfloat16 import is_bfloat16
from numbacaps.device.compiled import Compiled, address_of
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div, launch, launch_tiles, runs
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.epilogue import fit
from numbacaps.fused.pack import make_pack, packed_size
from numbacaps.fused.rung_3_register_tiles.kernel import make_register_tiles
from numbacaps.fused.rung_3_register_tiles.split_k import (
    ADD_THREADS,
    ADDED,
    make_add_splits,
    make_reduction,
)
from numbacaps.fused.rung_3_register_tiles.tile import choose_splits, choose_tile
from numbacaps.fused.rung_4_wgmma import split_k_tile as mma_tiles
from numbacaps.fused.rung_4_wgmma import tile as warpgroup_tiles
from numbacaps.fused.rung_4_wgmma.kernel import make_wgmma
from numbacaps.fused.rung_4_wgmma.split_k import make_mma_reduction
from numbacaps.fused.rung_4_wgmma.tile import BM, LANES, Stage, Window, chunks_beside, run_bytes
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as bulk_reduction_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_5_warp_specialized.add_tiles import make_add_tiles
from numbacaps.device.tensor_map import MAP_WORDS, tensor_map
from numbacaps.fused.rung_5_warp_specialized.kernel import make_bulk_wgmma
from numbacaps.fused.rung_5_warp_specialized.spec import KernelSpec
from numbacaps.fused.rung_5_warp_specialized.split_k import make_bulk_reduction
from numbacaps.fused.rung_5_warp_specialized.split_k_spec import ReductionSpec
from numbacaps.fused.rung_6_swap_ab.kernel import make_swapped_wgmma
from numbacaps.fused.rung_6_swap_ab import tile as swapped_tiles
from numbacaps.fused.rung_6_swap_ab.spec import SwapSpec

_FEWEST_K = 16  # products of a sum for which it is worth to pack the kernel
_KEPT = 64  # geometries whose tables stay on the GPU
_WARPGROUPS = (9, 0)  # the compute capability that has warpgroup products
_BFLOAT16 = (8, 0)  # the first that rounds to bfloat16
_PACKED = 2500  # cycles that packing adds, measured on an H200
_TERMS = {"tf32": 1, "tf32x3": 3}  # products of the tensor cores for one of float32


class _Gathers:
    """What the products that gather one operand have in common: what is done with their sums.

    Parameters
    ----------
    activation : numbacaps.fused.activation.Activation or None
    product : numbacaps.fused.implicit_gemm.Product
    columns : int
        Of a tile.
    lanes : numbacaps.fused.epilogue.Lanes

    Attributes
    ----------
    epilogue : numbacaps.fused.epilogue.Epilogue
        It ``activates`` where the kernel computes the activation too, ``differentiates`` where its gradient.
    """

    def __init__(self, activation, product, columns, lanes):
        self.epilogue, apart = fit(activation, product, columns, lanes)
        self._behind = ""
        if activation is not None:
            what = (
                "the gradient of LeakyReLU and squash"
                if activation.backward
                else "LeakyReLU and squash"
            )
            self._behind = f", {what} {f'apart: {apart}' if apart else 'in it'}"

    def __call__(self, gathered, kernel, result, stream, packed, activated=None):
        """Launch it alone on runs of elements; ``packed`` is room for what it packs.

        For one that follows no other: those are launched with the pass.

        ``activated`` takes the result behind the activation, where there is one, or holds the sums before it
        where the result is its gradient.
        """
        activated = result if activated is None else activated
        ready = self.ready_for(gathered, kernel, result, activated)
        ready.pack(kernel, packed, stream)
        ready.multiply(gathered, kernel, packed, result, activated, stream)


class Gather(_Gathers):
    """A product that gathers one operand, by ordinary arithmetic: forward, or a residue of dx.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    activation : numbacaps.fused.activation.Activation, optional
        What is wanted behind it, where its kernel can.
    """

    packed = 0  # elements of workspace

    def __init__(self, product, images, G, dtype, activation=None):
        self.M = product.M(images)
        tile, self.why = choose_tile(self.M * G, product.N, sum_dtype(dtype).itemsize)
        self.tile = tile
        super().__init__(activation, product, tile.BN, tile.lanes)
        self.table = cuda.to_device(product.table)
        which = (product.pixels, product.inside, product.N, product.K, tile, dtype)
        types = (dtype, dtype, dtype, dtype, np.int64)
        self.kernel = Compiled(make_register_tiles(*which, self.epilogue), types, 1, early=True)
        self.grid = (ceil_div(self.M, tile.BM), ceil_div(product.N, tile.BN), G)

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Nothing: it reads the kernel as it lies."""

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the product on runs of elements; ``ahead`` says that the kernel was packed some time ago."""
        arguments = (gathered, kernel, result, activated, self.table, self.M)
        launch_tiles(self.kernel, self.grid, self.tile.threads, arguments, stream)

    def __str__(self):
        return f"register_tiles {self.tile} ({self.why}){self._behind}"


class _OnTensorCores(_Gathers):
    """What the tensor cores' products have in common: the kernel is packed before each.

    They copy 16 bytes at a time, so arrays that do not begin at a multiple of 16 go through
    :class:`Gather`, which is made when the first one comes; with an activation they are refused.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    tile
        Of the kernel's own table.
    why : str
    depth : int
        Elements of k in a stage, those of all taps apart.
    run, parts : int
        Of the packed kernel: k's that a thread loads at once, and parts.
    activation : numbacaps.fused.activation.Activation or None
    follows : bool
        Another product of the pass is packed, and multiplied, before this one.
    """

    def __init__(
        self, product, images, G, dtype, tile, why, depth, run, parts, activation, follows
    ):
        p = product
        super().__init__(activation, p, tile.BN, LANES)
        self.images, self.tile, self.why = images, tile, why
        self._ordinary = (p, images, G, dtype)
        chunks = depth * dtype.itemsize // CHUNK
        depths = p.channels, p.D, p.taps
        self._elements = packed_size(*depths, p.N, G, tile.BN, chunks, parts, dtype)
        self.packed = self._elements * dtype.itemsize // sum_dtype(dtype).itemsize
        taps, columns = Window.of(p).taps, (p.n, p.kernel_steps)
        which = (G, p.pixels.steps[1], tile.BN, chunks, parts, dtype, follows, run)
        pack = make_pack(p.channels, p.D, taps, *columns, *which)
        self._pack = Compiled(pack, (dtype, dtype), 0, early=True)

    def ready_for(self, gathered, kernel, result, activated):
        """Itself, or the product by ordinary arithmetic where an array does not begin as copies want it."""
        if all(map(_aligned, (gathered, result, activated))):
            return self
        if self.epilogue.activates or self.epilogue.differentiates:
            raise ValueError("with an activation, arrays begin at multiples of 16 bytes")
        return self._unaligned

    def pack(self, kernel, packed, stream):
        """Launch the packing of the kernel."""
        launch(self._pack, self._elements, 1, (kernel, packed), stream)

    @cached_property
    def _unaligned(self):
        return Gather(*self._ordinary)


class WarpgroupGather(_OnTensorCores):
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
        self.table = cuda.to_device(p.table)
        depth = (p.channels, p.D)
        which = (p.pixels, window, *depth, p.channel_steps[0], p.N, p.K, tile, dtype)
        types = (dtype, dtype, dtype, dtype, np.int64)
        self.kernel = Compiled(make_wgmma(*which, self.epilogue), types, 1, self.shared)
        blocks = warpgroup_tiles.blocks_of(tile, p, images)
        self.grid = (blocks, ceil_div(p.N, tile.BN), G)

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the product on runs of elements."""
        arguments = (gathered, packed, result, activated, self.table, self.images)
        launch_tiles(self.kernel, self.grid, self.tile.threads, arguments, stream, self.shared)

    def __str__(self):
        return f"wgmma {self.tile} ({self.why}){self._behind}"


class BulkGather(_OnTensorCores):
    """The same with the copy engine: of float32, in ``terms`` products for each, or of 2 bytes an element.

    One that follows another of its pass starts beside it: each has pixels of its own. The gradient of an
    activation it computes where a warpgroup has few enough pixels.
    """

    def __init__(self, product, images, G, dtype, tile, why, terms, activation=None, follows=False):
        if activation and activation.backward and tile.PW > bulk_tiles.MOST_DIFFERENTIATED:
            activation = None
        p = bulk_tiles.counted(product, dtype)
        box = bulk_tiles.Box.of(p, G, tile)
        depth, parts = box.channels * product.D, 2 if terms > 1 else 1
        run = bulk_tiles.run(p.D)
        super().__init__(
            *(product, images, G, dtype, tile, why, depth, run, parts, activation, follows)
        )
        self._follows, self.terms = follows, terms
        turns = bulk_tiles.turns_of(tile, p, images, G)
        rest, part = bulk_tiles.choose_tail(tile, p, images, G, terms, multiprocessors())
        which = (p, images, G, dtype, terms, self.epilogue, tile)
        self._turns = [BulkTurns(*which, tile, 0, turns - rest)]
        if rest:
            count = rest * bulk_tiles.parts_of(tile, part)
            self._turns.append(BulkTurns(*which, part, turns - rest, count))

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the product on runs of elements."""
        waits = 0 if self._follows else 2 if ahead else 1
        for turns in self._turns:
            turns(gathered, packed, result, activated, waits, stream)
            waits = 0  # it follows, too

    def __str__(self):
        last = "".join(f", the last {turns}" for turns in self._turns[1:])
        return f"bulk_wgmma {self.tile}{last}, {self.terms} terms ({self.why}){self._behind}"


class SwappedGather(_Gathers):
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
        self._box = *slots.tensor(p, images, G), True
        self.shared = t.shared_bytes(tile, p, slots)
        kernel = make_swapped_wgmma(SwapSpec.of(p, tile))
        arrays = (dtype, dtype, dtype)
        self.kernel = Compiled(kernel, arrays, 1, self.shared, MAP_WORDS, early=True)
        self.grid = (t.blocks_of(p, images, G, multiprocessors()), ceil_div(p.N, BM), G)

    def ready_for(self, *arrays):
        """Itself, or the product by ordinary arithmetic where an array does not begin as copies want it."""
        return self if all(map(_aligned, arrays)) else self._unaligned

    @cached_property
    def _unaligned(self):
        return Gather(*self._ordinary)

    def pack(self, kernel, packed, stream):
        """Nothing: it reads the kernel as it lies."""

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the product on runs of elements."""
        box_map = tensor_map(gathered, *self._box)
        arguments = (kernel, result, box_map, gathered, self._images)
        launch_tiles(self.kernel, self.grid, self.tile.threads, arguments, stream, self.shared)

    def __str__(self):
        return f"swapped_wgmma {self.tile} ({self.why})"


class BulkTurns:
    """One launch of :class:`BulkGather`: so many turns from a first one on, each a part of a whole tile.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
        As :func:`numbacaps.fused.rung_5_warp_specialized.tile.counted`.
    images, G, dtype, terms, epilogue
        As those of :class:`BulkGather`.
    whole, tile : numbacaps.fused.rung_5_warp_specialized.tile.BulkTile
        ``first`` is counted in whole tiles, ``turns`` in those of the launch.
    first, turns : int
    """

    def __init__(self, product, images, G, dtype, terms, epilogue, whole, tile, first, turns):
        p, self.tile = product, tile
        spec = KernelSpec.of(p, G, dtype, terms, tile, whole, epilogue)
        self._box = spec.box.tensor(p, images, G)
        self.shared = spec.rings.bytes
        kernel = make_bulk_wgmma(spec)
        types = (sum_dtype(dtype), dtype, dtype)
        self.kernel = Compiled(kernel, types, 5, self.shared, MAP_WORDS, early=True)
        self.grid = min(turns, multiprocessors())
        later = bulk_tiles.later(tile, p, G, terms, turns, self.grid)
        self._counts = images, first, turns, later

    def __call__(self, gathered, packed, result, activated, waits, stream):
        """Launch it on runs of elements; for ``waits`` see the kernel."""
        words = tensor_map(gathered, *self._box)
        arguments = (packed, result, words, activated, *self._counts, waits)
        launch_tiles(self.kernel, self.grid, self.tile.threads, arguments, stream, self.shared)

    def __str__(self):
        return f"{self._counts[2]} turns {self.tile.TH}x{self.tile.TW}"


class Splits:
    """The sum of the kernel's gradient, cut into splits that a second kernel adds.

    Parameters
    ----------
    splits, size : int
        ``size`` elements of the kernel.
    dtype : numpy.dtype
    """

    def __init__(self, splits, size, dtype):
        self.count = splits
        self.shape = {"partial": (splits * size,)} if splits > 1 else {}
        self._grid = ceil_div(size, ADDED)
        if splits > 1:
            types = (sum_dtype(dtype), dtype)
            add = make_add_splits(splits, size, dtype)
            self._add = Compiled(add, types, 0, early=True)

    def add(self, partial, dw, stream):
        """Launch the second kernel, where there is more than one split."""
        if self.count > 1:
            launch_tiles(self._add, self._grid, ADD_THREADS, (partial, dw), stream)

    def __str__(self):
        return f"{self.count} splits"


class Reduce:
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
        self.table = cuda.to_device(product.table)
        which = (product.pixels, product.N, product.K, tile, count, size, dtype)
        kernel = make_reduction(*which)
        types = (dtype, dtype, sums if count > 1 else dtype, np.int64)
        self.kernel = Compiled(kernel, types, 2)

    @staticmethod
    def cut(product, images, G, dtype):
        """(tile, why, splits, rows of a split)."""
        tile, why = choose_tile(product.K * G, product.N, sum_dtype(dtype).itemsize)
        blocks = ceil_div(product.K, tile.BM) * ceil_div(product.N, tile.BN) * G
        return tile, why, *choose_splits(blocks, product.M(images), tile.BK)

    def __call__(self, x, dy, dw, stream, partial):
        """Launch it on runs of elements; ``partial`` is room for the splits' sums."""
        whole = dw if self.splits.count == 1 else partial
        arguments = (x, dy, whole, self.table, self.M, self.per_split)
        launch_tiles(self.kernel, self.grid, self.tile.threads, arguments, stream)
        self.splits.add(partial, dw, stream)

    def __str__(self):
        return f"reduction {self.tile}, {self.splits} ({self.why})"


class MmaReduce:
    """The same by products of the tensor cores.

    Arrays that do not begin at a multiple of 16 bytes are copied 4 bytes at a time, by a kernel that is
    made when the first one comes.

    Parameters
    ----------
    product, images, G, size, dtype
        As those of :class:`Reduce`.
    terms : int
        1 or 3 products of the tensor cores for one of float32.
    """

    def __init__(self, product, images, G, size, dtype, terms):
        self._product, self._size, self._dtype, self.terms = product, size, dtype, terms
        self.M = product.M(images)
        tile, count, self.per_split, self.why = mma_tiles.choose_tile(product, self.M, G, terms)
        self.tile = tile
        down, across = ceil_div(product.K, tile.BM), ceil_div(product.N, tile.BN)
        self.splits = Splits(count, size, dtype)
        self.partial_shape = self.splits.shape
        self.grid = (down, across, G * count)
        self.table = cuda.to_device(product.table)
        depths = product.D, product.pixels.other[3]  # D2 and D3
        self.kernel = self._made(tuple(run_bytes(D, dtype.itemsize) for D in depths))

    def _made(self, runs):
        """The kernel whose copies take so many bytes of each operand."""
        p = self._product
        which = (self.tile, self.splits.count, self._size, self.terms, self._dtype)
        kernel = make_mma_reduction(p.pixels, p.inside, p.N, p.K, runs, *which)
        types = (self._dtype, self._dtype, self._dtype, np.int64)
        return Compiled(kernel, types, 2, self.tile.shared_bytes, early=True)

    @cached_property
    def _unaligned(self):
        return self._made((4, 4))

    def __call__(self, x, dy, dw, stream, partial):
        """Launch it on runs of elements; ``partial`` is room for the splits' sums."""
        whole = dw if self.splits.count == 1 else partial
        kernel = self.kernel if all(map(_aligned, (x, dy, whole))) else self._unaligned
        arguments = (x, dy, whole, self.table, self.M, self.per_split)
        launch_tiles(
            kernel, self.grid, self.tile.threads, arguments, stream, self.tile.shared_bytes
        )
        self.splits.add(partial, dw, stream)

    def __str__(self):
        terms = "1 term" if self.terms == 1 else f"{self.terms} terms"
        return f"mma_reduction {self.tile}, {terms}, {self.splits} ({self.why})"


class BulkReduce:
    """The same with the copy engine, which takes two tensor maps.

    Arrays that do not begin at a multiple of 16 bytes go through :class:`MmaReduce`, or :class:`Reduce` of
    2 bytes an element, which is made when the first one comes.

    Parameters
    ----------
    product, images, G, size, dtype, terms
        As those of :class:`MmaReduce`.
    tile : numbacaps.fused.rung_5_warp_specialized.split_k_tile.ReductionTile
    strips : numbacaps.fused.rung_5_warp_specialized.split_k_tile.Strips
    why : str
    early : bool
        As that of :class:`numbacaps.device.compiled.Compiled`.
    """

    def __init__(self, product, images, G, size, dtype, terms, tile, strips, why, early=True):
        p = product
        self.tile, self.terms, self.why = tile, terms, why
        self._ordinary = (p, images, G, size, dtype, terms)
        self.splits, window = strips.splits, Window.of(p)
        if dtype.itemsize == 2:
            others = Reduce.cut(p, images, G, dtype)[2] * size
        else:
            others = mma_tiles.choose_tile(p, p.M(images), G, terms)[1] * size
        self.table = cuda.to_device(p.table)
        boxes = bulk_reduction_tiles.boxes(tile, p, G)
        down = ceil_div(p.channels, boxes[0].channels)
        across = ceil_div(p.N, boxes[1].channels * p.pixels.other[3])
        self.grid = (down, across, G * strips.splits)
        sums = down * across * G * tile.sums(window.taps[1])
        self.partial_shape = {"partial": (max(strips.splits * sums, others),)}
        spec = ReductionSpec.of(p, G, dtype, terms, tile, strips)
        add = make_add_tiles(spec)
        self._add = Compiled(add, (np.float32, np.int64, dtype), 0, early=True)
        self._add_grid = ceil_div(sums // 4, ADDED)
        self.shared = spec.rings.bytes
        self.tensors = bulk_reduction_tiles.tensors(tile, p, images, G)
        kernel = make_bulk_reduction(spec)
        types = (np.float32, np.int64)
        self.kernel = Compiled(kernel, types, 0, self.shared, 2 * MAP_WORDS, early=early)

    @cached_property
    def _unaligned(self):
        if self.tile.PAIR > 1:
            return Reduce(*self._ordinary[:-1])
        return MmaReduce(*self._ordinary)

    def __call__(self, x, dy, dw, stream, partial):
        """Launch it on runs of elements; ``partial`` is room for the splits' sums."""
        if not all(map(_aligned, (x, dy, partial))):
            self._unaligned(x, dy, dw, stream, partial)
            return
        maps = (tensor_map(a, *of) for a, of in zip((x, dy), self.tensors))
        arguments = (partial, self.table, sum(maps, ()))
        launch_tiles(self.kernel, self.grid, self.tile.threads, arguments, stream, self.shared)
        launch_tiles(self._add, self._add_grid, ADD_THREADS, (partial, self.table, dw), stream)

    def __str__(self):
        terms = "1 term" if self.terms == 1 else f"{self.terms} terms"
        return f"bulk_reduction {self.tile}, {terms}, {self.splits} splits ({self.why})"


class Prepared:
    """The kernels and tables of one geometry, each pass's made when first asked for.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    precision : str
    activation : numbacaps.fused.activation.Activation, optional
        What is wanted behind the forward pass, where its kernel can; one that is ``backward``, behind the
        gradient of the input.
    """

    def __init__(self, geometry, dtype, precision, activation=None):
        self.geometry, self.dtype, self.precision = geometry, dtype, precision
        self.activation = activation
        self.seconds = 0.0  # of compiling, or of reading what was compiled before

    def _made(self, make):
        """What ``make`` returns, its time counted."""
        start = time.perf_counter()
        made = make()
        self.seconds += time.perf_counter() - start
        return made

    def _gather(self, product, activation=None, follows=False):
        g = self.geometry
        which = (product, g.N, g.G, self.dtype)
        terms = 1 if self.dtype.itemsize == 2 else _TERMS.get(self.precision)
        counted = terms and bulk_tiles.counted(product, self.dtype)
        if counted and has_warpgroups() and not SIMULATED:
            found = bulk_tiles.choose_tile(counted, g.N, g.G, terms, multiprocessors())
            if self.precision == "tf32" and activation is None:
                swapped = choose_swapped(product, found[0], g.N, g.G, multiprocessors())
                if swapped:
                    return SwappedGather(*which, *swapped)
            if found[0]:
                return BulkGather(*which, *found, terms, activation, follows)
        if self.precision == "tf32" and product.K >= _FEWEST_K:
            found = warpgroup_tiles.choose_tile(product, g.N, g.G, self.dtype, multiprocessors())
            if found[0]:
                return WarpgroupGather(*which, *found, activation, follows)
        return Gather(*which, activation)

    @cached_property
    def forward(self):
        """The forward pass's product, in a list of one."""
        product = implicit_gemm.forward(self.geometry)
        activation = None if self._is_backward else self.activation
        return self._made(lambda: [self._gather(product, activation)])

    @property
    def _is_backward(self):
        return self.activation is not None and self.activation.backward

    @property
    def sums(self):
        """Dtype of the workspaces."""
        return sum_dtype(self.dtype)

    @property
    def activates(self):
        """The forward pass's kernel computes the activation too."""
        return self.forward[0].epilogue.activates

    @property
    def packs_forward(self):
        """The forward pass reads what is packed of the kernel."""
        return any(gather.packed for gather in self.forward)

    @property
    def packs_backward(self):
        """The input's gradient does."""
        return any(gather.packed for gather in self.backward_input)

    @cached_property
    def backward_input(self):
        """The products of the input's gradient, one for each residue of the stride."""
        if self._is_backward:
            gathers = self._made(lambda: self._gathers_of_input(self.activation))
            if all(gather.epilogue.differentiates for gather in gathers):
                return gathers
        return self._made(lambda: self._gathers_of_input(None))

    def _gathers_of_input(self, activation):
        gathers = []
        for product in implicit_gemm.backward_input(self.geometry):
            follows = any(gather.packed for gather in gathers)
            gathers.append(self._gather(product, activation, follows))
        return gathers

    @property
    def differentiates(self):
        """The input's gradient has that of the activation behind it."""
        return all(gather.epilogue.differentiates for gather in self.backward_input)

    @cached_property
    def backward_kernel(self):
        """The product of the kernel's gradient."""
        g = self.geometry
        which = (implicit_gemm.forward(g), g.N, g.G, g.P * g.Q * g.E2, self.dtype)
        if self.precision in _TERMS:
            return self._made(lambda: _reduce_on_tensor_cores(*which, _TERMS[self.precision]))
        if self.dtype.itemsize == 2 and has_warpgroups() and not SIMULATED:
            found = bulk_reduction_tiles.choose_tile(which[0], g.N, g.G, 1, pair=2)
            if found[0]:
                return self._made(lambda: BulkReduce(*which, 1, *found))
        return self._made(lambda: Reduce(*which))

    def workspaces(self):
        """Shapes of the workspace of each pass; all kernels are made ready for it."""
        return {
            "forward": _packed_shape(self.forward),
            "input": _packed_shape(self.backward_input),
            "kernel": self.backward_kernel.partial_shape,
        }

    def explain(self):
        """Which kernels run, with which tiles, and why; what making them ready took."""
        passes = {
            "forward": self.forward,
            "backward_input": self.backward_input,
            "backward_kernel": [self.backward_kernel],
        }
        lines = [f"{name}: {one}" for name, kernels in passes.items() for one in kernels]
        return "\n".join([*lines, f"kernels made ready in {self.seconds:.2f} s"])


def choose_swapped(product, bulk, images, G, multiprocessors):
    """(tile, why) of the kernel in registers for a product in TF32; None where another should take less time.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    bulk : numbacaps.fused.rung_5_warp_specialized.tile.BulkTile or None
        Of the kernel that packs.
    images, G, multiprocessors : int
    """
    how = images, G, multiprocessors
    tile, why, takes = swapped_tiles.choose_tile(product, *how)
    if tile is None:
        return None
    if bulk and bulk_tiles.cycles(bulk, product, images, G, 1, multiprocessors) + _PACKED < takes:
        return None
    return tile, why


def _reduce_on_tensor_cores(product, images, G, size, dtype, terms):
    """The tensor cores' product of the kernel's gradient: with the copy engine, where it can be used."""
    which = (product, images, G, size, dtype, terms)
    if not SIMULATED and not bulk_reduction_tiles.why_slow(product, images, G):
        found = bulk_reduction_tiles.choose_tile(product, images, G, terms)
        if found[0]:
            return BulkReduce(*which, *found)
    return MmaReduce(*which)


def reduce_beside(geometries, dtype, precision):
    """Products of kernels' gradients that are launched at the same time, and share the GPU; None where one cannot.

    Parameters
    ----------
    geometries : sequence of numbacaps.geometry.Geometry
        Of as many images, with G of 1.
    dtype : numpy.dtype
    precision : str
        ``"tf32"`` or ``"tf32x3"``.

    Returns
    -------
    list of BulkReduce, or None
    """
    products, terms = [implicit_gemm.forward(g) for g in geometries], _TERMS[precision]
    sizes = [g.C * g.H * g.W * g.E1 + g.P * g.L * g.E3 for g in geometries]
    found = bulk_reduction_tiles.choose_beside(products, sizes, geometries[0].N, terms)
    # Not early: where a few blocks find a multiprocessor and wait on it, the others come later still (measured).
    return found and [
        BulkReduce(product, g.N, 1, g.P * g.Q * g.E2, dtype, terms, *how, early=False)
        for product, g, how in zip(products, geometries, found)
    ]


_alive = WeakValueDictionary()


def prepare(geometry, dtype, precision="ieee", activation=None):
    """What a geometry needs: the same for as long as somebody holds it, and kept for the last so many.

    Who captures calls into a graph holds it as long as the graph, which has the addresses of its tables.
    """
    return _prepare(geometry, dtype, precision, activation)


@lru_cache(_KEPT)
def _prepare(*key):
    found = _alive.get(key)
    if found is None:
        found = _alive[key] = Prepared(*key)
    return found


def precisions(dtype):
    """The precisions that there are for a dtype on this device."""
    if is_bfloat16(dtype) and not _has_bfloat16():
        return ()
    if dtype != np.float32:
        return ("ieee",)
    return ("ieee", *_TERMS) if has_warpgroups() else ("ieee",)


def _has_bfloat16():
    return SIMULATED or cuda.get_current_device().compute_capability >= _BFLOAT16


def has_warpgroups():
    """Whether this device, or the simulator, has warpgroup products."""
    return SIMULATED or cuda.get_current_device().compute_capability == _WARPGROUPS


def _aligned(array):
    """Whether an array begins at a multiple of 16 bytes."""
    return address_of(array) % CHUNK == 0


def _packed_shape(gathers):
    """The workspace of the products of a pass: room for what each packs."""
    return {f"packed {i}": (g.packed,) for i, g in enumerate(gathers) if g.packed}


def _launch(gathers, gathered, kernel, result, activated, stream, room, packed):
    """Launch the products of a pass on runs of elements: first all packing, which goes on side by side."""
    arrays = (gathered, kernel, result, activated)
    ready = [(g.ready_for(*arrays), room.get(f"packed {i}")) for i, g in enumerate(gathers)]
    if not packed:
        for gather, place in ready:
            gather.pack(kernel, place, stream)
    for gather, place in ready:
        gather.multiply(gathered, kernel, place, result, activated, stream, packed)


def pack_forward(geometry, w, *, stream, workspace, precision="ieee", activation=None):
    """Pack the kernel for calls of :func:`forward`, or :func:`activated`, that are told it is packed."""
    _pack(prepare(geometry, w.dtype, precision, activation).forward, geometry, w, stream, workspace)


def pack_backward(geometry, w, *, stream, workspace, precision="ieee", activation=None):
    """The same for the input's gradient: :func:`backward`, or :func:`differentiated`."""
    gathers = prepare(geometry, w.dtype, precision, activation).backward_input
    _pack(gathers, geometry, w, stream, workspace)


def _pack(gathers, geometry, w, stream, workspace):
    """Launch the packing of a pass's products."""
    room = workspace.arrays(_packed_shape(gathers), sum_dtype(w.dtype))
    (w,) = runs(geometry, w=w)
    for i, gather in enumerate(gathers):
        gather.pack(w, room.get(f"packed {i}"), stream)


def forward(geometry, x, w, out, *, stream, workspace, precision="ieee", packed=False):
    """One product. The tensor cores take a workspace of a packed copy of ``w``.

    ``packed`` says that :func:`pack_forward` left it there, and nothing else used the workspace since.
    """
    gathers = prepare(geometry, x.dtype, precision).forward
    room = workspace.arrays(_packed_shape(gathers), sum_dtype(x.dtype))
    x, w, out = runs(geometry, x=x, w=w, out=out)
    _launch(gathers, x, w, out, out, stream, room, packed)


def activated(
    geometry, x, w, sums, out, activation, *, stream, workspace, precision="ieee", packed=False
):
    """The forward pass and an activation in one, where what is prepared for it ``activates``.

    ``sums`` takes what is before the activation; None where it does not keep them.
    """
    gathers = prepare(geometry, x.dtype, precision, activation).forward
    room = workspace.arrays(_packed_shape(gathers), sum_dtype(x.dtype))
    x, w, sums = runs(geometry, x=x, w=w, out=out if sums is None else sums)
    (out,) = runs(geometry, out=out)
    _launch(gathers, x, w, sums, out, stream, room, packed)


def differentiated(
    geometry, w, dy, sums, dx, activation, *, stream, workspace, precision="ieee", packed=False
):
    """The input's gradient behind that of an activation, where what is prepared ``differentiates``.

    The input was what the activation made of ``sums``; ``dx`` is what reaches them.
    """
    gathers = prepare(geometry, dy.dtype, precision, activation).backward_input
    room = workspace.arrays(_packed_shape(gathers), sum_dtype(dy.dtype))
    result, kernel, gathered = runs(geometry, dx=dx, w=w, dy=dy)
    (sums,) = runs(geometry, dx=sums)
    _launch(gathers, gathered, kernel, result, sums, stream, room, packed)


def backward(geometry, x, w, dy, dx, dw, *, stream, workspace, precision="ieee", packed=False):
    """Both gradients; ``dx`` or ``dw`` is None where that gradient is not wanted.

    The workspace is a packed copy of ``w``, twice as large for three terms, and a partial sum as large as
    ``dw``, in whole tiles where there are such, for each split, of which there are at most 396. ``packed``
    says that :func:`pack_backward` left the first there, and nothing else used the workspace since.
    """
    prepared = prepare(geometry, dy.dtype, precision)
    shapes = {}
    if dx is not None:
        shapes |= _packed_shape(prepared.backward_input)
    if dw is not None:
        shapes |= prepared.backward_kernel.partial_shape
    room = workspace.arrays(shapes, sum_dtype(dy.dtype))
    if dx is not None:
        result, kernel, gathered = runs(geometry, dx=dx, w=w, dy=dy)
        _launch(prepared.backward_input, gathered, kernel, result, result, stream, room, packed)
    if dw is not None:
        x, dy, dw = runs(geometry, x=x, dy=dy, dw=dw)
        prepared.backward_kernel(x, dy, dw, stream, room.get("partial"))
