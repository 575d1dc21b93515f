"""Every kernel through the real compiler, with no GPU: types, memory, instructions."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from numba import float32, float64, int64, types
from numba.cuda import dispatcher

from numbacaps import Geometry
from numbacaps.algorithms.indices import make_index_functions
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.compiled import values
from numbacaps.device.strided_copy import make_gather
from numbacaps.fused import addressing, implicit_gemm
from numbacaps.fused.activation import Activation
from numbacaps.fused.epilogue import make_differentiate, why_not
from numbacaps.fused.pack import NUMBERS, Packing, make_pack
from numbacaps.fused.rung_3_register_tiles import tile as tiles
from numbacaps.fused.rung_3_register_tiles.split_k import make_add_splits
from numbacaps.fused.rung_4_wgmma import split_k_tile as mma_tiles
from numbacaps.fused.rung_4_wgmma import tile as warpgroup_tiles
from numbacaps.fused.rung_4_wgmma.flat import make_flat_wgmma
from numbacaps.fused.rung_4_wgmma.kernel import make_wgmma
from numbacaps.fused.rung_4_wgmma.split_k import make_mma_reduction, make_store_sums
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as bulk_reduction_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_5_warp_specialized.add_tiles import make_add_tiles
from numbacaps.fused.rung_5_warp_specialized.kernel import make_bulk_wgmma
from numbacaps.fused.rung_5_warp_specialized.lines import in_lines
from numbacaps.fused.rung_5_warp_specialized.split_k import make_bulk_reduction
from numbacaps.fused.rung_6_swap_ab import tile as swapped_tiles
from numbacaps.fused.rung_6_swap_ab.kernel import make_swapped_wgmma
from numbacaps.nn.resident.backward import make_resident_backward
from numbacaps.nn.resident.backward_given import make_given
from numbacaps.nn.resident.backward_loss import make_loss
from numbacaps.nn.resident.forward import make_resident_forward
from numbacaps.nn.resident.pack_network import make_pack_network
from numbacaps.stages.strided_batched_matmul import choose_tile
from numbacaps.votes.indices import make_vote_index
from tests.support.kernels import (
    WARPS,
    bulk_gradient_kernel,
    bulk_kernel,
    factories,
    flat_kernels,
    fused_kernels,
    kernels,
    lets_the_next_start_late,
    loaded,
    matmul,
    mma_kernel,
    multiplied,
    packing,
    register_kernel,
    swapped_kernel,
    tile_sums_kernel,
    votes_kernels,
    warpgroup_kernels,
)
from tests.support.nn_kernels import NN_FACTORIES
from tests.support.ptx import ptx
from tests.support.routing_kernels import ROUTING_FACTORIES

pytestmark = pytest.mark.tiers("ptx")

_TYPES = {"float32": float32, "float64": float64}
_CCS = [(7, 5), (8, 0), (9, 0), (10, 0)]
_GEOMETRIES = {
    "paper-layer-3": Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2)),
    "primes": Geometry(1, 3, 2, 13, 7, 2, 3, 2, 3, 5, 7, (1, 2), (1, 1), (2, 1)),
    "scalar": Geometry(2, 1, 1, 9, 9, 3, 3, 1, 1, 1, 1),
}
_NAMES = list(kernels(_GEOMETRIES["scalar"], "float32"))
_SHARED_LIMIT = 48 * 1024  # what a block gets without asking the driver for more


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """For device functions that LLVM inlines: Numba compiles them for the GPU that there is."""
    gpu = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)


def _ptx(kernel, dtype, cc):
    """PTX of a kernel's body: declarations and instructions."""
    array, table = types.Array(_TYPES[dtype], 1, "C"), types.Array(int64, 1, "C")
    signature = [array] * kernel.arrays + [table] * kernel.tables + [int64] * kernel.integers
    signature[2:2] = [types.UniTuple(int64, kernel.words)] if kernel.words else []
    return ptx(kernel.kernel, tuple(signature), cc=cc)


def _check(text, name, dtype):
    """What holds for every kernel."""
    assert "__local_depot" not in text, "arrays were spilled to local memory"
    if dtype == "float32":
        assert not re.search(r"\.f64\b", text), "float64 crept in"
    atomics = bool(re.search(r"\b(atom|red)\.", text))
    assert atomics == (name.startswith("naive") and "fill" not in name), (
        "only naive adds atomically"
    )
    shared = sum(int(size) for size in re.findall(r"\.shared .*\[(\d+)\]", text))
    assert shared <= _SHARED_LIMIT


def _check_early(text):
    """Before it waits for the kernel before it, one brings operands nearer, and reads none."""
    early, _, late = text.partition("griddepcontrol.wait")
    assert "prefetch.global.L2" in early and "prefetch" not in late
    assert not re.search(r"(ld|st)\.global|cp\.async", early)


# Every kernel is compiled once; of what a GPU without griddepcontrol gets, and of float64, a few cases stand for all.
_QUICK = ["*-float32-cc2", "direct-*-cc[02]", "output_reduce-*-cc[02]"]
# Float64 is the same for all GPUs but for what only some have, which float32's kernels show.
_OF_GPUS = [("float64", (9, 0)), *[("float32", cc) for cc in _CCS]]


@pytest.mark.slow(but=_QUICK)
@pytest.mark.parametrize(
    "dtype, cc", _OF_GPUS, ids=[f"{dtype}-cc{_CCS.index(cc)}" for dtype, cc in _OF_GPUS]
)
@pytest.mark.parametrize("name", _NAMES)
def test_kernel(name, dtype, cc):
    text = _ptx(kernels(_GEOMETRIES["paper-layer-3"], dtype)[name], dtype, cc)
    _check(text, name, dtype)
    assert cc >= (9, 0) or "griddepcontrol" not in text, "an instruction that this GPU lacks"
    if name.startswith("register_tiles"):
        assert lets_the_next_start_late(text, sums=r"\bfma\.rn\.f(32|64)")


@pytest.mark.slow(but=["capsule_im2col-primes", "indexed forward-scalar"])
@pytest.mark.parametrize("case", ["primes", "scalar"])
@pytest.mark.parametrize("name", _NAMES)
def test_kernel_at_odd_sizes(name, case):
    _check(_ptx(kernels(_GEOMETRIES[case], "float32")[name], "float32", (9, 0)), name, "float32")


@pytest.mark.parametrize("axes", [1, 4, 9])
@pytest.mark.parametrize("dtype", _TYPES)
def test_gather(dtype, axes):
    array, sizes = types.Array(_TYPES[dtype], 1, "C"), types.UniTuple(int64, axes)
    text = ptx(make_gather(), (array, array, int64, sizes, sizes), cc=(9, 0))
    _check(text, "gather", dtype)


@pytest.mark.slow(but=["float32-size0"])
@pytest.mark.parametrize("size", [(4, 4, 4), (16, 8, 4), (1, 3, 2), (31, 29, 31), (64, 33, 40)])
@pytest.mark.parametrize("dtype", _TYPES)
def test_matmul_is_tiled_in_shared_memory_and_registers(dtype, size):
    text = _ptx(matmul(np.dtype(dtype), *size), dtype, (9, 0))
    _check(text, "matmul", dtype)
    kind = {"float32": "f32", "float64": "f64"}[dtype]
    assert f"ld.shared.{kind}" in text and f"st.shared.{kind}" in text and "bar.sync" in text
    assert f"fma.rn.{kind}" in text


def test_divisions_stay_out_of_the_way():
    """A 64-bit division costs as much as many copies: none an element, in im2col a few a thread."""

    def divisions(name):
        text = _ptx(kernels(_GEOMETRIES["paper-layer-3"], "float32")[name], "float32", (9, 0))
        return re.findall(r"div\.[su]64|rem\.[su]64|mul\.hi\.[su]64", text)

    for name in ("input_extend", "output_extend", "input_reduce", "kernel_reduce lanes"):
        assert not divisions(name), name
    # What (c, kh, kw, e) the thread's element is, and how often its walk of the rows unrolls.
    assert len(divisions("capsule_im2col")) <= 4 + 1


_TWO_BYTES = {"float16": (types.float16, "f16"), "bfloat16": (types.uint16, "bf16")}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", _TWO_BYTES)
def test_two_bytes_are_added_in_float32(dtype):
    made = fused_kernels(_GEOMETRIES["paper-layer-3"], dtype_of(dtype))
    half, single = (types.Array(kind, 1, "C") for kind in (_TWO_BYTES[dtype][0], float32))
    table = types.Array(int64, 1, "C")
    words = {name: types.UniTuple(int64, kernel.words) for name, kernel in made.items()}
    for name, signature in {
        "register_tiles": (half, half, words["register_tiles"], half, half, table),
        "reduction": (half, half, words["reduction"], single, table),
        "add_splits": (single, half, int64, int64),
    }.items():
        text = ptx(made[name].kernel, signature, cc=(9, 0))
        _check(text, name, "float32")
        assert "ld.shared.f32" in text and not re.search(r"(add|mul|fma)\S*f16", text)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", _TWO_BYTES)
def test_votes_of_two_bytes_are_added_in_float32(dtype):
    half = types.Array(_TWO_BYTES[dtype][0], 1, "C")
    for name, made in votes_kernels(_GEOMETRIES["primes"], dtype_of(dtype)).items():
        text = ptx(made.kernel, (half, half, half, int64), cc=(9, 0))
        _check(text, name, "float32")
        assert "fma.rn.f32" in text and not re.search(r"(add|mul|fma)\S*f16", text)


_PRODUCTS = {
    "em": implicit_gemm.forward(Geometry(128, 32, 32, 14, 14, 3, 3, 1, 4, 4, 4)),
    "em backward": implicit_gemm.backward_input(
        Geometry(128, 32, 32, 14, 14, 3, 3, 1, 4, 4, 4, (2, 2))
    )[0],
    "caps2": implicit_gemm.forward(Geometry(128, 32, 32, 28, 28, 3, 3, 1, 2, 2, 2)),
    "caps8": implicit_gemm.forward(Geometry(64, 16, 16, 32, 32, 3, 3, 1, 8, 8, 8)),
    "odd": implicit_gemm.forward(Geometry(7, 5, 3, 9, 8, 2, 3, 1, 3, 3, 5, (2, 1), (1, 1))),
}


# Votes that are summed over the window, as SegCaps has them.
_SUMS = Geometry(1, 16, 4, 128, 128, 5, 5, 1, 1, 32, 32, 1, 2).of_channels
_F4 = np.dtype(np.float32)
_PRODUCTS |= {
    "em in lines": in_lines(_PRODUCTS["em"], 8, _F4),
    "em backward in lines": in_lines(_PRODUCTS["em backward"], 8, _F4),
    "sums in lines": in_lines(implicit_gemm.forward(_SUMS), 1, _F4),
    "sums backward in lines": in_lines(implicit_gemm.backward_input(_SUMS)[0], 1, _F4),
}
_IN_LINES = [case for case in _PRODUCTS if "lines" in case]
_MANY_TAPS = Geometry(64, 1, 13, 20, 20, 7, 7, 1, 8, 8, 8, (3, 3), (3, 3))  # for each of 8 columns
_FIVE_ROWS = implicit_gemm.forward(Geometry(32, 25, 6, 48, 48, 5, 5, 1, 8, 8, 8, (2, 2)))
_TILES = {"first": 0, "last": -1}  # of those that the table has for a product


@pytest.mark.slow(but=["em-first"])
@pytest.mark.parametrize("which", _TILES)
@pytest.mark.parametrize("case", [case for case in _PRODUCTS if case not in _IN_LINES])
def test_warpgroup_products(case, which):
    product, dtype = _PRODUCTS[case], np.dtype(np.float32)
    tiles = warpgroup_tiles.tiles(product, dtype)
    legal = [tile for tile in tiles if not warpgroup_tiles.why_not(tile, product, dtype)]
    tile = legal[_TILES[which]]
    pack, kernel = warpgroup_kernels(product, tile, dtype)
    text = _ptx(kernel, "float32", (9, 0))
    _check(text, "wgmma", "float32")
    copies = {4: "ca", 8: "ca", 16: "cg"}[warpgroup_tiles.run_bytes(product.D, 4)]
    assert f"wgmma.mma_async.sync.aligned.m64n{tile.BN}k8.f32.tf32.tf32" in text
    assert f"cp.async.{copies}.shared.global" in text and "fence.proxy.async" in text
    text = _ptx(pack, "float32", (9, 0))
    _check(text, "pack", "float32")
    assert "cvt.rna.tf32.f32" in text


@pytest.mark.slow(but=["caps2-1-last"])
@pytest.mark.parametrize("which", _TILES)
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("case", ["em", "em backward", "caps2", "caps8", *_IN_LINES])
def test_bulk_copies(case, terms, which):
    product = _PRODUCTS[case]
    legal = [t for t in bulk_tiles.tiles(product) if not bulk_tiles.why_not(t, product, 1, terms)]
    tile = legal[_TILES[which]]
    text = _ptx(bulk_kernel(product, tile, terms), "float32", (9, 0))
    _check(text, "bulk_wgmma", "float32")
    assert f"wgmma.mma_async.sync.aligned.m64n{tile.BN}k8.f32.tf32.tf32" in text
    assert "cp.async.bulk.tensor.5d" in text and "mbarrier.try_wait.parity" in text
    _check_maps(text, 1)
    assert f"setmaxnreg.inc.sync.aligned.u32 {tile.registers};" in text
    if bulk_tiles.ahead(tile, terms):
        # Of a register that was loaded and only handed on, the assembler thinks that it is free.
        assert multiplied(text) and not multiplied(text) & loaded(text)


@pytest.mark.slow(but=["em"])
@pytest.mark.parametrize("case", ["em", "em backward", "caps2", "caps8", *_IN_LINES])
def test_results_behind_bulk_copies_that_are_summed_again(case):
    """In float64, behind all products, without a call, before which products would be waited for; the rest is as it was."""
    product = _PRODUCTS[case]
    images = product.pixels.extent[1] if product.pixels.in_lines else 128
    tile = bulk_tiles.choose_tile(product, images, 1, 3, 132)[0]
    looks = "backward_input" if "backward" in case else "forward"
    plain, looking = (
        _ptx(bulk_kernel(product, tile, 3, looks=one), "float32", (9, 0)) for one in ("", looks)
    )
    assert "__local_depot" not in looking and not re.search(r"\b(atom|red|call)\b", looking)
    assert looking.rindex("wgmma.mma_async") < looking.index("fma.rn.f64")
    for what in ("wgmma.mma_async", "ld.shared", "mbarrier.try_wait", "cp.async.bulk"):
        assert looking.count(what) == plain.count(what)
    _check_maps(looking, 1)


_SMALL = {
    "paper layer 2": Geometry(128, 1, 4, 13, 13, 3, 3, 1, 4, 8, 16),
    "paper layer 3": Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2)),
    "odd": Geometry(7, 2, 3, 7, 9, 2, 1, 1, 3, 32, 7, (2, 1), (1, 1)),
}


@pytest.mark.slow(but=["odd-chosen"])
@pytest.mark.parametrize("which", [*_TILES, "chosen"])
@pytest.mark.parametrize("case", _SMALL)
def test_kernel_in_registers(case, which):
    product, t = implicit_gemm.forward(_SMALL[case]), swapped_tiles
    legal = [tile for tile in t.tiles(product) if not t.why_not(tile, product, t.Slots.of(product))]
    tile = legal[_TILES[which]] if which in _TILES else t.choose_tile(product, 128, 1, 132)[0]
    text = _ptx(swapped_kernel(product, tile), "float32", (9, 0))
    _check(text, "swapped_wgmma", "float32")
    rows = t.product_rows(tile, product, t.Slots.of(product))
    count = t.fragments(tile, product) // 4
    multiplications = re.findall(r"wgmma\.mma_async\S*m64n(\d+)k8.f32.tf32.tf32", text)
    assert multiplications == [str(rows)] * count
    assert bool(re.search(r"ld\.global\.v2\.[ubf]32", text)) == (case != "odd")
    assert "cp.async.bulk.tensor.5d" in text and "mbarrier.try_wait.parity" in text
    _check_maps(text, 1)
    _check_early(text)
    assert multiplied(text) and not multiplied(text) & loaded(text)


_SMALL_FLAT = implicit_gemm.forward(Geometry(128, 1, 4, 8, 8, 3, 3, 1, 4, 8, 16))


def test_flat_versions():
    """One producer thread and one warpgroup; a kernel that stays in registers: nothing else than their ideas."""
    specialized, swapped = (
        _ptx(kernel, "float32", (9, 0)) for kernel in flat_kernels(_SMALL_FLAT, 64)
    )
    for text in specialized, swapped:
        _check(text, "flat", "float32")
        _check_maps(text, 1)
        assert "cp.async.bulk.tensor.5d" in text and "mbarrier.try_wait.parity" in text
    assert set(re.findall(r"wgmma\.mma_async\S*m64n(\d+)k8.f32.tf32.tf32", specialized)) == {"64"}
    assert "cp.async.bulk.shared::cluster.global.mbarrier" in specialized  # the packed kernel
    assert len(re.findall(r"wgmma\.mma_async", swapped)) == 9
    assert "ld.global.v2" in swapped and "ld.shared.f32" not in swapped


# Large tiles whose sums or fragments lay in local memory as long as the compiler chose which loops to unroll.
_LARGE = {
    "eight pixels, three terms": (
        Geometry(10, 1, 9, 64, 64, 5, 5, 1, 11, 11, 8, (2, 2)),
        bulk_tiles.BulkTile(2, 8, 8, 1, 16),
        3,
    ),
    "many runs": (
        Geometry(8, 4, 7, 4, 4, 4, 4, 1, 12, 12, 12).without_window,
        bulk_tiles.BulkTile(1, 1, 1, 4, 24),
        3,
    ),
    "wide, three taps": (
        Geometry(16, 16, 2, 20, 20, 5, 5, 1, 8, 8, 8, (2, 2)),
        bulk_tiles.BulkTile(2, 2, 2, 1, 128),
        1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", _LARGE)
def test_large_tiles_stay_in_registers(case):
    g, tile, terms = _LARGE[case]
    product = implicit_gemm.backward_input(g)[0]
    assert not bulk_tiles.why_not(tile, product, 1, terms)
    _check(_ptx(bulk_kernel(product, tile, terms), "float32", (9, 0)), "bulk_wgmma", "float32")


@pytest.mark.slow
@pytest.mark.slow(but=["3"])
@pytest.mark.parametrize("terms", [1, 3])
def test_as_many_products_as_a_batch_may_have_are_unrolled(terms):
    """Else sums would be kept in memory; the smallest width leaves room for the most pixels."""
    product, t = implicit_gemm.backward_input(_MANY_TAPS)[0], bulk_tiles
    most, tile = 0, None
    for one in t.tiles(product):
        if t.why_not(one, product, 1, terms):
            continue
        box = t.Box.of(product, 1, one)
        rows = t.batch_rows(one, product, box, terms)
        found = t.products_of_batch(one, product, box, terms, rows)
        most, tile = max((most, tile), (found, one), key=lambda each: each[0])
    assert most > 30
    _check(_ptx(bulk_kernel(product, tile, terms), "float32", (9, 0)), "bulk_wgmma", "float32")


def test_bulk_copies_of_parts():
    """The last round's parts of a tile, by the same kernel."""
    product = _PRODUCTS["em"]
    whole, part = bulk_tiles.BulkTile(2, 2, 2, 2, 128), bulk_tiles.BulkTile(1, 1, 1, 2, 128)
    _check(_ptx(bulk_kernel(product, part, 1, whole=whole), "float32", (9, 0)), "bulk", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("which", _TILES)
@pytest.mark.parametrize("dtype", _TWO_BYTES)
@pytest.mark.parametrize("case", ["em", "em backward", "caps2", "caps8"])
def test_bulk_copies_of_two_bytes(case, dtype, which):
    product, half, (kind, word) = _PRODUCTS[case], dtype_of(dtype), _TWO_BYTES[dtype]
    counted = bulk_tiles.counted(product, half)
    legal = [t for t in bulk_tiles.tiles(counted) if not bulk_tiles.why_not(t, counted, 1, 1)]
    kinds = types.Array(float32, 1, "C"), types.Array(kind, 1, "C")
    words = types.UniTuple(int64, 16)
    signature = (kinds[0], kinds[1], words, kinds[1], *[int64] * 5)
    pack = packing(product, 64, 4, half).kernel
    numbers = types.UniTuple(int64, NUMBERS)
    text = ptx(pack, (kinds[1], kinds[1], numbers), cc=(9, 0))
    _check(text, "pack", "float32")
    _check_early(text)
    assert "cvt.rna" not in text and "ld.global" in text
    tile = legal[_TILES[which]]
    kernel = bulk_kernel(product, tile, 1, dtype=half).kernel
    text = ptx(kernel, signature, cc=(9, 0))
    _check(text, "bulk_wgmma", "float32")
    assert f"wgmma.mma_async.sync.aligned.m64n{tile.BN}k16.f32.{word}.{word}" in text
    in_fours = case == "caps2" and tile.PW % 4 == 0  # results of four pixels are stored at once
    assert (f"cvt.rn.{word}x2.f32" in text) == in_fours
    assert (f"cvt.rn.{word}.f32" in text) != in_fours
    assert not re.search(r"(add|mul|fma)\S*f16", text)
    assert multiplied(text) and not multiplied(text) & loaded(text)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", _TWO_BYTES)
@pytest.mark.parametrize("case", ["em", "caps8"])
def test_bulk_copies_of_the_kernel_gradient_of_two_bytes(case, dtype):
    product, t = _PRODUCTS[case], bulk_reduction_tiles
    tile = t.choose_tile(product, 128, 1, 1, pair=2)[0]
    word = _TWO_BYTES[dtype][1]
    kernel = bulk_gradient_kernel(product, tile, 128, 1, dtype_of(dtype))
    text = _ptx(kernel, "float32", (9, 0))
    _check(text, "bulk_reduction", "float32")
    assert f"wgmma.mma_async.sync.aligned.m64n{tile.BN}k16.f32.{word}.{word}" in text
    assert "prmt.b32" in text and not re.search(r"(add|mul|fma)\S*f16", text)


# One pixel at a time, whose columns lay in local memory; and all that fit a thread's registers.
_LARGE_REDUCTIONS = {
    "one pixel": (_FIVE_ROWS, bulk_reduction_tiles.ReductionTile(5, 1, 1, 16, 2), "float16", 1),
    "most pixels": (_PRODUCTS["em"], None, "float32", 1),
    "most pixels, three terms": (_PRODUCTS["em"], None, "float32", 3),
}


@pytest.mark.slow(but=["one pixel"])
@pytest.mark.parametrize("case", _LARGE_REDUCTIONS)
def test_large_tiles_of_the_kernel_gradient_stay_in_registers(case):
    product, tile, dtype, terms = _LARGE_REDUCTIONS[case]
    t, pair = bulk_reduction_tiles, 4 // dtype_of(dtype).itemsize
    tiles = [tile] if tile else t.tiles(product)
    legal = [one for one in tiles if not t.why_not(one, product, 1, terms)]
    tile = max(legal, key=lambda one: one.PW * one.GROUPS)
    kernel = bulk_gradient_kernel(product, tile, 32, terms, dtype_of(dtype))
    assert tile.PAIR == pair
    _check(_ptx(kernel, "float32", (9, 0)), "bulk_reduction", "float32")


@pytest.mark.slow(but=["em-float32-32", "em-float32-1"])
@pytest.mark.parametrize("splits", [1, 2, 32])
@pytest.mark.parametrize("dtype", ["float32", *_TWO_BYTES])
@pytest.mark.parametrize("case", ["em", "caps2"])
def test_sums_of_tiles(case, dtype, splits):
    product, t = _PRODUCTS[case], bulk_reduction_tiles
    kind, _ = _TWO_BYTES.get(dtype, (float32, ""))
    pair = 4 // dtype_of(dtype).itemsize
    tile = t.choose_tile(product, 128, 1, 1, pair)[0]
    kernel, _ = tile_sums_kernel(product, tile, splits, dtype_of(dtype))
    text = ptx(kernel, (float32[::1], int64[::1], kind[::1]), cc=(9, 0))
    _check(text, "tile_sums", "float32")
    assert "griddepcontrol.wait" in text and "ld.global.v4.f32" in text
    assert not re.search(r"(add|mul|fma)\S*f16", text)


def test_sums_of_tiles_that_are_summed_again():
    product, t = _PRODUCTS["em"], bulk_reduction_tiles
    tile = t.choose_tile(product, 128, 1, 3, 1)[0]
    kernel, _ = tile_sums_kernel(product, tile, 7, np.dtype(np.float32), "backward_kernel")
    arrays = float32[::1], int64[::1], *[float32[::1]] * 3, int64[::1]
    text = ptx(kernel, arrays, cc=(9, 0))
    assert "__local_depot" not in text and not re.search(r"\b(atom|red)\.", text)
    assert "fma.rn.f64" in text and "ld.global.v4.f32" in text


def _check_maps(text, count):
    """Tensor maps are read where arguments lie, each as 64-bit words at a multiple of 64 bytes."""
    entry = text.index(".entry")
    arguments = re.findall(r"\.param \.\w+ (\w+)", text[entry : text.index(")", entry)])
    found = {
        arguments.index(name) for name in re.findall(r"mov\.b64 \S+ (\w+);\s*cvta\.param", text)
    }
    assert found == {14 + 16 * which for which in range(count)}
    assert all((0x210 + 8 * index) % 64 == 0 for index in found)


@pytest.mark.slow(but=["em-1-chosen"])
@pytest.mark.parametrize("which", ["last", "chosen"])
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("case", ["em", "caps2", "caps8"])
def test_bulk_copies_of_the_kernel_gradient(case, terms, which):
    product, t = _PRODUCTS[case], bulk_reduction_tiles
    legal = [tile for tile in t.tiles(product) if not t.why_not(tile, product, 1, terms)]
    tile = legal[-1] if which == "last" else t.choose_tile(product, 128, 1, terms)[0]
    text = _ptx(bulk_gradient_kernel(product, tile, 128, terms), "float32", (9, 0))
    _check(text, "bulk_reduction", "float32")
    assert f"wgmma.mma_async.sync.aligned.m64n{tile.BN}k8.f32.tf32.tf32" in text
    assert text.count("cp.async.bulk.tensor.5d") >= 2 and "mbarrier.try_wait.parity" in text
    _check_maps(text, 2)
    assert f"setmaxnreg.inc.sync.aligned.u32 {tile.registers};" in text


# Layers 2 and 5 of the published network, and the group that each squashes.
_ACTIVATED = {
    "parts of rows": (implicit_gemm.forward(Geometry(128, 1, 4, 13, 13, 3, 3, 1, 4, 8, 16)), 8),
    "rows": (implicit_gemm.forward(Geometry(128, 4, 10, 3, 3, 3, 3, 1, 4, 16, 8)), 32),
}


def _check_activation(text, name, dtype):
    """Its lanes hand values round, and what is slow in it takes no branch and no call."""
    _check(text, name, dtype)
    assert "shfl.sync.idx.b32" in text
    assert not re.search(r"\bsqrt\.rn|div\.rn|call\.uni", text)
    if dtype == "float32":
        assert "rsqrt.approx" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tile", "dtype"),
    [
        *((tile, "float32") for tile in tiles.TILES),
        *((tile, "float64") for tile in tiles.TILES[1:2]),
    ],
)
@pytest.mark.parametrize("case", _ACTIVATED)
def test_activations_behind_ordinary_products(case, tile, dtype):
    product, group = _ACTIVATED[case]
    if why_not(Activation(0.1, group), product, tile.BN, tile.lanes):
        return
    kernel = register_kernel(product, tile, np.dtype(dtype), group)
    _check_activation(_ptx(kernel, dtype, (9, 0)), "register_tiles", dtype)


@pytest.mark.slow
@pytest.mark.parametrize("case", _ACTIVATED)
def test_activations_behind_warpgroup_products(case):
    product, group = _ACTIVATED[case]
    dtype = np.dtype(np.float32)
    legal = [
        tile
        for tile in warpgroup_tiles.tiles(product, dtype)
        if not warpgroup_tiles.why_not(tile, product, dtype)
    ]
    for tile in {legal[0], legal[-1]}:
        _, kernel = warpgroup_kernels(product, tile, dtype, group)
        _check_activation(_ptx(kernel, "float32", (9, 0)), "wgmma", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("case", _ACTIVATED)
def test_activations_behind_bulk_copies(case, terms):
    product, group = _ACTIVATED[case]
    legal = [t for t in bulk_tiles.tiles(product) if not bulk_tiles.why_not(t, product, 1, terms)]
    for tile in {legal[0], legal[-1]}:
        text = _ptx(bulk_kernel(product, tile, terms, group), "float32", (9, 0))
        _check_activation(text, "bulk_wgmma", "float32")


# Of the input's gradient of layers 3 and 5: behind it that of the layer before, or of groups of two rows.
_DIFFERENTIATED = {
    "parts of rows": (Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2)), 8),
    "rows": (Geometry(128, 4, 10, 3, 3, 3, 3, 1, 4, 16, 8), 32),
}


@pytest.mark.slow
@pytest.mark.parametrize("tile", tiles.TILES[1::3])
@pytest.mark.parametrize("case", _DIFFERENTIATED)
def test_gradients_behind_ordinary_products(case, tile):
    g, group = _DIFFERENTIATED[case]
    product = implicit_gemm.backward_input(g)[0]
    if why_not(Activation(0.1, group, backward=True), product, tile.BN, tile.lanes):
        return
    kernel = register_kernel(product, tile, np.dtype(np.float32), group, backward=True)
    _check_activation(_ptx(kernel, "float32", (9, 0)), "register_tiles", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("case", _DIFFERENTIATED)
def test_gradients_behind_bulk_copies(case, terms):
    g, group = _DIFFERENTIATED[case]
    product = implicit_gemm.backward_input(g)[0]
    tile = bulk_tiles.choose_tile(product, 128, 1, terms, 132)[0]
    assert tile.PW <= bulk_tiles.MOST_DIFFERENTIATED
    text = _ptx(bulk_kernel(product, tile, terms, group, backward=True), "float32", (9, 0))
    _check_activation(text, "bulk_wgmma", "float32")
    assert "ld.global.v2.f32" in text


@pytest.mark.slow(but=["em-last"])
@pytest.mark.parametrize("which", _TILES)
@pytest.mark.parametrize("case", ["em", "caps2", "odd"])
def test_products_of_warps(case, which):
    product, dtype = _PRODUCTS[case], np.dtype(np.float32)
    depths = product.D, product.pixels.other[3]
    runs = tuple(warpgroup_tiles.run_bytes(D, 4) for D in depths)
    tile = mma_tiles.TILES[_TILES[which]]
    text = _ptx(mma_kernel(product, runs, tile, dtype), "float32", (9, 0))
    _check(text, "mma_reduction", "float32")
    mmas = text.count("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
    assert mmas % (tile.WM // 16 * tile.WN // 8) == 0 and mmas
    assert "ld.shared.v4.f32" in text and ".extern .shared .align 16 " in text
    for run in runs:
        how = {4: "ca", 8: "ca", 16: "cg"}[run]
        assert re.search(rf"cp\.async\.{how}\.shared\.global .*, {run}, ", text)


@pytest.mark.slow(but=["64-32"])
@pytest.mark.parametrize(("capsules", "bits"), [(64, 32), (8192, 64)])
def test_a_packed_kernel_is_counted_in_as_many_bits_as_it_takes(capsules, bits):
    """Numba makes float64 of unsigned and signed numbers of 64 bits, so these are signed."""
    columns = implicit_gemm.Columns(capsules * 16, 16, (36864, 1), 1)
    steps = implicit_gemm.KernelSteps(0, 9 * 256, 3 * 256, 256, 16)
    packed = Packing(256, 16, (3, 3), columns, steps, 1, 1, 120, 6, 1, 4, 3)
    kernel = make_pack(packed.form, np.dtype(np.float32), False)
    signature = *(float32[::1],) * 2, types.UniTuple(int64, NUMBERS)
    text = ptx(kernel, signature, cc=(9, 0))
    assert ".f64" not in text
    assert bool(re.search(r"(div|rem)\.s64|mul\.hi\.[su]64", text)) == (bits == 64)
    if bits == 32:  # by numbers that come at run time, too
        assert not re.search(r"(div|rem)\.[su]32", text)


def test_every_factory_is_compiled_here():
    covered = {kernel.factory for kernel in kernels(_GEOMETRIES["scalar"], "float32").values()}
    covered |= {
        make_vote_index,
        make_gather,
        make_index_functions,
        make_pack,
        make_wgmma,
        make_mma_reduction,
    }
    covered |= {
        make_bulk_wgmma,
        make_swapped_wgmma,
        make_bulk_reduction,
        make_add_tiles,
        make_differentiate,
        *(kernel.factory for kernel in flat_kernels(_SMALL_FLAT, 64)),
    }
    # In test_flat_wgmma; and inside of the fused kernels.
    covered |= {make_flat_wgmma, make_store_sums}
    covered |= {make for name, make in vars(addressing).items() if name.startswith("make_")}
    # In test_resident and test_resident_backward, with their parts.
    covered |= {make_resident_forward, make_resident_backward, make_pack_network}
    covered |= {make_loss, make_given}
    covered |= {
        part
        for name, part in factories().items()
        if name.startswith("numbacaps.nn.resident.") and not hasattr(part, "cache_info")
    }
    covered |= NN_FACTORIES | WARPS | ROUTING_FACTORIES  # the last in tests/routing
    missing = [name for name, factory in factories().items() if factory not in covered]
    assert not missing


def test_what_a_compiled_kernel_takes():
    """Integers and tuples of them as they are; of an array what Numba passes for a flat one."""
    pointer = SimpleNamespace(value=4096)
    array = SimpleNamespace(size=6, dtype=np.dtype(np.float64), device_ctypes_pointer=pointer)
    assert values((array, -3, (1, 2))) == [0, 0, 6, 8, 4096, 6, 8, -3, 1, 2]
    kernel = make_add_splits(2, np.dtype(np.float32))
    text = ptx(kernel, (*(float32[::1],) * 2, int64, int64), cc=(9, 0))
    assert len(re.findall(r"\.param \.[bu]64", text)) == 2 * 7 + 2


@pytest.mark.slow
@pytest.mark.parametrize("itemsize", [4, 8])
def test_tiles_fit(itemsize):
    """Every tile that the table gives is within a block's threads and half its shared memory."""
    sizes = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 23, 29, 31, 32, 33, 64)
    for M, N, K in itertools.product(sizes, sizes, (1, 2, 3, 4, 16, 31, 33, 64)):
        tile = choose_tile(M, N, K, itemsize)
        assert 1 <= tile.threads <= 256
        assert tile.shared_elements * itemsize <= _SHARED_LIMIT // 2
