"""Plans of routing: they write what the functions return."""

import numpy as np
import pytest

import numbacaps
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.routing import plan as plans
from tests.support import routing as support
from tests.support.cases import nan

pytestmark = pytest.mark.tiers("simulator", "gpu")
_NAMES = "activations", "beta_u", "beta_a", "logits"
_X, _W = (1, 2, 3, 3, 2, 2), (3, 2, 2, 2, 2, 2)


class _Planned:
    """A plan, and device arrays for its calls: operands, and results that are NaN until they are written."""

    def __init__(self, g, given, dtype="float32", **form):
        is_em = "beta_u" in given
        form = support.window(g) | form
        shapes = given["x"].shape, given["w"].shape
        self.plan = numbacaps.routing_plan(
            *shapes, dtype, logits="logits" in given, couplings=True, **form
        )
        self.arrays = {name: cuda.to_device(array) for name, array in given.items()}
        self.more = support.chosen(self.arrays, _NAMES)
        self.out, parents = nan(self.plan.y_shape, dtype), self.plan.y_shape[:4]
        children = (g.C, 1, 1) if form.get("votes") == "sum" else (g.C, g.KH, g.KW)
        self.results = {"couplings": nan((*parents, *children), dtype)}
        self.d_results = {}
        if is_em:
            self.results["out_activations"] = nan(parents, dtype)
            self.d_results["d_activations"] = self.arrays["d_activations"]
        self.dx, self.dw = (nan(shape, dtype) for shape in shapes)
        self.into = {name: nan(array.shape, dtype) for name, array in self.more.items()}

    def forward(self, stream=None):
        x, w = self.arrays["x"], self.arrays["w"]
        how = self.more | self.results
        assert self.plan(x, w, self.out, stream=stream, **how) is self.out

    def backward(self, stream=None):
        operands = [self.arrays[name] for name in ("x", "w", "dy")]
        how = self.more | self.d_results | {"into": self.into, "stream": stream}
        found = self.plan.backward(*operands, self.dx, self.dw, **how)
        assert found.x is self.dx and found.w is self.dw
        assert all(getattr(found, name) is array for name, array in self.into.items())
        return found

    def check(self, wanted, tolerance=support.ROUTING):
        """Twice, as every call writes all of its results."""
        for _ in range(2):
            self.forward()
            found = self.backward()
        results = [
            self.out,
            *([self.results["out_activations"]] if len(wanted.results) > 2 else []),
        ]
        for one, want in zip([*results, self.results["couplings"]], wanted.results, strict=True):
            support.close(one, want, tolerance)
        for name, want in wanted.gradients.items():
            support.close(getattr(found, name), want, tolerance)


@pytest.mark.slow(but=["class-fused", "ones-stored"])
@pytest.mark.parametrize("algorithm", ["fused", "ieee", "stored"])
@pytest.mark.parametrize("case", support.CASES)
def test_dynamic(case, algorithm, rng):
    g = support.CASES[case]
    given = support.operands(g, rng, em=False)
    _Planned(g, given, **support.by(algorithm)).check(support.want_dynamic(g, given))


@pytest.mark.slow(but=["class-fused", "ones-stored"])
@pytest.mark.parametrize("algorithm", ["fused", "stored"])
@pytest.mark.parametrize("case", support.CASES)
def test_em(case, algorithm, rng):
    g = support.CASES[case]
    given = support.operands(g, rng, em=True)
    form = {"routing": "em", "lam": 1.0, "algorithm": algorithm}
    _Planned(g, given, **form).check(support.want_em(g, given))


@pytest.mark.slow(but=["ones-*", "class-stored-True"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("algorithm", ["fused", "stored"])
@pytest.mark.parametrize("case", ["ones", "class", "dilated"])
def test_votes_summed_over_the_window(case, algorithm, shared, rng):
    g = support.CASES[case]
    given = support.operands_of_sums(g, rng, shared)
    wanted = support.want_dynamic(g, given, kind="sum")
    _Planned(g, given, votes="sum", algorithm=algorithm).check(wanted)


@pytest.mark.slow(but=["float16-em"])
@pytest.mark.parametrize("routing", ["dynamic", "em", "sums"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes(dtype, routing, rng):
    """All arrays are of the plan's; sums are float32 at least."""
    g, tolerance = support.CASES["ones"], 4e-2 if dtype == "float16" else 1e-9
    made = support.operands(g, rng, em=routing == "em")
    if routing == "sums":
        made = support.operands_of_sums(g, rng)
    given = {name: array.astype(dtype) for name, array in made.items()}
    if routing == "em":
        form, wanted = {"routing": "em", "lam": 1.0}, support.want_em(g, given)
    else:
        form = {"votes": "sum"} if routing == "sums" else {}
        kind = "sum" if routing == "sums" else "children"
        wanted = support.want_dynamic(g, given, kind=kind)
    _Planned(
        g, given, dtype, algorithm="auto" if not SIMULATED else _on_kernels(form), **form
    ).check(wanted, tolerance)


def _on_kernels(form):
    return "stored" if form.get("votes") == "sum" else "fused"


def test_what_is_not_given(rng):
    """It is what the functions take for it; and gradients may be left out."""
    g = support.CASES["class"]
    given = support.operands(g, rng, em=True)
    x, w, dy = (cuda.to_device(given[name]) for name in ("x", "w", "dy"))
    how = {"routing": "em", "algorithm": "fused", **support.window(g)}
    plan = numbacaps.routing_plan(x, w, **how)
    out, out_activations = nan(plan.y_shape, "float32"), nan(plan.y_shape[:4], "float32")
    plan(x, w, out, out_activations=out_activations)
    for one, want in zip((out, out_activations), numbacaps.capsule_routing(x, w, **how)):
        np.testing.assert_array_equal(one.copy_to_host(), want.copy_to_host())
    wanted = numbacaps.capsule_routing_backward(x, w, dy, **how)
    dx, dw = nan(x.shape, "float32"), nan(w.shape, "float32")
    assert plan.backward(x, w, dy, dx) == (dx, None, None, None, None, None)
    assert plan.backward(x, w, dy, dw=dw).x is None
    for one, want in ((dx, wanted.x), (dw, wanted.w)):
        np.testing.assert_array_equal(one.copy_to_host(), want.copy_to_host())


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_numpy_arrays_by_numpy(routing, rng):
    g, is_em = support.CASES["window"], routing == "em"
    given = support.operands(g, rng, em=is_em)
    how = {"routing": routing, "algorithm": "numpy", **support.window(g)}
    plan = numbacaps.routing_plan(given["x"], given["w"], logits=not is_em, **how)
    more = support.chosen(given, _NAMES)
    out = np.full(plan.y_shape, np.nan, np.float32)
    results = {"out_activations": np.empty(plan.y_shape[:4], np.float32)} if is_em else {}
    plan(given["x"], given["w"], out, **more, **results)
    want = numbacaps.capsule_routing(given["x"], given["w"], **more, **how)
    np.testing.assert_array_equal(out, want[0] if is_em else want)
    dw, into = np.empty_like(given["w"]), {"beta_u": np.empty(g.P, np.float32)} if is_em else {}
    arrays = [given[name] for name in ("x", "w", "dy")]
    plan.backward(*arrays, dw=dw, into=into, **more)
    want = numbacaps.capsule_routing_backward(*arrays, **more, **how)
    np.testing.assert_array_equal(dw, want.w)
    if is_em:
        np.testing.assert_array_equal(into["beta_u"], want.beta_u)
    assert "NumPy" in plan.explain()


def test_it_says_what_it_is():
    plan = numbacaps.routing_plan(_X, _W, algorithm="fused")
    assert (plan.x_shape, plan.w_shape, plan.y_shape) == (_X, _W, (1, 3, 2, 2, 2, 2))
    assert plan.explain() == numbacaps.explain_routing(_X, _W)
    assert repr(plan).startswith(f"RoutingPlan(x {_X}, w {_W}") and "routing='dynamic'" in repr(
        plan
    )


@pytest.mark.parametrize("algorithm", ["fused", "stored"])
def test_every_stream_has_a_workspace_that_stays(algorithm, rng):
    """Also where the gradient takes more than the forward pass of it: a graph may read it."""
    g = support.CASES["ones"]
    made = _Planned(g, support.operands(g, rng, em=False), algorithm=algorithm)
    streams = (1, 2) if SIMULATED else (cuda.stream(), cuda.stream())
    rooms = made.plan._run._rooms
    for stream in streams:
        made.plan._run.forward(*_as_called(made), stream)
        first = dict(rooms.of(stream)._named)
        memories = {name: one._arrays for name, one in first.items()}
        made.plan._run.forward(*_as_called(made), stream)
        assert {name: one._arrays for name, one in first.items()} == memories
    assert rooms.of(streams[0]) is not rooms.of(streams[1])


def _as_called(made):
    given = made.plan._operands(
        support.chosen(made.arrays, ("x", "w")), dict.fromkeys(_NAMES) | made.more
    )
    named = {"out": made.out, **made.results}
    return given, made.plan._results({name: (name, one) for name, one in named.items()}, given)


@pytest.mark.tiers("gpu")
@pytest.mark.skipif(SIMULATED, reason="a graph takes a GPU")
@pytest.mark.parametrize("algorithm", ["fused", "stored"])
@pytest.mark.parametrize("routing", ["dynamic", "em", "sums"])
def test_a_plan_is_captured(routing, algorithm, rng, monkeypatch):
    """After one call of each kind it allocates nothing, and a graph writes the same bits."""
    g, is_em = support.CASES["class"], routing == "em"
    given = support.operands(g, rng, em=is_em)
    form = {"routing": "em", "lam": 1.0} if is_em else {}
    if routing == "sums":
        given, form = support.operands_of_sums(g, rng, shared=True), {"votes": "sum"}
    made = _Planned(g, given, algorithm=algorithm, **form)
    from experiments.measuring.gpu_time import clock

    made.forward(clock().numba)
    made.backward(clock().numba)
    clock().synchronize()

    def allocated(*_, **__):
        raise AssertionError("memory was allocated by a call that is not the first")

    results = made.out, *made.results.values(), made.dx, made.dw, *made.into.values()
    with monkeypatch.context() as patched:
        patched.setattr(cuda, "device_array", allocated)

        def launch(stream):
            made.forward(stream)
            made.backward(stream)

        support.check_captured(launch, results)


@pytest.mark.parametrize(
    "options, error, said",
    [
        ({"routing": "dynamc"}, ValueError, "routing is 'dynamc'.* did you mean 'dynamic'"),
        ({"dtype": "int8"}, TypeError, "dtype is int8; it takes float16"),
        ({"x_shape": (0, *_X[1:])}, ValueError, "x_shape has N = 0; a plan takes 1 or more"),
        ({"x_shape": 7}, TypeError, "x_shape is 7; it takes a tuple of sizes"),
        ({"w_shape": (3, 4, *_W[2:])}, ValueError, "w has 4 input channels"),
        ({"product": "ba,cb->ca"}, ValueError, "a plan takes axes in the order in which kernels"),
        ({"algorithm": "staged"}, ValueError, "algorithm is 'staged'"),
        ({"precision": "tf16"}, ValueError, "precision is 'tf16'"),
        ({"logits": 1}, TypeError, "logits is 1; it takes True or False"),
        ({"couplings": None}, TypeError, "couplings is None; it takes True or False"),
        ({"logits": True, "routing": "em"}, ValueError, "logits is given; routing 'em' takes none"),
        ({"detach": 1}, TypeError, "detach is 1; it takes True or False"),
    ],
)
def test_what_a_plan_refuses(options, error, said):
    with pytest.raises(error, match=said):
        numbacaps.routing_plan(**({"x_shape": _X, "w_shape": _W} | options))


@pytest.fixture
def launches(monkeypatch):
    """Nothing may be launched."""
    for made in (plans.OnDevice, plans.Stored):
        for name in ("forward", "backward"):
            monkeypatch.setattr(made, name, None)


@pytest.mark.parametrize(
    "options, change, error, said",
    [
        ({}, {"x": np.zeros(_X, np.float32)}, TypeError, "x is on the host; a plan takes device"),
        ({}, {"w": (1, *_W[1:])}, ValueError, r"w has shape .*; the plan takes \(3, 2, 2"),
        ({}, {"out": (1, 3, 2, 2, 2, 1)}, ValueError, "out has shape .*; it takes"),
        ({}, {"logits": (3, 2, 2, 2)}, ValueError, "logits is given; a plan with logits=True"),
        ({"logits": True}, {}, ValueError, "logits is None; this plan takes an array"),
        ({}, {"couplings": (1,)}, ValueError, "couplings is given; a plan with couplings=True"),
        ({"couplings": True}, {}, ValueError, "couplings is None; this plan takes an array"),
        ({}, {"out_activations": (1,)}, ValueError, "out_activations is given; routing 'em' alone"),
        ({"routing": "em"}, {}, ValueError, "out_activations is None; this plan takes an array"),
        ({}, {"beta_u": (3,)}, ValueError, "beta_u is given; routing 'dynamic' takes none"),
    ],
)
def test_what_a_call_refuses(options, change, error, said, launches):
    plan = numbacaps.routing_plan(_X, _W, algorithm="fused", **options)
    with pytest.raises(error, match=said):
        plan(**_arrays({"x": _X, "w": _W, "out": plan.y_shape} | change))


@pytest.mark.parametrize(
    "change, error, said",
    [
        ({"dx": None, "dw": None}, ValueError, "dx and dw are None; at least one takes an array"),
        ({"dx": _W}, ValueError, "dx has shape .*; it takes"),
        ({"dy": _X}, ValueError, "dy has shape .*; the plan takes"),
        ({"logits": None}, ValueError, "logits is None; this plan takes an array"),
        ({"d_activations": (1, 3, 2, 2)}, ValueError, "d_activations is given; routing 'dynamic'"),
        ({"into": 1}, TypeError, "into is 1; it takes a dict such as"),
        ({"into": {"beta_u": (3,)}}, ValueError, r"into names 'beta_u'; .* of \['logits'\]"),
        (
            {"into": {"logits": (3, 2)}},
            ValueError,
            r"into\['logits'\] has shape \(3, 2\); it takes",
        ),
        (
            {"into": {"logits": (3, 2, 2, 2)}, "dw": None},
            ValueError,
            "into names 'logits', and dw is None; they come together",
        ),
    ],
)
def test_what_backward_refuses(change, error, said, launches):
    plan = numbacaps.routing_plan(_X, _W, algorithm="fused", logits=True)
    arrays = {"x": _X, "w": _W, "dy": plan.y_shape, "dx": _X, "dw": _W, "logits": (3, 2, 2, 2)}
    with pytest.raises(error, match=said):
        plan.backward(**_arrays(arrays | change))


def test_results_that_share_memory_are_refused(launches):
    plan = numbacaps.routing_plan(_X, _W, algorithm="fused", logits=True)
    arrays = _arrays({"x": _X, "w": _W, "dy": plan.y_shape, "logits": (3, 2, 2, 2)})
    dw = nan(_W, "float32")
    into = {"logits": dw.reshape(dw.size)[:24].reshape(3, 2, 2, 2)}
    with pytest.raises(ValueError, match=r"into\['logits'\] overlaps dw; it takes memory"):
        plan.backward(**arrays, dw=dw, into=into)
    with pytest.raises(ValueError, match="dx overlaps x; it takes memory of its own"):
        plan.backward(**arrays, dx=arrays["x"])


def _arrays(shapes):
    """Device arrays in the place of shapes."""
    if isinstance(shapes, dict):
        return {name: _arrays(shape) for name, shape in shapes.items()}
    return nan(shapes, "float32") if isinstance(shapes, tuple) else shapes
