"""Results that three terms cannot tell are summed again by what has them last, all others stay."""

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

import numbacaps
from numbacaps import Geometry
from numbacaps.device.compiled import as_argument, launch_stream
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.mma_sync.add_splits import AddSplits
from numbacaps.fused.mma_sync.launcher import MmaSyncLauncher, choose
from numbacaps.fused.mma_sync.split_k_launcher import MmaSyncSplitK, choose_split_k
from numbacaps.fused.precision import chosen_for, has_tensor_cores, has_warpgroups
from numbacaps.fused.told import SMALLEST
from tests.support.cases import GEOMETRIES, SMALL, operands, oracle

pytestmark = pytest.mark.tiers("simulator", "gpu")

_PASSES = "forward", "backward_input", "backward_kernel"
_PRODUCT = "gab,gbc->gac"
# The rungs of a plan: those that are chosen, or the warps'. The simulator takes three terms where a rung is named.
_RUNGS = {
    "forward": "mma_sync",
    "backward_input": "mma_sync",
    "backward_kernel": "mma_sync_split_k",
}
_WHOLE = "matrix" if SIMULATED else "paper-layer-3"


def _read(wanted, x, w, dy):
    """What the kernels of a pass read, in their order."""
    return {"forward": (x, w), "backward_input": (dy, w), "backward_kernel": (x, dy)}[wanted]


@pytest.mark.slow(but=["*-primes", "*-strides", "*-dilated"])
@pytest.mark.sanitize
@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("wanted", _PASSES)
def test_what_cannot_be_told_is_summed_again(wanted, case, rng):
    """Of a right result some elements are spoilt; the others, which are not what it would sum, stay as they are."""
    g = SMALL[case]
    arrays = operands(g, "float32", rng)
    want = oracle(g, *arrays)[_PASSES.index(wanted)].astype(np.float32)
    spoilt = np.where(want == 0, want, want + 1).ravel()  # zeros are told
    every = np.arange(want.size)
    for start, value in enumerate((np.nan, np.inf, -np.inf, SMALLEST / 2, -SMALLEST / 4)):
        spoilt[every % 7 == start] = value
    add = AddSplits(want.size, np.dtype(np.float32), 1, (wanted, g))  # of one split
    there = [cuda.to_device(array.ravel()) for array in _read(wanted, *arrays)]
    read = [as_argument(array) for array in there]
    partial, result = cuda.to_device(spoilt), cuda.device_array(want.size, np.float32)
    add(as_argument(partial), as_argument(result), read, launch_stream(0))
    have = result.copy_to_host()
    told = every % 7 >= 5
    np.testing.assert_array_equal(have[told], spoilt[told])
    np.testing.assert_allclose(have[~told], want.ravel()[~told], rtol=1e-6, atol=1e-6)


def _plan(g, precision="auto", rungs=_RUNGS if SIMULATED else None):
    rungs = None if precision == "ieee" else rungs
    return numbacaps.plan(
        (*g.input_shape,),
        (*g.kernel_shape,),
        stride=g.stride,
        padding=g.padding,
        dilation=g.dilation,
        product=_PRODUCT,
        algorithm="fused",
        precision=precision,
        rungs=rungs,
    )


def _results(plan, x, w, dy):
    """The output and both gradients."""
    arrays = [cuda.to_device(array) for array in (x, w, dy)]
    out, dx, dw = (cuda.to_device(np.full(one.shape, np.nan, one.dtype)) for one in (dy, x, w))
    plan(*arrays[:2], out)
    plan.backward(*arrays, dx, dw)
    return [array.copy_to_host() for array in (out, dx, dw)]


@pytest.fixture
def tensor_cores():
    if not has_tensor_cores():
        pytest.skip("this GPU has no products of warps")


@pytest.mark.slow(but=["x-inf"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator adds by NumPy
@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize("value", [np.inf, np.nan, np.finfo(np.float32).max])
@pytest.mark.parametrize("spoilt", ["x", "w", "dy"])
def test_infinities_and_nan_are_where_ordinary_arithmetic_has_them(spoilt, value, rng):
    g = GEOMETRIES[_WHOLE]
    arrays = dict(zip(("x", "w", "dy"), operands(g, "float32", rng)))
    arrays[spoilt].ravel()[arrays[spoilt].size // 2] = value
    plan, plain = _plan(g), _plan(g, "ieee")
    assert "looked through" in plan.explain()
    for have, want in zip(_results(plan, **arrays), _results(plain, **arrays)):
        np.testing.assert_array_equal(np.isnan(have), np.isnan(want))
        np.testing.assert_array_equal(np.isposinf(have), np.isposinf(want))
        np.testing.assert_array_equal(np.isneginf(have), np.isneginf(want))
        finite = np.isfinite(want)
        scale = np.abs(want[finite]).max()
        np.testing.assert_allclose(have[finite] / scale, want[finite] / scale, atol=3e-6)


_DX = Geometry(2, 2, 2, 4, 4, 3, 3, 1, 2, 2, 2)


@pytest.mark.usefixtures("tensor_cores")
def test_every_kernel_of_three_terms_looks_through_its_results():
    """Products by warps and warpgroups, also where pixels are cleared or packed first, and what adds columns."""
    cases = [(_DX, "mma_sync"), (SMALL["gaps"], "mma_sync"), (_DX, "col2im")]
    if has_warpgroups():
        cases.append((replace(_DX, D1=4, D2=4, D3=4), "warp_specialized"))
        cases.append((replace(_DX, D1=4, D2=4, D3=4), "warp_specialized_lines"))
        cases.append((replace(_DX, D1=7, D2=7, D3=7), "warp_specialized_packed"))
        cases.append((replace(_DX, D1=7, D2=7, D3=7), "warp_specialized_lines_packed"))
        one = replace(_DX, KH=1, KW=1, D1=7, D2=7, D3=7)
        cases.append((one, "warp_specialized_im2col"))
        cases.append((one, "warp_specialized_lines_im2col"))
    for (g, rung), precision in product(cases, ("auto", "tf32x3")):
        text = _plan(g, precision, {"backward_input": rung}).explain()
        text = text[text.index("backward_input") : text.index("backward_kernel")]
        assert "3 terms, looked through" in text, text


@pytest.mark.usefixtures("tensor_cores")
def test_what_cannot_look_through_its_results_is_refused():
    with pytest.raises(ValueError, match="mma_split_k takes float32 at precision 'tf32'"):
        _plan(_DX, rungs={"backward_kernel": "mma_split_k"})


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("tensor_cores")
def test_infinite_columns_add_up_as_ordinary_arithmetic_has_them(rng):
    """Taps outside of dy are no columns, but the zeros there are multiplied."""
    x, w, dy = operands(_DX, "float32", rng)
    w.ravel()[::5] = np.inf
    plan = _plan(_DX, rungs={"backward_input": "col2im"})
    (_, have, _), (_, want, _) = (_results(one, x, w, dy) for one in (plan, _plan(_DX, "ieee")))
    assert not np.isinf(have).any() and not np.isinf(want).any()
    assert np.isnan(have).mean() > 0.9


_SPLIT = Geometry(2, 2, 2, 6, 6, 3, 3, 1, 2, 2, 2)


def _forward_in_splits(splits, looked):
    forward, dtype = implicit_gemm.forward(_SPLIT), np.dtype(np.float32)
    which = [forward], _SPLIT.N, _SPLIT.G, dtype, 3
    how = replace(choose(*which)[0], splits=splits)
    return MmaSyncLauncher(*which, prod(_SPLIT.output_shape), how, looked=looked)


def _kernel_in_splits(splits, looked):
    forward, size = implicit_gemm.forward(_SPLIT), prod(_SPLIT.kernel_shape)
    which = forward, _SPLIT.N, _SPLIT.G, size, np.dtype(np.float32), 3
    each = forward.M(_SPLIT.N) // splits
    how = replace(choose_split_k(*which)[0], splits=splits, per_split=each)
    return MmaSyncSplitK(*which, how, looked)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator adds by NumPy
@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize("wanted", ["forward", "backward_kernel"])
def test_sums_of_splits_are_looked_through(wanted):
    """Each of two parts is infinite, of another sign, where the sum is 0: the launch that adds them takes it again."""
    made = {"forward": _forward_in_splits, "backward_kernel": _kernel_in_splits}[wanted]
    for splits, looked, looks in ((1, None, True), (2, None, False), (2, (wanted, _SPLIT), True)):
        assert made(splits, looked).looks == looks
    shapes = _read(wanted, _SPLIT.input_shape, _SPLIT.kernel_shape, _SPLIT.output_shape)
    a, b = (np.ones(shape, np.float32) for shape in shapes)
    axis = 1 if wanted == "forward" else 0  # halves of the sum: channels, or images
    b *= (
        np.where(np.arange(2) == 0, 2e38, -2e38)
        .astype(np.float32)
        .reshape([2 if i == axis else 1 for i in range(b.ndim)])
    )
    size = prod(_SPLIT.output_shape if wanted == "forward" else _SPLIT.kernel_shape)
    found = {}
    for looked in (None, (wanted, _SPLIT)):
        launch = made(2, looked)
        room = launch.packed if wanted == "forward" else launch.partial_shape["partial"][0]
        arrays = [cuda.to_device(one.ravel()) for one in (a, b)]
        result, partial = (cuda.device_array(n, np.float32) for n in (size, room))
        order = (result, 0, partial)
        launch(*arrays, *order)
        found[looked is None] = result.copy_to_host()
    assert np.isnan(found[True]).all() and not found[False].any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the kernel's gradient has the scale twice
@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-12, 1.0, 1e30])
def test_its_error_is_ordinary_arithmetics_at_every_scale(scale, rng):
    """At most twice that of ``"ieee"`` on the same data."""
    g = GEOMETRIES[_WHOLE]
    x, w, dy = operands(g, "float32", rng)
    x, dy = (x * np.float32(scale)), (dy * np.float32(scale))
    wanted = [0, 1] if scale != 1.0 else [0, 1, 2]
    right = oracle(g, x, w, dy)
    found = [_results(_plan(g, word), x, w, dy) for word in ("auto", "ieee")]
    for which in wanted:
        want = right[which]
        size = np.abs(want).max()
        error, plain = (np.abs(one[which] - want).max() / size for one in found)
        # Sums on the simulator are shorter than those for which three terms are taken.
        assert error <= (2.0**-20 if SIMULATED else max(2 * plain, 2.0**-22)), (error, plain)


def test_what_auto_stands_for():
    """Ordinary arithmetic where tensor cores are none, or sums short, or columns few; and of other dtypes."""
    three = "tf32x3" if has_tensor_cores() and not SIMULATED else "ieee"
    float32 = np.dtype(np.float32)
    assert chosen_for(float32, 64, 64) == three
    assert chosen_for(float32, 3, 24) == three
    assert chosen_for(float32, 3, 23) == chosen_for(float32, 2, 64) == "ieee"
    assert chosen_for(float32, 2, 95) == "ieee" and chosen_for(float32, 1, 96) == three
    assert chosen_for(float32, 64, 8) == "ieee"
    assert chosen_for(np.dtype(np.float64), 64, 64) == "ieee"
    assert chosen_for(np.dtype(np.float16), 64, 64) == "ieee"
