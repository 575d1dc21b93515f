"""The twin in PyTorch computes what the network computes, and takes the same steps."""

import numpy as np
import pytest

from numbacaps import ALGORITHMS
from numbacaps.geometry import Geometry
from numbacaps.nn import CapsNet
from reference import assert_close
from tests.support.nn_networks import NETWORKS, batch, canonical, expected, network

pytestmark = pytest.mark.tiers("simulator", "gpu")
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from experiments.training.torch_network import TorchNet

_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("name", NETWORKS)
def test_twin_is_the_reference(name, layout, rng):
    net = network(name, dtype="float64", seed=2)
    x, labels = batch(net, 4, rng)
    loss, gradients = TorchNet(net, _DEVICE, layout=layout).loss_and_gradients(x, labels)
    want_loss, want = expected(net, x, labels)
    assert loss == pytest.approx(want_loss, rel=1e-12)
    for have, gradient in zip(canonical(net, gradients), want):
        assert_close(have, gradient, 1 << 12)


def test_steps_are_the_networks(rng):
    net = network("matrix", dtype="float64", seed=2)
    twin = TorchNet(net, _DEVICE)
    for _ in range(3):
        x, labels = batch(net, 3, rng)
        net.step(x, labels)
        twin.step(x, labels)
    for model in (net, twin):
        model.step_rows(model.place(x, labels), [2, 0])
    for ours, theirs in zip(net.history(), twin.history()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    for ours, theirs in zip(canonical(net, net.kernels), canonical(net, twin.kernels)):
        assert_close(ours, theirs, 1 << 12)
    for ours, theirs in zip(net.forward(x), twin.forward(x)):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_step_works_out_no_shapes(rng, monkeypatch):
    """What a layer's conv2d takes is known when the twin is made, for any number of images."""
    net = network("matrix", seed=2)
    twin = TorchNet(net, _DEVICE)
    monkeypatch.setattr(Geometry, "__post_init__", lambda geometry: pytest.fail("made anew"))
    for images in (3, 2):
        twin.step(*batch(net, images, rng))


def test_rate_is_halved_alike(rng, tmp_path):
    """Both go on from step 3,999, behind which the rate is halved."""
    net = network("matrix", dtype="float64", seed=2)
    x, labels = batch(net, 3, rng)
    net.step(x, labels)
    net._steps = 3999
    net.save(tmp_path / "net.npz")
    net.load(tmp_path / "net.npz")
    twin = TorchNet(net, _DEVICE)
    twin.load(tmp_path / "net.npz")
    for _ in range(3):
        net.step(x, labels)
        twin.step(x, labels)
    np.testing.assert_allclose(net.history(3999)[0], twin.history(3999)[0], rtol=1e-9)


def test_files_are_the_networks(rng, tmp_path):
    net = network("transposed", dtype="float64", seed=2)
    twin = TorchNet(net, _DEVICE)
    x, labels = batch(net, 2, rng)
    twin.save(tmp_path / "new.npz")
    net.load(tmp_path / "new.npz")
    twin.step(x, labels)
    twin.save(tmp_path / "net.npz")
    net.load(tmp_path / "net.npz")
    for ours, theirs in zip(net.kernels, twin.kernels):
        np.testing.assert_array_equal(ours, theirs)
    net.step(x, labels), twin.step(x, labels)
    np.testing.assert_allclose(net.history(1)[0], twin.history(1)[0], rtol=1e-9)


def test_first_steps_in_float32(rng):
    """20 steps beside PyTorch's in float32, and in float64."""
    net = network("matrix", seed=1)
    twins = [TorchNet(net, _DEVICE, dtype) for dtype in ("float32", "float64")]
    for _ in range(20):
        x, labels = batch(net, 2, rng)
        for model in (net, *twins):
            model.step(x, labels)
    for twin in twins:
        np.testing.assert_allclose(net.history()[0], twin.history()[0], rtol=1e-4)


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_first_steps_of_the_published_network(precision, rng):
    """20 steps in float64 beside PyTorch's, and each in float32 from the weights of that run.

    Steps in float32 that go on from each other are no test: Adam's first ones are as long whatever
    the gradient, so rounding tells within a few steps, in PyTorch too.
    """
    if precision not in ALGORITHMS["fused"].precisions(np.dtype(np.float32)):
        pytest.skip("this GPU has no tensor cores for float32")
    exact = CapsNet.published(seed=1, dtype="float64")
    rounded = CapsNet.published(seed=1, precision=precision)
    twin = TorchNet(exact, _DEVICE)
    for _ in range(20):
        x, labels = batch(rounded, 128, rng)
        rounded.state.write(rounded.state.weights, twin.kernels)
        loss, _ = rounded.loss_and_gradients(x, labels)
        exact.step(x.astype(np.float64), labels)
        twin.step(x, labels)
        assert loss == pytest.approx(twin.history()[0][-1], rel=1e-4)
    np.testing.assert_allclose(exact.history()[0], twin.history()[0], rtol=1e-4)
