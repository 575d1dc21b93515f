"""Routing of geometries and forms that are drawn, against the reference's loops."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numbacaps
from numbacaps.device.target import SIMULATED
from numbacaps.geometry import Geometry
from tests.support import routing as support

pytestmark = pytest.mark.tiers("simulator", "gpu")
_SETTINGS = settings(
    max_examples=4 if SIMULATED else 20,  # each compiles its kernels
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def geometries(draw, most=2 if SIMULATED else 5):
    """Small ones, of every stride, padding and dilation; with enough children for a variance."""
    some = st.integers(1, most)
    KH, KW, PH, PW = (draw(st.integers(1, 2)) for _ in range(4))
    step = [draw(st.integers(1, 2)) for _ in range(4)]
    H, W = (
        draw(st.integers(2, 3)) + step[2 + axis] * (side - 1) for axis, side in enumerate((KH, KW))
    )
    sizes = draw(some), 5 + draw(some), draw(st.integers(1, 3 if SIMULATED else 40)), H, W, KH, KW
    capsule = draw(st.integers(1, 2)), *(draw(some) for _ in range(3))
    return Geometry(*sizes, *capsule, tuple(step[:2]), (PH - 1, PW - 1), tuple(step[2:]))


def _check(g, given_operands, wanted, backward, **form):
    names = ("activations", "beta_u", "beta_a", "logits")
    operands = {name: given_operands[name] for name in names if name in given_operands}
    form |= support.window(g) | {"algorithm": "fused"}
    x, w, dy = (given_operands[name] for name in ("x", "w", "dy"))
    results = numbacaps.capsule_routing(x, w, couplings=True, **operands, **form)
    if "d_activations" in given_operands:
        operands["d_activations"] = given_operands["d_activations"]
    found = numbacaps.capsule_routing_backward(x, w, dy, **operands, **form, **backward)
    pairs = list(zip(results, wanted.results, strict=True))
    pairs += [(getattr(found, name), want) for name, want in wanted.gradients.items()]
    for one, want in pairs:
        scale = np.abs(want).max()
        np.testing.assert_allclose(one, want, rtol=0, atol=1e-3 * max(scale, 1e-6))


@pytest.mark.slow
@_SETTINGS
@given(
    geometries(),
    st.integers(1, 3),
    st.sampled_from(["parents", "children"]),
    st.booleans(),
    st.sampled_from(["auto", "ieee"]),
    st.integers(0, 99),
)
def test_dynamic(g, iterations, over, detach, precision, seed):
    operands = support.operands(g, np.random.default_rng(seed), em=False)
    form = {"iterations": iterations, "softmax_over": over}
    wanted = support.want_dynamic(g, operands, **form, detach=detach)
    _check(g, operands, wanted, {"detach": detach}, precision=precision, **form)


@pytest.mark.slow
@_SETTINGS
@given(
    geometries(),
    st.integers(1, 3),
    st.sampled_from(["parents", "children"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["fused", "stored"]),
    st.integers(0, 99),
)
def test_sums(g, iterations, over, detach, shared, algorithm, seed):
    operands = support.operands_of_sums(g, np.random.default_rng(seed), shared)
    form = {"iterations": iterations, "softmax_over": over, "detach": detach}
    wanted = support.want_dynamic(g, operands, **form, kind="sum")
    support.check(g, operands, wanted, 1e-3, votes="sum", algorithm=algorithm, **form)


@pytest.mark.slow
@_SETTINGS
@given(
    geometries(),
    st.integers(1, 2),
    st.sampled_from(["window", "all"]),
    st.booleans(),
    st.sampled_from(["auto", "ieee"]),
    st.integers(0, 99),
)
def test_em(g, iterations, normalise, detach, precision, seed):
    operands = support.operands(g, np.random.default_rng(seed), em=True)
    form = {"iterations": iterations, "normalise": normalise, "lam": 0.1}
    wanted = support.want_em(g, operands, **form, detach=detach)
    _check(g, operands, wanted, {"detach": detach}, routing="em", precision=precision, **form)
