"""The packing of a gathered array, channels last, against NumPy's transposition."""

import numpy as np
import pytest

from numbacaps import Geometry
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.compiled import as_argument, launch_stream
from numbacaps.fused import implicit_gemm
from numbacaps.fused.mma_sync.launcher import choose
from numbacaps.fused.mma_sync.split_k_launcher import choose_split_k
from numbacaps.fused.pixel_packing import Layout, PixelPacking, of_capsules, seen_as
from numbacaps.fused.precision import has_tensor_cores
from tests.support.cases import nan

_SHAPES = {  # N, C, H, W, G, D1, D
    "odd capsules": (2, 3, 2, 3, 1, 2, 5),
    "channels of several blocks": (2, 45, 3, 3, 1, 1, 7),
    "rows of one element": (1, 2, 9, 16, 1, 1, 1),
    "several g": (2, 9, 2, 3, 3, 2, 3),
    "capsules longer than a block": (1, 9, 1, 2, 2, 1, 150),
    "last capsules of a block": (3, 10, 5, 7, 1, 3, 4),
}
_BEGIN = 16  # elements before the packed array


def _geometry(N, C, H, W, G, D1, D):
    return Geometry(N, C, 1, H, W, 1, 1, G, D1, D, 1)


def _channels_last(x, itemsize):
    """(G, N, H, W, D1, row), rows filled up with zeros to 16 bytes."""
    N, C, H, W, G, D1, D = x.shape
    rows = x.transpose(4, 0, 2, 3, 5, 1, 6).reshape(G, N, H, W, D1, C * D)
    return np.pad(rows, [(0, 0)] * 5 + [(0, -C * D % (16 // itemsize))])


def _capsules(x, itemsize):
    """(N, parts, H, W, G, D1, 32 bytes)."""
    N, C, H, W, G, D1, D = x.shape
    each = 32 // itemsize
    rows = x.transpose(0, 2, 3, 4, 5, 1, 6).reshape(N, H, W, G, D1, C * D)
    rows = np.pad(rows, [(0, 0)] * 5 + [(0, -C * D % each)])
    return rows.reshape(N, H, W, G, D1, -1, each).transpose(0, 5, 1, 2, 3, 4, 6)


_LAYOUTS = {
    "channels last": (Layout.channels_last, _channels_last),
    "capsules": (Layout.capsules, _capsules),
}


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", _SHAPES)
def test_rows_are_the_pixels_channels(shape, dtype, layout):
    if not has_tensor_cores():
        pytest.skip("this GPU has no products of warps, and packs nothing")
    (lies, expected), shape, dtype = _LAYOUTS[layout], _SHAPES[shape], dtype_of(dtype)
    N, *_, G, _, _ = shape
    x = (np.arange(np.prod(shape)) % 251 - 125).reshape(shape).astype(dtype)
    product = implicit_gemm.forward(_geometry(*shape))
    packing = PixelPacking(product, N, G, dtype, lies(product, N, G, dtype))
    want = expected(x, dtype.itemsize)
    assert packing.elements == want.size
    room = nan(-(-(_BEGIN + want.size) * dtype.itemsize // 16) * 4, np.float32)
    begin, workspace = _BEGIN * dtype.itemsize // 4, as_argument(room)
    source, packed = as_argument(to_device(x.ravel())), seen_as(workspace, dtype, begin)
    packing(source, packed, 0, launch_stream(0))
    room = room.copy_to_host()
    assert np.isnan(room[:begin]).all()
    packed = room.view(dtype)[_BEGIN : _BEGIN + want.size]
    assert packed.reshape(want.shape).tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_product_that_reads_such_capsules(dtype):
    """It reads what the product does of the array as it lies."""
    g, dtype = Geometry(2, 5, 3, 7, 6, 3, 2, 2, 3, 5, 2, (2, 1), (1, 0), (2, 1)), np.dtype(dtype)
    x = np.arange(1, 1 + np.prod(g.input_shape), dtype=np.int64).reshape(2, 5, 7, 6, 2, 3, 5)
    product = implicit_gemm.forward(g)
    read = of_capsules(product, g.G, dtype)
    lies = np.split(product.table, np.cumsum([product.K] * 4))[0].reshape(5, product.taps, 5)
    offsets = np.split(read.table, np.cumsum([read.K] * 4))[0]
    offsets = offsets.reshape(read.channels, read.taps, read.D)
    p, q, packed = product.pixels, read.pixels, _capsules(x, dtype.itemsize).ravel()
    for image, row, column, g_, d1 in np.ndindex(2, 1, p.columns, 2, 3):
        row += 1  # no tap of which lies over the edge
        place = np.array([image, row, column, d1])
        of_x = place @ p.gathered + g_ * p.steps[0] + lies
        of_packed = place @ q.gathered + g_ * q.steps[0] + offsets
        want = x.ravel()[of_x].transpose(1, 0, 2).reshape(product.taps, 25)
        have = packed[of_packed].transpose(1, 0, 2).reshape(read.taps, -1)
        assert np.array_equal(have[:, :25], want) and not have[:, 25:].any()


@pytest.mark.tiers("simulator", "gpu")
def test_capsules_that_shared_memory_does_not_take_are_read_as_they_lie():
    g = _geometry(2, 3, 4, 4, 1, 1, 3000)
    product, dtype = implicit_gemm.forward(g), np.dtype(np.float32)
    how, _ = choose([product], g.N, g.G, dtype, 1)
    assert "pixels" not in how.packs
    how, reason = choose([product], g.N, g.G, dtype, 1, packs=("pixels", "matrix"))
    assert how is None and "capsules of 3000 elements" in reason
    how, reason = choose_split_k(product, g.N, g.G, 3 * 3000, dtype, 1, packs=("x", "dy"))
    assert how is None and "capsules of 3000 elements" in reason
