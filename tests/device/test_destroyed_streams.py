"""CUDA may give a destroyed stream's address to the next one, also while work is queued on the first."""

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps.device.streams import identity, place
from numbacaps.device.target import cuda

pytestmark = pytest.mark.tiers("gpu")
_SHAPES = (16, 8, 14, 14, 4, 4), (16, 8, 3, 3, 4, 4)
_CALLS = 50  # on each stream, which overlap


def _stream(at=None):
    """(a stream, at a place if one comes to lie there, and what destroys it)."""
    from cuda.bindings import driver

    made = []
    while len(made) < 64 and (not made or at not in (None, place(made[-1]))):
        status, handle = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        assert status == driver.CUresult.CUDA_SUCCESS
        made.append(cuda.external_stream(int(handle)))
    *others, ours = made
    for one in others:
        driver.cuStreamDestroy(one.handle)
    return ours, lambda: driver.cuStreamDestroy(ours.handle)


@pytest.mark.parametrize("packs", [False, True])
def test_calls_on_both_are_right(packs):
    rng = np.random.default_rng(packs)
    plan = numbacaps.plan(*_SHAPES, precision="tf32x3")
    w = rng.standard_normal(plan.w_shape).astype(np.float32)
    w_there, busy = cuda.to_device(w), cuda.device_array(1 << 28, np.float32)
    calls, seen, there = [], [], None
    for _ in range(2):
        x = rng.standard_normal(plan.x_shape).astype(np.float32)
        x_there, y = cuda.to_device(x), cuda.device_array(plan.y_shape, np.float32)
        cuda.synchronize()
        stream, destroy = _stream(there)
        there = place(stream)
        seen.append((identity(stream), there))
        if not calls:  # the second stream's calls begin while this one's are queued
            busy.copy_to_device(busy, stream=stream)
            if packs:
                plan.pack(w_there, stream=stream)
        for _ in range(_CALLS):
            plan(x_there, None if packs else w_there, y, stream=stream)
        calls.append((x, x_there, y))
        destroy()
    cuda.synchronize()
    (first, at), (second, again) = seen
    assert first != second
    assert len(plan._rooms._of) == 1 + (
        at != again
    )  # workspaces at a destroyed stream's place make way
    for x, _, y in calls:
        want = reference.capsule_convolution_einsum(
            *(one[:, :, :, :, None].astype(float) for one in (x, w))
        )
        reference.assert_close(y.copy_to_host(), want[:, :, :, :, 0], 8 * 3 * 3 * 4, "tf32x3")
