"""Gradients of EM routing on tensor cores: layouts, iterations, how warps share a block, parts of a batch, states that are kept."""

from dataclasses import replace

import numpy as np
import pytest

import numbacaps
from numbacaps.device.target import cuda
from numbacaps.geometry import Geometry
from numbacaps.routing import runner
from numbacaps.routing.mma_sync import em_gradient_launcher, launcher
from numbacaps.routing.options import Options
from tests.routing.test_mma_sync_routing import LAYOUTS, gradient_cases, nothing_kept
from tests.support import routing as support

pytestmark = pytest.mark.tiers("simulator", "gpu")
__all__ = ["nothing_kept"]  # a fixture of each test
FORMS = {
    "2 iterations": {"iterations": 2},
    "1 iteration": {"iterations": 1},
    "3 iterations": {"iterations": 3},
    "detached": {"iterations": 3, "detach": True},
}
NAMES = "x", "w", "activations", "beta_u", "beta_a"
_OF_BOTH = LAYOUTS["rows of two"]  # several places, which rows of a block share


def _passes(g, **form):
    made = runner.Runner(g, np.dtype(np.float32), Options("em", **form))
    return made._of(made.part, made._of_gradient)


def _operands(g, rng):
    """Operands whose votes are of the size of 1: rounding stays as it is."""
    given = support.operands(g, rng, em=True)
    given["w"] /= np.float32(g.D2**0.5)
    return given


def _backward(g, given, **form):
    operands = support.chosen(given, ("activations", "beta_u", "beta_a", "d_activations"))
    how = {"algorithm": "fused", "routing": "em", "lam": 1.0} | operands | form
    arrays = (given[name] for name in ("x", "w", "dy"))
    return numbacaps.capsule_routing_backward(*arrays, **how, **support.window(g))


def _check(g, rng, tolerance=5e-5, **form):
    """All gradients against the reference."""
    given = _operands(g, rng)
    detach = form.get("detach", False)
    wanted = support.want_em(g, given, form["iterations"], detach=detach).gradients
    found = _backward(g, given, **form)
    for name in NAMES:
        support.close(getattr(found, name), wanted[name], tolerance)


@pytest.mark.slow(but=["a parent in two lanes-2*", "warps share the parents-2*", "*-detached"])
@pytest.mark.parametrize("layout, form", gradient_cases(FORMS, "2 iterations"))
def test_every_layout(layout, form, rng):
    g = LAYOUTS[layout]
    assert _passes(g, **FORMS[form]).why_not_gradient is None
    _check(g, rng, **FORMS[form])


@pytest.mark.parametrize("warps, rows", [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_warps_of_a_block(warps, rows, monkeypatch, rng):
    """Which take rows of places, or children in turns."""
    monkeypatch.setattr(em_gradient_launcher, "_WARPS", warps)
    monkeypatch.setattr(em_gradient_launcher, "_MOST_ROWS", rows)
    tile = _passes(_OF_BOTH).gradient_warps.tile
    assert (tile.rows, tile.sets) == (rows, warps // rows)
    _check(_OF_BOTH, rng, iterations=2)


def test_rows_of_warps_that_share_the_parents(monkeypatch, rng):
    """They add up dw at a barrier of their own."""
    monkeypatch.setattr(em_gradient_launcher, "_WARPS", 4)
    g = replace(LAYOUTS["warps share the parents"], N=2, H=3, W=4)
    tile = _passes(g).gradient_warps.tile
    assert (tile.rows, tile.fragments.across) == (2, 2)
    _check(g, rng, iterations=3)


def test_launches_that_add_to_each_other(monkeypatch, rng):
    """Where parts of dw would take too much memory."""
    g = replace(_OF_BOTH, N=5)
    given, found = _operands(g, rng), {}
    for nbytes in (em_gradient_launcher._PARTS_BYTES, 0):
        monkeypatch.setattr(em_gradient_launcher, "_PARTS_BYTES", nbytes)
        runner.runners.clear()
        made = _passes(g).gradient_warps
        assert made._grid[0] == (made._blocks if nbytes else 1) and made._blocks > 1
        assert ("launches a pass" in str(made)) == (nbytes == 0)
        found[nbytes] = _backward(g, given, iterations=3)
    exact = support.want_em(g, given, 3).gradients
    for name in NAMES:
        for one in found.values():
            support.close(getattr(one, name), exact[name], 5e-5)


@pytest.mark.parametrize("value", [0, np.nan])
def test_activations_that_are_no_weights(value, rng):
    """Some of 0, or all of an image; NaN reaches what NumPy's gradients have it in, and nothing else."""
    g = replace(LAYOUTS["warps share the parents"], N=3)
    given = _operands(g, rng)
    given["activations"][0, 0], given["activations"][1] = value, value
    found = _backward(g, given, iterations=2)
    exact = {name: array.astype(float) for name, array in given.items()}
    wanted = _backward(g, exact, iterations=2, algorithm="numpy")
    for name in NAMES:
        np.testing.assert_array_equal(
            np.isnan(getattr(found, name)), np.isnan(getattr(wanted, name))
        )
        known = (np.nan_to_num(getattr(one, name)) for one in (found, wanted))
        support.close(*known, 5e-5)


def test_one_product_for_three(rng):
    """Forward: gradients keep three terms, and so their own votes and states."""
    given = _operands(_OF_BOTH, rng)
    how = {"iterations": 2}
    wanted, found = (
        _backward(_OF_BOTH, given, precision=name, **how) for name in ("tf32x3", "tf32")
    )
    for name in NAMES:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


def test_equal_votes(rng):
    """Variances are epsilon, and V - mu is 0, not what votes are rounded by."""
    g = Geometry(1, 6, 2, 1, 1, 1, 1, 1, 2, 3, 2)
    given = _operands(g, rng)
    given["x"][:], given["w"][:] = given["x"][:, :1], given["w"][:, :1]
    wanted = support.want_em(g, given, 3).gradients
    found = _backward(g, given, iterations=3)
    for name in NAMES:
        support.close(getattr(found, name), wanted[name], 5e-5)


def test_copies_of_one_element(monkeypatch, rng):
    """Where arrays do not begin at 16 bytes; the bits are those of wide copies."""
    g = Geometry(2, 4, 2, 1, 1, 1, 1, 1, 1, 4, 4)
    given = _operands(g, rng)
    wide = _backward(g, given, iterations=2)
    monkeypatch.setattr(launcher, "aligned", lambda *how: False)
    narrow = _backward(g, given, iterations=2)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(wide, name), getattr(narrow, name))


@pytest.mark.parametrize("layout", ["rows of two", "two places a lane"])
def test_parts_of_a_batch(layout, monkeypatch, rng):
    """Gradients of what images share go on from what is there; the last part may be smaller."""
    g = replace(LAYOUTS[layout], N=3)
    monkeypatch.setattr(runner, "WORKSPACE", 0)
    monkeypatch.setattr(runner, "_SHARE", 1 << 40)
    made = runner.Runner(g, np.dtype(np.float32), Options("em"))
    assert made.part == 1
    monkeypatch.setattr(runner.Runner, "_wanted_part", lambda self: 2)
    _check(g, rng, iterations=3)


@pytest.mark.parametrize("needs", [("input",), ("kernel",)])
def test_one_gradient_alone(needs, rng):
    given = _operands(_OF_BOTH, rng)
    whole = _backward(_OF_BOTH, given, iterations=2)
    found = _backward(_OF_BOTH, given, iterations=2, needs=needs)
    for name, one in zip("xw", ("input", "kernel")):
        if one in needs:
            np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
        else:
            assert getattr(found, name) is None


@pytest.mark.parametrize("precision", ["auto", "tf32"])
def test_states_that_are_kept(precision, rng):
    """The gradient reads those of the forward pass, where they are of its own votes: the bits are those without.

    Where they are not, neither pass touches them.
    """
    g, options = _OF_BOTH, Options("em", iterations=2)
    given, is_read = _operands(g, rng), precision == "auto"
    made = runner.Runner(g, np.dtype(np.float32), options, precision=precision, keeps=is_read)
    numbers = runner.kept_states(g, options, "auto", images=g.N)
    assert numbers and not runner.kept_states(g, options, "tf32", images=g.N)
    assert not runner.kept_states(g, options, "auto", images=10**6)
    assert not runner.kept_states(g, options, "auto")  # they take more than a fourth of x
    device = {name: cuda.to_device(array) for name, array in given.items()}
    x, w = device["x"], device["w"]
    operands = tuple(device[name] for name in NAMES[2:])
    flat = (g.N, g.P, g.L, g.E3), (g.N, g.P, g.L)
    d_results = [device[name].reshape(*to) for name, to in zip(("dy", "d_activations"), flat)]
    results = [cuda.device_array(shape, np.float32) for shape in flat]
    states = cuda.to_device(np.full((g.N, numbers), np.nan, np.float32))
    made.forward(x, w, operands, results, states=states)
    assert np.isfinite(states.copy_to_host()).all() == is_read
    nothing, found = cuda.to_device(np.full((g.N, numbers), np.nan, np.float32)), []
    for kept in (None, states, nothing):
        into = [cuda.device_array_like(device[name]) for name in NAMES]
        made.backward(x, w, operands, d_results, *into[:2], into[2:], states=kept)
        found.append([array.copy_to_host() for array in into])
    for alone, read, of_nothing in zip(*found):
        np.testing.assert_array_equal(alone, read)
        assert np.isnan(of_nothing).any() == is_read


@pytest.mark.parametrize(
    "change, form, reason",
    [
        ({}, {"precision": "ieee"}, "precision is 'ieee'"),
        ({}, {"normalise": "all"}, "normalised over all"),
        ({"P": 32, "D2": 16, "D3": 16}, {}, "do not fit shared memory"),
        ({"P": 200, "D3": 16}, {}, "more than the warps of a block hold"),
    ],
)
def test_what_stays_with_ordinary_arithmetic(change, form, reason):
    g = replace(Geometry(2, 3, 2, 1, 1, 1, 1, 1, 1, 2, 8), **change)
    how = {"product": "gab,gbc->gac", "routing": "em"} | form
    said = numbacaps.explain_routing(g.input_shape, g.kernel_shape, **how)
    backward = next(line for line in said.splitlines() if line.startswith("backward"))
    assert "ordinary arithmetic" in backward and reason in backward


def test_explain_says_how_many_passes():
    said = numbacaps.explain_routing(
        (8, 32, 14, 14, 4, 4), (32, 32, 3, 3, 4, 4), stride=2, routing="em"
    )
    assert "backward: 3 passes, mma_sync" in said and "logits" not in said
    said = numbacaps.explain_routing(
        (8, 3, 3, 3, 2, 2), (3, 3, 2, 2, 2, 2), routing="em", iterations=1
    )
    assert "backward: 1 pass, mma_sync" in said


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize(
    "g",
    [
        Geometry(5, 32, 32, 14, 14, 3, 3, 1, 4, 4, 4, (2, 2)),
        Geometry(8, 32, 5, 4, 4, 4, 4, 1, 4, 4, 4),
        Geometry(37, 288, 10, 1, 1, 1, 1, 1, 1, 8, 16),
    ],
)
def test_published_layers(g, rng):
    """Against float64; the same call gives the same bits."""
    given = _operands(g, rng)
    exact = {name: array.astype(float) for name, array in given.items()}
    want = _backward(g, exact, algorithm="numpy")
    found, again = (_backward(g, given) for _ in range(2))
    for name in NAMES:
        support.close(getattr(found, name), getattr(want, name), 1e-4)
        np.testing.assert_array_equal(getattr(found, name), getattr(again, name))


@pytest.mark.tiers("gpu")
def test_a_captured_call_gives_the_same_bits(rng):
    g = Geometry(5, 8, 10, 6, 6, 3, 3, 1, 4, 4, 4)
    given = _operands(g, rng)
    device = {name: cuda.to_device(array) for name, array in given.items()}
    x, w, operands = device["x"], device["w"], tuple(device[name] for name in NAMES[2:])
    flat = (g.N, g.P, g.L, g.E3), (g.N, g.P, g.L)
    d_results = [device[name].reshape(*to) for name, to in zip(("dy", "d_activations"), flat)]
    into = [cuda.device_array(array.shape, np.float32) for array in (x, w, *operands)]
    made = runner.Runner(g, np.dtype(np.float32), Options("em"))
    assert made._of(made.part, made._of_gradient).gradient_warps
    support.check_captured(
        lambda stream: made.backward(x, w, operands, d_results, *into[:2], into[2:], stream),
        into,
    )
