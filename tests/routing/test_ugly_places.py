"""Routing where numbers are extreme: finite, and right, where float64's reference is."""

import numpy as np
import pytest

import numbacaps
from numbacaps.geometry import Geometry
from tests.support import routing as support

pytestmark = pytest.mark.tiers("simulator", "gpu")
_GEOMETRY = Geometry(1, 3, 2, 2, 2, 2, 2, 1, 1, 2, 2)
_ALGORITHMS = ("numpy", "fused", "ieee")


def _change(given, what):
    """Operands made ugly; the options that this takes."""
    if what == "zeros":
        given["x"][...] = 0
    elif what == "a capsule of zeros":
        given["x"][:, 1] = 0
    elif what == "activations of 0":
        given["activations"][...] = 0
    elif what == "an activation of 0":
        given["activations"][:, 0] = 0
    elif what == "equal votes":
        given["x"][...], given["w"][...] = 1, given["w"][:, :1, :1, :1]
    elif what == "large betas":
        given["beta_u"][...], given["beta_a"][...] = 100, -100
    elif what == "20 iterations":
        return {"iterations": 20}
    elif what.startswith("times "):
        given["x"] *= np.float32(what.removeprefix("times "))
    elif what == "tiny activations":
        given["activations"] *= np.float32(1e-20)
    return {}


def _run(given, em, algorithm, form):
    """Results and gradients by name, as the kernels have them."""
    names = ("activations", "beta_u", "beta_a") if em else ("logits",)
    operands = {name: given[name] for name in names}
    form = form | support.window(_GEOMETRY) | support.by(algorithm)
    form |= {"routing": "em", "lam": 1.0} if em else {}
    with np.errstate(all="ignore"):  # the simulator computes in NumPy
        results = numbacaps.capsule_routing(
            given["x"], given["w"], couplings=True, **operands, **form
        )
        if em:
            operands["d_activations"] = given["d_activations"]
        arrays = (given[name] for name in ("x", "w", "dy"))
        found = numbacaps.capsule_routing_backward(*arrays, **operands, **form)
    return results, found._asdict()


def _compare(found, wanted, tolerance=1e-3):
    results, gradients = found
    pairs = [(str(i), *pair) for i, pair in enumerate(zip(results, wanted.results))]
    pairs += [(name, gradients[name], want) for name, want in wanted.gradients.items()]
    for name, one, want in pairs:
        with np.errstate(over="ignore", under="ignore"):
            fits = np.isfinite(np.float32(want))
        assert np.isfinite(one[fits]).all(), name
        scale = np.abs(want[fits]).max(initial=0)
        np.testing.assert_allclose(
            one[fits], want[fits], rtol=tolerance, atol=tolerance * scale, err_msg=name
        )


@pytest.mark.slow(but=["*-numpy", "zeros-fused"])
@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize(
    "what",
    ["zeros", "a capsule of zeros", "equal votes", "20 iterations", "times 1e-20", "times 1e20"],
)
def test_dynamic(what, algorithm, rng):
    given = support.operands(_GEOMETRY, rng, em=False)
    form = _change(given, what)
    with np.errstate(all="ignore"):
        wanted = support.want_dynamic(_GEOMETRY, given, **form)
    # After 20 iterations couplings are near 0 and 1, and what reaches the logits is a difference of larger numbers.
    _compare(_run(given, False, algorithm, form), wanted, 2e-2 if form else 1e-3)


@pytest.mark.slow(but=["*-numpy", "zeros-fused"])
@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize(
    "what",
    [
        "zeros",
        "a capsule of zeros",
        "activations of 0",
        "an activation of 0",
        "tiny activations",
        "equal votes",
        "large betas",
        "20 iterations",
        "times 1e-20",
        "times 1e8",
    ],
)
def test_em(what, algorithm, rng):
    """Squares of votes over variances near epsilon are float32 in the kernels, so 1e20 is NumPy's alone."""
    given = support.operands(_GEOMETRY, rng, em=True)
    form = _change(given, what)
    with np.errstate(all="ignore"):
        wanted = support.want_em(_GEOMETRY, given, **form)
    _compare(_run(given, True, algorithm, form), wanted)


@pytest.mark.slow(but=["*-numpy", "True-fused"])
@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize("em", [False, True])
def test_nan_stays_where_it_came_in(em, algorithm, rng):
    g = Geometry(2, 2, 2, 1, 1, 1, 1, 1, 1, 2, 2)
    given = support.operands(g, rng, em=em)
    given["x"][0, 1] = np.nan
    form = support.window(g) | support.by(algorithm) | ({"routing": "em"} if em else {})
    with np.errstate(all="ignore"):
        found = numbacaps.capsule_routing(given["x"], given["w"], **form)
    for one in found if em else (found,):
        assert np.isnan(one[0]).all() and np.isfinite(one[1]).all()


@pytest.mark.parametrize("over", ["parents", "children"])
@pytest.mark.parametrize("children", [3, 64])
@pytest.mark.parametrize("algorithm", ["numpy", "fused", "stored"])
def test_nan_is_where_it_is_whether_couplings_are_asked_for_or_not(algorithm, children, over, rng):
    """In the first iteration couplings are alike, whatever the votes: one parent's NaN does not reach the other."""
    x = rng.standard_normal((1, children, 1, 1, 2, 2), np.float32)
    w = rng.standard_normal((2, children, 1, 1, 2, 2), np.float32)
    w[0, 1] = np.nan
    how = {"algorithm": algorithm, "iterations": 1, "softmax_over": over}
    alone = numbacaps.capsule_routing(x, w, **how)
    beside, couplings = numbacaps.capsule_routing(x, w, couplings=True, **how)
    np.testing.assert_allclose(alone, beside, rtol=1e-4, atol=1e-6)
    assert np.isnan(alone[:, 0]).all() and np.isfinite(alone[:, 1]).all()
    np.testing.assert_allclose(couplings, 1 / (2 if over == "parents" else children), rtol=1e-6)


def test_em_at_1e20_on_the_host(rng):
    given = support.operands(_GEOMETRY, rng, em=True)
    _change(given, "times 1e20")
    _compare(_run(given, True, "numpy", {}), support.want_em(_GEOMETRY, given))
