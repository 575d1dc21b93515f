"""Algorithm "numpy": what it computes on the host, against the loops, and that nothing else is touched."""

import time
import tracemalloc
from math import prod

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps import Geometry, capsule_conv2d, capsule_conv2d_backward, capsule_votes
from numbacaps.algorithms import host, registry
from numbacaps.device.target import cuda
from tests.support.cases import SMALL, operands, sums

_MORE = {
    "large stride": Geometry(2, 1, 2, 5, 4, 3, 2, 2, 1, 2, 3, (7, 1000), (2, 1)),
    "far taps": Geometry(1, 2, 1, 3, 5, 2, 3, 1, 2, 1, 2, (1, 2), (4, 9), (5, 7)),
    "all padding": Geometry(1, 1, 2, 1, 1, 2, 2, 1, 2, 2, 2, (1, 1), (3, 2)),
    "many g": Geometry(2, 2, 1, 3, 3, 2, 2, 11, 1, 1, 1),
}
_GEOMETRIES = SMALL | _MORE
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def _how(g):
    return {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}


def _run(g, x, w, dy):
    """(out, votes, dx, dw)"""
    how = {**_how(g), "product": "gab,gbc->gac", "algorithm": "numpy"}
    return (
        capsule_conv2d(x, w, **how),
        capsule_votes(x, w, **how),
        *capsule_conv2d_backward(x, w, dy, **how),
    )


def _compare(g, found, arrays):
    x, w, dy = (array.astype(np.float64) for array in arrays)
    out, dx, dw = sums(g)
    wanted = (
        (reference.capsule_convolution(x, w, **_how(g)), out),
        (reference.capsule_votes_einsum(x, w, **_how(g)), g.D2),
        *zip(reference.capsule_convolution_backward(x, w, dy, **_how(g)), (dx, dw)),
    )
    for array, (want, terms) in zip(found, wanted, strict=True):
        assert isinstance(array, np.ndarray) and array.dtype == arrays[0].dtype
        of_two_bytes = (array.dtype.name,) if array.dtype.itemsize == 2 else ()
        array = array.astype(np.float32) if of_two_bytes else array
        reference.assert_close(array, want, terms, *of_two_bytes)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("case", _GEOMETRIES)
def test_against_the_loops(case, dtype, rng):
    g = _GEOMETRIES[case]
    arrays = operands(g, dtype, rng)
    _compare(g, _run(g, *arrays), arrays)


@pytest.mark.parametrize("block", [1, 60, 500])
@pytest.mark.parametrize("case", ["strides", "dilated", "padded", "far taps"])
def test_blocks(case, block, rng, monkeypatch):
    """From one output position at a time to some images."""
    monkeypatch.setattr(host, "BLOCK", block)
    g = _GEOMETRIES[case]
    arrays = operands(g, "float64", rng)
    _compare(g, _run(g, *arrays), arrays)


def test_numbers_beyond_64_bits_are_only_numbers(rng):
    """Three rows of output, 2^70 apart: the one in the middle reads row 0, the others padding."""
    far = 1 << 70
    x, w = rng.standard_normal((1, 1, 2, 3, 2, 2)), rng.standard_normal((1, 1, 1, 1, 2, 2))
    how = {"stride": (far, 1), "padding": (far, 0), "algorithm": "numpy"}
    y = capsule_conv2d(x, w, **how)
    assert y.shape == (1, 1, 3, 3, 2, 2)
    np.testing.assert_allclose(y[0, 0, 1], x[0, 0, 0] @ w[0, 0, 0, 0])
    assert not y[0, 0, ::2].any()
    dx, dw = capsule_conv2d_backward(x, w, y, **how)
    np.testing.assert_allclose(dx[0, 0, 0], y[0, 0, 1] @ w[0, 0, 0, 0].T)
    assert not dx[0, 0, 1].any()
    np.testing.assert_allclose(dw[0, 0, 0, 0], (x[0, 0, 0].swapaxes(1, 2) @ y[0, 0, 1]).sum(0))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_special_values_in_padding(value):
    """Zeros of the padding multiply what the kernel holds; nothing lies outside of the output."""
    x, w = np.ones((1, 1, 2, 2, 1, 1)), np.full((1, 1, 2, 2, 1, 1), value)
    y = capsule_conv2d(x, w, padding=1, algorithm="numpy")
    assert np.isnan(y[0, 0, 0, 0]).all() and y[0, 0, 1, 1].item() == pytest.approx(
        4 * value, nan_ok=True
    )
    dx, _ = capsule_conv2d_backward(x, w, np.ones((1, 1, 1, 1, 1, 1)), algorithm="numpy")
    np.testing.assert_array_equal(dx, np.full_like(dx, value))


@pytest.fixture
def no_device(monkeypatch):
    def touched(*_, **__):
        raise AssertionError("device memory was asked for")

    for name in ("to_device", "device_array", "current_context", "get_current_device"):
        monkeypatch.setattr(cuda, name, touched)


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize("product", ["ab,bc->ac", "ba,cb->ca"])
def test_nothing_is_allocated_on_the_device(product, rng):
    """With every product and layout; ``out`` is written in place or gets a copy."""
    x = rng.standard_normal((2, 2, 4, 5, 3, 3)).swapaxes(2, 3)
    w, how = rng.standard_normal((3, 2, 2, 2, 3, 3)), {"product": product, "algorithm": "numpy"}
    y = capsule_conv2d(x, w, **how)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(2, 3))
    left, right = product.split(",")
    want = np.einsum(f"NCHW{left}IJ,PCIJ{right.replace('->', '->NPHW')}", windows, w)
    reference.assert_close(y, want, 64)
    out = np.full(y.shape, np.nan)
    assert capsule_conv2d(x, w, out=out, **how) is out
    np.testing.assert_array_equal(out, y)
    votes = capsule_votes(x, w, **how)
    assert capsule_votes(x, w, out=np.empty_like(votes), **how).flags.c_contiguous
    np.testing.assert_allclose(votes.sum(axis=(4, 5, 6)), y)
    dx, dw = capsule_conv2d_backward(x, w, y, **how)
    np.testing.assert_allclose((dx * x).sum(), (y * y).sum())  # the convolution is bilinear
    np.testing.assert_allclose((dw * w).sum(), (y * y).sum())
    dx, dw = capsule_conv2d_backward(x[:0], w, y[:0], **how)
    assert dx.shape == (0, *x.shape[1:]) and not dw.any() and dw.shape == w.shape


@pytest.mark.usefixtures("no_device")
def test_a_plan_takes_numpy_arrays(rng):
    plan = numbacaps.plan((2, 2, 4, 5, 2, 3), (3, 2, 2, 2, 3, 2), "float64", algorithm="numpy")
    shapes = plan.x_shape, plan.w_shape, plan.y_shape
    x, w, dy = (rng.standard_normal(shape) for shape in shapes)
    y, dx, dw = (np.full(shape, np.nan) for shape in (shapes[2], *shapes[:2]))
    assert plan(x, w, y) is y
    assert [id(array) for array in plan.backward(x, w, dy, dx, dw)] == [id(dx), id(dw)]
    np.testing.assert_array_equal(y, capsule_conv2d(x, w, algorithm="numpy"))
    for array, want in zip((dx, dw), capsule_conv2d_backward(x, w, dy, algorithm="numpy")):
        np.testing.assert_array_equal(array, want)
    text = plan.explain()
    assert text.startswith("algorithm numpy, precision auto, float64")
    assert "NumPy's matmul on the host" in text and "48 rows, 6 columns and sums of 24 for each of G = 1" in text
    with pytest.raises(ValueError, match="dx overlaps x|out overlaps x"):
        plan.backward(x, w, dy, x)
    with pytest.raises(ValueError, match="x is not C-contiguous"):
        plan(np.asfortranarray(x), w, y)


def test_arrays_on_a_gpu_are_refused(monkeypatch):
    monkeypatch.setattr(registry, "SIMULATED", False)
    x, w, out = (cuda.to_device(np.ones((1,) * 6, np.float32)) for _ in range(3))
    message = "x is on the device; algorithm 'numpy' takes NumPy arrays"
    with pytest.raises(TypeError, match=message):
        capsule_conv2d(x, w, algorithm="numpy")
    with pytest.raises(TypeError, match=message):
        numbacaps.plan(x, w, algorithm="numpy")(x, w, out)


def test_what_it_does_not_take():
    x = np.ones((1,) * 6, np.float32)
    with pytest.raises(
        ValueError, match=r"precision is 'tf32'; algorithm 'numpy' takes one of \['auto', 'ieee'\]"
    ):
        capsule_conv2d(x, x, algorithm="numpy", precision="tf32")
    with pytest.raises(ValueError, match="rungs are given; algorithm 'fused' alone takes them"):
        numbacaps.plan(x, x, algorithm="numpy", rungs={"forward": "wgmma"}).explain()


def test_memory_stays_bounded(rng):
    """Beside the operands: a block, what is copied for it, and the kernel."""
    g = Geometry(64, 8, 8, 12, 12, 3, 3, 1, 4, 4, 4, padding=(1, 1))
    x, w, dy = operands(g, "float32", rng)
    results = 4 * prod(g.input_shape) + 4 * prod(g.kernel_shape)
    tracemalloc.start()
    try:
        capsule_conv2d_backward(
            *(array[:, :, :, :, 0] for array in (x, w, dy)), padding=1, algorithm="numpy"
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    columns = 4 * g.N * g.L * g.D1 * g.Q * g.D2
    assert peak < results + 4 * 4 * host.BLOCK + 4 * 4 * prod(g.kernel_shape) < columns


def test_a_small_call_is_no_wait(rng):
    """About 0.2 ms on a quiet machine; the simulator takes seconds."""
    x = rng.standard_normal((1, 8, 8, 8, 4, 4), dtype=np.float32)
    w = rng.standard_normal((8, 8, 3, 3, 4, 4), dtype=np.float32)
    took = []
    for _ in range(10):
        start = time.perf_counter()
        capsule_conv2d(x, w, padding=1, algorithm="numpy")
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1
