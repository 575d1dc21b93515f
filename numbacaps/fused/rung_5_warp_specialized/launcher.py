"""Launchers of the persistent kernels whose producer warps keep TMA busy."""

import numpy as np

from numbacaps.device.compiled import Compiled, aligned, as_argument
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.tensor_map import MAP_WORDS, TensorMaps
from numbacaps.device.upload import uploaded
from numbacaps.fused.anew import numbers_of
from numbacaps.fused.launcher import SplitKLauncher
from numbacaps.fused.packing_launcher import PackingLauncher
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesSplitK
from numbacaps.fused.rung_3_register_tiles.split_k import ADD_THREADS
from numbacaps.fused.rung_4_wgmma import split_k_tile as mma_tiles
from numbacaps.fused.rung_4_wgmma.launcher import MmaSplitK
from numbacaps.fused.rung_4_wgmma.tile import Window
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as bulk_reduction_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_5_warp_specialized.add_tiles import fours_of_block, make_add_tiles
from numbacaps.fused.rung_5_warp_specialized.kernel import make_bulk_wgmma
from numbacaps.fused.rung_5_warp_specialized.spec import KernelSpec
from numbacaps.fused.rung_5_warp_specialized.split_k import make_bulk_reduction
from numbacaps.fused.rung_5_warp_specialized.split_k_spec import ReductionSpec
from numbacaps.made_once import made_once


class WarpSpecializedLauncher(PackingLauncher):
    """The same by TMA: of float32, in ``terms`` products for each, or of 2 bytes an element.

    One that follows another of its pass starts beside it: each has pixels of its own. The gradient of an
    activation it computes where a warpgroup has few enough pixels. ``read`` is the product as it reads a gathered array
    that lies otherwise than in capsule layout. ``looked`` are the pass and its geometry where results of three terms are
    looked through; there is no activation then.
    """

    def __init__(
        self,
        product,
        images,
        G,
        dtype,
        tile,
        why,
        terms,
        activation=None,
        follows=False,
        read=None,
        looked=None,
    ):
        assert not (looked and activation), "results behind an activation are no sums"
        if activation and activation.backward and tile.PW > bulk_tiles.MOST_DIFFERENTIATED:
            activation = None
        read = read or product
        p = bulk_tiles.counted(read, dtype)
        box = bulk_tiles.Box.of(p, G, tile)
        depth, parts = box.channels * read.D, 2 if terms > 1 else 1
        run = bulk_tiles.run(p.D)
        super().__init__(
            *(product, images, G, dtype, tile, why, depth, run, parts, activation, follows)
        )
        self._follows, self.terms, self.looks = follows, terms, looked is not None
        if looked:
            self._geometry = uploaded(numbers_of(looked[1]))
            self._of = as_argument(self._geometry)
        count = bulk_tiles.tiles_of(tile, p, images, G)
        rest, part = bulk_tiles.choose_tail(tile, p, images, G, terms, multiprocessors())
        wanted = looked[0] if looked else ""
        which = (p, images, G, dtype, terms, self.epilogue, wanted, tile)
        self._launches = [PersistentLaunch(*which, tile, 0, count - rest)]
        if rest:
            cut = rest * bulk_tiles.parts_of(tile, part)
            self._launches.append(PersistentLaunch(*which, part, count - rest, cut))

    def multiply(
        self, gathered, kernel, packed, result, activated, stream, ahead=False, unpacked=None
    ):
        """Launch the product on arrays as arguments; ``unpacked`` is the gathered array before its pixels were packed."""
        waits = 0 if self._follows else 2 if ahead else 1
        behind = activated
        if self.looks:
            behind = *(unpacked or gathered), *kernel, *self._of
        for launch in self._launches:
            launch(gathered, packed, result, behind, waits, stream)
            waits = 0  # it follows, too

    def __str__(self):
        last = "".join(f", the last {launch}" for launch in self._launches[1:])
        told = ", looked through" if self.looks else ""
        how = f"{self.tile}{last}, {self.terms} terms{told}"
        return f"warp_specialized {how} ({self.why}){self._behind}"


class PersistentLaunch:
    """One launch of :class:`WarpSpecializedLauncher`: some tiles, from a first one on, each a whole tile or a part of one.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
        As :func:`numbacaps.fused.rung_5_warp_specialized.tile.counted`.
    images, G, dtype, terms, epilogue
        As those of :class:`WarpSpecializedLauncher`.
    looks : str
        As of :class:`numbacaps.fused.rung_5_warp_specialized.spec.KernelSpec`.
    whole, tile : numbacaps.fused.rung_5_warp_specialized.tile.BulkTile
        ``first`` is counted in whole tiles, ``count`` in those of the launch.
    first, count : int
    """

    def __init__(
        self, product, images, G, dtype, terms, epilogue, looks, whole, tile, first, count
    ):
        p, self.tile = product, tile
        spec = KernelSpec.of(p, G, dtype, terms, tile, whole, epilogue, looks)
        self._maps = TensorMaps(spec.box.tensor(p, images, G))
        self.shared = spec.rings.bytes
        kernel = make_bulk_wgmma(spec)
        behind = (dtype, dtype, np.int64) if looks else (dtype,)
        types = (sum_dtype(dtype), dtype, *behind)
        compiled = Compiled(kernel, types, 5, self.shared, MAP_WORDS, early=True)
        self.grid = min(count, multiprocessors())
        self._launch = compiled.on(self.grid, tile.threads, self.shared)
        later = bulk_tiles.later(tile, p, G, terms, count, self.grid)
        self._counts = images, first, count, later

    def __call__(self, gathered, packed, result, behind, waits, stream):
        """Launch it on arrays as arguments; for ``waits``, and the arrays ``behind`` the tensor map, see the kernel."""
        words = self._maps(gathered)
        self._launch(stream, (*packed, *result, *words, *behind, *self._counts, waits))

    def __str__(self):
        return f"{self._counts[2]} tiles of {self.tile.TH}x{self.tile.TW}"


class WarpSpecializedSplitK(SplitKLauncher):
    """The same by TMA, which takes two tensor maps.

    Arrays that do not begin at a multiple of 16 bytes go through :class:`MmaSplitK`, or :class:`RegisterTilesSplitK` of
    2 bytes an element and where results are looked through, which is made when the first one comes.

    Parameters
    ----------
    product, images, G, size, dtype
        As those of :class:`MmaSplitK`.
    terms : int
        1 or 3 products of the tensor cores for one of float32; 1 of half precision.
    tile : numbacaps.fused.rung_5_warp_specialized.split_k_tile.ReductionTile
    strips : numbacaps.fused.rung_5_warp_specialized.split_k_tile.Strips
    why : str
    early : bool
        As that of :class:`numbacaps.device.compiled.Compiled`.
    looked : tuple of (pass, numbacaps.geometry.Geometry), optional
        Whose results of three terms are looked through.
    """

    def __init__(
        self, product, images, G, size, dtype, terms, tile, strips, why, early=True, looked=None
    ):
        p = product
        self.tile, self.terms, self.why, self.looks = tile, terms, why, looked is not None
        self._by_ordinary_arithmetic = dtype.itemsize == 2 or terms == 3
        self._ordinary = (p, images, G, size, dtype)
        self.splits, window = strips.splits, Window.of(p)
        if self._by_ordinary_arithmetic:
            others = RegisterTilesSplitK.cut(p, images, G, dtype)[2] * size
        else:
            others = mma_tiles.choose_tile(p, p.M(images), G)[1] * size
        self.table = uploaded(p.table)
        boxes = bulk_reduction_tiles.boxes(tile, p, G)
        down = ceil_div(p.channels, boxes[0].channels)
        across = ceil_div(p.N, boxes[1].channels * p.pixels.other[3])
        self.grid = (down, across, G * strips.splits)
        sums = down * across * G * tile.sums(window.taps[1])
        self.partial_shape = {"partial": (max(strips.splits * sums, others),)}
        spec = ReductionSpec.of(p, G, dtype, terms, tile, strips)
        types = [np.float32, np.int64, dtype]
        if looked:
            self._geometry = uploaded(numbers_of(looked[1]))
            self._of = as_argument(self._geometry)
            types += [dtype, dtype, np.int64]
        add = make_add_tiles(spec, looked[0] if looked else "")
        compiled = Compiled(add, types, 0, early=True)
        self._add = compiled.on(ceil_div(sums // 4, fours_of_block(strips.splits)), ADD_THREADS)
        self._table = as_argument(self.table)
        self.shared = spec.rings.bytes
        self._maps = TensorMaps(*bulk_reduction_tiles.tensors(tile, p, images, G))
        kernel = make_bulk_reduction(spec)
        types = (np.float32, np.int64)
        compiled = Compiled(kernel, types, 0, self.shared, 2 * MAP_WORDS, early=early)
        self._launch = compiled.on(self.grid, tile.threads, self.shared)

    @made_once
    def _unaligned(self):
        if self._by_ordinary_arithmetic:
            return RegisterTilesSplitK(*self._ordinary)
        return MmaSplitK(*self._ordinary)

    def reduce(self, x, dy, dw, partial, stream):
        """Launch it on arrays as arguments; ``partial`` is room for the splits' sums."""
        if not aligned(CHUNK, x, dy, partial):
            self._unaligned.reduce(x, dy, dw, partial, stream)
            return
        self._launch(stream, (*partial, *self._table, *self._maps(x, dy)))
        looked = (*x, *dy, *self._of) if self.looks else ()
        self._add(stream, (*partial, *self._table, *dw, *looked))

    def __str__(self):
        terms = "1 term" if self.terms == 1 else f"{self.terms} terms"
        terms += ", looked through" if self.looks else ""
        return f"warp_specialized_split_k {self.tile}, {terms}, {self.splits} splits ({self.why})"
