"""Every stage's kernel alone: fed the exact input of its stage, its output NaN beforehand."""

from importlib import import_module

import numpy as np
import pytest

import reference
from numbacaps import stages
from numbacaps.device import launch
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.stages.stationary_batched_matmul import stationary_batched_matmul, suits
from numbacaps.stages.strided_batched_matmul import Batch, Tile, strided_batched_matmul
from tests.support.cases import CASES, GEOMETRIES, SMALL, nan, operands, sums
from tests.support.stage_oracle import expected

pytestmark = pytest.mark.tiers("simulator", "gpu")

# The functions of these modules have the modules' names, so the modules are asked for by path.
matmul_module = import_module("numbacaps.stages.strided_batched_matmul")
stationary_module = import_module("numbacaps.stages.stationary_batched_matmul")
output_extend_module = import_module("numbacaps.stages.output_extend")

# stage: (launcher, the operands it reads): "x", "w", "dy" or the stage that makes the operand
_STAGES = {
    "capsule_im2col": (stages.capsule_im2col, ("x",)),
    "input_extend": (stages.input_extend, ("capsule_im2col",)),
    "kernel_extend": (stages.kernel_extend, ("w",)),
    "strided_batched_matmul": (stages.multiply, ("input_extend", "kernel_extend")),
    "output_reduce": (stages.output_reduce, ("strided_batched_matmul",)),
    "output_extend": (stages.output_extend, ("dy",)),
    "kernel_gradient_matmul": (
        stages.multiply_for_kernel_gradient,
        ("input_extend", "output_extend"),
    ),
    "input_gradient_matmul": (
        stages.multiply_for_input_gradient,
        ("output_extend", "kernel_extend"),
    ),
    "input_reduce": (stages.input_reduce, ("input_gradient_matmul",)),
    "capsule_col2im": (stages.capsule_col2im, ("input_reduce",)),
}


def _whole_numbers(geometry, rng):
    """Small whole numbers: float32 adds them exactly in any order, so results are compared exactly."""
    return [rng.integers(-4, 5, array.shape) for array in operands(geometry, "float64", rng)]


def _check(geometry, stage, dtype, rng, **how):
    """Run a stage's kernel on exact inputs into NaN, and compare to the bit."""
    launcher, names = _STAGES[stage]
    x, w, dy = _whole_numbers(geometry, rng)
    exact = expected(geometry, x, w, dy)
    known = {"x": x, "w": w, "dy": dy} | exact
    inputs = [cuda.to_device(np.ascontiguousarray(known[name].astype(dtype))) for name in names]
    out = nan(exact[stage].shape, dtype)
    launcher(stages.whole(geometry), *inputs, out, **how)
    np.testing.assert_array_equal(out.copy_to_host(), exact[stage].astype(dtype), strict=True)


@pytest.mark.sanitize
@pytest.mark.parametrize("stage", _STAGES)
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_stage(case, dtype, stage, rng):
    _check(GEOMETRIES[case], stage, dtype, rng)


@pytest.mark.parametrize("threads", (1, 3, 32))
@pytest.mark.parametrize("stage", [name for name in _STAGES if "matmul" not in name])
def test_stage_with_tiny_blocks(stage, threads, rng):
    _check(GEOMETRIES["strides"], stage, "float32", rng, threads=threads)


@pytest.mark.parametrize("stage", _STAGES)
def test_stage_with_few_blocks(stage, rng, monkeypatch):
    """Seven blocks along all axes of the grid: blocks walk repeats and rows in uneven steps."""
    for module in (launch, matmul_module, output_extend_module):
        monkeypatch.setattr(module, "BLOCKS", 7)
    for name in ("capsule_im2col", "capsule_col2im"):
        monkeypatch.setattr(import_module(f"numbacaps.stages.{name}"), "FEW_BLOCKS", 7)
    _check(GEOMETRIES["strides"], stage, "float32", rng)


@pytest.mark.sanitize
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_kernel_reduce(case, dtype, rng):
    geometry = GEOMETRIES[case]
    products = expected(geometry, *_whole_numbers(geometry, rng))["kernel_gradient_matmul"]
    lanes, dw = nan(stages.whole(geometry).lanes_shape, dtype), nan(geometry.kernel_shape, dtype)
    products = np.ascontiguousarray(products.astype(dtype))
    stages.kernel_reduce(stages.whole(geometry), cuda.to_device(products), lanes)
    stages.kernel_reduce_lanes(geometry, lanes, dw)
    want = products.sum(axis=(0, 2), dtype=np.float64).reshape(geometry.kernel_shape)
    np.testing.assert_array_equal(dw.copy_to_host(), want.astype(dtype), strict=True)


@pytest.mark.parametrize("stage", _STAGES)
def test_stage_refuses_wrong_sizes(stage, rng):
    geometry = GEOMETRIES["matrix"]
    launcher, names = _STAGES[stage]
    short = cuda.to_device(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"has shape \(3,\); it takes|has 3 elements; it takes"):
        launcher(stages.whole(geometry), *[short] * (len(names) + 1))


_TILES = {
    "whole": Tile(2, 4, 6, 8, 1, 2, 3),
    "steps of K": Tile(6, 4, 6, 3, 2, 2, 3),
    "tiles of M and N": Tile(2, 2, 4, 8, 1, 1, 2),
    "odd": Tile(6, 3, 5, 2, 3, 3, 1),
    "larger than the matrix": Tile(1, 8, 8, 16, 1, 4, 4),
}


@pytest.mark.parametrize("transpose_b", (False, True))
@pytest.mark.parametrize("transpose_a", (False, True))
@pytest.mark.parametrize("tile", _TILES)
def test_matmul_tiles(tile, transpose_a, transpose_b, rng):
    M, N, K, (images, channels, products) = 4, 6, 8, (2, 2, 5) if SIMULATED else (7, 5, 501)
    a = rng.standard_normal((images, channels, products, M, K))
    b = rng.standard_normal((channels, products, K, N))  # shared by the images
    c = nan((images, channels, products, M, N), "float64")
    stored_a = np.ascontiguousarray(a.swapaxes(-1, -2)) if transpose_a else a
    stored_b = np.ascontiguousarray(b.swapaxes(-1, -2)) if transpose_b else b
    per_a, per_b, per_c = (products * size for size in (M * K, K * N, M * N))
    strided_batched_matmul(
        cuda.to_device(stored_a).reshape(a.size),
        cuda.to_device(stored_b).reshape(b.size),
        c.reshape(c.size),
        (M, N, K),
        Batch(
            images,
            channels,
            products,
            (channels * per_a, per_a),
            (0, per_b),
            (channels * per_c, per_c),
        ),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        tile=_TILES[tile],
    )
    reference.assert_close(c.copy_to_host(), a @ b, K)


@pytest.mark.parametrize(
    "size", [(1, 3, 2), (6, 1, 1), (1, 1, 32), (7, 7, 33), (29, 31, 9), (9, 33, 5)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matmul_with_its_own_tile(size, dtype, rng):
    M, N, K = size
    products = 3 if SIMULATED else 1001
    a, b = rng.integers(-4, 5, (products, M, K)), rng.integers(-4, 5, (products, K, N))
    c = nan((products, M, N), dtype)
    strided_batched_matmul(
        *(cuda.to_device(array.astype(dtype)).reshape(array.size) for array in (a, b)),
        c.reshape(c.size),
        size,
        Batch(1, 1, products, (0, 0), (0, 0), (0, 0)),
    )
    np.testing.assert_array_equal(c.copy_to_host(), (a @ b).astype(dtype), strict=True)


@pytest.mark.sanitize
@pytest.mark.parametrize("blocks", (1, 7))
@pytest.mark.parametrize("transpose_b", (False, True), ids=("", "primes-transposed"))
@pytest.mark.parametrize("size", [(4, 8, 16), (4, 16, 8), (3, 5, 13), (1, 1, 9)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stationary_matmul(size, dtype, transpose_b, blocks, rng, monkeypatch):
    """Images share B; of C only the middle of a longer array is written."""
    monkeypatch.setattr(stationary_module, "_BLOCKS", blocks)
    (M, N, K), images, channels, products = size, 3, 2, 5 if SIMULATED else 1001
    assert suits(M, N, K, Batch(images, channels, products, (1, 1), (0, 1), (1, 1)))
    a = rng.integers(-8, 9, (images, channels, products, M, K)).astype(dtype)
    b = rng.integers(-8, 9, (channels, products, K, N)).astype(dtype)
    c = nan((images, channels, 2, products, M, N), dtype)
    stored_b = np.ascontiguousarray(b.swapaxes(-1, -2)) if transpose_b else b
    per_a, per_b, per_c = (products * size for size in (M * K, K * N, M * N))
    stationary_batched_matmul(
        cuda.to_device(a).reshape(a.size),
        cuda.to_device(stored_b).reshape(b.size),
        c.reshape(c.size),
        size,
        Batch(
            *(images, channels, products, (channels * per_a, per_a), (0, per_b)),
            *((2 * channels * per_c, 2 * per_c), per_c),
        ),
        transpose_b=transpose_b,
    )
    written = c.copy_to_host()
    np.testing.assert_array_equal(written[:, :, 1], a @ b, strict=True)
    assert np.isnan(written[:, :, 0]).all()


def test_stationary_matmul_refuses_an_own_b():
    array = cuda.to_device(np.zeros(64, np.float32))
    with pytest.raises(ValueError, match="batch has 8 elements of b an image; it takes 0"):
        stationary_batched_matmul(
            array, array, array, (1, 1, 8), Batch(2, 1, 1, (8, 8), (8, 8), (1, 1))
        )


def test_tile_refuses_threads_that_do_not_divide():
    with pytest.raises(ValueError, match="TB, TM, TN that divide"):
        Tile(1, 3, 4, 2, 1, 2, 2)


@pytest.mark.parametrize("case", ["matrix", "strides", "dilated", "rank3"])
def test_stage_oracle_is_the_reference(case, rng):
    g = SMALL[case]
    x, w, dy = operands(g, "float64", rng)
    have = expected(g, x, w, dy)
    how = (g.stride, g.padding, g.dilation)
    columns = reference.capsule_im2col(x, (g.KH, g.KW), *how)
    extended_input, extended_kernel = (
        reference.input_extend(columns, g.P),
        reference.kernel_extend(w, g.L),
    )
    multiply = reference.strided_batched_matrix_multiply
    extended_dy = reference.output_extend(dy, g.Q)
    input_products = multiply(extended_dy, extended_kernel, transpose_b=True)
    kernel_products = multiply(extended_input, extended_dy, transpose_a=True)
    d_columns = reference.input_reduce(input_products)
    products = multiply(extended_input, extended_kernel)
    want = {
        "capsule_im2col": columns,
        "input_extend": extended_input,
        "kernel_extend": extended_kernel,
        "strided_batched_matmul": products,
        "output_reduce": reference.output_reduce(products, g.OH, g.OW),
        "output_extend": extended_dy,
        "kernel_gradient_matmul": kernel_products,
        "kernel_reduce": reference.kernel_reduce(kernel_products, g.C, g.KH, g.KW),
        "input_gradient_matmul": input_products,
        "input_reduce": d_columns,
        "capsule_col2im": reference.capsule_col2im(d_columns, x.shape, (g.KH, g.KW), *how),
    }
    assert have.keys() == want.keys() == stages.STAGES.keys()
    for name in want:
        reference.assert_close(have[name], want[name], max(sums(g)))
