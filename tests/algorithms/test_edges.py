"""Padding and dilation, each by itself and along each axis by itself, in both gradients of every algorithm.

The indices are the same Python on a GPU, where each of these geometries would compile kernels of its own.
"""

import numpy as np
import pytest

import reference
from numbacaps import Geometry
from numbacaps.device.target import cuda
from numbacaps.plan import Plan
from tests.support.cases import ON_DEVICE, nan, operands, oracle, sums

pytestmark = pytest.mark.tiers("simulator")

# Rows and columns of the image; stride, padding, dilation. The window is 3x2, or 2x3.
EDGES = {
    "padding": ((4, 4), 1, 1, 1),
    "padding above and below": ((3, 4), 1, (2, 0), 1),
    "padding left and right": ((4, 3), 1, (0, 2), 1),
    "padding of the whole window": ((2, 3), 1, (3, 4), 1),
    "padding that windows skip": ((3, 4), (3, 2), (2, 3), 1),
    "dilation": ((6, 6), 1, 1, 2),
    "dilation downwards": ((8, 3), 1, 0, (3, 1)),
    "dilation across": ((3, 8), 1, 0, (1, 3)),
    "dilation that the stride divides": ((9, 8), 2, 0, (2, 2)),
    "dilation that the stride meets": ((9, 8), (3, 2), 0, (2, 3)),
    "padding and dilation": ((5, 4), 1, (1, 2), (2, 3)),
    "padding, dilation and stride": ((7, 6), (2, 3), (3, 1), (3, 2)),
}


def _geometry(edge, window):
    (H, W), *how = EDGES[edge]
    pairs = [one if isinstance(one, tuple) else (one, one) for one in how]
    return Geometry(2, 1, 2, H, W, *window, 1, 1, 2, 1, *pairs)


@pytest.mark.parametrize("algorithm", ON_DEVICE)
@pytest.mark.parametrize("window", [(3, 2), (2, 3)], ids=["3x2", "2x3"])
@pytest.mark.parametrize("edge", EDGES)
def test_gradients(edge, window, algorithm, rng):
    g = _geometry(edge, window)
    arrays = operands(g, "float32", rng)
    _, want_dx, want_dw = oracle(g, *arrays)
    x, w, dy = map(cuda.to_device, arrays)
    dx, dw = nan(x.shape, np.float32), nan(w.shape, np.float32)
    Plan(g, x.dtype, algorithm, "ieee", 1 << 30).launch_backward(x, w, dy, dx, dw, 0)
    reference.assert_close(dx.copy_to_host(), want_dx, sums(g)[1])
    reference.assert_close(dw.copy_to_host(), want_dw, sums(g)[2])
