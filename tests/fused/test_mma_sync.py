"""The warps' tensor core kernels, one compiled kernel for all geometries, against the reference."""

import itertools
from dataclasses import astuple, replace

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps import Geometry
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.compiled import as_argument, launch_stream
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused import implicit_gemm
from numbacaps.fused.choose import Job, NotPossible
from numbacaps.fused.choose import choose as choose_rung
from numbacaps.fused.clear import ClearLauncher
from numbacaps.fused.mma_sync import add_splits, edges, launcher, split_k_tile, table, tile
from numbacaps.fused.mma_sync.launcher import MmaSyncLauncher, choose
from numbacaps.fused.mma_sync.split_k_launcher import PACKINGS, MmaSyncSplitK, choose_split_k
from numbacaps.fused.precision import has_tensor_cores
from tests.support.cases import GEOMETRIES, SMALL, nan, operands, oracle, sums

pytestmark = pytest.mark.tiers("simulator", "gpu")

# What an element is, and how many products of the tensor cores one of theirs takes.
_KINDS = {
    "float32-1": ("float32", 1, "tf32"),
    "float32-3": ("float32", 3, "tf32x3"),
    "float16-1": ("float16", 1, "float16"),
    "bfloat16-1": ("bfloat16", 1, "bfloat16"),
}
_PACKS = ((), ("matrix",), ("pixels",), ("pixels", "matrix"))
_PASSES = "forward", "backward_input", "backward_kernel"
# Beside those of all algorithms: rows whose copies take 8 and 16 bytes, and a residue whose sum is long.
_CASES = {
    **GEOMETRIES,
    "quads": Geometry(3, 3, 2, 5, 4, 3, 2, 1, 2, 4, 8, (2, 1), (1, 1)),
    "eights": Geometry(1, 1, 2, 3, 4, 2, 2, 1, 3, 8, 8),
    "pairs": Geometry(2, 3, 3, 4, 3, 2, 2, 2, 1, 2, 6, (2, 1)),
}

# bfloat16's kernels are float16's but for products and conversions, which the simulator does by NumPy.
_EVERY = [
    (kind, case)
    for kind in _KINDS
    for case in _CASES
    if not SIMULATED or kind != "bfloat16-1" or case in ("primes", "rank3", "pairs", "eights")
]


@pytest.fixture(autouse=True)
def tensor_cores():
    if not has_tensor_cores():
        pytest.skip("this GPU has no products of warps")


class Run:
    """A pass of a geometry on some operands, launched by the rung's own launchers."""

    def __init__(self, g, kind, arrays):
        self.g, (name, self.terms, self.precision) = g, _KINDS[kind]
        self.dtype = dtype_of(name)
        self.x, self.w, self.dy = arrays

    def clears(self, wanted):
        """Whether some pixels are cleared, and the others written behind that."""
        return wanted == "backward_input" and not implicit_gemm.backward_input(self.g)[0].taps

    def launcher(self, wanted, packs=(), splits=None):
        """The launcher of a pass; ``packs`` names what it packs."""
        g, how = self.g, None
        if wanted == "backward_kernel":
            which = implicit_gemm.forward(g), g.N, g.G, self.w.size, self.dtype, self.terms
            how, _ = choose_split_k(*which, packs=packs)
            if splits:
                M, BK = which[0].M(g.N), how.tile.pixels(self.dtype.itemsize)
                each = ceil_div(ceil_div(M, splits), BK) * BK
                how = replace(how, splits=ceil_div(M, each), per_split=each)
            return MmaSyncSplitK(*which, how)
        products = [one for one in implicit_gemm.backward_input(g) if one.taps]
        products = [implicit_gemm.forward(g)] if wanted == "forward" else products
        which = products, g.N, g.G, self.dtype, self.terms
        how, _ = choose(*which, packs)
        how = replace(how, splits=1 if self.clears(wanted) else splits or how.splits)
        size = (self.dy if wanted == "forward" else self.x).size
        return MmaSyncLauncher(*which, size, how)

    def result(self, wanted, launch, shifts=(0, 0, 0)):
        """What it writes; arrays begin so many elements into an allocation."""
        x, w, dy = self.x, self.w, self.dy
        taken = {"forward": (x, w, dy), "backward_input": (dy, w, x), "backward_kernel": (x, dy, w)}
        one, two, out = taken[wanted]
        arrays = [
            to_device(np.concatenate([np.zeros(shift, self.dtype), array.ravel()]))[shift:]
            for array, shift in zip((one, two), shifts)
        ]
        result = nan(out.size + shifts[2], self.dtype)[shifts[2] :]
        by_splits = wanted == "backward_kernel"
        room = launch.partial_shape.get("partial", (0,))[0] if by_splits else launch.packed
        if self.clears(wanted):
            ClearLauncher(out.size, self.dtype, False)(*arrays, result, 0, None)
        launch(*arrays, result, 0, nan(max(4, room), np.float32))
        return result.copy_to_host().reshape(out.shape)

    def check(self, wanted, result):
        """Compare a result with float64."""
        which = _PASSES.index(wanted)
        want = oracle(self.g, self.x, self.w, self.dy)[which]
        have = result.astype(np.float32)
        reference.assert_close(have, want, sums(self.g)[which], precision=self.precision)


def _run(g, kind, rng):
    return Run(g, kind, operands(g, _KINDS[kind][0], rng))


def _packings(wanted):
    return PACKINGS if wanted == "backward_kernel" else _PACKS


@pytest.mark.slow(
    but=[
        "backward_input-float32-3-residues",
        "backward_kernel-float32-3-pairs",
        "*-float16-1-primes",
        "forward-bfloat16-1-rank3",
        "forward-float32-1-primes",
        "forward-float32-1-padded",
    ]
)
@pytest.mark.parametrize("kind, case", _EVERY, ids=map("-".join, _EVERY))
@pytest.mark.parametrize("wanted", _PASSES)
def test_every_geometry(wanted, kind, case, rng):
    """Operands read as they lie, and packed in every way."""
    run = _run(_CASES[case], kind, rng)
    for packs in _packings(wanted):
        launch = run.launcher(wanted, packs)
        assert ("packed" in str(launch)) == bool(packs)
        run.check(wanted, run.result(wanted, launch))


@pytest.mark.sanitize
@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("case", ["primes"])
def test_every_kernel_once(case, kind, rng):
    """Small enough for compute-sanitizer: packing, products and the sum of splits, of each pass."""
    run = _run(SMALL[case], kind, rng)
    for wanted in _PASSES:
        launch = run.launcher(wanted, _packings(wanted)[-1], splits=2)
        run.check(wanted, run.result(wanted, launch))


# The sum cut into parts of whole stages: some are empty, the last is cut short; where pixels are cleared first,
# several residues, and g.
@pytest.mark.slow(but=["rank3-2-float32-1"])
@pytest.mark.parametrize("kind", ["float32-1", "float32-3", "float16-1"])
@pytest.mark.parametrize("splits", [2, 3])
@pytest.mark.parametrize("case", ["rank3", "strides", "whole", "gaps"])
def test_splits(case, splits, kind, rng):
    run = _run(_CASES[case], kind, rng)
    for wanted in ("forward", "backward_input"):
        for packs in _PACKS[::3]:
            launch = run.launcher(wanted, packs, splits)
            assert (f"{splits} splits" in str(launch)) != run.clears(wanted)
            run.check(wanted, run.result(wanted, launch))


def test_splits_that_a_short_residue_does_not_reach(rng):
    """Splits are of the deepest of four sums; those of the others read nothing past their table, and are zeros."""
    run = _run(Geometry(1, 1, 24, 5, 5, 5, 5, 1, 1, 2, 8, 2, 2), "float32-1", rng)
    run.check(
        "backward_input", run.result("backward_input", run.launcher("backward_input", (), 16))
    )


@pytest.mark.parametrize("splits", [1, 2])
def test_only_a_packed_kernel_may_be_shared_by_streams(splits, rng):
    """Sums of splits and packed pixels are written by every call."""
    run = _run(_CASES["primes"], "float32-1", rng)
    for packs in _PACKS:
        launch = run.launcher("forward", packs, splits)
        assert launch.packs_alone == (splits == 1 and "pixels" not in packs)


@pytest.mark.parametrize("kind", ["float32-1", "float16-1"])
def test_splits_of_the_kernel_s_gradient(kind, rng):
    run = _run(Geometry(3, 1, 2, 4, 4, 2, 2, 2, 2, 2, 3), kind, rng)
    for packs in PACKINGS:
        launch = run.launcher("backward_kernel", packs, splits=2)
        assert "2 splits" in str(launch)
        run.check("backward_kernel", run.result("backward_kernel", launch))


@pytest.mark.slow(but=["backward_kernel-float16-1"])
@pytest.mark.parametrize("kind", ["float32-1", "float32-3", "float16-1"])
@pytest.mark.parametrize("wanted", _PASSES)
def test_the_shortest_copies_give_the_same_bits(wanted, kind, rng):
    """They are what arrays take that do not begin at 16 bytes."""
    run = _run(_CASES["eights"], kind, rng)
    for packs in _packings(wanted):
        results = []
        for which in ("_whole", "_unaligned"):
            launch = run.launcher(wanted, packs)
            if hasattr(launch, which):
                launch._whole = getattr(launch, which)
                results.append(run.result(wanted, launch))
        run.check(wanted, results[0])
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)


@pytest.mark.slow(but=["*-1-float32-3", "*-2-float16-1"])
@pytest.mark.skipif(SIMULATED, reason="an address takes a GPU")
@pytest.mark.parametrize("kind", ["float32-3", "float16-1"])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("wanted", _PASSES)
def test_arrays_that_do_not_begin_at_16_bytes(wanted, which, kind, rng):
    run = _run(_CASES["eights"], kind, rng)
    for packs in _packings(wanted):
        results = [
            run.result(wanted, run.launcher(wanted, packs), shifts)
            for shifts in ((0, 0, 0), tuple(int(i == which) for i in range(3)))
        ]
        run.check(wanted, results[1])
        np.testing.assert_array_equal(*results)


# Which operand of a pass, by its number among (x, w, dy), has elements whose low parts are lost.
_SPOILT = {"forward": 0, "backward_input": 2, "backward_kernel": 0}
_VALUES = {"inf": np.inf, "small": 2.0**-120}
_SPOILT_IN = {
    "inf": ("primes", "pairs", "eights", "strides", "residues", "gaps", "rank3"),
    "small": ("pairs", "strides", "rank3"),  # the kernels are the same
}
_LOST = [
    (name, wanted, case) for name in _VALUES for wanted in _PASSES for case in _SPOILT_IN[name]
]


@pytest.mark.slow(
    but=["*-forward-strides", "inf-backward_input-residues", "inf-backward_kernel-pairs"]
)
@pytest.mark.parametrize("name, wanted, case", _LOST, ids=map("-".join, _LOST))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator adds by NumPy
def test_sums_that_three_terms_cannot_tell_are_summed_again(name, wanted, case, rng):
    """Some are infinite, or all are small. Whatever was packed, and where sums are split."""
    g, value = _CASES[case], _VALUES[name]
    arrays = [np.abs(array) for array in operands(g, "float32", rng)]
    spoilt = _SPOILT[wanted]
    if np.isinf(value):
        arrays[spoilt].ravel()[::13] = value
    else:
        arrays[spoilt] = arrays[spoilt] * np.float32(value)
    run = Run(g, "float32-3", arrays)
    which = _PASSES.index(wanted)
    want = oracle(g, *arrays)[which]
    is_infinite = np.isinf(want)
    assert not np.isnan(want).any() and is_infinite.any() == np.isinf(value)
    for packs in _packings(wanted):
        for splits in (None, 2):
            have = run.result(wanted, run.launcher(wanted, packs, splits))
            np.testing.assert_array_equal(have[is_infinite], np.float32(np.inf))
            finite = np.where(is_infinite, np.float32(0), have)
            reference.assert_close(finite, np.where(is_infinite, 0, want), sums(g)[which])


@pytest.mark.skipif(SIMULATED, reason="these tiles have too many threads")
@pytest.mark.parametrize("case", ["primes", "quads", "eights"])
@pytest.mark.parametrize("kind", ["float32-1", "float32-3", "float16-1"])
def test_every_tile(kind, case, rng):
    run = _run(_CASES[case], kind, rng)
    for products, wanted in (
        ([implicit_gemm.forward(run.g)], "forward"),
        (implicit_gemm.backward_input(run.g), "backward_input"),
    ):
        which = products, run.g.N, run.g.G, run.dtype, run.terms
        size = (run.dy if wanted == "forward" else run.x).size
        for one, packs in itertools.product(tile.TILES[run.terms], ((), ("pixels", "matrix"))):
            how, _ = choose(*which, packs, one)
            if how:  # as they lie, copies are many
                run.check(wanted, run.result(wanted, MmaSyncLauncher(*which, size, how)))
    for one, packs in itertools.product(split_k_tile.TILES[run.terms], ((), ("x", "dy"))):
        which = implicit_gemm.forward(run.g), run.g.N, run.g.G, run.w.size, run.dtype, run.terms
        how, _ = choose_split_k(*which, one, packs)
        launch = MmaSyncSplitK(*which, how)
        run.check("backward_kernel", run.result("backward_kernel", launch))


@pytest.mark.parametrize(
    "splits", [1, 2, 9, 16, 40, 70] if SIMULATED else [1, 2, 9, 16, 40, 70, 333]
)
def test_splits_are_added_whoever_shares_them(splits, rng):
    """One thread an element, or up to 32; the last has fewer splits than the others."""
    size = 50
    partial = rng.standard_normal((splits, size)).astype(np.float32)
    have, room = nan((size,), np.dtype(np.float32)), to_device(partial.ravel())
    add = add_splits.AddSplits(size, np.dtype(np.float32), splits)
    nothing = as_argument(have)
    add(as_argument(room), nothing, (nothing, nothing), launch_stream(0))
    np.testing.assert_allclose(have.copy_to_host(), partial.sum(0, dtype=np.float64), atol=1e-4)
    assert add_splits.parts_of(splits) <= max(1, splits // 8)


# Through the public functions.

_RUNGS = {
    "forward": "mma_sync",
    "backward_input": "mma_sync",
    "backward_kernel": "mma_sync_split_k",
}
_X, _W = (1, 2, 3, 4, 3, 2), (3, 2, 2, 3, 2, 5)


def _plan(**how):
    rungs = how.pop("rungs", _RUNGS)
    return numbacaps.plan(_X, _W, stride=2, padding=1, algorithm="fused", rungs=rungs, **how)


@pytest.mark.slow(but=["float32-tf32x3"])
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float32", "tf32"), ("float32", "tf32x3"), ("float16", "ieee"), ("bfloat16", "ieee")],
)
def test_a_plan_is_forced_to_it(dtype, precision, rng):
    plan = _plan(dtype=dtype, precision=precision)
    g = plan.geometry
    x, w, dy = operands(g, dtype, rng)
    shapes = plan.x_shape, plan.w_shape, plan.y_shape
    X, W, DY = (to_device(a.reshape(shape)) for a, shape in zip((x, w, dy), shapes))
    results = []
    for _ in range(2):
        y, dx, dw = (nan(shape, dtype_of(dtype)) for shape in (plan.y_shape, _X, _W))
        plan(X, W, y)
        plan.backward(X, W, DY, dx, dw)
        results.append([array.copy_to_host() for array in (y, dx, dw)])
    rounding = dtype if dtype_of(dtype).itemsize == 2 else precision
    for have, again, want, terms in zip(*results, oracle(g, x, w, dy), sums(g)):
        np.testing.assert_array_equal(have.astype(np.float32), again.astype(np.float32))
        have = have.astype(np.float32).reshape(want.shape)
        reference.assert_close(have, want, terms, precision=rounding)
    text = plan.explain()
    assert "forward: mma_sync\n" in text and "rungs={'forward': ('mma_sync', (" in text
    assert text.count("backward_input: mma_sync\n") == 1  # for all residues
    assert "backward_kernel: mma_sync_split_k\n" in text
    assert "rungs={'backward_kernel': ('mma_sync_split_k', (" in text


def test_a_tile_is_forced():
    last, of_split_k = tile.TILES[3][-1], split_k_tile.TILES[3][-1]
    rungs = {
        "forward": ("mma_sync", astuple(last)),
        "backward_kernel": ("mma_sync_split_k", astuple(of_split_k)),
    }
    explained = _plan(precision="tf32x3", rungs=rungs).explain()
    for wanted, forced in rungs.items():
        assert f"force rungs={ {wanted: forced} }" in explained


@pytest.mark.parametrize("wanted", _PASSES)
def test_a_tile_that_there_is_not(wanted):
    rung = _RUNGS[wanted]
    with pytest.raises(ValueError, match=rf"tile is \(1, 2, 3\); {rung} takes one of"):
        _plan(precision="tf32", rungs={wanted: (rung, (1, 2, 3))})


def test_ordinary_arithmetic_is_not_for_it():
    for wanted, rung in _RUNGS.items():
        with pytest.raises(ValueError, match=f"{rung} takes no float32 at precision 'ieee'"):
            _plan(precision="ieee", rungs={wanted: rung})


def test_a_kernel_that_is_packed_ahead_gives_the_same_bits(monkeypatch, rng):
    monkeypatch.setattr(launcher, "WAYS", (("matrix",),))
    shapes = (1, 3, 3, 3, 2, 3), (2, 3, 2, 2, 3, 4)
    plan = numbacaps.plan(*shapes, algorithm="fused", precision="tf32", rungs=_RUNGS)
    assert "matrix packed" in plan.explain()
    x, w = (to_device(rng.standard_normal(shape).astype(np.float32)) for shape in shapes)
    dy = to_device(rng.standard_normal(plan.y_shape).astype(np.float32))
    one, two = (nan(plan.y_shape, np.float32) for _ in range(2))
    dx, again = (nan(shapes[0], np.float32) for _ in range(2))
    plan(x, w, one)
    plan.backward(x, w, dy, dx)
    plan.pack(w)
    plan(x, None, two)
    plan.backward(x, None, dy, again)
    for a, b in ((one, two), (dx, again)):
        np.testing.assert_array_equal(a.copy_to_host(), b.copy_to_host())


def test_a_residue_alone_is_not_split(monkeypatch):
    """Splits are added all over the result, where other launches write."""
    g = Geometry(1, 2, 2, 4, 4, 2, 2, 1, 2, 2, 2, (2, 1))
    size = g.N * g.C * g.H * g.W * g.E1
    product = implicit_gemm.backward_input(g)[0]
    job = Job(product, g.N, g.G, np.dtype(np.float32), "tf32", result=size)
    assert choose_rung(job, "mma_sync").rung == "mma_sync"
    found, _ = choose([product], g.N, g.G, job.dtype, 1)
    monkeypatch.setattr(launcher, "choose_tile", lambda *_: (1, found.tile, 2))
    with pytest.raises(NotPossible, match="other products write there"):
        choose_rung(job, "mma_sync")


# What float32 cannot hold.


@pytest.mark.parametrize("wanted", _PASSES)
def test_what_is_finite_stays_finite(wanted, rng):
    """Near the largest number of float32; the high part of a factor is cut, not rounded up to infinity."""
    g = Geometry(2, 1, 2, 2, 2, 2, 2, 1, 2, 3, 2)
    arrays = x, w, dy = operands(g, "float32", rng)
    large = {"forward": x, "backward_input": dy, "backward_kernel": x}[wanted]
    small = {"forward": w, "backward_input": w, "backward_kernel": dy}[wanted]
    large[...] = np.where(large > 0, 1, -1) * np.float32(3.4028e38)
    small[...] *= np.float32(1e-30)
    run = Run(g, "float32-3", arrays)
    run.check(wanted, run.result(wanted, run.launcher(wanted)))


# What a table holds, by numbers alone.


def _walk(**changed):
    product = implicit_gemm.forward(Geometry(1, 2, 2, 4, 4, 2, 2, 1, 2, 2, 2))
    return replace(table.Walk.of(product), **changed)


def _many(count):
    """So many offsets, in no memory."""
    return np.broadcast_to(np.int64(0), count)


def _pixels(walk, **changed):
    product = walk.product
    return replace(walk, product=replace(product, pixels=replace(product.pixels, **changed)))


_IMAGE = 3 * 3 * 2  # rows of the product in one image
_BM = 128
_EDGES = {
    "depth": (lambda n: _walk(offsets=_many(n)), 2**24, "products of a sum"),
    "image": (
        lambda n: _walk(gathered=(n, 8, 4, 2)),
        -(-(2**31) // (_BM // _IMAGE + 2)),
        "offsets in those of a tile have 32 bits",
    ),
    "image of the result": (
        lambda n: _walk(other=(n, 8, 4, 2)),
        -(-(2**31) // (_BM // _IMAGE + 2)),
        "offsets in those of a tile have 32 bits",
    ),
    "step": (lambda n: _walk(steps=(n, 0, 0)), 2**31, "steps of 2\\^31"),
    "first": (lambda n: _walk(first=-n), 2**31, "steps of 2\\^31"),
    "kernel": (
        lambda n: _walk(kernel=np.array([n - 5]), in_kernel=np.array([5])),
        2**31,
        "a kernel, or columns",
    ),
    "columns": (lambda n: _walk(in_other=np.array([n])), 2**31, "a kernel, or columns"),
    "row": (
        lambda n: _pixels(_walk(), top=(1, n - 3 - 1 - 4)),
        edges.FARTHEST,
        "a row or column",
    ),
    "column": (
        lambda n: _pixels(_walk(), left=(1, -(n - 3 - 1 - 4))),
        edges.FARTHEST,
        "a row or column",
    ),
}


@pytest.mark.parametrize("case", _EDGES)
def test_the_edges_of_a_table(case):
    make, edge, message = _EDGES[case]
    assert table.why_not([make(edge - 1)], 1, _BM) is None
    with pytest.raises(AssertionError, match=message):
        assert table.why_not([_walk(), make(edge)], 1, _BM) is None


def test_the_most_rows_of_a_product():
    most = (2**31 - _BM - 1) // _IMAGE
    assert table.why_not([_walk()], most, _BM) is None
    assert "rows of the product" in table.why_not([_walk()], most + 1, _BM)


def test_a_product_without_taps_always_fits():
    cleared = table.Walk.of(implicit_gemm.backward_input(SMALL["gaps"])[0])
    assert table.why_not([replace(cleared, steps=(2**40, 0, 0))], 1, _BM) is None


def test_offsets_that_a_table_holds_for_each_product():
    """Every number of the headers, of residues of one launch, points into the table."""
    g = GEOMETRIES["residues"]
    walks = [table.Walk.of(product) for product in implicit_gemm.backward_input(g)]
    numbers = table.make_table(walks, g.N, 1)
    for i, walk in enumerate(walks):
        head = numbers[i * table.HEADER : (i + 1) * table.HEADER]
        assert head[table.ROWS_OF_PRODUCT] == walk.product.M(g.N) and head[table.DEPTH] == walk.K
        taps = numbers[head[table.TAPS_AT] :][: 2 * walk.K : 2]
        np.testing.assert_array_equal(taps, walk.offsets)
        for at, wanted in (
            (table.KERNEL_AT, walk.kernel),
            (table.B_COLUMNS_AT, walk.in_kernel),
            (table.C_COLUMNS_AT, walk.in_other),
        ):
            np.testing.assert_array_equal(numbers[head[at] :][: wanted.size], wanted)
            assert numbers[head[at] + wanted.size] == table.ABSENT
