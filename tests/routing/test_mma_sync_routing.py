"""Routing's passes on tensor cores: every layout of their fragments, and how warps share parents, places and children."""

from dataclasses import replace

import numpy as np
import pytest

import numbacaps
from numbacaps.device.target import cuda
from numbacaps.geometry import Geometry
from numbacaps.routing import runner
from numbacaps.routing.mma_sync import launcher
from numbacaps.routing.mma_sync.fragments import Fragments, choose_fragments
from numbacaps.routing.options import Options
from tests.support import routing as support

pytestmark = pytest.mark.tiers("simulator", "gpu")
#                     N   C  P  H  W KH KW  G D1 D2 D3  stride  padding dilation
LAYOUTS = {
    "rows of two": Geometry(2, 2, 3, 4, 5, 2, 3, 1, 2, 3, 2, (2, 1), (1, 0)),
    "rows of four, filled up": Geometry(1, 5, 2, 1, 1, 1, 1, 1, 3, 4, 3),
    "two places a lane": Geometry(17, 5, 3, 1, 1, 1, 1, 1, 1, 8, 4),
    "a parent in two lanes": Geometry(2, 3, 10, 1, 1, 1, 1, 1, 1, 8, 16),
    "a parent in four lanes": Geometry(1, 3, 1, 1, 1, 1, 1, 1, 1, 5, 16),
    "two steps of depth": Geometry(1, 4, 2, 1, 1, 1, 1, 1, 1, 12, 3),
    "warps share the parents": Geometry(1, 3, 9, 2, 2, 2, 2, 1, 4, 4, 4),
}
SANITIZED = "two places a lane", "warps share the parents"  # layouts whose gradients are sanitized
PRECISIONS = {"tf32x3": 1e-5, "tf32": 1e-2}
_SANITIZED = {"warps share the parents": pytest.mark.sanitize}


def gradient_cases(forms, of_all):
    """(layout, form): the form of that name of every layout, and the others of those that are sanitized."""
    return [
        pytest.param(layout, form, marks=[pytest.mark.sanitize] * (layout in SANITIZED))
        for layout in LAYOUTS
        for form in forms
        if form == of_all or layout in SANITIZED
    ]


@pytest.fixture(autouse=True)
def nothing_kept():
    """Runners are made anew: a test may change what they choose."""
    runner.runners.clear()
    yield
    runner.runners.clear()


def _forward(g, given, em, **form):
    """Results by name of the fused kernels, and what the reference gives."""
    form = {"iterations": 2, "algorithm": "fused"} | form
    if em:
        wanted = support.want_em(g, given, form["iterations"])
        form |= {"routing": "em", "lam": 1.0}
    else:
        wanted = support.want_dynamic(g, given, form["iterations"])
    operands = support.chosen(given, ("activations", "beta_u", "beta_a", "logits"))
    found = numbacaps.capsule_routing(
        given["x"], given["w"], **operands, **form, **support.window(g)
    )
    return found if em else (found,), wanted.results[: 1 + em]


def _why_not(g, em, precision="auto"):
    shape = runner.Runner(g, np.dtype(np.float32), Options("em" if em else "dynamic")).shape
    return launcher.why_not(shape, g.N, Options("em" if em else "dynamic"), precision)


_CASES = [
    *[pytest.param("tf32x3", layout, marks=_SANITIZED.get(layout, ())) for layout in LAYOUTS],
    *[("tf32", layout) for layout in ("two places a lane", "warps share the parents")],
]


@pytest.mark.slow(but=["tf32x3-two places a lane-*", "tf32x3-warps share the parents-True"])
@pytest.mark.parametrize("em", [False, True])
@pytest.mark.parametrize("precision, layout", _CASES)
def test_every_layout(precision, layout, em, rng):
    g = LAYOUTS[layout]
    assert _why_not(g, em, precision) is None
    found, wanted = _forward(g, support.operands(g, rng, em), em, precision=precision)
    for one, want in zip(found, wanted, strict=True):
        support.close(one, want, PRECISIONS[precision])


def test_layouts_are_what_they_are_called():
    def of(name, most=80):
        return choose_fragments(LAYOUTS[name], 3, most)[0]

    assert of("rows of two").rows == 2 and of("two places a lane").images == 2
    filled = of("rows of four, filled up")
    assert (filled.rows, filled.width) == (4, 4)
    assert of("a parent in two lanes").split == 2 and of("a parent in four lanes").split == 4
    assert of("two steps of depth").depth == 16 and of("warps share the parents", 32).across == 2


@pytest.mark.slow(but=["False"])
@pytest.mark.parametrize("em", [False, True])
def test_more_stages_than_are_under_way(em, monkeypatch, rng):
    """A ring of stages goes round, and the last stage is not full."""
    monkeypatch.setattr(launcher, "turns_of", lambda *how: 1)
    monkeypatch.setattr(launcher, "_MOST_PARTS", 1)
    g = Geometry(1, 9, 2, 1, 1, 1, 1, 1, 1, 4, 2)
    found, wanted = _forward(g, support.operands(g, rng, em), em)
    for one, want in zip(found, wanted, strict=True):
        support.close(one, want, 1e-5)


@pytest.mark.parametrize("em", [False, True])
def test_copies_of_one_element(em, monkeypatch, rng):
    """Where arrays do not begin at 16 bytes; the bits are those of wide copies."""
    g = Geometry(1, 4, 2, 1, 1, 1, 1, 1, 1, 4, 4)
    given = support.operands(g, rng, em)
    wide, _ = _forward(g, given, em)
    monkeypatch.setattr(launcher, "aligned", lambda *how: False)
    narrow, _ = _forward(g, given, em)
    for one, other in zip(wide, narrow, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("em", [False, True])
def test_parts_of_a_batch(em, monkeypatch, rng):
    """Of which the last is smaller; states are written over each other."""
    monkeypatch.setattr(runner.Runner, "_wanted_forward_part", lambda self: 2)
    g = Geometry(3, 3, 2, 1, 1, 1, 1, 1, 1, 2, 2)
    found, wanted = _forward(g, support.operands(g, rng, em), em, iterations=3)
    for one, want in zip(found, wanted, strict=True):
        support.close(one, want, 1e-5)


@pytest.mark.parametrize("em", [False, True])
def test_later_calls_allocate_nothing(em, monkeypatch, rng):
    """So they can be captured into a graph, on the stream of the first one."""
    g = Geometry(2, 3, 2, 1, 1, 1, 1, 1, 1, 2, 2)
    given = support.operands(g, rng, em)
    names = ("activations", "beta_u", "beta_a") if em else ()
    arrays = {name: cuda.to_device(given[name]) for name in ("x", "w", *names)}
    shapes = [(g.N, g.P, g.L, g.E3), (g.N, g.P, g.L)][: 1 + em]
    results = [cuda.device_array(shape, np.float32) for shape in shapes]
    made = runner.Runner(g, np.dtype(np.float32), Options("em" if em else "dynamic"))
    how = arrays["x"], arrays["w"], tuple(arrays[name] for name in names) or (None,), results
    made.forward(*how)
    first = [result.copy_to_host() for result in results]

    def allocated(*_, **__):
        raise AssertionError("memory was allocated")

    for name in ("device_array", "to_device"):
        monkeypatch.setattr(cuda, name, allocated)
    made.forward(*how)
    for result, before in zip(results, first):
        np.testing.assert_array_equal(result.copy_to_host(), before)


@pytest.mark.parametrize(
    "change, form, reason",
    [
        ({}, {"precision": "ieee"}, "precision is 'ieee'"),
        ({}, {"softmax_over": "children"}, "softmax over children"),
        ({}, {"routing": "em", "normalise": "all"}, "normalised over all"),
        ({"D1": 5}, {}, "capsules of 5 rows"),
        ({"G": 2}, {}, "capsules of 2 products"),
        ({"P": 1000, "D3": 4}, {}, "1000 parents of 1 x 4"),
        ({"P": 5000}, {}, "5000 parents of 1 elements"),
        ({}, {"dtype": "float64"}, "float64 is multiplied by ordinary arithmetic"),
    ],
)
def test_what_stays_with_ordinary_arithmetic(change, form, reason):
    g = replace(Geometry(2, 3, 2, 1, 1, 1, 1, 1, 1, 2, 1), **change)
    how = {"product": "gab,gbc->gac"} | form
    said = numbacaps.explain_routing(g.input_shape, g.kernel_shape, **how)
    assert f"(ordinary arithmetic: {reason}" in said
    assert "mma_sync" not in said


def test_explain_says_who_shares_what():
    said = numbacaps.explain_routing((128, 1152, 1, 1, 1, 8), (10, 1152, 1, 1, 8, 16))
    assert "mma_sync, 3 terms" in said and "warps share 10 parents" in said


def test_digitcaps_fill_no_row_up():
    g = Geometry(128, 1152, 10, 1, 1, 1, 1, 1, 1, 8, 16)
    f, _ = choose_fragments(g, 3, 80)
    assert f == Fragments(1, 8, 16, 10, 2, 1, 3) and f.parents == 10


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize(
    "em, g",
    [
        (False, Geometry(37, 1152, 10, 1, 1, 1, 1, 1, 1, 8, 16)),
        (False, Geometry(3, 32, 32, 16, 16, 3, 3, 1, 4, 4, 4, (2, 2))),
        (True, Geometry(3, 32, 32, 14, 14, 3, 3, 1, 4, 4, 4, (2, 2))),
        (True, Geometry(9, 32, 5, 4, 4, 4, 4, 1, 4, 4, 4)),
    ],
)
def test_published_layers(em, g, rng):
    """Against float64; the same call gives the same bits."""
    given = support.operands(g, rng, em)
    given["w"] /= np.float32((g.D2 * g.P) ** 0.5)
    given.pop("dy"), given.pop("d_activations", None)
    form = {"routing": "em" if em else "dynamic"} | support.window(g)
    exact = {name: array.astype(float) for name, array in given.items()}
    want = numbacaps.capsule_routing(**exact, **form, algorithm="numpy")
    found, again = (numbacaps.capsule_routing(**given, **form, algorithm="fused") for _ in range(2))
    pairs = zip(*((one if em else (one,)) for one in (found, again, want)))
    for one, other, exactly in pairs:
        support.close(one, exactly, 1e-5)
        np.testing.assert_array_equal(one, other)


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize("em", [False, True])
def test_a_captured_call_gives_the_same_bits(em, rng):
    """Also where kernels start before the one in front of them has ended."""
    g = Geometry(40, 96, 10, 1, 1, 1, 1, 1, 4, 4, 4)
    given = support.operands(g, rng, em)
    names = ("activations", "beta_u", "beta_a") if em else ()
    arrays = [cuda.to_device(given[name]) for name in ("x", "w", *names)]
    shapes = [(g.N, g.P, g.L, g.E3), (g.N, g.P, g.L)][: 1 + em]
    results = [cuda.device_array(shape, np.float32) for shape in shapes]
    made = runner.Runner(g, np.dtype(np.float32), Options("em" if em else "dynamic"))
    given = *arrays[:2], tuple(arrays[2:]) or (None,), results
    support.check_captured(lambda stream: made.forward(*given, stream=stream), results)
