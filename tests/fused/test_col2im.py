"""The input's gradient as columns and their sum (col2im), and what clears pixels that no tap reaches."""

from dataclasses import replace

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps import Geometry
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.target import SIMULATED
from numbacaps.fused import choose_input, col2im, implicit_gemm, micro_batches
from numbacaps.fused.choose import Job, NotPossible
from numbacaps.fused.clear import ClearLauncher
from numbacaps.fused.mma_sync import launcher
from numbacaps.fused.precision import has_tensor_cores
from tests.support.cases import GEOMETRIES, SMALL, nan, operands, oracle, sums

pytestmark = pytest.mark.tiers("simulator", "gpu")

# Beside those of all algorithms: dilation that shares a factor with the stride, or not; more taps than pixels.
_CASES = {
    **GEOMETRIES,
    "stride 2, dilation 2": Geometry(2, 2, 3, 6, 7, 3, 2, 1, 2, 3, 2, (2, 2), (1, 1), (2, 2)),
    "stride 3, dilation 2": Geometry(1, 2, 2, 8, 7, 3, 2, 2, 1, 2, 3, (3, 3), (2, 0), (2, 2)),
    "window of the input": Geometry(2, 2, 3, 3, 4, 3, 4, 1, 2, 2, 3, 1, (1, 2)),
}
_KINDS = {
    "ordinary": ("float32", "ieee"),
    "float32": ("float32", "tf32"),
    "three terms": ("float32", "tf32x3"),
    "float16": ("float16", "float16"),
    "bfloat16": ("bfloat16", "bfloat16"),
}


@pytest.fixture(autouse=True)
def tensor_cores():
    if not has_tensor_cores():
        pytest.skip("this GPU has no products of warps")


def _jobs(g, dtype, precision):
    products, size = implicit_gemm.backward_input(g), g.N * g.C * g.H * g.W * g.E1
    looked = ("backward_input", g) if precision == "tf32x3" else None
    how = {"result": size, "looked": looked}
    return [Job(one, g.N, g.G, dtype_of(dtype), precision, **how) for one in products]


def _word(dtype, precision):
    return "ieee" if dtype == precision else precision


def _made(g, kind):
    """The launcher of the columns."""
    dtype, precision = _KINDS[kind]
    jobs = _jobs(g, dtype, _word(dtype, precision))
    (chosen,) = choose_input.choose_input(jobs, g, choose_input.COLUMNS)
    assert chosen.rung == choose_input.COLUMNS
    return chosen.launcher()


def _checked(g, kind, launch, rng):
    """Run it, compare with float64, and return the result."""
    dtype, precision = _KINDS[kind]
    x, w, dy = operands(g, dtype, rng)
    result = nan(x.size, x.dtype)
    launch(
        *(to_device(array.ravel()) for array in (dy, w)),
        result,
        0,
        nan(max(4, launch.packed), np.float32),
    )
    have = result.copy_to_host().reshape(x.shape).astype(np.float32)
    _, want, _ = oracle(g, x, w, dy)
    reference.assert_close(have, want, sums(g)[1], precision=precision)
    return have


@pytest.mark.slow(
    but=[
        "ordinary-strides",
        "float32-primes",
        "three terms-stride 3, dilation 2",
        "bfloat16-strides",
    ]
)
@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("kind", _KINDS)
def test_every_geometry(kind, case, rng):
    launch = _made(_CASES[case], kind)
    assert "col2im" in str(launch)
    _checked(_CASES[case], kind, launch, rng)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ["ordinary", "float32", "float16"])
@pytest.mark.parametrize("case", ["primes", "strides"])
def test_every_kernel_once(case, kind, rng):
    """Small enough for compute-sanitizer."""
    _checked(SMALL[case], kind, _made(SMALL[case], kind), rng)


@pytest.mark.slow(but=["2"])
@pytest.mark.parametrize("splits", [2, 3])
def test_splits_of_the_columns(splits, rng, monkeypatch):
    g = Geometry(2, 2, 9, 4, 4, 2, 2, 1, 2, 3, 4)

    def cut(*arguments, of=launcher.choose, **options):
        how, why = of(*arguments, **options)
        return replace(how, splits=splits), why

    monkeypatch.setattr(launcher, "choose", cut)
    launch = _made(g, "float32")
    assert f"{splits} splits" in str(launch)
    first = _checked(g, "float32", launch, np.random.default_rng(5))
    np.testing.assert_array_equal(first, _checked(g, "float32", launch, np.random.default_rng(5)))


def _of_infinity(g, kind, launch):
    """The gradient where an element of the last image's dy is infinite, and three terms can tell nothing that it reaches."""
    dtype, _ = _KINDS[kind]
    x, w, dy = operands(g, dtype, np.random.default_rng(7))
    dy[-1, 0] = np.inf
    result, room = nan(x.size, x.dtype), nan(max(4, launch.packed), np.float32)
    launch(*(to_device(array.ravel()) for array in (dy, w)), result, 0, room)
    return result.copy_to_host()


@pytest.mark.parametrize("kind", ["ordinary", "float32", "three terms", "float16"])
@pytest.mark.parametrize("images, most", [(6, 4), (10, 4)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator warns of infinities
def test_micro_batches(images, most, kind, monkeypatch):
    """Where the columns of all are too many: the same bits as at once; the last one has images that another had, too."""
    g = Geometry(images, 2, 4, 4, 4, 2, 2, 1, 2, 4, 4, stride=2)
    whole = _made(g, kind)
    at_once = _checked(g, kind, whole, np.random.default_rng(7)), _of_infinity(g, kind, whole)
    monkeypatch.setattr(col2im, "MOST_BYTES", 4 * col2im.columns_of(replace(g, N=most)))
    launch = _made(g, kind)
    assert f"for each of {-(-images // most)} micro-batches" in str(launch)
    found = _checked(g, kind, launch, np.random.default_rng(7)), _of_infinity(g, kind, launch)
    for have, want in zip(found, at_once):
        np.testing.assert_array_equal(have, want)
    if kind == "three terms":
        assert np.isinf(found[1]).any()


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("images", [1, 6, 8, 12, 127, 256])
@pytest.mark.parametrize("elements", [(1, 1), (2, 6), (5, 7)])
def test_micro_batches_begin_where_16_bytes_are_copied_at_once(elements, images, itemsize):
    of_x, of_dy = elements
    g = Geometry(images, of_x, of_dy, 3, 3, 3, 3, 1, 1, 3, 1)
    sizes = [array[0].size * itemsize for array in map(np.empty, (g.input_shape, g.output_shape))]
    found = 0
    for most in range(1, images):
        at_once = micro_batches.images_at_once(g, itemsize, most)
        if at_once:
            firsts = micro_batches.begins(images, at_once)
            assert at_once <= most and firsts[-1] + at_once == images
            assert all(first * size % 16 == 0 for first in firsts for size in sizes)
            covered = {n for first in firsts for n in range(first, first + at_once)}
            assert covered == set(range(images)) and len(firsts) * at_once <= 2 * images
            found += 1
    assert micro_batches.images_at_once(g, itemsize, images) == images
    assert found or images % 2 or images < 16


def test_columns_are_no_packed_kernel():
    g = SMALL["primes"]
    rungs = {"backward_input": ("col2im", (8, 8, 4, 2, 2) if SIMULATED else (64, 16, 8, 4, 2))}
    how = {"product": "gab,gbc->gac", "algorithm": "fused", "precision": "ieee", "rungs": rungs}
    moves = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    plan = numbacaps.plan(g.input_shape, g.kernel_shape, **moves, **how)
    assert "then col2im" in plan.explain() and not plan.packs("input")


def test_what_columns_are_not_for(monkeypatch):
    g = SMALL["primes"]
    with pytest.raises(NotPossible, match="col2im takes no float64 at precision 'ieee'"):
        choose_input.choose_input(_jobs(g, "float64", "ieee"), g, choose_input.COLUMNS)
    jobs = _jobs(g, "float32", "tf32")
    few = [replace(jobs[0], result=col2im.MOST_ELEMENTS + 1)]
    with pytest.raises(NotPossible, match=f"takes {col2im.MOST_ELEMENTS}"):
        choose_input.choose_input(few, g, choose_input.COLUMNS)
    monkeypatch.setattr(col2im, "MOST_BYTES", 4 * col2im.columns_of(g.of_one_image) - 1)
    with pytest.raises(NotPossible, match=f"columns of {g.N} images"):
        choose_input.choose_input(jobs, g, choose_input.COLUMNS)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("size, shift", [(64, 0), (61, 0), (64, 3)])
def test_clearing(dtype, size, shift):
    """As many elements as there are; they may begin anywhere."""
    dtype = dtype_of(dtype)
    before = np.ones(size + shift + 5, np.float32).astype(dtype)
    room = to_device(before)
    result = room[shift : shift + size]
    ClearLauncher(size, dtype, False)(result, result, result, 0, None)
    after = room.copy_to_host()
    assert not after[shift : shift + size].astype(np.float32).any()
    for outside in (slice(0, shift), slice(shift + size, None)):
        assert (after[outside] == before[outside]).all()


def test_pixels_that_no_tap_reaches_are_cleared_first():
    g = SMALL["gaps"]
    chosen = choose_input.choose_input(_jobs(g, "float32", "ieee"), g, "register_tiles")
    assert [one.rung for one in chosen][0] == "clear"
    assert len(chosen) == len(implicit_gemm.backward_input(g))
