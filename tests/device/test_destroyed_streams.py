"""CUDA gives a destroyed stream's address to the next one, also while work is queued on the first."""

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps.device.streams import identity, place
from numbacaps.device.target import cuda

pytestmark = pytest.mark.tiers("gpu")
_SHAPES = (16, 8, 14, 14, 4, 4), (16, 8, 3, 3, 4, 4)
_CALLS = 50  # on each stream, which overlap


def _stream():
    from cuda.bindings import driver

    status, handle = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    assert status == driver.CUresult.CUDA_SUCCESS
    return cuda.external_stream(int(handle)), lambda: driver.cuStreamDestroy(handle)


@pytest.mark.parametrize("packs", [False, True])
def test_calls_on_both_are_right(packs):
    rng = np.random.default_rng(packs)
    plan = numbacaps.plan(*_SHAPES, precision="tf32x3")
    w = rng.standard_normal(plan.w_shape).astype(np.float32)
    w_there, busy = cuda.to_device(w), cuda.device_array(1 << 28, np.float32)
    calls, destroyed = [], []
    for _ in range(2):
        x = rng.standard_normal(plan.x_shape).astype(np.float32)
        stream, destroy = _stream()
        if not calls:  # the second stream's calls begin while this one's are queued
            busy.copy_to_device(busy, stream=stream)
        if packs and not calls:
            plan.pack(w_there, stream=stream)
        y = cuda.device_array(plan.y_shape, np.float32)
        x_there = cuda.to_device(x)
        who, where = identity(stream), place(stream)
        for _ in range(_CALLS):
            plan(x_there, None if packs else w_there, y, stream=stream)
        calls.append((x, x_there, y))
        destroyed.append((who, where))
        destroy()
    cuda.synchronize()
    (first, there), (second, again) = destroyed
    assert first != second and there == again
    assert len(plan._rooms._of) == 1  # the destroyed stream's made way
    for x, _, y in calls:
        want = reference.capsule_convolution_einsum(x.astype(float), w.astype(float))
        reference.assert_close(y.copy_to_host(), want, 8 * 3 * 3 * 4, "tf32x3")
