"""One process, two GPUs: what was compiled, packed or laid out for the first is not taken for the second."""

import numpy as np
import pytest

import numbacaps
from numbacaps.device.target import cuda
from tests.support.cases import SMALL, operands, oracle

pytestmark = [pytest.mark.tiers("gpu"), pytest.mark.two_gpus]
_CASES = sorted(SMALL)[:3]


def _results(device, g, x, w, dy, precision):
    """The result and both gradients of a convolution on a device."""
    with cuda.gpus[device]:
        x, w, dy = map(cuda.to_device, (x, w, dy))
        how = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
        how |= {"product": "gab,gbc->gac", "precision": precision}
        y = numbacaps.capsule_conv2d(x, w, **how)
        dx, dw = numbacaps.capsule_conv2d_backward(x, w, dy, **how)
        cuda.synchronize()
        return [array.copy_to_host() for array in (y, dx, dw)]


@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
@pytest.mark.parametrize("case", _CASES)
def test_the_same_geometry_on_one_device_after_the_other(case, precision, rng):
    """Tables, workspaces, attributes of kernels and streams are each device's own."""
    g = SMALL[case]
    x, w, dy = operands(g, "float32", rng)
    want = oracle(g, *(array.astype(np.float64) for array in (x, w, dy)))
    for device in (0, 1, 0, 1):
        for found, wanted in zip(_results(device, g, x, w, dy, precision), want):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_arrays_of_another_device_are_not_read(rng):
    """Operands on device 0 under device 1 as the current one: a result, and on the operands' device, or an error."""
    g = SMALL[_CASES[0]]
    x, w, dy = operands(g, "float32", rng)
    want = oracle(g, *(array.astype(np.float64) for array in (x, w, dy)))[0]
    with cuda.gpus[0]:
        there = [cuda.to_device(array) for array in (x, w)]
    how = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    with cuda.gpus[1]:
        try:
            y = numbacaps.capsule_conv2d(*there, **how, product="gab,gbc->gac")
        except (ValueError, RuntimeError) as refusal:
            assert "device" in str(refusal)
        else:
            np.testing.assert_allclose(y.copy_to_host(), want, rtol=1e-3, atol=1e-3)
