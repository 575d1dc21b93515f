"""Votes and their gradients, of every tap and summed over the window, against the loops."""

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps import ALGORITHMS, Geometry, capsule_conv2d, capsule_votes, capsule_votes_backward
from numbacaps.algorithms import host
from numbacaps.algorithms.registry import VOTES, available_algorithms
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.plan import Plan
from tests.support.cases import SMALL, nan

pytestmark = pytest.mark.tiers("simulator", "gpu")

_MORE = {
    "far taps": Geometry(1, 2, 1, 3, 5, 2, 3, 1, 2, 1, 2, (1, 2), (4, 9), (5, 7)),
    "many images": Geometry(5, 1, 2, 3, 2, 2, 1, 1, 1, 2, 2),
}
_GEOMETRIES = SMALL | _MORE
_WITH_GRADIENT = [name for name in available_algorithms() if VOTES[2] in ALGORITHMS[name].votes]
_SUMS = pytest.mark.parametrize("sum_window", [False, True], ids=["taps", "windows"])


def _how(g):
    return {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}


def _operands(g, dtype, rng, sum_window):
    """x, w and dvotes."""
    shapes = g.input_shape, g.kernel_shape, g.summed_votes_shape if sum_window else g.votes_shape
    return [rng.standard_normal(shape).astype(dtype_of(dtype)) for shape in shapes]


def _oracle(g, x, w, dvotes, sum_window):
    """(votes, dx, dw) by the loops, in float64."""
    x, w, dvotes = (array.astype(np.float64) for array in (x, w, dvotes))
    how = {**_how(g), "sum_window": sum_window}
    gradients = reference.capsule_votes_backward(x, w, dvotes, **how)
    return reference.capsule_votes(x, w, **how), *gradients


def _compare(found, wanted, terms, dtype):
    of_two_bytes = (dtype,) if dtype in ("float16", "bfloat16") else ()
    for array, want, count in zip(found, wanted, terms, strict=True):
        assert array.dtype == dtype_of(dtype)
        array = array.astype(np.float32) if of_two_bytes else array
        reference.assert_close(array, want, count, *of_two_bytes)


def _terms(g, sum_window):
    """Longest sums behind a vote, and an element of dx and dw."""
    taps = g.KH * g.KW
    return g.D2 * taps if sum_window else g.D2, g.P * taps * g.D3, g.N * g.L * g.D1


@pytest.mark.sanitize
@pytest.mark.parametrize("algorithm", _WITH_GRADIENT)
@_SUMS
@pytest.mark.parametrize("case", _GEOMETRIES)
def test_against_the_loops(case, sum_window, algorithm, rng):
    g = _GEOMETRIES[case]
    arrays = _operands(g, "float32", rng, sum_window)
    how = {**_how(g), "product": "gab,gbc->gac", "algorithm": algorithm, "sum_window": sum_window}
    found = capsule_votes(*arrays[:2], **how), *capsule_votes_backward(*arrays, **how)
    _compare(found, _oracle(g, *arrays, sum_window), _terms(g, sum_window), "float32")


@pytest.mark.parametrize("algorithm", _WITH_GRADIENT)
@_SUMS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype, sum_window, algorithm, rng):
    g = _GEOMETRIES["strides"]
    arrays = _operands(g, dtype, rng, sum_window)
    how = {**_how(g), "product": "gab,gbc->gac", "algorithm": algorithm, "sum_window": sum_window}
    found = capsule_votes(*arrays[:2], **how), *capsule_votes_backward(*arrays, **how)
    _compare(found, _oracle(g, *arrays, sum_window), _terms(g, sum_window), dtype)


_PRODUCTS = {
    "ab,bc->ac": ((2, 3), (3, 2)),
    "abk,kcd->abcd": ((2, 1, 3), (3, 2, 2)),
    "ba,cb->ca": ((3, 2), (4, 3)),
    "abg,gbc->cga": ((2, 3, 2), (2, 3, 2)),
    "ab,ab->ab": ((2, 3), (2, 3)),
    ",->": ((), ()),
}


@_SUMS
@pytest.mark.parametrize("product", _PRODUCTS)
def test_products(product, sum_window, rng):
    """Votes are bilinear, so <dV, V(a, w)> = <dx, a>, and likewise of w; and their sum is the convolution."""
    shapes = [(2, 2, 3, 4, *_PRODUCTS[product][0]), (3, 2, 2, 2, *_PRODUCTS[product][1])]
    x, w, a, b = (rng.standard_normal(shape) for shape in (*shapes, *shapes))
    how = {"stride": (1, 2), "padding": (1, 0), "product": product}
    with_sum = {**how, "sum_window": sum_window}
    votes = capsule_votes(x, w, algorithm="indexed", **with_sum)
    y = capsule_conv2d(x, w, algorithm="numpy", **how)
    over = (4,) if sum_window else (4, 5, 6)
    np.testing.assert_allclose(votes.sum(axis=over), y, atol=1e-12)
    dvotes = rng.standard_normal(votes.shape)
    for algorithm in ("indexed", "numpy") if SIMULATED else ("indexed",):
        dx, dw = capsule_votes_backward(x, w, dvotes, algorithm=algorithm, **with_sum)
        for gradient, step, of_step in ((dx, a, (a, w)), (dw, b, (x, b))):
            want = (dvotes * capsule_votes(*of_step, algorithm="numpy", **with_sum)).sum()
            assert (gradient * step).sum() == pytest.approx(want, abs=1e-10)


@pytest.mark.parametrize("block", [1, 60])
@_SUMS
def test_blocks(sum_window, block, rng, monkeypatch):
    """NumPy's, from one output position at a time to some."""
    monkeypatch.setattr(host, "BLOCK", block)
    g = _GEOMETRIES["dilated"]
    arrays = _operands(g, "float64", rng, sum_window)
    how = {
        **_how(g),
        "product": "gab,gbc->gac",
        "algorithm": "numpy",
        "sum_window": sum_window,
    }
    found = capsule_votes(*arrays[:2], **how), *capsule_votes_backward(*arrays, **how)
    _compare(found, _oracle(g, *arrays, sum_window), _terms(g, sum_window), "float64")


@_SUMS
def test_one_gradient_alone_from_nan_and_the_same_bits(sum_window, rng):
    g = _GEOMETRIES["residues"]
    x, w, dvotes = map(cuda.to_device, _operands(g, "float32", rng, sum_window))
    plan, found = Plan(g, x.dtype, "indexed", votes=VOTES[2]), []
    for _ in range(2):
        dx, dw = nan(g.input_shape, "float32"), nan(g.kernel_shape, "float32")
        plan.launch_votes_backward(None, w, dvotes, dx, None, 0, sum_window)
        plan.launch_votes_backward(x, None, dvotes, None, dw, 0, sum_window)
        found.append([array.copy_to_host() for array in (dx, dw)])
    host_arrays = [array.copy_to_host() for array in (x, w, dvotes)]
    wanted = _oracle(g, *host_arrays, sum_window)[1:]
    _compare(found[0], wanted, _terms(g, sum_window)[1:], "float32")
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["x", "w", "dvotes"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nan_and_infinity_flow_through(which, value, rng):
    g = _GEOMETRIES["strides"]
    for sum_window in (False, True):
        arrays = _operands(g, "float32", rng, sum_window)
        arrays[which].flat[0] = value
        wanted = _oracle(g, *arrays, sum_window)
        for algorithm in _WITH_GRADIENT:
            how = {**_how(g), "product": "gab,gbc->gac", "algorithm": algorithm}
            how["sum_window"] = sum_window
            found = capsule_votes(*arrays[:2], **how), *capsule_votes_backward(*arrays, **how)
            for array, want in zip(found, wanted):
                np.testing.assert_array_equal(np.isfinite(array), np.isfinite(want))


def test_arrays_on_the_device_out_and_needs(rng):
    g = _GEOMETRIES["matrix"]
    arrays = _operands(g, "float32", rng, True)
    how = {**_how(g), "product": "gab,gbc->gac", "sum_window": True, "algorithm": "indexed"}
    want = capsule_votes_backward(*arrays, **how)
    sent = [cuda.to_device(array) for array in arrays]
    dx, dw = nan(g.input_shape, "float32"), nan(g.kernel_shape, "float32")
    found = capsule_votes_backward(*sent, out=(dx, dw), **how)
    assert found[0] is dx and found[1] is dw
    for array, wanted in zip(found, want):
        np.testing.assert_array_equal(array.copy_to_host(), wanted)
    found = capsule_votes_backward(*sent, needs=["kernel"], **how)
    assert found[0] is None and found[1].shape == g.kernel_shape
    place = np.full(g.kernel_shape, np.nan, np.float32)
    assert capsule_votes_backward(*arrays, out=(None, place), **how)[1] is place
    np.testing.assert_array_equal(place, want[1])


@_SUMS
def test_no_images(sum_window):
    x, w = np.ones((0, 2, 3, 3, 2, 2), np.float32), np.ones((1, 2, 2, 2, 2, 2), np.float32)
    votes = capsule_votes(x, w, sum_window=sum_window)
    assert votes.shape == ((0, 1, 2, 2, 2, 2, 2) if sum_window else (0, 1, 2, 2, 2, 2, 2, 2, 2))
    place = np.full(w.shape, np.nan, np.float32)
    dx, dw = capsule_votes_backward(x, w, votes, sum_window=sum_window, out=(None, place))
    assert dx.shape == x.shape and dw is place and (dw == 0).all()
    sent = [cuda.to_device(array) for array in (w, np.full(w.shape, np.nan, np.float32))]
    empty = [cuda.device_array(array.shape, np.float32) for array in (x, votes)]
    how = {"sum_window": sum_window, "out": (None, sent[1]), "algorithm": "indexed"}
    capsule_votes_backward(empty[0], sent[0], empty[1], **how)
    assert (sent[1].copy_to_host() == 0).all()


_X, _W = (1, 2, 3, 3, 2, 2), (1, 2, 2, 2, 2, 2)
_V = (1, 1, 2, 2, 2, 2, 2, 2, 2)
_REFUSED = {
    "shape": ({"dvotes": np.ones(_V[:-1], np.float32)}, ValueError, "dvotes has shape .* takes"),
    "summed shape": ({"sum_window": True}, ValueError, r"it takes \(1, 1, 2, 2, 2, 2, 2\)"),
    "dtype": ({"dvotes": np.ones(_V)}, TypeError, "dvotes has dtype float64; it takes float32"),
    "no bool": ({"sum_window": 1}, TypeError, "sum_window is 1; it takes True or False"),
    "algorithm": (
        {"algorithm": "staged"},
        ValueError,
        "algorithm is 'staged'; it takes one of .* for gradients of votes",
    ),
    "precision": ({"precision": "tf32"}, ValueError, "precision is 'tf32'; algorithm"),
    "needs": ({"needs": ()}, ValueError, "needs is"),
    "out": ({"out": np.ones(_X)}, TypeError, "out is a ndarray .*; it takes a pair"),
    "out of one": (
        {"needs": ["input"], "out": (None, np.ones(_W))},
        ValueError,
        r"out\[1\] is given, but needs lack 'kernel'",
    ),
    "out's shape": (
        {"out": (np.ones(_W, np.float32), None)},
        ValueError,
        r"out\[0\] has shape .* it takes \(1, 2, 3, 3, 2, 2\)",
    ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_bad_input(case, monkeypatch):
    def ran(*_, **__):
        raise AssertionError("memory was allocated before the arguments were checked")

    for name in ("device_array", "to_device"):
        monkeypatch.setattr(cuda, name, ran)
    changed, error, message = _REFUSED[case]
    arguments = {"x": np.ones(_X, np.float32), "w": np.ones(_W, np.float32)}
    arguments |= {"dvotes": np.ones(_V, np.float32)}
    with pytest.raises(error, match=message):
        capsule_votes_backward(**(arguments | changed))


def test_out_overlaps():
    memory = np.ones(32 + 72, np.float32)
    x, w = np.ones(_X, np.float32), np.ones(_W, np.float32)
    out = memory[:72].reshape(_X), memory[71 : 71 + 32].reshape(_W)
    with pytest.raises(ValueError, match=r"out\[1\] overlaps out\[0\]"):
        capsule_votes_backward(x, w, np.ones(_V, np.float32), out=out)


def test_not_every_algorithm_sums_windows():
    x, w = np.ones(_X, np.float32), np.ones(_W, np.float32)
    with pytest.raises(
        ValueError, match="algorithm is 'staged'; .* for votes summed over the wind"
    ):
        numbacaps.capsule_votes(x, w, sum_window=True, algorithm="staged")
    half = x.astype(np.float16), w.astype(np.float16)
    with pytest.raises(ValueError, match=r"takes no float16 .*; \['indexed', 'numpy'\] can"):
        numbacaps.capsule_votes(*half, algorithm="staged")
