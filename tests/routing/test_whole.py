"""Positions that are routed whole, beside the reference's loops and beside a kernel for each iteration."""

from dataclasses import replace

import numpy as np
import pytest

from numbacaps.device.target import SIMULATED
from numbacaps.geometry import Geometry
from numbacaps.routing import passes
from numbacaps.routing.options import Options
from numbacaps.routing.runner import Runner
from tests.support import routing as support

#                       N  C  P  H  W KH KW  G D1 D2 D3
CASES = {
    "a team a position": Geometry(2, 3, 4, 5, 5, 2, 2, 1, 1, 2, 4),
    "teams share children": Geometry(1, 9, 2, 2, 2, 2, 1, 1, 2, 2, 2),
    "a lane has some parents": Geometry(1, 3, 37, 3, 2, 1, 1, 1, 1, 2, 2),
    "lanes share a parent": Geometry(1, 3, 3, 3, 3, 1, 1, 1, 1, 2, 32),
    "images side by side": Geometry(9, 2, 5, 2, 3, 1, 1, 1, 1, 2, 4),
}


def _passes(g, **form):
    """Those of stored votes."""
    return passes.DynamicPasses(g, np.dtype(np.float32), Options(**form), stored=True)


@pytest.mark.slow(but=["*share*-parents-3-False"])
@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize(
    "over, iterations, detach",
    [
        pytest.param("parents", 3, False, marks=pytest.mark.sanitize),
        ("children", 3, False),
        ("parents", 1, False),
        ("children", 4, True),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_stored_votes(case, over, iterations, detach, rng):
    g, form = CASES[case], {"softmax_over": over, "iterations": iterations, "detach": detach}
    one = _passes(g, **form)
    assert one.is_whole and one.is_whole_backward(has_logits=False)
    assert not one.is_whole_backward(has_logits=True)
    given, wanted = support.without_logits(g, rng, **form)
    support.check(g, given, wanted, algorithm="stored", **form)


@pytest.mark.tiers("simulator")
def test_the_cases_are_what_their_names_say():
    """On an H100, whose blocks are larger than the simulator's, they differ in what shares what, too."""
    of = {name: _passes(g) for name, g in CASES.items()}
    assert of["teams share children"]._backward_split.parts > 1
    assert of["a team a position"]._backward_split.parts == 1
    assert of["a lane has some parents"].shape.parents > 1
    assert of["lanes share a parent"].shape.along > 1


@pytest.mark.slow
@pytest.mark.tiers("simulator", "gpu")
def test_more_iterations_than_a_lane_holds(rng):
    """Then each is a kernel of its own, backward."""
    g, form = CASES["lanes share a parent"], {"iterations": 12}
    one = _passes(g, **form)
    assert one.is_whole and (SIMULATED or not one.is_whole_backward(has_logits=False))
    given, wanted = support.without_logits(g, rng, **form)
    support.check(g, given, wanted, algorithm="stored", **form)


@pytest.mark.tiers("simulator")
def test_capsules_that_are_too_long_for_it():
    """A kernel for each iteration holds less of them."""
    g = Geometry(1, 2, 3, 1, 1, 1, 1, 1, 1, 1, 1)
    assert _passes(replace(g, D1=20_000)).is_whole and not _passes(replace(g, D1=24_000)).is_whole


@pytest.mark.tiers("simulator", "gpu")
def test_no_states_are_kept():
    """Neither forward nor backward is there a workspace, but for what stands for w."""
    g = replace(CASES["a team a position"], N=3)
    one = Runner(g, np.dtype(np.float32), Options(), stored=True)
    held = _passes(g)
    forward = held.forward_shapes(has_logits=False, has_couplings=False, keep=False)
    assert set(forward) == {"packed"} and held.backward_shapes(has_logits=False) == {}
    assert one.forward_part == g.N and "states 0 bytes" in one.explain()
    assert "in one kernel" in one.explain()
