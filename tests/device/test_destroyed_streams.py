"""CUDA may give a destroyed stream's address to the next one, also while work is queued on the first."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps.device.streams import identity, place
from numbacaps.device.target import cuda, current_device

pytestmark = pytest.mark.tiers("gpu")
_SHAPES = (16, 8, 14, 14, 4, 4), (16, 8, 3, 3, 4, 4)
_CALLS = 50  # on each stream


def _stream(at=None):
    """(a stream, a function that destroys it); the stream is at a given place, if one of 64 new streams is."""
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
    w, *xs = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in (plan.w_shape, plan.x_shape, plan.x_shape)
    )
    w_there, *xs_there = map(cuda.to_device, (w, *xs))
    ys = [cuda.device_array(plan.y_shape, np.float32) for _ in xs]
    busy, seen, start = cuda.device_array(1 << 28, np.float32), [], cuda.event(timing=False)
    cuda.synchronize()
    for x, y in zip(xs_there, ys):
        stream, destroy = _stream(seen[0][1] if seen else None)
        if not seen:
            for _ in range(100):
                busy.copy_to_device(busy, stream=stream)
            start.record(stream)
            if packs:
                plan.pack(w_there, stream=stream)
        start.wait(stream)  # so that the calls on both streams start together
        seen.append((identity(stream), place(stream)))
        for _ in range(_CALLS):
            plan(x, None if packs else w_there, y, stream=stream)
        destroy()
    (first, at), (second, again) = seen
    assert first != second
    # The workspaces of the destroyed stream are dropped if its address is used again.
    assert len(plan._rooms._of) == (1 if at == again else 2)
    cuda.synchronize()
    for x, y in zip(xs, ys):
        in_groups = (one[:, :, :, :, None].astype(float) for one in (x, w))
        want = reference.capsule_convolution_einsum(*in_groups)[:, :, :, :, 0]
        reference.assert_close(y.copy_to_host(), want, 8 * 3 * 3 * 4, "tf32x3")


def test_threads_have_default_streams_of_their_own():
    """They share an address."""
    theirs = cuda.per_thread_default_stream()

    def asked():
        current_device()  # as every call does first: a thread has no context before
        return identity(theirs)

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(asked).result(60)
    assert identity(theirs) not in (other, None) and other is not None
