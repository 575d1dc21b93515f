"""The arrays that a plan refuses because of how they lie, and the plans that calls on different streams have."""

import numpy as np
import pytest

import numbacaps
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.kept import kept_plan
from numbacaps.signature import signature_of
from tests.support.cases import ON_DEVICE, nan

pytestmark = pytest.mark.tiers("simulator", "gpu")
_X, _W = (2, 2, 3, 3, 1, 2), (2, 2, 2, 2, 2, 2)
_HOW = {"stride": (2, 1), "padding": (1, 0)}


@pytest.mark.parametrize("name", ["x", "w", "out", "dy", "dx", "dw"])
@pytest.mark.parametrize("algorithm", ["auto", *ON_DEVICE])
def test_what_is_not_contiguous_is_refused(algorithm, name):
    plan = numbacaps.plan(_X, _W, algorithm=algorithm, **_HOW)
    shapes = {"x": plan.x_shape, "w": plan.w_shape, "dx": plan.x_shape, "dw": plan.w_shape}
    shapes |= {"out": plan.y_shape, "dy": plan.y_shape}
    arrays = {one: nan(shape, "float32") for one, shape in shapes.items()}
    *axes, last = shapes[name]
    every_other = (*[slice(None)] * len(axes), slice(None, None, 2))
    arrays[name] = nan((*axes, 2 * last), "float32")[every_other]
    forward = [arrays[one] for one in ("x", "w", "out")]
    backward = [arrays[one] for one in ("x", "w", "dy", "dx", "dw")]
    with pytest.raises(ValueError, match=f"{name} is not C-contiguous; a plan takes C-contiguous"):
        plan(*forward) if name == "out" else plan.backward(*backward)
    if name in ("x", "w"):
        with pytest.raises(ValueError, match=f"{name} is not C-contiguous"):
            plan(*forward)
    if name == "w":
        with pytest.raises(ValueError, match="w is not C-contiguous"):
            plan.pack(arrays["w"])


@pytest.mark.tiers("simulator")
def test_every_stream_has_a_plan_of_its_own():
    """With a workspace of its own, as its calls may run at the same time."""
    how = (1, 1, 2, 2), (1, 1, 1, 1), np.dtype(np.float32), 1, 0, 1, ",->"
    signature = signature_of(*how, "staged", "ieee", None, False)
    plans = [kept_plan(signature, stream) for stream in (0, 5, 7)]
    assert len(set(map(id, plans))) == 3
    for stream, plan in zip((0, 5, 7), plans):
        assert kept_plan(signature, stream) is plan


@pytest.mark.tiers("gpu")
@pytest.mark.skipif(SIMULATED, reason="streams take a GPU")
def test_calls_on_two_streams_do_not_share_a_workspace(rng):
    x = rng.standard_normal((8, 8, 20, 20, 4, 4), dtype=np.float32)
    w = cuda.to_device(rng.standard_normal((8, 8, 3, 3, 4, 4), dtype=np.float32))
    dy = rng.standard_normal((8, 8, 18, 18, 4, 4), dtype=np.float32)
    streams = [cuda.stream() for _ in range(2)]
    inputs = [(cuda.to_device(x), w, cuda.to_device(sign * dy)) for sign in (1, -1)]
    how = {
        "needs": ("kernel",),
        "algorithm": "fused",
    }  # which keeps room for the sums of its splits
    want = numbacaps.capsule_conv2d_backward(*inputs[0], **how)[1].copy_to_host()
    cuda.synchronize()
    made = []
    for _ in range(20):
        for stream, operands in zip(streams, inputs):
            made.append(numbacaps.capsule_conv2d_backward(*operands, **how, stream=stream)[1])
    cuda.synchronize()
    for turn, dw in enumerate(made):
        np.testing.assert_array_equal(dw.copy_to_host(), want if turn % 2 == 0 else -want)
