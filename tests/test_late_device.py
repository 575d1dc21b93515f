"""Memory that queued kernels read is not freed under them, however late they run and whoever gets it next."""

import gc

import numpy as np
import pytest

import numbacaps
from numbacaps.algorithms import fused
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.nn import runs
from numbacaps.routing import runner
from tests.support.late_device import late_device
from tests.support.nn_networks import batch, network

pytestmark = [
    pytest.mark.skipif(not SIMULATED, reason="pretends what a GPU does by itself"),
    pytest.mark.slow,
]
_X, _W, _Y = (2, 2, 3, 3, 4, 4), (3, 2, 2, 2, 4, 4), (2, 3, 2, 2, 4, 4)
_SMALL = {"x": (2, 2, 3, 3, 2, 2), "w": (3, 2, 2, 2, 2, 2), "dy": (2, 3, 2, 2, 2, 2)}


def _host(results):
    """Results by name, on the host."""
    if hasattr(results, "copy_to_host"):
        return [results.copy_to_host()]
    return [one.copy_to_host() for one in results if one is not None]


def _is_late(call, arrays, monkeypatch):
    """A call of device arrays gives the same bits on a late device."""
    numbacaps.clear_caches()
    want = _host(call(*map(cuda.to_device, arrays)))
    numbacaps.clear_caches()
    with late_device(monkeypatch) as device:
        given = [cuda.to_device(array) for array in arrays]
        device.finish()
        results = call(*given)
        gc.collect()
        assert len(device), "something is still to be done"
        found = _host(results)
        del results, given
        numbacaps.clear_caches()
    for have, wanted in zip(found, want, strict=True):
        np.testing.assert_array_equal(have, wanted)


def _drawn(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


_FORMS = [
    {"algorithm": "fused", "precision": "tf32"},
    {"algorithm": "fused", "precision": "ieee"},
    {"algorithm": "staged"},
    {"algorithm": "staged", "workspace_limit": 250000},
    {"algorithm": "indexed"},
    {"algorithm": "fused", "precision": "tf32", "product": "ab,cb->ca"},
    {"algorithm": "indexed", "product": "ab,cb->ca"},
]


@pytest.mark.slow(but=["indexed-ab,cb->ca"])
@pytest.mark.parametrize("form", _FORMS, ids=lambda form: "-".join(map(str, form.values())))
def test_convolutions(form, monkeypatch, rng):
    arrays = _drawn(rng, _X, _W, _Y)

    def call(x, w, dy):
        y = numbacaps.capsule_conv2d(x, w, **form)
        return y, *numbacaps.capsule_conv2d_backward(x, w, dy, **form)

    _is_late(call, arrays, monkeypatch)


@pytest.mark.parametrize("algorithm", ["staged", "indexed"])
def test_votes_of_arrays_that_lie_otherwise(algorithm, monkeypatch, rng):
    arrays = _drawn(rng, (3, 3, 2, 2, 4, 4), _W)

    def call(x, w):
        x = x.transpose((2, 3, 0, 1, 5, 4))
        return numbacaps.capsule_votes(x, w, algorithm=algorithm, product="ab,cb->ca")

    _is_late(call, arrays, monkeypatch)


@pytest.mark.parametrize("algorithm", ["fused", "stored"])
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_routing(routing, algorithm, monkeypatch, rng):
    """Runners, too, are dropped before their kernels have run."""
    arrays = _drawn(rng, *_SMALL.values())

    def call(x, w, dy):
        form = {"routing": routing, "algorithm": algorithm, "iterations": 2}
        y = numbacaps.capsule_routing(x, w, **form)
        runner.runners.clear()
        found = numbacaps.capsule_routing_backward(x, w, dy, **form)
        runner.runners.clear()
        return *(y if routing == "em" else (y,)), found.x, found.w

    _is_late(call, arrays, monkeypatch)


def test_routing_of_channels_that_share_a_kernel(monkeypatch, rng):
    """The gradients of all channels are dropped once their sum is queued."""
    arrays = _drawn(rng, _SMALL["x"], (3, 1, 2, 2, 2, 2), _SMALL["dy"])

    def call(x, w, dy):
        found = numbacaps.capsule_routing_backward(x, w, dy, votes="sum", algorithm="stored")
        return found.x, found.w

    _is_late(call, [one.astype(np.float16) for one in arrays], monkeypatch)


def test_routing_of_operands_that_are_widened(monkeypatch, rng):
    shapes = *_SMALL.values(), (2, 2, 3, 3), (3,)
    arrays = [one.astype(np.float16) for one in _drawn(rng, *shapes)]
    arrays[3] = np.abs(arrays[3]) / 8

    def call(x, w, dy, activations, beta_u):
        form = {"routing": "em", "normalise": "all", "iterations": 2, "algorithm": "fused"}
        form |= {"activations": activations, "beta_u": beta_u}
        found = numbacaps.capsule_routing_backward(x, w, dy, **form)
        gradients = found.x, found.w, found.activations, found.beta_u
        return *numbacaps.capsule_routing(x, w, couplings=True, **form), *gradients

    _is_late(call, arrays, monkeypatch)


@pytest.mark.parametrize("precision", ["ieee", "tf32", "auto"])
def test_a_plan_that_is_dropped(precision, monkeypatch, rng):
    """With its tables, workspaces and the kernel that was packed; of that it is the last holder."""
    kernels, arrays = _drawn(rng, _W, _W), _drawn(rng, _X, _Y)

    def call(x, dy):
        plan = numbacaps.plan(_X, _W, algorithm="fused", precision=precision)
        results = [cuda.device_array(shape, np.float32) for shape in (_Y, _Y, _X, _W)]
        for kernel, y in zip(kernels, results):
            plan.pack(cuda.to_device(kernel))
            plan(x, None, y)
        plan.backward(x, None, dy, *results[2:])
        del plan
        fused.kept_passes.cache_clear()
        return results

    _is_late(call, arrays, monkeypatch)


@pytest.mark.parametrize("routing", ["em", "sums"])
@pytest.mark.parametrize("algorithm", ["fused", "stored"])
def test_a_plan_of_routing_that_is_dropped(algorithm, routing, monkeypatch, rng):
    """With its workspaces, and with what stands for operands that are not given."""
    shapes = _SMALL | ({"w": (3, 1, 2, 2, 2, 2)} if routing == "sums" else {})
    form = {"routing": "em"} if routing == "em" else {"votes": "sum"}
    arrays = [one.astype(np.float16) for one in _drawn(rng, *shapes.values())]

    def call(x, w, dy):
        how = {"iterations": 2, "algorithm": algorithm, **form}
        plan = numbacaps.routing_plan(shapes["x"], shapes["w"], "float16", **how)
        sizes = plan.y_shape, *shapes.values(), plan.y_shape[:4]
        y, dx, dw, _, a = (cuda.device_array(shape, np.float16) for shape in sizes)
        results = {"out_activations": a} if routing == "em" else {}
        plan(x, w, y, **results)
        plan.backward(x, w, dy, dx, dw)
        del plan
        return y, dx, dw, *results.values()

    _is_late(call, arrays, monkeypatch)


def test_a_workspace_that_grows(monkeypatch, rng):
    arrays = _drawn(rng, _X, _W, _Y)

    def call(x, w, dy):
        plan = numbacaps.plan(_X, _W, algorithm="staged")
        y, dx, dw = (cuda.device_array(shape, np.float32) for shape in (_Y, _X, _W))
        plan(x, w, y)
        plan.backward(x, w, dy, None, dw)
        plan.backward(x, w, dy, dx, None)
        plan.backward(x, w, dy, dx, dw)
        return y, dx, dw

    _is_late(call, arrays, monkeypatch)


@pytest.mark.parametrize("dropped", ["network", "data", "batch size"])
def test_networks_and_what_they_train_on(dropped, monkeypatch):
    """A step is queued when they are dropped; the weights are held."""
    monkeypatch.setattr(runs, "KEPT", 1)

    def trained():
        rng = np.random.default_rng(3)
        net = network("matrix", seed=1)
        data, more = net.place(*batch(net, 6, rng)), batch(net, 3, rng)
        net.step_rows(data, [0, 1])
        weights = net.state.weights
        if dropped == "network":
            del net
        elif dropped == "data":
            del data
        else:
            net.step(*more)
        return weights

    numbacaps.clear_caches()
    want = trained().copy_to_host()
    numbacaps.clear_caches()
    with late_device(monkeypatch):
        found = trained()
        np.testing.assert_array_equal(found.copy_to_host(), want)
        del found
        numbacaps.clear_caches()
