"""The warps' tensor core kernels through the compiler, and which GPU gets them; no GPU is needed."""

import itertools
import re
import shutil
import subprocess
from dataclasses import astuple, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numba.cuda import dispatcher

from experiments.measuring.workloads import PUBLISHED
from numbacaps import Geometry
from numbacaps.algorithms.fused import FusedPasses
from numbacaps.device import gpu
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.fused import choose_input as choosing
from numbacaps.fused import col2im, implicit_gemm
from numbacaps.fused.activation import Activation
from numbacaps.fused.choose import Job, NotPossible, choose, register_tile
from numbacaps.fused.choose_input import choose_input
from numbacaps.fused.choose_split_k import choose_split_k
from numbacaps.fused.mma_sync import rows, split_k_launcher, split_k_tile, table, tile
from numbacaps.fused.precision import precisions
from tests.support.kernels import (
    ADD_AND_LOOK,
    WARP_HELPERS,
    lets_the_next_start_late,
    warp_ptx,
    warp_split_k_ptx,
)

pytestmark = pytest.mark.tiers("ptx")

_CCS = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
_KINDS = {"float32-1": 1, "float32-3": 3, "float16-1": 1, "bfloat16-1": 1}
_PRODUCTS = {
    "float32": "m16n8k8.row.col.f32.tf32.tf32.f32",
    "float16": "m16n8k16.row.col.f32.f16.f16.f32",
    "bfloat16": "m16n8k16.row.col.f32.bf16.bf16.f32",
}
_RUNS = (16, 8, 4, 2)  # bytes of a copy
_TILES = {"first": 0, "narrow": -3, "last": -1}


@pytest.fixture(autouse=True)
def of_capability(monkeypatch):
    """A function that makes the GPU one of a compute capability, which Numba and the package ask for."""

    def become(capability, multiprocessors=132):
        one = replace(gpu.H100, compute_capability=capability, multiprocessors=multiprocessors)
        numba = SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr(gpu, "current", lambda: one)
        monkeypatch.setattr(dispatcher, "get_current_device", lambda: numba)

    become((9, 0))
    return become


def _runs(dtype):
    return [run for run in _RUNS if run >= dtype.itemsize]


def _check(text, dtype, cc, copies):
    """What holds for every variant; ``copies`` are the runs of 4 bytes and more."""
    assert "__local_depot" not in text, "arrays were spilled to local memory"
    assert not re.search(r"\.f64\b", text), "float64 crept in"
    assert f"mma.sync.aligned.{_PRODUCTS[dtype.name]}" in text
    assert not re.search(r"\b(atom|red)\.", text)
    found = set(map(int, re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*, (\d+), ", text)))
    assert found == {run for run in copies if run >= 4}
    assert ("griddepcontrol" in text) == (cc >= (9, 0)) and lets_the_next_start_late(text)
    if cc < (9, 0):
        assert not re.search(r"wgmma|cp\.async\.bulk|mbarrier|setmaxnreg", text)


def _spills(text, cc):
    """Bytes that the assembler spills; None where there is no assembler."""
    assembler = shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")
    if assembler is None:
        return None
    text = re.sub(r"^\.version .*$", ".version 9.0", text, flags=re.MULTILINE)
    which = [f"-arch=sm_{cc[0]}{cc[1]}", "-v", "-o", "/dev/null", "/dev/stdin"]
    done = subprocess.run(
        [assembler, *which], input=text, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))


def _every_fifth(variants):
    """Some of them; every value meets most others."""
    return list(itertools.islice(variants, 0, None, 5))


def _variants():
    """(kind, tile, (a_run, b_run, along_k, paired)) whose copies have their places in registers."""
    for kind, which in itertools.product(_KINDS, _TILES):
        dtype = dtype_of(kind.split("-")[0])
        one, runs = tile.TILES[_KINDS[kind]][_TILES[which]], _runs(dtype)
        for variant in itertools.product(runs, runs, (False, True), (False, True)):
            if one.takes(*(run // dtype.itemsize for run in variant[:2]), dtype.itemsize):
                yield kind, which, variant


def _compile(kind, which, variant, cc):
    dtype, terms = dtype_of(kind.split("-")[0]), _KINDS[kind]
    text = warp_ptx(dtype, terms, *variant, tile.TILES[terms][_TILES[which]], cc)
    _check(text, dtype, cc, variant[:2])
    is_paired = variant[3]
    assert ("shfl.sync" in text) == (not is_paired), "lanes exchange what is stored alone"
    return text


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "which", "variant"), _every_fifth(_variants()))
def test_every_variant(kind, which, variant):
    _compile(kind, which, variant, (9, 0))


# Elements packed for the widest copies; as they lie along k, in shorter ones; capsules that have no copy.
_SOME = {
    "widest": (16, 16, False, True),
    "narrow": (8, 4, True, False),
    "single": (4, 4, True, False),
}


# The oldest GPU gets every tile, the others the smallest, at float32's grade and of 2 bytes.
_ON_GPUS = {
    f"{some}-{kind}-{which}-cc{number}": (some, kind, which, cc)
    for (some, which), kind, (number, cc) in itertools.product(
        zip(_SOME, _TILES, strict=True), _KINDS, enumerate(_CCS)
    )
    if number == 0 or which == "last" and kind in ("float32-3", "bfloat16-1")
}


@pytest.mark.slow(but=["single-float32-3-last-cc0"])
@pytest.mark.parametrize(("some", "kind", "which", "cc"), _ON_GPUS.values(), ids=_ON_GPUS)
def test_every_gpu(some, kind, which, cc, of_capability):
    of_capability(cc)
    text = _compile(kind, which, _SOME[some], cc)
    assert not _spills(text, cc)


_LOADED_MULTIPLIED_STORED = (
    r"ld\.global\.(nc\.)?[ub]16",
    r"mma\.sync",
    r"st\.(volatile\.)?shared\.[ub]16",
)
_OF_TWO_BYTES = [one for one in tile.TILES[1] if one.takes(1, 1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("one", _OF_TWO_BYTES, ids=str)
def test_runs_of_two_bytes(one, dtype):
    """No asynchronous copy takes them: threads load them before the products of a stage, and store them behind these."""
    text = warp_ptx(dtype_of(dtype), 1, 2, 2, True, False, one, (9, 0))
    _check(text, dtype_of(dtype), (9, 0), (2, 2))
    assert not re.search(r"cp\.async\.c[ag]\.", text)
    order = [re.search(what, text).start() for what in _LOADED_MULTIPLIED_STORED]
    assert order == sorted(order)


def _split_k_variants():
    """(kind, tile, (copies of x, copies of dy), paired) whose copies the tile's threads share evenly."""
    for kind, which in itertools.product(_KINDS, _TILES):
        runs = _runs(dtype_of(kind.split("-")[0]))
        for *copies, paired in itertools.product(runs, runs, (False, True)):
            if _is_shared(kind, which, copies):
                yield kind, which, copies, paired


def _is_shared(kind, which, copies):
    dtype, one = dtype_of(kind.split("-")[0]), split_k_tile.TILES[_KINDS[kind]][_TILES[which]]
    runs = tuple(copied // dtype.itemsize for copied in copies)
    return split_k_tile.copied_at_once(one, runs, dtype.itemsize) == runs


def _compile_split_k(kind, which, copies, paired, cc):
    dtype, terms = dtype_of(kind.split("-")[0]), _KINDS[kind]
    one = split_k_tile.TILES[terms][_TILES[which]]
    text = warp_split_k_ptx(dtype, terms, *copies, paired, one, cc)
    _check(text, dtype, cc, copies)
    assert ("shfl.sync" in text) == (not paired), "lanes exchange what is stored alone"
    return text


@pytest.mark.slow
@pytest.mark.parametrize("kind, which, copies, paired", _every_fifth(_split_k_variants()))
def test_every_variant_of_the_kernel_s_gradient(kind, which, copies, paired):
    _compile_split_k(kind, which, copies, paired, (9, 0))


@pytest.mark.slow(but=["single-float32-3-last-cc0"])
@pytest.mark.parametrize(("some", "kind", "which", "cc"), _ON_GPUS.values(), ids=_ON_GPUS)
def test_every_gpu_of_the_kernel_s_gradient(some, kind, which, cc, of_capability):
    of_capability(cc)
    *copies, _, paired = _SOME[some]
    assert _is_shared(kind, which, copies)
    text = _compile_split_k(kind, which, copies, paired, cc)
    assert not _spills(text, cc)


_RESERVED = 1024  # bytes of shared memory that CUDA takes of each block
_OF_ALL_BLOCKS = 228 * 1024  # of a multiprocessor of 9.0


@pytest.mark.parametrize("terms, itemsize", [(1, 2), (1, 4), (3, 4)])
def test_a_multiprocessor_has_shared_memory_for_its_blocks(terms, itemsize):
    for one in tile.TILES[terms]:
        for along_k in (False, True):
            _check_shared(one, one.shared_bytes(along_k, itemsize), one.BM * (4 + 4 + 8))
    for one in split_k_tile.TILES[terms]:
        _check_shared(one, one.shared_bytes(itemsize), 2 * one.threads * (4 + 4 + 4))


def _check_shared(one, asked, declared):
    assert one.BLOCKS * (asked + declared + _RESERVED) <= _OF_ALL_BLOCKS, str(one)
    # More than 48 KiB must be asked for, and the launcher counts what it asks for alone.
    assert (asked + declared > 48 * 1024) == (asked > 48 * 1024), str(one)


@pytest.mark.parametrize("row", [16, 32, 64, 128])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_what_is_read_or_written_at_once_lies_on_different_banks(itemsize, row):
    """Copies write 32 bytes of four rows; those of 32 elements of 2 bytes wait once. ``ldmatrix`` reads 16 bytes of eight rows."""
    _check_banks(row, itemsize, rows.pitches(row, itemsize), copies_wait=(itemsize, row) == (2, 32))
    if row == 64:
        _check_banks(row, itemsize, rows.tight(row), copies_wait=itemsize == 2)


def _check_banks(row, itemsize, pitches, copies_wait):
    of_row, of_four = (itemsize * pitch for pitch in pitches)
    begins = [i // 4 * of_four + i % 4 * of_row for i in range(16)]
    assert min(np.diff(begins)) >= row * itemsize and of_row % 16 == of_four % 16 == 0

    def banks(first, count, nbytes):
        words = np.add.outer(begins[first : first + count], np.arange(0, nbytes, 4)) // 4
        return np.unique(words % 32).size

    assert (min(banks(first, 4, 32) for first in range(0, 16, 4)) < 32) == copies_wait
    if itemsize == 2:
        assert banks(0, 8, 16) == banks(8, 8, 16) == 32


_ADDED = r"\badd(\.rn)?\.f32"  # as PTX adds up


@pytest.mark.slow(but=["float32-cc0"])
@pytest.mark.parametrize("cc", [_CCS[0], (9, 0), _CCS[-1]])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_packing_and_the_sum_of_splits(dtype, cc, of_capability):
    of_capability(cc)
    for name, make in WARP_HELPERS.items():
        text = make(dtype_of(dtype), cc)
        assert "__local_depot" not in text and not re.search(r"\.f64\b", text), name
        assert ("griddepcontrol" in text) == (cc >= (9, 0))
        adds = name in ("add_splits", "col2im")
        assert lets_the_next_start_late(text, *[_ADDED] * adds)
        if not adds and not name.startswith("im2col"):
            assert re.search(r"st\.global\.v(4\.|2\.b64)", text)  # 16 bytes


@pytest.mark.slow(but=["forward"])
@pytest.mark.parametrize("wanted", ADD_AND_LOOK)
def test_what_adds_up_sums_and_looks_through_them(wanted):
    """Sums in float32, and those that cannot be told in float64, behind them."""
    text = ADD_AND_LOOK[wanted]((9, 0))
    assert "__local_depot" not in text and not re.search(r"\b(atom|red)\.", text)
    assert "fma.rn.f64" in text and lets_the_next_start_late(text, _ADDED)
    assert "add.f32" in text[: text.index("fma.rn.f64")]


# Which GPU gets them.

_EM = Geometry(128, 32, 32, 14, 14, 3, 3, 1, 4, 4, 4)
_ODD = {D: Geometry(128, 16, 16, 14, 14, 3, 3, 1, D, D, D) for D in (3, 5, 7)}
_EVERY = [("float32", "tf32"), ("float32", "tf32x3"), ("float16", "ieee"), ("bfloat16", "ieee")]


def _job(g, dtype, precision, product=None, result_is_dx=False):
    product = implicit_gemm.forward(g) if product is None else product
    size = g.N * g.C * g.H * g.W * g.E1 if result_is_dx else g.N * g.P * g.L * g.E3
    which = product, g.N, g.G, dtype_of(dtype), precision
    return Job(*which, size=g.P * g.Q * g.E2, result=size)


def _rungs(g, dtype, precision):
    """The rungs of forward and of the kernel's gradient."""
    job = _job(g, dtype, precision)
    return choose(job).rung, choose_split_k(job).rung


@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (10, 0), (12, 0)])
def test_tensor_cores_of_every_gpu_since_8_0(capability, dtype, precision, of_capability):
    of_capability(capability, 108)
    for g in (_EM, *_ODD.values()):
        assert precision in precisions(dtype_of(dtype))
        assert _rungs(g, dtype, precision) == ("mma_sync", "mma_sync_split_k")
    assert _rungs(_EM, "float32", "ieee") == ("register_tiles", "register_tiles_split_k")


def test_older_ones_keep_ordinary_arithmetic(of_capability):
    of_capability((7, 5), 40)
    ordinary = "register_tiles", "register_tiles_split_k"
    assert precisions(np.dtype(np.float32)) == ("ieee",)
    for dtype in ("float32", "float16"):
        assert _rungs(_EM, dtype, "ieee") == ordinary
    found = _of_the_input(replace(_EM, stride=(2, 2)), "float16")
    assert found == ["register_tiles"] * 4


def _of_the_input(g, dtype, precision="ieee"):
    """The rungs of the input's gradient."""
    products = implicit_gemm.backward_input(g)
    jobs = [_job(g, dtype, precision, product, True) for product in products]
    return [one.rung for one in choose_input(jobs, g)]


@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
def test_hopper_takes_them_where_its_copies_cannot(dtype, precision):
    assert _rungs(_EM, dtype, precision) == ("warp_specialized", "warp_specialized_split_k")
    for g in _ODD.values():
        g = replace(g, N=1)
        assert _rungs(g, dtype, precision) == ("mma_sync", "mma_sync_split_k")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_long_sums_are_columns_where_splits_have_no_place(capability, of_capability):
    """Three terms cut a sum of 24,990 products, and splits write to pixels that no tap reaches, too."""
    of_capability(capability)
    g = Geometry(1, 9, 51, 23, 23, 7, 7, 1, 10, 10, 10, (2, 2), (0, 0), (2, 2))
    assert _of_the_input(g, "float32", "tf32x3") == ["col2im"]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_windows_of_the_input_are_columns(capability, of_capability, monkeypatch):
    """Of 961 taps of a residue 64 reach an output. Columns that were not timed have to be faster by a clear margin."""
    of_capability(capability)
    g = Geometry(64, 2, 32, 62, 62, 62, 62, 1, 2, 2, 2, (2, 2), (7, 7))
    assert 4 * col2im.columns_of(g) > col2im.TIMED_BYTES
    assert _of_the_input(g, "float32", "tf32x3") == ["col2im"]
    monkeypatch.setattr(choosing, "much_faster", lambda *of: False)
    assert _of_the_input(g, "float32", "tf32x3") != ["col2im"]


@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
def test_large_products_of_odd_capsules_are_packed_for_hopper(dtype, precision, of_capability):
    g = Geometry(64, 11, 23, 23, 23, 5, 5, 1, 2, 14, 11)
    products = implicit_gemm.backward_input(g)
    jobs = [_job(g, dtype, precision, product, True) for product in products]
    for capability in (9, 0), (8, 0), (10, 0):
        of_capability(capability)
        rung = "warp_specialized_packed" if capability == (9, 0) else "mma_sync"
        assert choose(_job(g, dtype, precision)).rung == rung
        assert [one.rung for one in choose_input(jobs, g)] == [rung]


@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
def test_odd_capsules_in_many_columns_are_a_matrix_for_hopper(dtype, precision, of_capability):
    """im2col costs little beside a product of many columns; beside one of few, more than it saves."""
    g = Geometry(64, 33, 59, 21, 21, 7, 7, 1, 2, 3, 13, (2, 2), (3, 3), (2, 2))
    for capability in (9, 0), (8, 0), (10, 0):
        of_capability(capability)
        rung = "warp_specialized_im2col" if capability == (9, 0) else "mma_sync"
        assert choose(_job(g, dtype, precision)).rung == rung
        assert choose(_job(replace(g, P=1), dtype, precision)).rung == "mma_sync"
    of_capability((9, 0))
    few = replace(g, N=2, D1=13, D2=13)  # 26 of the 64 rows of a product would be images
    assert choose(_job(few, dtype, precision)).rung == "warp_specialized_lines_im2col"
    with pytest.raises(NotPossible, match="takes no activation"):
        choose(
            replace(_job(g, dtype, precision), activation=Activation(0.1, 13)),
            "warp_specialized_im2col",
        )


@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
def test_the_gradient_of_a_window_of_one_may_be_a_matrix(dtype, precision):
    """Of larger windows, and several parents, the taps of a channel do not follow those of the one before it."""
    four = Geometry(64, 23, 48, 4, 4, 1, 1, 1, 7, 7, 7)
    g = four if dtype == "float32" else Geometry(64, 40, 80, 6, 6, 1, 1, 1, 7, 13, 13)
    assert _of_the_input(g, dtype, precision) == ["warp_specialized_im2col"]
    assert "im2col" not in _of_the_input(replace(g, KH=3, KW=3), dtype, precision)[0]
    assert _of_the_input(Geometry(20, 9, 1, 57, 14, 3, 3, 1, 12, 60, 9), "float16") == [
        "warp_specialized_lines_im2col"
    ]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_residues_of_a_stride_are_one_launch(capability, of_capability):
    of_capability(capability)
    assert _of_the_input(replace(_ODD[3], stride=(2, 2)), "float16") == ["mma_sync"]
    found = _of_the_input(replace(_EM, stride=(2, 2)), "float16")
    assert found == ["warp_specialized"] * 4 if capability == (9, 0) else ["mma_sync"]


@pytest.mark.parametrize("batch", [128, 1024])
@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
def test_layers_of_the_published_network_stay_on_hoppers_rungs(dtype, precision, batch):
    """Small products: what TMA's rungs wait for, which is counted, does not send them to the warps' kernel."""
    for layer in PUBLISHED.values():
        g = replace(layer, N=batch)
        if g.D2 == g.C == 1:  # 9 products a sum, of one channel of one element
            continue
        found = choose(_job(g, dtype, precision)).rung
        assert found in ("warp_specialized", "swap_ab"), g


@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
def test_small_products_go_by_warps_where_boxes_are_empty(dtype, precision):
    """One channel of 10 elements fills a fourth of a box."""
    g = Geometry(64, 1, 31, 7, 7, 3, 3, 1, 4, 10, 4)
    assert choose(_job(g, dtype, precision)).rung == "mma_sync"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_hoppers_rungs_wait_for_is_counted(dtype, monkeypatch):
    job = _job(replace(PUBLISHED["layer 2"], N=1), dtype, "ieee")
    assert choose(job).rung == "mma_sync"
    monkeypatch.setattr("numbacaps.fused.choose._PACKS_KERNEL", 0)
    assert choose(job).rung.startswith("warp_specialized")


def test_split_k_by_tma_takes_longer_than_its_model_says(monkeypatch):
    job = _job(Geometry(32, 57, 10, 6, 6, 2, 2, 1, 16, 16, 16, 3, 1, 2), "float16", "ieee")
    assert choose_split_k(job).rung == "mma_sync_split_k"
    monkeypatch.setattr("numbacaps.fused.choose_split_k._SPLIT_K_LONGER", 1)
    assert choose_split_k(job).rung == "warp_specialized_split_k"


def test_elements_that_are_written_alone_are_counted():
    """Of 15 columns a parent, none comes in a pair."""
    g = Geometry(8, 48, 7, 35, 35, 1, 1, 1, 6, 4, 15)
    assert choose(_job(g, "float16", "ieee")).rung == "mma_sync"
    assert choose(_job(replace(g, D3=16), "float16", "ieee")).rung == "warp_specialized"


@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
def test_few_columns_take_a_narrow_tile(dtype, precision):
    """Whatever a copy takes: capsules of 1, 2, 7 and 12 elements."""
    for D2, D3 in (1, 8), (2, 3), (7, 7), (12, 12):
        g = Geometry(256, 14, 1, 25, 25, 1, 1, 1, 10, D2, D3, (3, 3), 0, 2)
        job = _job(g, dtype, precision)
        assert choose(job, "mma_sync").tile.BN <= 32
    long = Geometry(64, 53, 1, 46, 46, 5, 5, 1, 1, 16, 5, (2, 2), (2, 2))
    assert choose_split_k(_job(long, dtype, precision)).tile.BN == 16


def test_copies_of_dy_are_as_short_as_a_tile_of_few_columns_can_share():
    one = next(one for one in split_k_tile.TILES[1] if one.BN == 16)
    assert split_k_tile.copied_at_once(one, (8, 8), 2) == (8, 4)
    assert split_k_tile.copied_at_once(one, (4, 4), 4) == (4, 2)
    assert split_k_tile.copied_at_once(one, (1, 1), 2) == (1, 1)
    wide = split_k_tile.TILES[1][0]
    assert split_k_tile.copied_at_once(wide, (8, 8), 2) == (8, 8)


def test_a_thread_has_registers_for_its_copies():
    """Of 2 bytes on both sides they fit two tiles; where the kernel's take more, all that have registers for their places."""
    both = [one for one in tile.TILES[1] if one.takes(1, 1, 2)]
    assert [(one.BM, one.BN) for one in both] == [(64, 64), (128, 32)]
    assert {(one.BM, one.BN) for one in tile.TILES[1] if one.takes(1, 8, 2)} > {
        (128, 128),
        (32, 32),
    }
    for terms, itemsize in (1, 4), (3, 4), (1, 2):
        assert all(one.takes(16 // itemsize, 1, itemsize) for one in tile.TILES[terms])


def test_a_split_s_offsets_have_32_bits():
    """Images of 2^29 elements: three of them lie within 2^31 elements, and a split takes one of all its own."""
    image = 2**29 // 256
    product = implicit_gemm.forward(Geometry(9, image, 1, 16, 16, 1, 1, 1, 1, 1, 1))
    walk = table.Walk.of(product)
    assert walk.gathered[0] == 2**29
    most = partial(split_k_launcher.most_pixels, walk)
    assert most(3) == 3 * 256 and most(9) == 256
    how, _ = split_k_launcher.choose_split_k(product, 9, 1, image, dtype_of("float16"), 1, packs=())
    assert how.per_split <= 256
    larger = replace(walk, gathered=(2**30, *walk.gathered[1:]))
    assert most(1) == 256 and split_k_launcher.most_pixels(larger, 2) < 1


_ONE = Geometry(1, 16, 16, 56, 56, 3, 3, 1, 4, 4, 4, 1, 1)
_FEW_ODD = Geometry(1, 6, 62, 51, 51, 9, 9, 1, 7, 7, 7)
_SUMMED = Geometry(1, 16, 4, 128, 128, 5, 5, 1, 1, 32, 32, 1, 2).of_channels  # over a window


@pytest.mark.parametrize(("dtype", "precision"), _EVERY)
def test_lines_of_few_images_fill_hoppers_products(dtype, precision, of_capability):
    lines = "warp_specialized_lines"
    cases = (
        (_ONE, lines),
        (_SUMMED, lines),
        (_FEW_ODD, f"{lines}_packed"),
        (_EM, "warp_specialized"),
    )
    for capability in (9, 0), (8, 0), (10, 0):
        of_capability(capability)
        for g, rung in cases:
            wanted = rung if capability == (9, 0) else "mma_sync"
            assert choose(_job(g, dtype, precision)).rung == wanted
            if capability == (9, 0):
                assert _of_the_input(g, dtype, precision) == [wanted]


_NINE_RESIDUES = Geometry(1, 5, 1, 27, 27, 3, 3, 1, 15, 15, 15, (3, 3))  # sums of 15 products


@pytest.mark.parametrize("capability", [(7, 5), (9, 0), (10, 0)])
def test_short_sums_of_many_residues_are_columns_of_ordinary_arithmetic(capability, of_capability):
    """Two launches for nine; but one residue is one launch, and large columns take longer to add than launches."""
    of_capability(capability)
    assert _of_the_input(_NINE_RESIDUES, "float32") == ["col2im"]
    assert _of_the_input(replace(_NINE_RESIDUES, stride=(1, 1)), "float32") == ["register_tiles"]
    large = replace(_NINE_RESIDUES, N=64)
    assert _of_the_input(large, "float32") == ["register_tiles"] * 9
    assert _of_the_input(_NINE_RESIDUES, "float64") == ["register_tiles"] * 9


def _default_of_the_input(g, monkeypatch, forced=()):
    """What the default chooses for the input's gradient."""
    monkeypatch.setattr(FusedPasses, "_launchers", lambda passes, wanted, chosen: chosen)
    return FusedPasses(g, np.dtype(np.float32), "auto", rungs=forced).input_launchers


_FEW_COLUMNS = Geometry(32, 1, 8, 6, 6, 3, 3, 1, 15, 2, 11, (3, 3), (1, 1))  # 2, of 88 products


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_few_columns_of_many_residues_are_columns_of_taps_in_three_terms(
    capability, of_capability, monkeypatch
):
    """Eighteen columns of 88 products. Where that is not worth it, ordinary arithmetic stays: no other kernel is for two."""
    of_capability(capability)
    for g in (_FEW_COLUMNS, Geometry(128, 2, 4, 28, 28, 5, 3, 1, 2, 1, 8, (3, 3), (1, 1))):
        (chosen,) = _default_of_the_input(g, monkeypatch)
        assert chosen.rung == "col2im" and chosen.tile in tile.TILES[3]
    others = (
        replace(_FEW_COLUMNS, KH=1, KW=1, stride=(1, 1)),  # one launch
        replace(
            _FEW_COLUMNS, N=2048, H=96, W=96
        ),  # columns of 2.6 GB take longer to add than launches
        Geometry(32, 1, 1, 28, 28, 3, 3, 1, 1, 1, 8, (1, 1), (2, 2)),
    )
    for g in others:
        found = {one.rung for one in _default_of_the_input(g, monkeypatch)}
        assert found <= {"register_tiles", "clear"}, g


@pytest.mark.parametrize(
    ("g", "capability"),
    [(_NINE_RESIDUES, (7, 5)), (_NINE_RESIDUES, (9, 0)), (_FEW_COLUMNS, (9, 0))],
)
def test_what_is_said_to_force_columns_does(g, capability, of_capability, monkeypatch):
    of_capability(capability)
    (chosen,) = _default_of_the_input(g, monkeypatch)
    forced = ("backward_input", "col2im", astuple(chosen.tile))
    assert chosen.forced == forced[1:]
    (again,) = _default_of_the_input(g, monkeypatch, (forced,))
    assert (again.rung, again.tile) == (chosen.rung, chosen.tile)


def test_groups_of_an_activation_get_a_tile_that_is_wide_enough():
    """In a sum of 72 products 64 x 16 is faster than 32 x 32, but a group of 32 does not fit there."""
    g = Geometry(1, 1, 16, 28, 28, 3, 3, 1, 1, 8, 32)
    job = Job(implicit_gemm.forward(g), g.N, g.G, np.dtype(np.float32), "ieee")
    assert register_tile(job)[0].BN == 16
    tile, _ = register_tile(replace(job, activation=Activation(0.1, 32)))
    assert tile.BN == 32


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_what_no_tap_reaches_is_cleared_first(capability, of_capability):
    of_capability(capability)
    g = Geometry(64, 20, 8, 33, 33, 1, 1, 1, 5, 5, 5, (2, 2))
    assert _of_the_input(g, "float16") == ["clear", "mma_sync"]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_few_columns_of_a_large_window_are_added(capability, of_capability):
    """49 taps, of which most of a pixel's lie outside of dy, and six columns."""
    of_capability(capability)
    g = Geometry(8, 1, 49, 26, 26, 7, 7, 1, 6, 6, 6, 1, 0, 2)
    assert _of_the_input(g, "float16") == ["col2im"]
