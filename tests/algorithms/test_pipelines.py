"""Whole convolutions: every algorithm of the registry, forward and backward, against the oracle."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reference
from numbacaps import ALGORITHMS, Geometry
from numbacaps.algorithms import staged
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.plan import Plan
from numbacaps.stages.slab import Slab, slabs
from tests.support.cases import CASES, GEOMETRIES, ON_DEVICE, nan, operands, sums

pytestmark = pytest.mark.tiers("simulator", "gpu")
_ROOM = 8 << 30  # bytes: more workspace than any case needs


def _oracle(geometry, x, w, dy):
    """(out, dx, dw) in float64: the loops where they are quick enough, else the einsum."""
    how = (geometry.stride, geometry.padding, geometry.dilation)
    x, w, dy = (array.astype(np.float64) for array in (x, w, dy))
    if SIMULATED:
        return (
            reference.capsule_convolution(x, w, *how),
            *reference.capsule_convolution_backward(x, w, dy, *how),
        )
    return (
        reference.capsule_convolution_einsum(x, w, *how),
        *reference.capsule_convolution_backward_einsum(x, w, dy, *how),
    )


def _run(algorithm, geometry, x, w, dy, limits=(_ROOM, _ROOM)):
    """(out, dx, dw) of an algorithm, from NaN; ``limits`` of the forward and the backward pass."""
    x, w, dy = map(cuda.to_device, (x, w, dy))
    out, dx, dw = (nan(array.shape, array.dtype) for array in (dy, x, w))
    forward, backward = (Plan(geometry, x.dtype, algorithm, "ieee", limit) for limit in limits)
    forward.launch_forward(x, w, out, 0)
    backward.launch_backward(x, w, dy, dx, dw, 0)
    return [array.copy_to_host() for array in (out, dx, dw)]


def _compare(geometry, actual, wanted):
    for array, want, terms in zip(actual, wanted, sums(geometry)):
        reference.assert_close(array, want, terms)


@pytest.mark.sanitize
@pytest.mark.parametrize("algorithm", ON_DEVICE)
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_algorithm(case, dtype, algorithm, rng):
    geometry = GEOMETRIES[case]
    arrays = operands(geometry, dtype, rng)
    _compare(geometry, _run(algorithm, geometry, *arrays), _oracle(geometry, *arrays))


@pytest.mark.sanitize
@pytest.mark.parametrize("algorithm", [name for name in ON_DEVICE if ALGORITHMS[name].has_votes])
@pytest.mark.parametrize("case", ["primes", "strides", "rank3"])
def test_votes(case, algorithm, rng):
    g = GEOMETRIES[case]
    x, w, _ = operands(g, "float32", rng)
    want = reference.capsule_votes_einsum(x, w, g.stride, g.padding, g.dilation)
    row = _bytes(g, staged.votes_workspace, 1, 1)
    for limit in (_ROOM, row):
        out = nan(g.votes_shape, "float32")
        plan = Plan(g, x.dtype, algorithm, "ieee", limit)
        plan.launch_votes(cuda.to_device(x), cuda.to_device(w), out, 0)
        reference.assert_close(out.copy_to_host(), want, g.D2)


@pytest.mark.parametrize(
    "algorithm", [name for name in ON_DEVICE if ALGORITHMS[name].deterministic]
)
def test_same_input_same_bits(algorithm, rng):
    geometry = GEOMETRIES["strides"]
    arrays = operands(geometry, "float32", rng)
    first, second = (_run(algorithm, geometry, *arrays) for _ in range(2))
    for one, other in zip(first, second):
        np.testing.assert_array_equal(one, other, strict=True)


def _backward_workspace(slab):
    return staged.backward_workspace(slab, ("input", "kernel"))


def _bytes(geometry, shapes_of, images, rows, itemsize=4):
    """Workspace of a slab of so many images and rows."""
    return itemsize * staged.elements(shapes_of(Slab(geometry, 0, images, 0, rows)))


@pytest.mark.slow(but=["strides-1-1"])
@pytest.mark.parametrize(("images", "rows"), [(1, 1), (1, 2), (1, None), (2, None)])
@pytest.mark.parametrize("case", ["strides", "padded", "long"])
def test_slabs_do_not_change_a_bit(case, images, rows, rng):
    geometry = replace(GEOMETRIES[case], N=max(3, GEOMETRIES[case].N))
    arrays = operands(geometry, "float32", rng)
    limits = []
    for shapes_of in (staged.forward_workspace, _backward_workspace):
        limits.append(_bytes(geometry, shapes_of, images, rows or geometry.OH))
        cut = slabs(geometry, lambda slab: staged.elements(shapes_of(slab)), limits[-1] // 4)
        assert len(cut) > 1 and (cut[0].images, cut[0].rows) == (images, rows or geometry.OH)
    cut = _run("staged", geometry, *arrays, limits=limits)
    for array, want in zip(cut, _run("staged", geometry, *arrays)):
        np.testing.assert_array_equal(array, want, strict=True)


def test_a_limit_below_one_row_names_the_bytes(rng):
    geometry = GEOMETRIES["matrix"]
    arrays = operands(geometry, "float32", rng)
    need = _bytes(geometry, staged.forward_workspace, 1, 1)
    message = f"workspace of {need} bytes .* workspace_limit is {need - 1}"
    with pytest.raises(MemoryError, match=message):
        _run("staged", geometry, *arrays, limits=(need - 1, _ROOM))


@pytest.mark.parametrize("algorithm", ON_DEVICE)
def test_one_gradient_alone(algorithm, rng):
    g = GEOMETRIES["matrix"]
    arrays = operands(g, "float32", rng)
    _, want_dx, want_dw = _oracle(g, *arrays)
    x, w, dy = map(cuda.to_device, arrays)
    plan = Plan(g, x.dtype, algorithm, "ieee", _ROOM)
    dx, dw = nan(x.shape, x.dtype), nan(w.shape, w.dtype)
    plan.launch_backward(None, w, dy, dx, None, 0)
    plan.launch_backward(x, None, dy, None, dw, 0)
    reference.assert_close(dx.copy_to_host(), want_dx, sums(g)[1])
    reference.assert_close(dw.copy_to_host(), want_dw, sums(g)[2])


@pytest.mark.parametrize("algorithm", ON_DEVICE)
@pytest.mark.parametrize(("where", "value"), [("x", np.nan), ("w", np.inf), ("dy", -np.inf)])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
def test_nan_and_infinity_flow_through(where, value, algorithm, rng):
    """Padding is zeros that multiply: an infinite kernel element makes NaN at the border."""
    g = GEOMETRIES["strides"]
    arrays = dict(zip(("x", "w", "dy"), operands(g, "float32", rng)))
    arrays[where].flat[0] = value
    pairs = list(zip(_run(algorithm, g, **arrays), _oracle(g, **arrays)))
    for result, (actual, want) in enumerate(pairs):
        special = ~np.isfinite(want)
        multiplies_zeros = ALGORITHMS[algorithm].zeros_outside and where == "w" and result == 1
        if not multiplies_zeros:
            np.testing.assert_array_equal(actual[special], want[special].astype(np.float32))
            assert np.isfinite(actual[~special]).all()
        else:  # NaN where an infinite kernel element meets a zero outside of the output
            assert np.isnan(actual[special & ~np.isclose(actual, want)]).all()
            assert np.isnan(actual[~special & ~np.isfinite(actual)]).all()
    kinds = np.concatenate([want[~np.isfinite(want)] for _, want in pairs])
    assert kinds.size and (np.isnan(value) or np.isnan(kinds).any())


@st.composite
def _geometries(draw):
    """Any geometry of a size that the target takes in well under a second."""
    most = (lambda small, large: small) if SIMULATED else (lambda small, large: large)

    def number(low, high):
        return draw(st.integers(low, high))

    stride, dilation = ((number(1, 3), number(1, 3)) for _ in range(2))
    padding = (number(0, 2), number(0, 2))
    KH, KW = number(1, most(3, 5)), number(1, most(3, 5))
    least = [max(1, dilation[i] * ((KH, KW)[i] - 1) + 1 - 2 * padding[i]) for i in (0, 1)]
    return Geometry(
        N=number(1, most(2, 9)),
        C=number(1, most(2, 9)),
        P=number(1, most(2, 9)),
        H=least[0] + number(0, most(2, 11)),
        W=least[1] + number(0, most(2, 11)),
        KH=KH,
        KW=KW,
        G=number(1, 3),
        D1=number(1, most(3, 9)),
        D2=number(1, most(3, 9)),
        D3=number(1, most(3, 9)),
        stride=stride,
        padding=padding,
        dilation=dilation,
    )


@settings(
    max_examples=12 if SIMULATED else 5,  # a GPU's compiler takes a minute for five
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(geometry=_geometries(), seed=st.integers(0, 2**32 - 1))
def test_any_geometry(geometry, seed):
    arrays = operands(geometry, "float32", np.random.default_rng(seed))
    wanted = _oracle(geometry, *arrays)
    for algorithm in ON_DEVICE:
        _compare(geometry, _run(algorithm, geometry, *arrays), wanted)
