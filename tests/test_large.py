"""Arrays of more than 2^31 elements on a GPU, where offsets and counts need more than 32 bits.

They are made on the device a part at a time, and what is looked at are the parts on both sides of 2^31 and 2^32.
"""

from time import sleep

import numpy as np
import pytest

import numbacaps
from numbacaps import ALGORITHMS
from numbacaps.device.target import cuda
from tests.support.campaign.large import check_image

pytestmark = [pytest.mark.tiers("gpu"), pytest.mark.slow]


def _skip_without(gigabytes):
    """Wait a while for memory that other processes hold."""
    for _ in range(120):
        free = cuda.current_context().get_memory_info().free
        if free >= gigabytes << 30:
            return
        sleep(1)
    pytest.skip(f"{free >> 30} GiB of GPU memory are free; it takes {gigabytes}")


def test_auto_on_an_image_of_more_than_2_to_31_elements(rng):
    """Its rows repeat, so those of the output and of the gradient do, but for the first and the last."""
    _skip_without(20)
    check_image(rng, "float16", D=4, KH=3)


def test_an_image_of_more_rows_than_32_bits_count_is_refused():
    """Before anything is allocated: the arrays are one element, read again and again."""
    one = np.zeros((), np.float16)
    x, w = np.broadcast_to(one, (1, 1, 1 << 17, 1 << 15, 1, 1)), np.ones((1,) * 6, np.float16)
    with pytest.raises(ValueError, match="an image of the output has 4294967296 rows of D1"):
        numbacaps.capsule_conv2d(x, w)


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_a_kernel_of_more_than_2_to_31_elements(precision, rng):
    """Channel p of the kernel is the first one times 1, 2 or 3, so channel p of the output is, too."""
    if precision not in ALGORITHMS["fused"].precisions(np.dtype(np.float32)):
        pytest.skip("this GPU has no tensor cores for float32")
    _skip_without(32)
    P, C, D = 3648, 256, 16
    first = rng.integers(-4, 5, (C, 3, 3, D, D)).astype(np.float32)
    assert P * first.size > 1 << 31
    w = cuda.device_array((P, first.size), np.float32)
    for p in range(P):
        w[p].copy_to_device(first.ravel() * np.float32(1 + p % 3))
    x = rng.integers(-4, 5, (1, C, 3, 3, 4, D)).astype(np.float32)
    kernel = w.reshape(P, C, 3, 3, D, D)
    y = numbacaps.capsule_conv2d(cuda.to_device(x), kernel, precision=precision).copy_to_host()
    want = np.einsum("chwab,chwbd->ad", x[0].astype(np.float64), first.astype(np.float64))
    for p in range(P):  # small integers, so that every precision has them exactly
        np.testing.assert_array_equal(y[0, p, 0, 0], want * (1 + p % 3))


def test_most_g_of_a_grid(rng):
    x, w = (rng.standard_normal((2, 1, 1, 1, 65535, 1, 2)).astype(np.float32) for _ in range(2))
    w = w[:1].swapaxes(5, 6)
    how = {"product": "gab,gbc->gac"}
    y = numbacaps.capsule_conv2d(x, w, **how)
    want = np.einsum(
        "ngb,gb->ng", *(a.astype(np.float64) for a in (x[:, 0, 0, 0, :, 0], w[0, 0, 0, 0, :, :, 0]))
    )
    np.testing.assert_allclose(y[:, 0, 0, 0, :, 0, 0], want, rtol=1e-4, atol=1e-5)
    for precision in ALGORITHMS["fused"].precisions(np.dtype(np.float32)):
        dx, dw = numbacaps.capsule_conv2d_backward(x, w, y, precision=precision, **how)
        both = [numbacaps.capsule_conv2d_backward(x, w, y, algorithm="numpy", **how)]
        for got, exact in zip((dx, dw), both[0]):
            scale = 1e-2 if precision == "tf32" else 1e-4
            np.testing.assert_allclose(got, exact, rtol=scale, atol=scale)
