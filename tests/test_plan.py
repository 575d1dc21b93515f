"""Plans: decided once, run many times."""

import copy
import pickle

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps.algorithms.passes import told
from numbacaps.device.target import SIMULATED, cuda
from tests.support.cases import ON_DEVICE, nan

pytestmark = pytest.mark.tiers("simulator", "gpu")
_X, _W = (2, 2, 3, 3, 1, 2), (2, 2, 2, 2, 2, 2)
_HOW = {"stride": (2, 1), "padding": (1, 0)}


def _arrays(rng, dtype="float32"):
    plan = numbacaps.plan(_X, _W, dtype, **_HOW)
    return [
        rng.standard_normal(shape).astype(dtype)
        for shape in (plan.x_shape, plan.w_shape, plan.y_shape)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algorithm", ["auto", *ON_DEVICE])
def test_a_plan_computes_what_the_functions_do(algorithm, dtype, rng):
    x, w, dy = _arrays(rng, dtype)
    plan = numbacaps.plan(_X, _W, dtype, algorithm=algorithm, **_HOW)
    X, W, DY = map(cuda.to_device, (x, w, dy))
    out, dx, dw = (nan(array.shape, dtype) for array in (dy, x, w))
    assert plan(X, W, out) is out
    assert plan.backward(X, W, DY, dx, dw) == (dx, dw)
    want_y = numbacaps.capsule_conv2d(x, w, algorithm=algorithm, **_HOW)
    wants = numbacaps.capsule_conv2d_backward(x, w, dy, algorithm=algorithm, **_HOW)
    for array, want in zip((out, dx, dw), (want_y, *wants)):
        reference.assert_close(array.copy_to_host(), want.astype(np.float64), 200)


def test_one_gradient_alone(rng):
    x, w, dy = map(cuda.to_device, _arrays(rng))
    plan = numbacaps.plan(_X, _W, **_HOW)
    both = nan(_X, "float32"), nan(_W, "float32")
    plan.backward(x, w, dy, *both)
    dx, dw = nan(_X, "float32"), nan(_W, "float32")
    assert plan.backward(x, w, dy, dx) == (dx, None)
    assert plan.backward(x, w, dy, dw=dw) == (None, dw)
    for one, other in zip(both, (dx, dw)):
        np.testing.assert_array_equal(one.copy_to_host(), other.copy_to_host())


@pytest.mark.slow(but=["*-ieee"])
@pytest.mark.parametrize(
    ("algorithm", "precision"),
    [*((name, "ieee") for name in ON_DEVICE), ("fused", "tf32")],
)
def test_a_packed_kernel(algorithm, precision, rng):
    """It stays the plan's, whatever calls with a kernel do in between."""
    if precision not in numbacaps.ALGORITHMS[algorithm].precisions(np.dtype(np.float32)):
        pytest.skip("this GPU has no tensor cores for float32")
    shapes = (2, 2, 3, 3, 4, 4), (2, 2, 2, 2, 4, 4), (2, 2, 2, 2, 4, 4)
    plan = numbacaps.plan(*shapes[:2], algorithm=algorithm, precision=precision)
    numbers = (rng.standard_normal(shape).astype(np.float32) for shape in (*shapes, shapes[1]))
    x, w, dy, other = map(cuda.to_device, numbers)
    found = []
    for kernel in (w, None):
        out, dx = nan(plan.y_shape, "float32"), nan(plan.x_shape, "float32")
        if kernel is None:
            with pytest.raises(ValueError, match="w is None, and no kernel was packed"):
                plan(x, None, out)
            plan.pack(w)
            plan(x, other, out)
            plan.backward(x, other, dy, dx)
        plan(x, kernel, out)
        plan.backward(x, kernel, dy, dx)
        found.append((out.copy_to_host(), dx.copy_to_host()))
    for one, again in zip(*found):
        reference.assert_close(again, one.astype(np.float64), 200)
        if numbacaps.ALGORITHMS[algorithm].deterministic:
            np.testing.assert_array_equal(again, one)


def test_explain_names_kernel_tile_and_reason():
    text = numbacaps.explain(_X, _W, **_HOW)
    assert text.startswith("algorithm fused, precision auto, float32")
    for line in (
        "forward: register_tiles",
        "backward_kernel: register_tiles_split_k",
        "kernels made ready in",
    ):
        assert line in text
    assert "first call" in numbacaps.explain(_X, _W, algorithm="naive")


@pytest.mark.parametrize("how", [{"algorithm": "fused"}, {"algorithm": "numpy"}])
def test_explain_reads_from_what_runs_to_why_in_short_lines(how):
    _, *lines = numbacaps.explain(_X, _W, **how).splitlines()
    assert max(map(len, lines)) <= 100
    heads = [line for line in lines if not line.startswith(" ")]
    parts = [line.split()[0] for line in lines if line.startswith(" ")]
    if how["algorithm"] == "fused":
        assert heads[0] == "forward: register_tiles" and parts[:3] == ["how", "why", "force"]
    else:
        assert "NumPy" in heads[0] and parts == ["how"]


def test_what_does_not_fit_a_line_goes_on_below_itself():
    first, *others = told("forward: some rung", why="many words " * 30).splitlines()[1:]
    assert first.startswith("  why   many words") and len(others) == 3
    assert all(line.startswith(" " * 8) and line[8] != " " for line in others)
    assert max(map(len, [first, *others])) <= 100


@pytest.mark.skipif(SIMULATED, reason="a graph takes a GPU")
def test_a_plan_is_captured_and_allocates_nothing(rng, monkeypatch):
    from experiments.measuring.gpu_time import clock

    x, w, dy = _arrays(rng)
    plan = numbacaps.plan(_X, _W, **_HOW)
    X, W, DY = map(cuda.to_device, (x, w, dy))
    out, dx, dw = (nan(array.shape, "float32") for array in (dy, x, w))
    stream = clock().numba

    def allocated(*_, **__):
        raise AssertionError("memory was allocated while a plan was captured")

    def step():
        plan(X, W, out, stream=stream)
        plan.backward(X, W, DY, dx, dw, stream=stream)

    with monkeypatch.context() as patched:
        for name in ("device_array", "to_device"):
            patched.setattr(cuda, name, allocated)
        replay = clock().capture([step])
    replay.run()
    clock().synchronize()
    want = numbacaps.capsule_conv2d(x, w, **_HOW)
    np.testing.assert_array_equal(out.copy_to_host(), want)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"dtype": "int32"},
            TypeError,
            "dtype is int32; it takes float16, bfloat16, float32 or float64",
        ),
        ({"dtype": "float16", "algorithm": "staged"}, ValueError, "takes no float16"),
        ({"dtype": "bfloat16", "algorithm": "staged"}, ValueError, "takes no bfloat16"),
        ({"dtype": "float16", "precision": "tf32"}, ValueError, r"\['auto', 'ieee'\] for float16"),
        ({"dtype": "no"}, TypeError, "dtype is 'no'"),
        ({"dtype": "float32,"}, TypeError, r"dtype is \[\('f0', '<f4'\)\]"),
        ({"x_shape": 7}, TypeError, "x_shape is 7"),
        ({"x_shape": (2, 2, 3.0, 3, 1, 2)}, TypeError, r"x_shape is \(2, 2, 3.0, 3, 1, 2\)"),
        ({"x_shape": (2, 2, 3, 3, True, 2)}, TypeError, r"x_shape is \(2, 2, 3, 3, True, 2\)"),
        ({"w_shape": (2, float("inf"), 2, 2, 2, 2)}, TypeError, r"w_shape is \(2, inf, 2"),
        ({"x_shape": (2, 2, 3, 3, 1)}, ValueError, "takes 6 axes"),
        ({"x_shape": (0, 2, 3, 3, 1, 2)}, ValueError, "N = 0"),
        ({"w_shape": (2, 4, 2, 2, 2, 2)}, ValueError, "w has 4 input channels"),
        ({"algorithm": "fast"}, ValueError, "algorithm is 'fast'"),
        ({"precision": "tf64"}, ValueError, "precision is 'tf64'; it takes one of"),
        ({"workspace_limit": -1}, ValueError, "workspace_limit is -1"),
        ({"workspace_limit": "1"}, TypeError, "workspace_limit is '1'"),
        ({"precision": 32}, TypeError, "precision is 32"),
        ({"precision": "tf32", "algorithm": "indexed"}, ValueError, "algorithm 'indexed' takes"),
        ({"precision": "tf32", "dtype": "float64"}, ValueError, r"\['auto', 'ieee'\] for float64"),
        (
            {"product": "ba,bc->ac", "x_shape": (2, 2, 3, 3, 2, 1)},
            ValueError,
            "order in which kernels read them: ab,bc->ac",
        ),
    ],
)
def test_what_a_plan_refuses(change, error, message):
    arguments = {"x_shape": _X, "w_shape": _W, **_HOW, **change}
    with pytest.raises(error, match=message):
        numbacaps.plan(**arguments)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": np.zeros(_X, np.float32)}, TypeError, "x is on the host"),
        ({"w": (1, 2, 2, 2, 2, 2)}, ValueError, "w has shape .* the plan takes"),
        ({"out": (2, 2, 1, 2, 1, 2)}, ValueError, "out has shape"),
    ],
)
def test_what_a_call_refuses(change, error, message):
    plan = numbacaps.plan(_X, _W, **_HOW)
    shapes = {"x": plan.x_shape, "w": plan.w_shape, "out": plan.y_shape} | change
    arrays = {
        name: nan(shape, "float32") if isinstance(shape, tuple) else shape
        for name, shape in shapes.items()
    }
    with pytest.raises(error, match=message):
        plan(**arrays)


def test_a_backward_call_wants_something(rng):
    x, w, dy = map(cuda.to_device, _arrays(rng))
    with pytest.raises(ValueError, match="dx and dw are None"):
        numbacaps.plan(_X, _W, **_HOW).backward(x, w, dy)


@pytest.mark.parametrize(
    ("rungs", "error", "message"),
    [
        ("wgmma", TypeError, "rungs is 'wgmma'; it takes a dict"),
        ({"votes": "wgmma"}, ValueError, "rungs names 'votes'"),
        ({"forward": "wgma"}, ValueError, r"rungs\['forward'\] is 'wgma'.*did you mean 'wgmma'"),
        ({"forward": ["wgmma"]}, ValueError, r"rungs\['forward'\] is \['wgmma'\]"),
        ({"forward": ("wgmma", "8")}, TypeError, "has tile '8'; it takes a tuple of int"),
        ({"forward": ("wgmma", (1, 2))}, ValueError, r"tile is \(1, 2\); it takes \(TH, TW"),
        ({"forward": "swap_ab"}, ValueError, "swap_ab takes float32 at precision 'tf32'"),
    ],
)
@pytest.mark.tiers("simulator")
def test_rungs_that_are_refused(rungs, error, message):
    precision = "ieee" if rungs == {"forward": "swap_ab"} else "tf32"
    with pytest.raises(error, match=message):
        numbacaps.plan((1, 1, 3, 3, 2, 8), (1, 1, 2, 2, 8, 2), precision=precision, rungs=rungs)


def test_gradients_that_share_memory_are_refused(rng):
    shape = (2, 2, 2, 2, 2, 2)  # of all three
    plan = numbacaps.plan(shape, (2, 2, 1, 1, 2, 2))
    x, dy, run = (nan(size, "float32") for size in (shape, plan.y_shape, (80,)))
    w = nan(plan.w_shape, "float32")
    dx, dw = run[:64].reshape(shape), run[60:76].reshape(plan.w_shape)
    with pytest.raises(ValueError, match="dw overlaps dx; it takes memory of its own"):
        plan.backward(x, w, dy, dx, dw)
    assert np.isnan(run.copy_to_host()).all()
    plan.backward(x, w, dy, dx, run[64:].reshape(plan.w_shape))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dx": (1, *_X[1:])}, "dx has shape .*; it takes"),
        ({"dw": (1, *_W[1:])}, "dw has shape .*; it takes"),
        ({"dx": "x"}, "dx overlaps x"),
        ({"dw": "w"}, "dw overlaps w"),
    ],
)
def test_gradients_are_refused_by_their_names(change, message, rng):
    plan = numbacaps.plan(_X, _W, **_HOW)
    x, w, dy = map(cuda.to_device, _arrays(rng))
    given = {"dx": nan(_X, "float32"), "dw": nan(_W, "float32"), "x": x, "w": w}
    found = {
        name: given[one] if isinstance(one, str) else nan(one, "float32")
        for name, one in change.items()
    }
    with pytest.raises(ValueError, match=message):
        plan.backward(x, w, dy, **{"dx": given["dx"], "dw": given["dw"], **found})


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("make", [numbacaps.plan, numbacaps.routing_plan])
def test_a_plan_is_not_copied(copied, make):
    made = make((1, 2, 5, 5, 2, 2), (3, 2, 3, 3, 2, 2))
    with pytest.raises(TypeError, match="Plan is not copied or pickled: .*make another"):
        copied(made)
