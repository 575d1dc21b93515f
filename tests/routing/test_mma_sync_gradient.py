"""Gradients of dynamic routing on tensor cores: layouts, iterations, how blocks share the places, parts of a batch."""

from dataclasses import replace

import numpy as np
import pytest

import numbacaps
from numbacaps.device.target import cuda
from numbacaps.geometry import Geometry
from numbacaps.routing import runner
from numbacaps.routing.mma_sync import gradient_launcher, launcher
from numbacaps.routing.options import Options
from tests.routing.test_mma_sync_routing import LAYOUTS, PRECISIONS, gradient_cases, nothing_kept
from tests.support import routing as support

pytestmark = pytest.mark.tiers("simulator", "gpu")
__all__ = ["nothing_kept"]  # a fixture of each test
FORMS = {
    "3 iterations": {"iterations": 3},
    "1 iteration": {"iterations": 1},
    "2 iterations": {"iterations": 2},
    "detached": {"iterations": 3, "detach": True},
}
_DIGITCAPS = Geometry(37, 1152, 10, 1, 1, 1, 1, 1, 1, 8, 16)


def _passes(g, **form):
    made = runner.Runner(g, np.dtype(np.float32), Options("dynamic", **form))
    return made._of(made.part, "auto")


def _check(g, rng, tolerance=2e-5, precision="auto", **form):
    """Gradients of x and w against the reference."""
    given = support.operands(g, rng, em=False)
    given["logits"] = np.zeros_like(given["logits"])
    given["w"] /= np.float32(
        (g.D2 * g.P) ** 0.5
    )  # logits of the size of 1: rounding stays as it is
    iterations, detach = form["iterations"], form.get("detach", False)
    wanted = support.want_dynamic(g, given, iterations, detach=detach).gradients
    arrays = (given[name] for name in ("x", "w", "dy"))
    how = {"algorithm": "fused", "precision": precision} | form | support.window(g)
    found = numbacaps.capsule_routing_backward(*arrays, **how)
    for name in "xw":
        support.close(getattr(found, name), wanted[name], tolerance)


@pytest.mark.slow(but=["a parent in two lanes-3*", "warps share the parents-3*", "*-detached"])
@pytest.mark.parametrize("layout, form", gradient_cases(FORMS, "3 iterations"))
def test_every_layout(layout, form, rng):
    g = LAYOUTS[layout]
    assert _passes(g, **FORMS[form]).why_not_gradient is None
    _check(g, rng, **FORMS[form])


def test_one_product_for_three(rng):
    """TF32: the votes of the forward pass, and gradients as exact."""
    _check(LAYOUTS["two places a lane"], rng, PRECISIONS["tf32"], "tf32", iterations=2)


@pytest.mark.parametrize("each", [1, 2, 5])
def test_blocks_that_end_in_the_middle(each, monkeypatch, rng):
    """Of the places of some children; the next block goes on there."""
    choose = gradient_launcher.choose_owners
    monkeypatch.setattr(gradient_launcher, "choose_owners", lambda *how: (choose(*how)[0], each))
    g = Geometry(40, 5, 3, 1, 1, 1, 1, 1, 1, 3, 2)
    made = _passes(g, iterations=2).gradient_warps
    assert made.of_dw == {1: 3, 2: 2, 5: 2}[each]
    parts = {how: made.shapes(*how)["parts_of_dw"] for how in ((1, 1), (1, 0), (0, 0))}
    assert [shape[0] for shape in parts.values()] == [made.of_dw, made.of_dw - 1, 1]
    assert len(parts[0, 0]) == 1  # and of none there is no part
    _check(g, rng, iterations=2)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("each", [1, 2, 3, 4, 9, 12, 16])
def test_parts_of_blocks(rows, each):
    """As many as there are where children come again and again."""
    firsts = range(0, 50 * rows, rows)
    most = max((first + rows - 1) // each - first // each + 1 for first in firsts)
    assert gradient_launcher.parts_of_dw(rows, each) == most


def test_copies_of_one_element(monkeypatch, rng):
    """Where arrays do not begin at 16 bytes; the bits are those of wide copies."""
    g = Geometry(2, 4, 2, 1, 1, 1, 1, 1, 1, 4, 4)
    x, w, dy = (support.operands(g, rng, em=False)[name] for name in ("x", "w", "dy"))
    how = {"algorithm": "fused", "iterations": 2} | support.window(g)
    wide = numbacaps.capsule_routing_backward(x, w, dy, **how)
    monkeypatch.setattr(launcher, "aligned", lambda *how: False)
    narrow = numbacaps.capsule_routing_backward(x, w, dy, **how)
    for name in "xw":
        np.testing.assert_array_equal(getattr(wide, name), getattr(narrow, name))


@pytest.mark.parametrize("g", [Geometry(3, 3, 2, 1, 1, 1, 1, 1, 1, 2, 2), LAYOUTS["rows of two"]])
def test_parts_of_a_batch(g, monkeypatch, rng):
    """Of which the last is smaller: dw goes on from what is there."""
    g = replace(g, N=3)
    monkeypatch.setattr(runner.Runner, "_bytes", lambda self, passes: runner.WORKSPACE // 2)
    made = runner.Runner(g, np.dtype(np.float32), Options("dynamic"))
    assert made.part == 2
    _check(g, rng, iterations=2)


@pytest.mark.parametrize("needs", [("input",), ("kernel",)])
def test_one_gradient_alone(needs, rng):
    g = LAYOUTS["a parent in four lanes"]
    x, w, dy = (support.operands(g, rng, em=False)[name] for name in ("x", "w", "dy"))
    how = {"algorithm": "fused", "iterations": 2} | support.window(g)
    whole = numbacaps.capsule_routing_backward(x, w, dy, **how)
    found = numbacaps.capsule_routing_backward(x, w, dy, needs=needs, **how)
    for name, one in zip("xw", ("input", "kernel")):
        if one in needs:
            np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
        else:
            assert getattr(found, name) is None


@pytest.mark.parametrize(
    "change, form, reason",
    [
        ({}, {"precision": "ieee"}, "precision is 'ieee'"),
        ({"D2": 8, "P": 10, "D3": 16}, {"iterations": 5}, "does not fit"),
        ({}, {"iterations": 10}, "does not fit"),
    ],
)
def test_what_stays_with_ordinary_arithmetic(change, form, reason):
    g = replace(Geometry(2, 3, 2, 1, 1, 1, 1, 1, 1, 2, 8), **change)
    how = {"product": "gab,gbc->gac"} | form
    said = numbacaps.explain_routing(g.input_shape, g.kernel_shape, **how)
    backward = next(line for line in said.splitlines() if line.startswith("backward"))
    assert "ordinary arithmetic" in backward and reason in backward


def test_logits_stay_with_ordinary_arithmetic(rng):
    """They have a gradient, which tensor cores do not compute."""
    g = LAYOUTS["a parent in four lanes"]
    given = support.operands(g, rng, em=False)
    wanted = support.want_dynamic(g, given, 2).gradients
    arrays = (given[name] for name in ("x", "w", "dy"))
    how = {"algorithm": "fused", "iterations": 2, "logits": given["logits"]} | support.window(g)
    found = numbacaps.capsule_routing_backward(*arrays, **how)
    for name in ("x", "w", "logits"):
        support.close(getattr(found, name), wanted[name], 2e-5)


def test_explain_says_who_owns_what():
    said = numbacaps.explain_routing((128, 1152, 1, 1, 1, 8), (10, 1152, 1, 1, 8, 16))
    assert "then owners: " in said and "children a block" in said


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize("g", [_DIGITCAPS, Geometry(3, 32, 32, 16, 16, 3, 3, 1, 4, 4, 4, (2, 2))])
def test_published_layers(g, rng):
    """Against float64; the same call gives the same bits."""
    given = support.operands(g, rng, em=False)
    given["w"] /= np.float32((g.D2 * g.P) ** 0.5)
    given = {name: given[name] for name in ("x", "w", "dy")}
    exact = {name: array.astype(float) for name, array in given.items()}
    want = numbacaps.capsule_routing_backward(**exact, **support.window(g), algorithm="numpy")
    found, again = (
        numbacaps.capsule_routing_backward(**given, **support.window(g), algorithm="fused")
        for _ in range(2)
    )
    for name in "xw":
        support.close(getattr(found, name), getattr(want, name), 2e-5)
        np.testing.assert_array_equal(getattr(found, name), getattr(again, name))


@pytest.mark.tiers("gpu")
def test_a_captured_call_gives_the_same_bits(rng):
    """Also where kernels start before the one in front of them has ended."""
    g = Geometry(40, 96, 10, 1, 1, 1, 1, 1, 4, 4, 4)
    given = support.operands(g, rng, em=False)
    x, w, dy = (cuda.to_device(given[name]) for name in ("x", "w", "dy"))
    dy = dy.reshape(g.N, g.P, g.L, g.E3)
    results = [cuda.device_array(array.shape, np.float32) for array in (x, w)]
    made = runner.Runner(g, np.dtype(np.float32), Options("dynamic"))
    support.check_captured(
        lambda stream: made.backward(x, w, (None,), [dy], *results, [None], stream), results
    )
