"""Whole convolutions: every algorithm of the registry, forward and backward, against the oracle."""

import numpy as np
import pytest
from cases import CASES, GEOMETRIES, nan, operands, sums
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reference
from numbacaps import ALGORITHMS, Geometry
from numbacaps.pipelines import staged
from numbacaps.target import SIMULATED, cuda

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


def _run(algorithm, geometry, x, w, dy, limit=_ROOM):
    """(out, dx, dw) of an algorithm, from NaN."""
    x, w, dy = map(cuda.to_device, (x, w, dy))
    out, dx, dw = (nan(array.shape, array.dtype) for array in (dy, x, w))
    run = {"stream": 0, "workspace_limit": limit}
    ALGORITHMS[algorithm].forward(geometry, x, w, out, **run)
    ALGORITHMS[algorithm].backward(geometry, x, w, dy, dx, dw, **run)
    return [array.copy_to_host() for array in (out, dx, dw)]


def _compare(geometry, actual, wanted):
    for array, want, terms in zip(actual, wanted, sums(geometry)):
        reference.assert_close(array, want, terms)


@pytest.mark.sanitize
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_algorithm(case, dtype, algorithm, rng):
    geometry = GEOMETRIES[case]
    arrays = operands(geometry, dtype, rng)
    _compare(geometry, _run(algorithm, geometry, *arrays), _oracle(geometry, *arrays))


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if ALGORITHMS[name].votes])
@pytest.mark.parametrize("case", ["matrix", "strides", "rank3"])
def test_votes(case, algorithm, rng):
    g = GEOMETRIES[case]
    x, w, _ = operands(g, "float32", rng)
    want = reference.capsule_votes_einsum(x, w, g.stride, g.padding, g.dilation)
    row = _row_bytes(g, staged.votes_workspace, 4)
    for limit in (_ROOM, row):
        out = nan(g.votes_shape, "float32")
        ALGORITHMS[algorithm].votes(
            g, cuda.to_device(x), cuda.to_device(w), out, stream=0, workspace_limit=limit
        )
        reference.assert_close(out.copy_to_host(), want, g.D2)


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if ALGORITHMS[name].deterministic]
)
def test_same_input_same_bits(algorithm, rng):
    geometry = GEOMETRIES["strides"]
    arrays = operands(geometry, "float32", rng)
    first, second = (_run(algorithm, geometry, *arrays) for _ in range(2))
    for one, other in zip(first, second):
        np.testing.assert_array_equal(one, other, strict=True)


def _row_bytes(geometry, shapes_of, itemsize):
    """Workspace of one output row of one image."""
    slab = geometry.slabs(lambda slab: slab.images * slab.rows, 1)[0]
    return itemsize * staged.elements(shapes_of(slab))


@pytest.mark.parametrize("case", ["strides", "padded"])
def test_slabs_do_not_change_a_bit(case, rng):
    geometry = GEOMETRIES[case]
    arrays = operands(geometry, "float32", rng)
    whole = _run("staged", geometry, *arrays)
    both = ("input", "kernel")
    row = max(
        _row_bytes(geometry, staged.forward_workspace, 4),
        _row_bytes(geometry, lambda slab: staged.backward_workspace(slab, both), 4),
    )
    image = 4 * staged.elements(staged.backward_workspace(geometry.of_one_image.whole, both))
    limits = (row, 2 * row, image, 3 * image)
    for limit in limits[1:3] if SIMULATED else limits:
        for array, want in zip(_run("staged", geometry, *arrays, limit=max(limit, row)), whole):
            np.testing.assert_array_equal(array, want, strict=True)


def test_a_limit_below_one_row_names_the_bytes(rng):
    geometry = GEOMETRIES["matrix"]
    arrays = operands(geometry, "float32", rng)
    need = _row_bytes(geometry, staged.forward_workspace, 4)
    with pytest.raises(
        MemoryError, match=f"workspace of {need} bytes .* workspace_limit is {need - 1}"
    ):
        _run("staged", geometry, *arrays, limit=need - 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_gradient_alone(algorithm, rng):
    g = GEOMETRIES["matrix"]
    arrays = operands(g, "float32", rng)
    _, want_dx, want_dw = _oracle(g, *arrays)
    x, w, dy = map(cuda.to_device, arrays)
    backward, run = ALGORITHMS[algorithm].backward, {"stream": 0, "workspace_limit": _ROOM}
    dx, dw = nan(x.shape, x.dtype), nan(w.shape, w.dtype)
    backward(g, x, w, dy, dx, None, **run)
    backward(g, x, w, dy, None, dw, **run)
    reference.assert_close(dx.copy_to_host(), want_dx, sums(g)[1])
    reference.assert_close(dw.copy_to_host(), want_dw, sums(g)[2])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("where", "value"), [("x", np.nan), ("w", np.inf), ("dy", -np.inf)])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
def test_nan_and_infinity_flow_through(where, value, algorithm, rng):
    """Padding is zeros that multiply: an infinite kernel element makes NaN at the border."""
    g = GEOMETRIES["strides"]
    arrays = dict(zip(("x", "w", "dy"), operands(g, "float32", rng)))
    arrays[where].flat[0] = value
    pairs = list(zip(_run(algorithm, g, **arrays), _oracle(g, **arrays)))
    for actual, want in pairs:
        special = ~np.isfinite(want)
        np.testing.assert_array_equal(actual[special], want[special].astype(np.float32))
        assert np.isfinite(actual[~special]).all()
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
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(geometry=_geometries(), seed=st.integers(0, 2**32 - 1))
def test_any_geometry(geometry, seed):
    arrays = operands(geometry, "float32", np.random.default_rng(seed))
    wanted = _oracle(geometry, *arrays)
    for algorithm in ALGORITHMS:
        _compare(geometry, _run(algorithm, geometry, *arrays), wanted)
