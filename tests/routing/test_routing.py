"""capsule_routing and its gradients against the reference's loops, in every form."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

import numbacaps
from numbacaps.device import workspace
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.geometry import Geometry
from numbacaps.routing import em_passes, passes, runner, shape
from numbacaps.routing.options import Options
from numbacaps.routing.shape import Shape
from tests.support import routing as support

pytestmark = pytest.mark.tiers("simulator", "gpu")
_ALGORITHMS = ("numpy", "fused", "ieee", "stored")


@pytest.mark.slow(but=["*-numpy-*", "class-fused-children-False"])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("over", ["parents", "children"])
@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize("case", support.CASES)
def test_dynamic(case, algorithm, over, detach, rng):
    g = support.CASES[case]
    given = support.operands(g, rng, em=False)
    wanted = support.want_dynamic(g, given, softmax_over=over, detach=detach)
    support.check(g, given, wanted, algorithm=algorithm, softmax_over=over, detach=detach)


@pytest.mark.slow(but=["window-fused-parents-False", "class-fused-children-True"])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("over", ["parents", "children"])
@pytest.mark.parametrize("algorithm", ["fused", "stored"])
@pytest.mark.parametrize("case", ["window", "class"])
def test_without_logits(case, algorithm, over, detach, rng):
    """The first iteration's couplings are even then, which the gradient knows."""
    g = support.CASES[case]
    given = support.operands(g, rng, em=False)
    given["logits"][:] = 0
    wanted = support.want_dynamic(g, given, softmax_over=over, detach=detach)
    del given["logits"], wanted.gradients["logits"]
    support.check(g, given, wanted, algorithm=algorithm, softmax_over=over, detach=detach)


# More elements than a block between two passes has threads, on the simulator; a row and a column of them; on a GPU, too.
_LONG = {
    "square": Geometry(2, 3, 2, 2, 2, 2, 2, 1, 6, 2, 7),
    "row": Geometry(2, 2, 3, 1, 1, 1, 1, 1, 1, 3, 300),
    "column": Geometry(2, 2, 3, 1, 1, 1, 1, 1, 300, 3, 1),
}


@pytest.mark.slow(but=["square"])
@pytest.mark.parametrize("case", _LONG)
def test_long_capsules(case, rng):
    g = _LONG[case]
    given = support.operands(g, rng, em=False)
    given["w"] /= g.E3**0.5  # so that no parent has a child alone, which leaves no gradient
    support.check(g, given, support.want_dynamic(g, given), algorithm="ieee")


@pytest.mark.slow
def test_long_capsules_by_em_routing(rng):
    g = _LONG["square"]
    given = support.operands(g, rng, em=True)
    form = {"routing": "em", "lam": 1.0, "algorithm": "ieee"}
    support.check(g, given, support.want_em(g, given), **form)


@pytest.mark.slow(but=["*-numpy-*", "dilated-fused-all-False"])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("normalise", ["window", "all"])
@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize("case", support.CASES)
def test_em(case, algorithm, normalise, detach, rng):
    g = support.CASES[case]
    given = support.operands(g, rng, em=True)
    wanted = support.want_em(g, given, normalise=normalise, detach=detach)
    form = {"routing": "em", "lam": 1.0, "normalise": normalise, "detach": detach}
    support.check(g, given, wanted, algorithm=algorithm, **form)


@pytest.mark.slow(but=["all-class"])
@pytest.mark.sanitize
@pytest.mark.parametrize("case", ["window", "class"])
@pytest.mark.parametrize("normalise", ["window", "all"])
def test_the_stored_rung(normalise, case, rng):
    g = support.CASES[case]
    given = support.operands(g, rng, em=False)
    support.check(g, given, support.want_dynamic(g, given), algorithm="stored")
    given = support.operands(g, rng, em=True)
    form = {"routing": "em", "lam": 1.0, "normalise": normalise}
    support.check(
        g, given, support.want_em(g, given, normalise=normalise), algorithm="stored", **form
    )


@pytest.mark.slow(but=["form1"])
@pytest.mark.parametrize(
    "form", [{}, {"softmax_over": "children"}, {"routing": "em", "normalise": "all"}]
)
def test_the_stored_rungs_gradients_are_finite_differences(form, rng):
    """In float64, along a direction that every operand takes part in."""
    g, h = replace(support.CASES["window"], N=1), 1e-6
    form = {**form, "algorithm": "stored", "iterations": 2, **support.window(g)}
    is_em = "routing" in form
    given = {name: a.astype(float) for name, a in support.operands(g, rng, em=is_em).items()}
    names = ("x", "w", "activations", "beta_u", "beta_a") if is_em else ("x", "w", "logits")
    along = {name: rng.uniform(-1, 1, given[name].shape) for name in names}

    def loss(step):
        moved = {name: given[name] + step * along[name] for name in names}
        found = numbacaps.capsule_routing(moved.pop("x"), moved.pop("w"), **moved, **form)
        y, a = found if is_em else (found, 0)
        return np.sum(y * given["dy"]) + np.sum(a * given.get("d_activations", 0))

    operands = support.chosen(given, (*names[2:], "d_activations"))
    arrays = (given[name] for name in ("x", "w", "dy"))
    found = numbacaps.capsule_routing_backward(*arrays, **operands, **form)
    slope = sum((getattr(found, name) * along[name]).sum() for name in names)
    assert slope == pytest.approx((loss(h) - loss(-h)) / (2 * h), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, 2])
def test_parts_of_a_batch_are_the_batch(part, monkeypatch, rng):
    """Gradients of what images share are added over the parts, of which the last may be smaller."""
    monkeypatch.setattr(runner.Runner, "_bytes", lambda self, passes: 1)
    monkeypatch.setattr(runner.Runner, "_budget", part)
    runner.runners.clear()
    g = support.CASES["class"]
    for algorithm in ("fused", "stored"):
        given = support.operands(g, rng, em=False)
        support.check(g, given, support.want_dynamic(g, given), algorithm=algorithm)
        given = support.operands(g, rng, em=True)
        form = {"routing": "em", "lam": 1.0, "normalise": "all", "algorithm": algorithm}
        support.check(g, given, support.want_em(g, given, normalise="all"), **form)
    runner.runners.clear()


@pytest.mark.slow
@pytest.mark.parametrize("em", [False, True])
def test_a_last_part_whose_children_are_shared_by_more_blocks(em, monkeypatch, rng):
    """What has been added up stays where it lies, though their records need more room; later calls allocate nothing."""
    monkeypatch.setattr(runner.Runner, "_bytes", lambda self, passes: 1)
    monkeypatch.setattr(runner.Runner, "_budget", 3)
    runner.runners.clear()
    C = 128
    if not SIMULATED:
        # A block has more teams there, and so few images would want no more than one block.
        C = 512
        monkeypatch.setattr(shape, "teams_wanted", lambda shape: 300)
    g = Geometry(5, C, 2, 1, 1, 1, 1, 1, 1, 1, 1)
    given = support.operands(g, rng, em=em)
    want, form = support.want_dynamic, {}
    if em:
        want, form = support.want_em, {"routing": "em", "lam": 1.0}
    else:
        # Otherwise parents of 512 children are so long that rounding x and w alone changes gradients by 2e-4.
        given["x"] /= 16
    which = g, np.dtype(np.float32), Options(**form)
    parts = runner.Runner(*which, part=3, precision="ieee")
    records = [prod(parts._of(N, "ieee").backward_shapes()["partial"]) for N in (3, 2)]
    assert records[1] > records[0]
    wanted = want(g, given)
    for allocates in (True, False):
        if not allocates:
            none = property(lambda growth: False)  # which cannot be set
            monkeypatch.setattr(workspace.Growth, "grown", none)
        arrays = {name: cuda.to_device(array) for name, array in given.items()}
        dy, x, w = (arrays.pop(name) for name in ("dy", "x", "w"))
        options = support.window(g) | form | {"algorithm": "fused", "precision": "ieee"}
        found = numbacaps.capsule_routing_backward(x, w, dy, **arrays, **options)
        for name, gradient in wanted.gradients.items():
            support.close(getattr(found, name), gradient)
    runner.runners.clear()


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_a_runner_sends_nothing(routing, monkeypatch, rng):
    """All it needs besides arrays are arguments of kernels, in the order of the stream, which graphs keep."""
    g = support.CASES["class"]
    given = support.operands(g, rng, em=routing == "em")
    x, w = cuda.to_device(given["x"]), cuda.to_device(given["w"])
    names = ("activations", "beta_u", "beta_a") if routing == "em" else ("logits",)
    operands = [cuda.to_device(given[name].astype(np.float32)) for name in names]
    shapes = [(g.N, g.P, g.L, g.E3), (g.N, g.P, g.L)][: 1 + (routing == "em")]
    results = [cuda.device_array(shape, np.float32) for shape in shapes]

    def sent(*_, **__):
        raise AssertionError("an array was sent")

    monkeypatch.setattr(cuda, "to_device", sent)
    form = Options(routing, 2)
    runner.Runner(g, np.dtype(np.float32), form).forward(x, w, operands, results)


def test_a_runner_on_two_streams_works_in_two_places(rng):
    g = support.CASES["class"]
    given = support.operands(g, rng, em=False)
    x, w = cuda.to_device(given["x"]), cuda.to_device(given["w"])
    y = cuda.device_array((g.N, g.P, g.L, g.E3), np.float32)
    found = runner.Runner(g, np.dtype(np.float32), Options())
    streams = (1, 2) if SIMULATED else (cuda.stream(), cuda.stream())
    nbytes = []
    for stream in (*streams, *streams):
        found.forward(x, w, (None,), (y,), None, stream)
        nbytes.append(found.nbytes)
    assert nbytes == [nbytes[0], *[2 * nbytes[0]] * 3]


@pytest.mark.slow
@pytest.mark.sanitize
@pytest.mark.parametrize("em", [False, True])
def test_teams_of_several_images(em, monkeypatch, rng):
    """Of more than there are left at the end of the batch."""
    of = Shape.of.__func__

    def several(cls, *how):
        return replace(of(cls, *how), images=2)

    monkeypatch.setattr(Shape, "of", classmethod(several))
    runner.runners.clear()
    g = replace(support.CASES["window"], N=3)
    given = support.operands(g, rng, em=em)
    if em:
        form = {"routing": "em", "lam": 1.0, "normalise": "all", "algorithm": "ieee"}
        support.check(g, given, support.want_em(g, given, normalise="all"), **form)
    else:
        support.check(g, given, support.want_dynamic(g, given), algorithm="ieee")
    runner.runners.clear()


@pytest.mark.slow
def test_more_parents_than_lanes(rng):
    g = Geometry(1, 8, 37, 1, 1, 1, 1, 1, 1, 2, 2)
    given = support.operands(g, rng, em=False)
    support.check(g, given, support.want_dynamic(g, given), algorithm="ieee")
    given = support.operands(g, rng, em=True)
    form = {"routing": "em", "lam": 1.0, "algorithm": "ieee"}
    support.check(g, given, support.want_em(g, given), **form)


@pytest.mark.slow(but=["float16-fused", "float64-stored"])
@pytest.mark.parametrize("algorithm", ["fused", "stored"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes(dtype, algorithm, rng):
    """Sums are float32 at least."""
    g, tolerance = support.CASES["class"], 2e-2 if dtype == "float16" else 1e-9
    given = {name: a.astype(dtype) for name, a in support.operands(g, rng, em=True).items()}
    wanted = support.want_em(g, given, 2)
    form = {"routing": "em", "lam": 1.0, "iterations": 2, "algorithm": algorithm}
    form |= support.window(g)
    operands = support.chosen(given, ("activations", "beta_u", "beta_a"))
    results = numbacaps.capsule_routing(given["x"], given["w"], **operands, **form)
    operands |= support.chosen(given, ("d_activations",))
    arrays = (given[name] for name in ("x", "w", "dy"))
    found = numbacaps.capsule_routing_backward(*arrays, **operands, **form)
    pairs = list(zip(results, wanted.results))
    pairs += [(getattr(found, name), want) for name, want in wanted.gradients.items()]
    for one, want in pairs:
        assert one.dtype == dtype
        np.testing.assert_allclose(one, want, rtol=0, atol=tolerance * np.abs(want).max())


def test_device_arrays_stay_on_the_device(rng):
    """Also where capsule axes come in another order than the kernels'."""
    x, w = (
        rng.standard_normal(shape, np.float32) for shape in ((2, 2, 1, 1, 2, 3), (3, 2, 1, 1, 2, 2))
    )
    how = {"product": "ba,cb->ca", "iterations": 2}
    want = numbacaps.capsule_routing(x, w, algorithm="numpy", **how)
    found = numbacaps.capsule_routing(
        cuda.to_device(x), cuda.to_device(w), algorithm="fused", **how
    )
    assert hasattr(found, "copy_to_host")
    support.close(found, want)
    dy = rng.standard_normal(want.shape, np.float32)
    want = numbacaps.capsule_routing_backward(x, w, dy, algorithm="numpy", **how)
    arrays = (cuda.to_device(array) for array in (x, w, dy))
    found = numbacaps.capsule_routing_backward(*arrays, algorithm="fused", **how)
    support.close(found.x, want.x)
    support.close(found.w, want.w)
    assert found.logits is None and found.activations is None


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_out(algorithm, rng):
    g = support.CASES["ones"]
    given = support.operands(g, rng, em=False)
    arrays, out = (given["x"], given["w"]), np.empty(g.output_shape, np.float32)
    how = {**support.by(algorithm), **support.window(g)}
    assert numbacaps.capsule_routing(*arrays, out=out, **how) is out
    np.testing.assert_array_equal(out, numbacaps.capsule_routing(*arrays, **how))
    with pytest.raises(ValueError, match="out has shape"):
        numbacaps.capsule_routing(*arrays, out=out[0], **how)


def test_what_is_not_needed_is_not_computed(rng):
    g = support.CASES["ones"]
    given = support.operands(g, rng, em=True)
    arrays = (given[name] for name in ("x", "w", "dy"))
    operands = support.chosen(given, ("activations", "beta_u"))
    for algorithm in _ALGORITHMS:
        arrays = [given[name] for name in ("x", "w", "dy")]
        form = {"routing": "em", "needs": ("kernel",), **support.by(algorithm), **support.window(g)}
        found = numbacaps.capsule_routing_backward(*arrays, **operands, **form)
        assert found.x is None and found.activations is None and found.beta_a is None
        assert found.w is not None and found.beta_u is not None


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_no_images(algorithm):
    x, w = np.empty((0, 2, 3, 3, 2, 2), np.float32), np.ones((4, 2, 2, 2, 2, 2), np.float32)
    y, a = numbacaps.capsule_routing(x, w, routing="em", **support.by(algorithm))
    assert y.shape == (0, 4, 2, 2, 2, 2) and a.shape == (0, 4, 2, 2)
    found = numbacaps.capsule_routing_backward(x, w, y, **support.by(algorithm))
    assert found.x.shape == x.shape and not found.w.any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_splits_take_no_more_bytes_than_they_may(dtype, monkeypatch):
    """Of w's gradient, in its own dtype of sums. Stored votes have no w, so they may have more splits."""
    g, dtype = Geometry(256, 1, 2, 1, 1, 1, 1, 1, 4, 4, 4), np.dtype(dtype)
    monkeypatch.setattr(passes, "MULTIPROCESSORS", 8)
    monkeypatch.setattr(passes, "_SPLITS_BYTES", 3 * 2 * 16 * dtype.itemsize)
    splits = [passes.DynamicPasses(g, dtype, Options(), stored).splits for stored in (False, True)]
    assert 1 < splits[0] <= 3 < splits[1] <= 3 * 16
    assert em_passes.EMPasses(g, dtype, Options("em"), True).splits >= splits[1]


def test_explain_says_what_stored_votes_would_take():
    said = numbacaps.explain_routing((8, 32, 14, 14, 4, 4), (32, 32, 3, 3, 4, 4), stride=2)
    assert "169869312 bytes" in said and "3 passes" in said
