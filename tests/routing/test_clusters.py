"""Few positions, each routed whole by a cluster of blocks, beside the reference's loops."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import numbacaps
from numbacaps.device.recorded import StandIn
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.geometry import Geometry
from numbacaps.routing import passes
from numbacaps.routing.options import Options
from numbacaps.routing.runner import Runner
from tests.support import routing as support
from tests.support.cases import nan

_FLOAT32 = np.dtype(np.float32)
_MORE = 1 if SIMULATED else 32  # children, so that larger blocks have some for every team

#                             N  C         P  H  W KH KW  G D1 D2 D3
CASES = {
    "lanes share a parent": Geometry(1, 17 * _MORE, 3, 1, 1, 1, 1, 1, 1, 2, 32),
    "images": Geometry(2, 19 * _MORE, 5, 1, 1, 1, 1, 1, 1, 3, 4),
    "positions": Geometry(1, 9 * _MORE, 3, 1, 2, 2, 2, 2, 2, 3, 2, 1, (1, 0)),
    "a lane has some parents": Geometry(1, 18 * _MORE, 37, 1, 1, 1, 1, 1, 1, 2, 2),
}
_SANITIZED = "images", "parents", True
DIGITCAPS = Geometry(1, 1152, 10, 1, 1, 1, 1, 1, 1, 8, 16)


def _passes(g, stored=False, dtype=np.float32, precision="auto", **form):
    return passes.DynamicPasses(g, np.dtype(dtype), Options(**form), stored, precision=precision)


@pytest.mark.slow(but=["images-parents*", "positions-children*"])
@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize(
    "case, over, has_logits",
    [
        pytest.param(*one, marks=[pytest.mark.sanitize] if one == _SANITIZED else [])
        for one in product(CASES, ("parents", "children"), (True, False))
    ],
)
def test_votes_that_are_written_first(case, over, has_logits, rng):
    g, form = CASES[case], {"softmax_over": over}
    assert _passes(g, precision="ieee", **form).cluster.written_bytes
    given = support.operands(g, rng, em=False)
    wanted = support.want_dynamic(g, given, **form)
    if not has_logits:
        given, wanted = support.without_logits(g, rng, **form)
    support.check(g, given, wanted, algorithm="ieee", **form)


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("iterations", [1, 4])
def test_gradients_on_tensor_cores_read_the_states(iterations, rng):
    g = CASES["images"]
    one = _passes(g, iterations=iterations)
    assert one.cluster and one.gradient_warps and not one.warps
    given, wanted = support.without_logits(g, rng, iterations=iterations)
    support.check(g, given, wanted, 2e-5, algorithm="fused", iterations=iterations)


@pytest.mark.slow(but=["images*"])
@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("case", ["images", "positions"])
def test_stored_votes(case, rng):
    g = CASES[case]
    assert _passes(g, stored=True).cluster.written_bytes == 0
    given = support.operands(g, rng, em=False)
    support.check(g, given, support.want_dynamic(g, given), algorithm="stored")


@pytest.mark.tiers("simulator", "gpu")
def test_float64(rng):
    g = CASES["positions"]
    assert _passes(g, dtype=np.float64).cluster
    given = {key: np.float64(one) for key, one in support.operands(g, rng, em=False).items()}
    support.check(g, given, support.want_dynamic(g, given), 1e-12, algorithm="fused")


@pytest.mark.tiers("simulator")
def test_the_last_teams_have_fewer_children():
    """One of the cases has a team with some, and one without any."""
    left = []
    for g in CASES.values():
        one = _passes(g).cluster
        assert one.blocks > 1 and one.shape.teams > 1
        left.append(one.shape.children - (one.blocks * one.shape.teams - 1) * one.children)
    assert min(left) <= 0 and any(0 < count < 3 for count in left)


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize(
    "case, geometry, how",
    [
        ("images", {"N": 3}, {}),
        ("images", {"C": 8}, {}),
        ("images", {}, {"precision": "tf32x3"}),
        ("images", {}, {"dtype": np.float16}),
        ("images", {"P": 1 << 10, "D3": 128}, {}),  # many votes
        ("positions", {}, {"votes": "sum"}),
    ],
)
def test_other_problems_are_routed_as_they_were(case, geometry, how):
    assert _passes(replace(CASES[case], **geometry), **how).cluster is None


@pytest.mark.tiers("simulator")
def test_a_part_of_a_batch_is_routed_as_the_batch_is():
    g, how = CASES["images"], (_FLOAT32, Options(), False)
    assert passes.DynamicPasses(g, *how, batch=3).cluster is None
    assert passes.DynamicPasses(replace(g, N=1), *how, batch=2).cluster


@pytest.mark.tiers("simulator", "gpu")
def test_two_kernels_are_launched():
    """One that writes votes, and one that routes them; explain says so."""
    g = DIGITCAPS
    one = Runner(g, _FLOAT32, Options())
    shapes = g.input_shape, g.kernel_shape, (g.N, g.P, g.L, g.E3)
    x, w, y = (StandIn(str(i), 0, shape, _FLOAT32) for i, shape in enumerate(shapes))
    states = StandIn("states", 0, (4, g.N, 33, g.P), _FLOAT32)
    for kept in (None, states):
        made = one.recording(("forward", kept is None), "forward", (x, w, (None,), (y,)), kept)
        assert len(made._launches) == 2
        assert made.workspaces == {"workspace votes": 1152 * 160 * 4}
    said = one.explain()
    assert "in one kernel, each position by a cluster" in said
    assert "votes of 737280 bytes are written" in said and "computed 1 times forward" in said


@pytest.mark.tiers("gpu")
def test_a_cluster_is_captured(rng):
    """A graph of both kernels, of which the second starts early, and of the gradient writes the same bits."""
    g = DIGITCAPS
    plan = numbacaps.routing_plan(g.input_shape, g.kernel_shape, **support.window(g))
    given = support.operands(g, rng, em=False)
    x, w, dy = (cuda.to_device(given[name]) for name in ("x", "w", "dy"))
    results = [nan(shape, "float32") for shape in (plan.y_shape, g.input_shape, g.kernel_shape)]

    def launch(stream):
        plan(x, w, results[0], stream=stream)
        plan.backward(x, w, dy, *results[1:], stream=stream)

    support.check_captured(launch, results)
