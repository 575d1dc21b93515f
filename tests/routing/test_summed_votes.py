"""Routing on votes that are summed over the window, a child for each channel, against the reference's loops."""

from dataclasses import replace

import numpy as np
import pytest

import numbacaps
from numbacaps.device.bfloat16 import to_device
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.target import SIMULATED
from numbacaps.geometry import Geometry
from numbacaps.routing import runner
from numbacaps.routing.call import rung
from numbacaps.routing.options import Options
from numbacaps.routing.shape import Shape
from reference.compare import ROUTING
from tests.support import routing as support

pytestmark = pytest.mark.tiers("simulator", "gpu")
_KERNELS = "fused", "stored"
_algorithms = pytest.mark.parametrize("algorithm", ["numpy", *_KERNELS])
_kernels = pytest.mark.parametrize("algorithm", _KERNELS)
#                                          N  C  P  H  W KH KW  G D1 D2 D3  stride  padding
CASES = support.CASES | {"odd": Geometry(2, 3, 3, 7, 5, 5, 3, 1, 1, 3, 2, (2, 3), (2, 1))}


def _check(g, given, algorithm, tolerance=ROUTING, **form):
    wanted = support.want_dynamic(g, given, kind="sum", **form)
    how = form | {"votes": "sum", "algorithm": algorithm}
    support.check(g, given, wanted, tolerance, **how)


@pytest.mark.slow(but=["*-numpy-*", "dilated-*-children-False-False"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("over", ["parents", "children"])
@_algorithms
@pytest.mark.parametrize("case", CASES)
def test_forms(case, algorithm, over, detach, shared, rng):
    g = CASES[case]
    given = support.operands_of_sums(g, rng, shared)
    _check(g, given, algorithm, softmax_over=over, detach=detach)


@pytest.mark.sanitize
@_kernels
def test_a_window_that_is_the_whole_input(algorithm, rng):
    """Its taps are no channels here."""
    _check(CASES["class"], support.operands_of_sums(CASES["class"], rng), algorithm)


@_kernels
def test_a_window_of_one_is_a_child(algorithm, rng):
    """Of a channel: all bits are those of the votes of children."""
    g = Geometry(2, 5, 3, 3, 2, 1, 1, 1, 2, 3, 2)
    given = support.operands(g, rng, em=False)
    logits = {"children": given["logits"], "sum": given["logits"][..., 0, 0].copy()}
    # Of children three terms would take the tensor cores' passes, which sum in another order.
    how = support.window(g) | {"couplings": True, "algorithm": "fused", "precision": "ieee"}
    sums = how | {"algorithm": algorithm, "votes": "sum"}
    arrays = given["x"], given["w"]
    found = numbacaps.capsule_routing(*arrays, logits=logits["sum"], **sums)
    want = numbacaps.capsule_routing(*arrays, logits=logits["children"], **how)
    for one, other in zip(found, want, strict=True):
        support.close(one, other, 0 if algorithm == "fused" else 1e-5)


@pytest.mark.slow(but=["stored-float16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@_kernels
def test_dtypes(algorithm, dtype, rng):
    """Sums are float32 at least."""
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    tolerance = {2: 4e-2, 8: 1e-9}[dtype.itemsize]
    given = support.operands_of_sums(CASES["window"], rng)
    given = {name: array.astype(dtype) for name, array in given.items()}
    _check(CASES["window"], given, algorithm, tolerance)


@pytest.mark.slow
@_kernels
@pytest.mark.parametrize("part", [1, 2])
def test_parts_of_a_batch_are_the_batch(part, algorithm, monkeypatch, rng):
    """Gradients of what images share are added over the parts, of which the last may be smaller."""
    monkeypatch.setattr(runner.Runner, "_bytes", lambda self, passes: 1)
    monkeypatch.setattr(runner.Runner, "_budget", part)
    runner.runners.clear()
    g = replace(CASES["odd"], N=3)
    _check(g, support.operands_of_sums(g, rng), algorithm)
    runner.runners.clear()


@pytest.mark.slow
@_kernels
def test_teams_of_several_images(algorithm, monkeypatch, rng):
    """Of more than there are left at the end of the batch."""
    of = Shape.of.__func__
    monkeypatch.setattr(
        Shape, "of", classmethod(lambda cls, *how: replace(of(cls, *how), images=2))
    )
    runner.runners.clear()
    g = replace(CASES["window"], N=3)
    _check(g, support.operands_of_sums(g, rng), algorithm)
    runner.runners.clear()


@pytest.mark.slow
@_kernels
def test_more_parents_than_lanes(algorithm, rng):
    g = Geometry(1, 6, 37, 2, 2, 2, 2, 1, 1, 2, 2, 1, 1)
    _check(g, support.operands_of_sums(g, rng), algorithm)


@pytest.mark.slow(but=["stored-parents-True"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("over", ["parents", "children"])
@_kernels
def test_gradients_are_finite_differences(algorithm, over, shared, rng):
    """In float64, along a direction that every operand takes part in."""
    g, h = replace(CASES["odd"], N=1), 1e-6
    form = {"votes": "sum", "algorithm": algorithm, "softmax_over": over, "iterations": 2}
    form |= support.window(g)
    given = support.operands_of_sums(g, rng, shared)
    given = {name: array.astype(float) for name, array in given.items()}
    along = {name: rng.uniform(-1, 1, given[name].shape) for name in ("x", "w", "logits")}

    def loss(step):
        moved = [given[name] + step * along[name] for name in along]
        y = numbacaps.capsule_routing(*moved[:2], logits=moved[2], **form)
        return np.sum(y * given["dy"])

    arrays = (given[name] for name in ("x", "w", "dy"))
    found = numbacaps.capsule_routing_backward(*arrays, logits=given["logits"], **form)
    slope = sum((getattr(found, name) * along[name]).sum() for name in along)
    assert slope == pytest.approx((loss(h) - loss(-h)) / (2 * h), rel=1e-6)


@pytest.mark.slow(but=["float32-fused-False"])
@pytest.mark.parametrize("shared", [False, True])
@_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_device_arrays_stay_on_the_device(dtype, algorithm, shared, rng):
    """Also where capsule axes come in another order than the kernels', and all channels share the kernel."""
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    shapes = (2, 3, 3, 3, 2, 3), (3, 1 if shared else 3, 2, 2, 2, 2), (2, 3, 2, 2, 2, 3)
    x, w, dy = (rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes)
    how = {"product": "ba,cb->ca", "iterations": 2, "votes": "sum"}
    on_device = [to_device(array) for array in (x, w, dy)]
    tolerance = 4e-2 if dtype.itemsize == 2 else ROUTING
    want = numbacaps.capsule_routing(x, w, algorithm="numpy", **how)
    found = numbacaps.capsule_routing(*on_device[:2], algorithm=algorithm, **how)
    of_numpy = numbacaps.capsule_routing_backward(x, w, dy, algorithm="numpy", **how)
    of_kernels = numbacaps.capsule_routing_backward(*on_device, algorithm=algorithm, **how)
    pairs = (found, want), (of_kernels.x, of_numpy.x), (of_kernels.w, of_numpy.w)
    for one, other in pairs:
        assert one.dtype == dtype and hasattr(one, "copy_to_host")
        wide = one.copy_to_host().view(dtype).astype(sum_dtype(dtype))
        support.close(wide, other.astype(wide.dtype), tolerance)
    assert of_kernels.logits is None


@pytest.mark.slow(but=["numpy"])
@_algorithms
def test_what_is_not_needed_is_not_computed(algorithm, rng):
    g = CASES["window"]
    given = support.operands_of_sums(g, rng)
    arrays = [given[name] for name in ("x", "w", "dy")]
    how = {"votes": "sum", "algorithm": algorithm, "logits": given["logits"], **support.window(g)}
    wanted = numbacaps.capsule_routing_backward(*arrays, **how)
    found = numbacaps.capsule_routing_backward(*arrays, needs=("input",), **how)
    assert found.w is None and found.logits is None
    np.testing.assert_array_equal(found.x, wanted.x)
    found = numbacaps.capsule_routing_backward(*arrays, needs=("kernel",), **how)
    assert found.x is None
    np.testing.assert_array_equal(found.w, wanted.w)
    np.testing.assert_array_equal(found.logits, wanted.logits)


@_algorithms
def test_out(algorithm, rng):
    g = CASES["odd"]
    given = support.operands_of_sums(g, rng)
    arrays, out = (given["x"], given["w"]), np.empty(g.output_shape, np.float32)
    how = {"algorithm": algorithm, "votes": "sum", **support.window(g)}
    assert numbacaps.capsule_routing(*arrays, out=out, **how) is out
    np.testing.assert_array_equal(out, numbacaps.capsule_routing(*arrays, **how))


@pytest.mark.parametrize("channels", [1, 2])
@_algorithms
def test_no_images(algorithm, channels):
    x, w = np.empty((0, 2, 3, 3, 2, 2), np.float32), np.ones((4, channels, 2, 2, 2, 2), np.float32)
    logits = np.zeros((4, 2), np.float32)
    how = {"votes": "sum", "algorithm": algorithm, "logits": logits}
    y, couplings = numbacaps.capsule_routing(x, w, couplings=True, **how)
    assert y.shape == (0, 4, 2, 2, 2, 2) and couplings.shape == (0, 4, 2, 2, 2, 1, 1)
    found = numbacaps.capsule_routing_backward(x, w, y, **how)
    assert found.x.shape == x.shape and found.w.shape == w.shape and not found.w.any()
    assert found.logits.shape == logits.shape and not found.logits.any()


def test_sums_are_stored_unless_somebody_says_otherwise():
    assert rung(Options(votes="sum")) == "stored" and rung(Options()) == "fused"
    shapes = (1, 16, 128, 128, 1, 32), (4, 1, 5, 5, 32, 32)
    how = {"votes": "sum", "padding": 2}
    said = numbacaps.explain_routing(*shapes, **how)
    assert "forward 4 of 32 output rows of an image, backward 8 of 16" in said
    assert "all together would take 134217728 bytes" in said
    assert "computed 1 times forward and 1 backward, 13421772800 FLOP each time; stored" in said
    assert "they take 33554432 bytes" in said and "16 children of each of 4096" in said
    said = numbacaps.explain_routing(*shapes, algorithm="fused", **how)
    # Of each of 25 taps all 25 are computed again by the owners of each 8 (simulator: 16) of 32 rows of w.
    owners = 2 if SIMULATED else 4
    assert f"computed 3 times forward and {5 + 25 * owners} backward" in said
    assert "stored votes would take 134217728 bytes" in said


_X, _W = np.ones((1, 2, 3, 3, 2, 2), np.float32), np.ones((3, 2, 2, 2, 2, 2), np.float32)
_MANY = np.ones((1, 1 << 16, 1, 1), np.float32)  # plain numbers of many channels


@pytest.mark.parametrize(
    "arrays, options, said",
    [
        ((_X, _W), {"routing": "em"}, "votes is 'sum', whose children have no activations"),
        (
            (_X, _W),
            {"logits": _W[..., 0, 0]},
            r"logits has shape \(3, 2, 2, 2\); it takes \(3, 2\)",
        ),
        ((_X, _W[:, :1]), {"votes": "children"}, r"w has 1 input channels \(C\); x has 2"),
        ((_X[:, :1], _W), {}, r"w has 2 input channels \(C\); x has 1"),
        ((_X, _W[0, 0, 0, 0]), {}, r"w has shape \(2, 2\); product='ab,bc->ac' takes 6 axes"),
        ((_X[0, 0, 0, 0], _W), {}, r"x has shape \(2, 2\); product='ab,bc->ac' takes 6 axes"),
        ((_MANY, _MANY), {"product": ",->", "algorithm": "stored"}, "takes capsules of G = 65536"),
    ],
)
def test_refused(arrays, options, said):
    with pytest.raises(ValueError, match=said):
        numbacaps.capsule_routing(*arrays, **({"votes": "sum"} | options))


def test_refused_by_explain():
    with pytest.raises(
        ValueError, match=r"algorithm is 'numpy'; it takes one of \['auto', 'fused'"
    ):
        numbacaps.explain_routing(_X.shape, _W.shape, algorithm="numpy")
    with pytest.raises(ValueError, match=r"w has 1 input channels \(C\); x has 2"):
        numbacaps.explain_routing(_X.shape, (3, 1, *_W.shape[2:]))


def test_a_shared_kernel_s_gradient_is_rounded_once():
    """Of 2 bytes: each channel's is lost alone, or infinite."""
    one = np.ones((1, 1, 1, 1, 1, 1), np.float16)
    how = {"votes": "sum", "iterations": 1, "algorithm": "numpy"}
    x = np.full((1, 64, 1, 1, 1, 1), 1e-5, np.float16)
    right = numbacaps.capsule_routing_backward(*map(np.float64, (x, one, one)), **how).w
    found = numbacaps.capsule_routing_backward(x, one, one, **how).w
    np.testing.assert_allclose(found, right, rtol=0.05)
    x = np.array([200, -199.5], np.float16).reshape(1, 2, 1, 1, 1, 1)
    found = numbacaps.capsule_routing_backward(x, one, 1000 * one, **how).w
    assert np.isfinite(found).all()
