"""The input's gradient as columns and their sum (col2im), and what clears pixels that no tap reaches."""

from dataclasses import replace

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps import Geometry
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.target import SIMULATED
from numbacaps.fused import choose_input, col2im, implicit_gemm
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
    return [Job(one, g.N, g.G, dtype_of(dtype), precision, result=size) for one in products]


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


@pytest.mark.parametrize("kind", ["ordinary", "float32", "three terms", "float16"])
def test_parts_of_the_images(kind, monkeypatch):
    """Where the columns of all are too many; the same bits as at once."""
    g = Geometry(6, 2, 3, 4, 5, 2, 3, 1, 2, 3, 5, stride=2)
    at_once = _checked(g, kind, _made(g, kind), np.random.default_rng(7))
    monkeypatch.setattr(col2im, "MOST_BYTES", 4 * col2im.columns_of(replace(g, N=4)))
    launch = _made(g, kind)
    assert "in 2 parts" in str(launch)
    np.testing.assert_array_equal(at_once, _checked(g, kind, launch, np.random.default_rng(7)))


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
    with pytest.raises(NotPossible, match="an image's columns of"):
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
