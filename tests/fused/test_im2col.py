"""The matrix of all that windows read, against NumPy's sliding windows, and the product that reads it."""

from dataclasses import replace

import numpy as np
import pytest

from numbacaps import Geometry
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.compiled import as_argument, launch_stream
from numbacaps.device.target import SIMULATED
from numbacaps.fused import im2col_packing, implicit_gemm
from numbacaps.fused.im2col_packing import Im2col, elements, in_rows, of_matrix, why_not_im2col
from numbacaps.fused.pixel_packing import seen_as
from numbacaps.fused.precision import has_tensor_cores
from tests.support.cases import nan, oracle

_GEOMETRIES = {
    "odd capsules": Geometry(2, 3, 2, 5, 4, 3, 2, 1, 2, 5, 3, (2, 1), (1, 0), (1, 2)),
    "more rows than a block": Geometry(3, 2, 1, 9, 11, 2, 3, 1, 3, 1, 2, (1, 1), (1, 1)),
    "many parts": Geometry(1, 7, 2, 4, 4, 3, 3, 1, 1, 7, 1, (1, 1), (1, 1)),
    "several g": Geometry(2, 2, 3, 4, 5, 1, 3, 3, 2, 3, 2, (1, 2)),
    "a window of one": Geometry(2, 3, 2, 3, 3, 1, 1, 1, 2, 3, 2, (2, 2)),
    "words of 4 and 8 bytes": Geometry(2, 3, 2, 5, 6, 3, 3, 1, 2, 2, 3, (2, 1), (1, 0), (1, 2)),
    "words of 8 bytes": Geometry(2, 3, 2, 5, 4, 2, 3, 2, 3, 4, 3, (1, 2), (0, 1)),
    "a window of one column": Geometry(2, 3, 2, 5, 3, 3, 1, 1, 2, 3, 2, (1, 1), (1, 0)),
}
# Of the gradient of x; the last one has residues whose first tap is not the kernel's first.
_GRADIENTS = {
    "one parent": Geometry(2, 3, 1, 5, 4, 3, 2, 2, 2, 3, 5, (1, 1), (1, 0), (1, 2)),
    "windows of one": Geometry(2, 3, 4, 3, 4, 1, 1, 1, 2, 3, 5),
    "residues": Geometry(1, 1, 1, 9, 3, 4, 1, 1, 2, 2, 3, (2, 1)),
}
_BEGIN = 16  # elements before the matrix


def _matrix(x, g, itemsize):
    """(N, parts, OH, OW, G, D1, 32 bytes) of an input (N, C, H, W, G, D1, D2)."""
    (SH, SW), (PH, PW), (DH, DW) = g.stride, g.padding, g.dilation
    x = np.pad(x, ((0, 0), (0, 0), (PH, PH), (PW, PW), *[(0, 0)] * 3))
    window = DH * (g.KH - 1) + 1, DW * (g.KW - 1) + 1
    seen = np.lib.stride_tricks.sliding_window_view(x, window, (2, 3))
    seen = seen[:, :, ::SH, ::SW, ..., ::DH, ::DW]  # N, C, OH, OW, G, D1, D2, KH, KW
    rows = seen.transpose(0, 2, 3, 4, 5, 1, 7, 8, 6).reshape(g.N, g.OH, g.OW, g.G, g.D1, -1)
    each = 32 // itemsize
    rows = np.pad(rows, [(0, 0)] * 5 + [(0, -rows.shape[-1] % each)])
    return rows.reshape(*rows.shape[:-1], -1, each).transpose(0, 5, 1, 2, 3, 4, 6)


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", _GEOMETRIES)
def test_rows_are_what_windows_read(name, dtype):
    if not has_tensor_cores():
        pytest.skip("this GPU has no products of warps, and lays nothing out")
    g, dtype = _GEOMETRIES[name], dtype_of(dtype)
    x = (np.arange(np.prod(g.input_shape)) % 251 - 125).reshape(g.input_shape).astype(dtype)
    product = implicit_gemm.forward(g)
    assert why_not_im2col(product, g.N, g.G, dtype) is None
    writing, want = Im2col(product, g.N, g.G, dtype), _matrix(x, g, dtype.itemsize)
    assert writing.elements == want.size == elements(product, g.N, g.G, dtype)
    room = nan(-(-(_BEGIN + want.size) * dtype.itemsize // 16) * 4, np.float32)
    source, matrix = as_argument(to_device(x.ravel())), seen_as(as_argument(room), dtype)
    writing(source, matrix, _BEGIN, launch_stream(0))
    room = room.copy_to_host()
    assert np.isnan(room[: _BEGIN * dtype.itemsize // 4]).all()
    have = room.view(dtype)[_BEGIN : _BEGIN + want.size].reshape(want.shape)
    assert have.tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.tiers("gpu")
@pytest.mark.skipif(SIMULATED, reason="the simulator's arrays have no addresses")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_array_that_does_not_begin_at_a_whole_word(dtype):
    if not has_tensor_cores():
        pytest.skip("this GPU has no products of warps, and lays nothing out")
    g, dtype = _GEOMETRIES["words of 8 bytes"], np.dtype(dtype)
    x = (np.arange(np.prod(g.input_shape)) % 251 - 125).reshape(g.input_shape).astype(dtype)
    writing, want = Im2col(implicit_gemm.forward(g), g.N, g.G, dtype), _matrix(x, g, dtype.itemsize)
    apart = to_device(np.concatenate([np.zeros(1, dtype), x.ravel()]))[1:]
    room = nan(want.size * dtype.itemsize // 4, np.float32)
    writing(as_argument(apart), seen_as(as_argument(room), dtype), 0, launch_stream(0))
    have = room.copy_to_host().view(dtype).reshape(want.shape)
    assert have.tobytes() == np.ascontiguousarray(want).tobytes()


def _product_of(x, w, want, g, product, dtype):
    """Write into ``want``, flat, what a product of the matrix and of the kernel as it is packed gives; all of integers."""
    read, flat = of_matrix(product, g.G, dtype), in_rows(product)
    p, taps = product.pixels, np.split(product.table, np.arange(1, 4) * product.K)[:3]
    of_row = np.split(read.table, [read.K])[0]
    kernel = np.split(flat.table, np.arange(1, 5) * flat.K)
    of_tap, of_column, to_column = kernel[3], *np.split(kernel[4], 2)
    offsets, down, across = taps
    matrix = np.zeros(elements(product, g.N, g.G, dtype), np.int64)
    sizes = g.N, p.rows, p.columns, p.D1, g.G
    places = np.stack(np.meshgrid(*map(range, sizes), indexing="ij"), -1).reshape(-1, 5)
    for image, row, column, d1, one in places:
        place = np.array([image, row, column, d1])
        h, v = row * p.top[0] + p.top[1] + down, column * p.left[0] + p.left[1] + across
        is_inside = (h >= 0) & (h < p.extent[0]) & (v >= 0) & (v < p.extent[1])
        begin = place @ p.gathered + one * p.steps[0]
        q = read.pixels
        at = place @ q.gathered + one * q.steps[0] + of_row
        matrix[at[: product.K]] = np.where(is_inside, x.take(begin + offsets, mode="clip"), 0)
    for image, row, column, d1, one in places:
        place = np.array([image, row, column, d1])
        k = matrix[place @ read.pixels.gathered + one * read.pixels.steps[0] + of_row]
        b = w[one * p.steps[1] + of_tap[:, None] + of_column]
        want[place @ p.other + p.first + one * p.steps[2] + to_column] = k[: flat.K] @ b


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", [*_GEOMETRIES, *_GRADIENTS])
def test_the_product_that_reads_the_matrix_is_the_convolution(name, dtype):
    """Its pixels and taps say where the matrix's rows lie, and in_rows where the kernel's do."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(0)
    g = _GEOMETRIES.get(name) or _GRADIENTS[name]
    x, w, dy = (
        rng.integers(-9, 10, shape).astype(float)
        for shape in (g.input_shape, g.kernel_shape, g.output_shape)
    )
    is_gradient = name in _GRADIENTS
    out, dx, _ = oracle(g, x, w, dy)
    want, gathered = (dx, dy) if is_gradient else (out, x)
    products = implicit_gemm.backward_input(g) if is_gradient else [implicit_gemm.forward(g)]
    have = np.zeros(want.size, np.int64)
    for product in (one for one in products if one.taps):
        assert why_not_im2col(product, g.N, g.G, dtype) is None
        _product_of(gathered.ravel().astype(int), w.ravel().astype(int), have, g, product, dtype)
    np.testing.assert_array_equal(have.reshape(want.shape), want)


@pytest.mark.tiers("simulator", "gpu")
def test_what_is_not_laid_out(monkeypatch):
    g, dtype = Geometry(2, 3, 4, 8, 8, 3, 3, 1, 2, 5, 3), np.dtype(np.float32)
    product = implicit_gemm.forward(g)
    assert why_not_im2col(product, g.N, g.G, dtype) is None
    monkeypatch.setattr(im2col_packing, "MOST_BYTES", 4 * elements(product, g.N, g.G, dtype) - 1)
    assert "a matrix of more than" in why_not_im2col(product, g.N, g.G, dtype)
    monkeypatch.undo()
    (of_input,) = implicit_gemm.backward_input(g)
    assert "do not follow" in why_not_im2col(of_input, g.N, g.G, dtype)
    far = implicit_gemm.forward(replace(g, padding=(2**29, 0), H=8))
    assert "rows or columns" in why_not_im2col(far, g.N, g.G, dtype)
    large = implicit_gemm.forward(replace(g, N=2**20, H=64, W=64))
    assert "2^31 elements" in why_not_im2col(large, 2**20, g.G, dtype)
    rows_apart = implicit_gemm.backward_input(Geometry(1, 2, 1, 8, 8, 3, 3, 1, 1, 3, 2, (1, 2)))[0]
    assert len(rows_apart.tap_columns) > 1
    assert "do not follow" in why_not_im2col(rows_apart, 1, 1, dtype)
