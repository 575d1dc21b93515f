"""The flat first version of rung 4 against the reference, and through the compiler."""

import numpy as np
import pytest

import reference
from numbacaps import Geometry
from numbacaps.device.bfloat16 import to_device
from numbacaps.fused import implicit_gemm
from numbacaps.fused.rung_4_wgmma.flat import flat_wgmma, make_flat_wgmma
from tests.support.cases import nan, operands, oracle, sums
from tests.support.ptx import ptx

# Padding on every side and two blocks; groups, strides and two blocks of 8 columns.
_CASES = {
    "padded": Geometry(4, 2, 2, 4, 4, 3, 3, 1, 2, 4, 4, 1, 1),
    "groups": Geometry(8, 2, 2, 5, 5, 2, 2, 2, 2, 4, 8, 2, (0, 0)),
}


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize("case", _CASES)
def test_product(case, rng):
    g = _CASES[case]
    x, w, dy = operands(g, "float32", rng)
    result = nan(dy.size, np.float32)
    gathered, kernel = (to_device(a.ravel()) for a in (x, w))
    flat_wgmma(implicit_gemm.forward(g), g.N, g.G, gathered, kernel, result)
    have = result.copy_to_host().reshape(dy.shape)
    reference.assert_close(have, oracle(g, x, w, dy)[0], sums(g)[0], precision="tf32")


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (Geometry(3, 2, 2, 4, 4, 3, 3, 1, 2, 4, 4, 1, 1), "96 rows"),
        (Geometry(4, 2, 1, 4, 4, 3, 3, 1, 2, 4, 4, 1, 1), "4 columns"),
        (Geometry(4, 2, 2, 4, 4, 3, 3, 1, 2, 2, 4, 1, 1), "2 elements"),
    ],
)
def test_tails_are_refused(geometry, message):
    with pytest.raises(ValueError, match=message):
        flat_wgmma(implicit_gemm.forward(geometry), geometry.N, 1, None, None, None)


@pytest.mark.tiers("ptx")
def test_ptx():
    from numba import float32, int64, types

    product = implicit_gemm.forward(Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2)))
    kernel = make_flat_wgmma(product.pixels, product.N, product.K)
    array, table = types.Array(float32, 1, "C"), types.Array(int64, 1, "C")
    text = ptx(kernel, (array, array, array, table), cc=(9, 0))
    assert text.count("wgmma.mma_async.sync.aligned.m64n64k8") == 1
    assert "cp.async.cg.shared.global" in text and "cp.async.ca.shared.global" in text
    assert "__local_depot" not in text, "arrays were spilled to local memory"
