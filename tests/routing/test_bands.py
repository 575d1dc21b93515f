"""Summed votes that are stored band by band: the bands themselves, and routing in them against the reference's loops."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

import numbacaps
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.geometry import Geometry
from numbacaps.routing.api import _forward
from numbacaps.routing.bands import bands_of
from numbacaps.routing.call import Problem, RoutingCall
from numbacaps.routing.options import Options
from numbacaps.routing.summed import Summed
from reference.compare import ROUTING
from tests.support import routing as support

pytestmark = pytest.mark.tiers("simulator", "gpu")
#                          N  C  P  H  W KH KW  G D1 D2 D3  stride  padding dilation
CASES = {
    "rows": Geometry(2, 3, 3, 7, 5, 3, 2, 1, 1, 3, 2, (1, 2), (1, 0)),
    "strides": Geometry(1, 2, 3, 9, 4, 5, 3, 1, 2, 3, 2, (2, 3), (2, 1)),
    "gaps": Geometry(1, 2, 2, 11, 3, 1, 2, 1, 2, 2, 2, (3, 1), (0, 1)),  # rows that no window has
    "dilated": Geometry(2, 2, 3, 8, 4, 2, 2, 2, 1, 2, 3, (1, 1), (2, 0), (3, 1)),
    "zeros": Geometry(1, 2, 2, 3, 3, 2, 2, 1, 2, 2, 2, (1, 1), (5, 0)),  # bands of padding alone
}
_SIZES = {"rows of one": 1, "rows of some": 1500, "images": 20000}
_cases = pytest.mark.parametrize("case", CASES)
_sizes = pytest.mark.parametrize("size", _SIZES)


def _check(g, given, tolerance=ROUTING, **form):
    wanted = support.want_dynamic(g, given, kind="sum", **form)
    support.check(g, given, wanted, tolerance, votes="sum", algorithm="stored", **form)


@pytest.mark.slow(but=["rows-rows of some", "strides-rows of one", "zeros-rows of one"])
@_sizes
@_cases
def test_bands_are_the_whole(case, size, rng):
    g = replace(CASES[case], N=7) if size == "images" else CASES[case]
    with support.in_bands(_SIZES[size]):
        found = [bands_of(g, 4, gradients) for gradients in (False, True)]
        assert all(one[0].is_whole == (size == "images") for one in found)
        assert len(found[1]) > 1
        _check(g, support.operands_of_sums(g, rng))


def test_all_rows_are_one_band(rng):
    """Which has those that no window reaches, too, so all of the image has no room and its windows' part has."""
    with support.in_bands(support.ONE_BAND[1]):
        (band,) = bands_of(support.ONE_BAND[0], 4, True)
        assert not band.is_whole
        _check(support.ONE_BAND[0], support.operands_of_sums(support.ONE_BAND[0], rng))


@pytest.mark.slow(but=["children"])
@pytest.mark.parametrize("form", ["children", "detached", "shared"])
def test_forms(form, rng):
    g = CASES["rows"]
    options = {"children": {"softmax_over": "children"}, "detached": {"detach": True}}
    with support.in_bands(1500):
        given = support.operands_of_sums(g, rng, shared=form == "shared")
        _check(g, given, **options.get(form, {}))


@pytest.mark.slow(but=["float16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype, rng):
    """Bands are as exact as the whole: what they give w is added in float32 at least, and rounded once."""
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    g, given = CASES["strides"], support.operands_of_sums(CASES["strides"], rng)
    given = {name: array.astype(dtype) for name, array in given.items()}
    wanted = support.want_dynamic(g, given, kind="sum").gradients
    arrays = [given[name] for name in ("x", "w", "dy")]
    how = {"votes": "sum", "algorithm": "stored", "logits": given["logits"], **support.window(g)}
    errors = []
    for nbytes in (1 << 40, 1):
        with support.in_bands(nbytes):
            found = numbacaps.capsule_routing_backward(*arrays, **how)
        errors.append([_error(getattr(found, name), want) for name, want in wanted.items()])
    assert np.all(np.array(errors[1]) <= 2 * np.array(errors[0]) + 1e-12)


def _error(found, wanted):
    """The largest, over the largest element."""
    return np.abs(found.astype(float) - wanted).max() / np.abs(wanted).max()


@pytest.mark.slow
@pytest.mark.sanitize
def test_a_plan_routes_in_bands(rng):
    """With logits and couplings, twice; it takes less memory than the votes of the whole would."""
    g = replace(CASES["rows"], H=14)
    given = support.operands_of_sums(g, rng)
    how = {"votes": "sum", "algorithm": "stored", "softmax_over": "children", **support.window(g)}
    wanted = support.want_dynamic(g, given, kind="sum", softmax_over="children")
    shapes, more = (g.input_shape, g.kernel_shape), {"logits": True, "couplings": True}
    x, w, dy, logits = (cuda.to_device(given[name]) for name in ("x", "w", "dy", "logits"))
    out, dx, dw = (cuda.device_array_like(one) for one in (dy, x, w))
    couplings = cuda.device_array((*g.output_shape[:4], g.C, 1, 1), np.float32)
    d_logits = cuda.device_array_like(logits)

    def planned(times):
        for array in (out, dx, dw, couplings, d_logits):
            array.copy_to_device(np.full(array.shape, np.nan, np.float32))
        plan = numbacaps.routing_plan(*shapes, **more, **how)
        for _ in range(times):
            plan(x, w, out, logits=logits, couplings=couplings)
            plan.backward(x, w, dy, dx, dw, logits=logits, into={"logits": d_logits})
        return plan.nbytes, plan.explain()

    whole, of_whole = planned(1)
    with support.in_bands(1400):
        nbytes, said = planned(2)
    for found, want in zip((out, couplings), wanted.results):
        support.close(found.copy_to_host(), want.reshape(found.shape), ROUTING)
    for found, name in ((dx, "x"), (dw, "w"), (d_logits, "logits")):
        support.close(found.copy_to_host(), wanted.gradients[name], ROUTING)
    assert nbytes < whole / 2
    votes = 4 * np.prod(g.summed_votes_shape)
    assert said.startswith("votes are stored in bands: forward ") and f"take {votes} bytes" in said
    assert "in bands" not in of_whole


def test_a_graph_of_gradients_may_read_what_the_forward_pass_takes(rng):
    """Bands of the forward pass have more rows; its first call comes behind, and makes no workspace anew."""
    g = replace(CASES["rows"], N=1, H=24)
    given = support.operands_of_sums(g, rng)
    how = {"votes": "sum", "algorithm": "stored", **support.window(g)}
    x, w, dy, logits = (cuda.to_device(given[name]) for name in ("x", "w", "dy", "logits"))
    out, dx, dw = (cuda.device_array_like(one) for one in (dy, x, w))
    couplings = cuda.device_array((*g.output_shape[:4], g.C, 1, 1), np.float32)
    with support.in_bands(3000):
        lengths = [
            {band.geometry.OH for band in bands_of(g, 4, gradients)} for gradients in (False, True)
        ]
        assert max(lengths[0]) > max(lengths[1])
        shapes, more = (g.input_shape, g.kernel_shape), {"logits": True, "couplings": True}
        plan = numbacaps.routing_plan(*shapes, **more, **how)
        plan.backward(x, w, dy, dx, dw, logits=logits)
        rooms = plan._run._rooms.of(0)._named
        before = {name: one._arrays for name, one in rooms.items()}
        plan(x, w, out, logits=logits, couplings=couplings)
        assert all(rooms[name]._arrays == arrays for name, arrays in before.items())


@pytest.mark.parametrize("way", ["call", "plan"])
def test_nothing_of_a_call_waits_for_the_collector(way, rng):
    """What it has on the GPU is freed when the last name of it goes."""
    g = CASES["rows"]
    x, w = (np.ones(shape, np.float32) for shape in (g.input_shape, g.kernel_shape))
    how = {"votes": "sum", "algorithm": "stored", **support.window(g)}
    gc.collect()
    gc.disable()
    try:
        if way == "plan":
            plan = numbacaps.routing_plan(g.input_shape, g.kernel_shape, **how)
            arrays = [cuda.to_device(array) for array in (x, w, np.ones(g.output_shape, x.dtype))]
            plan(*arrays)
            seen = weakref.ref(plan._run)
            del plan
        else:
            problem = Problem(Options(votes="sum"), "stored", "auto", **support.window(g))
            with RoutingCall((x, w), {"logits": None}, problem) as call:
                _forward(call, False)
            seen = weakref.ref(call)
            del call
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.tiers("gpu")
@pytest.mark.skipif(SIMULATED, reason="no kernel is packed there")
def test_bands_read_what_the_first_one_has_packed(rng):
    """The results are those of the whole."""
    g = Geometry(1, 4, 4, 40, 64, 5, 5, 1, 1, 16, 16, 1, 2)
    given = support.operands_of_sums(g, rng)
    # Bands have other tiles, so votes are rounded otherwise. A vote of 20 makes logits of hundreds, where float32 itself is
    # off by 2e-4; these are of about 1/2.
    given["w"] /= np.float32(40)
    arrays = [cuda.to_device(given[name]) for name in ("x", "w", "dy")]
    how = {"votes": "sum", "algorithm": "stored", **support.window(g)}
    found = []
    for nbytes in (1 << 40, 1 << 20):
        with support.in_bands(nbytes):
            plan = numbacaps.routing_plan(g.input_shape, g.kernel_shape, **how)
            out, dx, dw = (cuda.device_array_like(arrays[i]) for i in (2, 0, 1))
            plan(*arrays[:2], out)
            plan.backward(*arrays, dx, dw)
            packs = [one.packs("forward") for one in plan._run._plans.values()]
        found.append([one.copy_to_host() for one in (out, dx, dw)])
    assert all(packs) and len(bands_of(g, 4)) == 1
    for one, whole in zip(*reversed(found)):
        support.close(one, whole, 1e-5)


def test_a_kernel_is_packed_once():
    """Of the bands with one plan by the first, in each pass."""
    g = CASES["gaps"]
    shapes = g.input_shape, g.kernel_shape, (g.N, g.P, g.L, g.E3)
    x, w, out = (cuda.to_device(np.zeros(shape, np.float32)) for shape in shapes)
    calls = []

    class Plan:
        def __init__(self, band):
            self.band, self.y_shape = band, band.of_channels.output_shape

        def launch_forward(self, *_, again):
            calls.append((self.band.H, "forward", again))

        def launch_backward(self, *_, again):
            calls.append((self.band.H, "backward", again))

    class Runner:
        def repeated(self, *_, **__):
            pass

    def room(name, shape, dtype=np.float32):
        return cuda.to_device(np.zeros(shape, dtype))

    with support.in_bands(1):
        summed = Summed(g, np.dtype(np.float32), Plan, lambda band: Runner())
        heights = [band.geometry.H for band in summed.bands(True)]
        summed.backward(x, w, (None,), out, x, w, None, 0, room)
    assert (
        len(heights) > 2 and len(set(heights)) == 2
    )  # of the last one no window reaches what is left
    for wanted in ("forward", "backward"):
        found = [(H, again) for H, of, again in calls if of == wanted]
        assert found == [(H, H in heights[:i]) for i, H in enumerate(heights)]


def test_bands_cover_every_row_once():
    """Of the output; of the input each at least once, and what is shared is what bands above have read."""
    rng, count = np.random.default_rng(0), 0
    for _ in range(3000):
        sizes = rng.integers((1, 1, 1, 1, 0, 1), (4, 21, 6, 5, 4, 4))
        N, H, KH, step, down, gap = map(int, sizes)
        try:
            g = Geometry(N, 1, 1, H, 2, KH, 1, 1, 1, 1, 1, (step, 1), (down, 0), (gap, 1))
        except ValueError:
            continue
        with support.in_bands(int(rng.integers(1, 400))):
            _check_bands(g, bands_of(g, 4, bool(rng.integers(2))))
        count += 1
    assert count > 2000


def _check_bands(g, bands):
    for n in range(g.N):
        written, read = [], set()
        for band in bands:
            if not band.images.start <= n < band.images.stop:
                continue
            own = range(band.read.start, band.read.stop)
            written += range(band.rows.start, band.rows.stop)
            assert band.geometry.OH == band.rows.stop - band.rows.start
            assert 0 <= band.above and band.above + band.height <= band.geometry.H
            assert all(row in read for row in own[: band.shared])
            assert not any(row in read for row in own[band.shared :])
            read.update(own)
        assert written == list(range(g.OH)) and read == set(range(g.H))


def test_bands_are_as_long_as_there_is_room():
    """And equally long, where that costs less than half."""
    g = Geometry(1, 16, 4, 128, 128, 5, 5, 1, 1, 32, 32, 1, 2)  # SegCaps' layer
    for gradients, rows in ((False, 32), (True, 16)):
        found = bands_of(g, 4, gradients)
        assert [band.rows.stop - band.rows.start for band in found] == [rows] * (128 // rows)
        assert [band.above for band in found] == [2] + [0] * (128 // rows - 1)
    small = replace(g, H=32, W=32)
    assert len(bands_of(small, 4)) == 1 and bands_of(small, 4)[0].is_whole
    many = replace(small, N=64)
    assert len(bands_of(many, 4)) > 1 and all(band.is_whole for band in bands_of(many, 4))
