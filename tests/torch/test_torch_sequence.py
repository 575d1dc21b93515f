"""A sequence of layers as one operator: results, gradients and contracts on CPU tensors, its kernels on the simulator."""

import pytest

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)
from numbacaps.torch import operators, sequence, sequence_resident, squash_operators  # noqa: E402
from numbacaps.torch import sequence_operators as whole  # noqa: E402
from numbacaps.torch.sequence_operators import traced, written  # noqa: E402
from tests.support.torch_cuda import OnSimulator  # noqa: E402

pytestmark = pytest.mark.tiers("simulator")
_operator = torch.ops.numbacaps.capsule_sequence.default
_gradients = torch.ops.numbacaps.capsule_sequence_gradients.default


def _parts(name, dtype):
    """(modules, their sequence's options, shape of an image)."""
    conv, made = nt.CapsuleConv2d, {"dtype": dtype}
    if name == "published":  # capsules that are read in other shapes, the last ones too
        first = {"in_capsule": (1, 1), "out_capsule": (1, 8), "stride": 2}
        parts = [
            *(conv(1, 2, 3, **first, **made), nt.ExponentialSquash(4, 0.1)),
            *(conv(2, 3, 2, in_capsule=(2, 4), out_capsule=(2, 6), **made),),
            nt.ExponentialSquash(6, 0.1),
        ]
        return parts, {"capsule": (3, 4)}, (1, 7, 6, 1, 1)
    if (
        name == "mixed"
    ):  # both squashes, LeakyReLU, nothing; padding, dilation, a kernel in another order
        turned = {"in_capsule": (3, 2), "out_capsule": (3, 2), "product": "ab,cb->ac"}
        parts = [
            *(conv(2, 2, (2, 3), in_capsule=(2, 2), out_capsule=(2, 3), padding=1, **made),),
            nt.Squash((-2, -1)),
            *(conv(2, 3, 2, **turned, dilation=(1, 2), **made), torch.nn.LeakyReLU(0.3)),
            *(conv(3, 2, 1, in_capsule=(3, 2), out_capsule=(3, 4), **made), nt.Squash()),
            conv(2, 2, 2, in_capsule=(3, 4), out_capsule=(3, 1), stride=(1, 2), **made),
        ]
        return parts, {}, (2, 4, 5, 2, 2)
    return [conv(2, 3, 2, in_capsule=(2, 2), out_capsule=(2, 3), **made)], {}, (2, 3, 3, 2, 2)


_names = pytest.mark.parametrize("name", ["published", "mixed", "alone"])


def _network(name, dtype=torch.float64):
    """(sequence, shape of an image) with weights that are always the same."""
    torch.manual_seed(0)
    parts, options, image = _parts(name, dtype)
    return nt.CapsuleSequential(*parts, **options), image


def _described(network):
    pairs = sequence._pairs(network)
    return sequence._joined(pairs, network._returned_as(pairs))


def _as_operator(network, x):
    return traced(x, list(network.parameters()), _described(network))


def _one_by_one(network, x):
    for part, activation in sequence._pairs(network):
        x = part(sequence._read_as(x, part.in_capsule))
        x = x if activation is None else activation(x)
    return x


def _all_of(y, x, network, dy):
    return [y.detach(), *torch.autograd.grad(y, [x, *network.parameters()], dy)]


@_names
def test_results_and_gradients_are_module_by_modules(name):
    network, image = _network(name)
    x = torch.randn(3, *image, dtype=torch.float64, requires_grad=True)
    y = network(x)
    dy = torch.randn_like(y)
    wanted = _all_of(y, x, network, dy)
    for found, want in zip(_all_of(_as_operator(network, x), x, network, dy), wanted):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-13)
    with torch.no_grad():
        torch.testing.assert_close(_as_operator(network, x), wanted[0], rtol=0, atol=0)


@_names
def test_gradients_of_any_order(name):
    network, image = _network(name)
    x = torch.randn(1, *image, dtype=torch.float64, requires_grad=True)
    layers, weights = _described(network), list(network.parameters())

    def run(x, *weights):
        return traced(x, list(weights), layers)

    assert torch.autograd.gradcheck(run, (x, *weights))
    assert torch.autograd.gradgradcheck(run, (x, *weights))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own
@_names
def test_operators_keep_their_contracts(name):
    network, image = _network(name)
    x = torch.randn(2, *image, dtype=torch.float64, requires_grad=True)
    weights, described = list(network.parameters()), written(_described(network))
    everything, kernels = [True] * (1 + len(weights)), [False] + [True] * len(weights)
    one_kernel = [False, *[False] * (len(weights) - 1), True]
    calls = [(_operator, (x, weights, *described, []))]
    apart = x.detach(), [w.detach() for w in weights]
    dy = torch.randn_like(network(x).detach())
    for needs in (everything, kernels, one_kernel):
        calls.append((_operator, (*apart, *described, needs)))
        with torch.no_grad():
            _, kept = _operator(x, weights, *described, needs)
        calls.append((_gradients, (*apart, kept, dy, *described, needs)))
    for operator, arguments in calls:
        found = torch.library.opcheck(operator, arguments)
        assert len(found) == 4 and set(found.values()) == {"SUCCESS"}


@pytest.mark.slow
def test_a_compiled_training_step_is_one_graph_for_all_batch_sizes(monkeypatch):
    import torch._dynamo.testing

    torch._dynamo.reset()
    monkeypatch.setattr(sequence, "_has_kernels", lambda x: True)
    network, image = _network("mixed")
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, backend=counted)
    for N, most in ((2, 1), (3, 2), (7, 2)):
        x = torch.randn(N, *image, dtype=torch.float64)
        found = [
            torch.autograd.grad(run(x).square().sum(), list(network.parameters()))
            for run in (compiled, lambda x: _one_by_one(network, x))
        ]
        for one, other in zip(*found):
            torch.testing.assert_close(one, other)
        assert counted.frame_count <= most
    called = [str(node.target) for node in counted.graphs[0].graph.nodes]
    assert called.count("numbacaps.capsule_sequence.default") == 1
    assert not any("capsule_conv2d" in one for one in called)


def _as_on_cuda(x, weights, layers):
    """What CUDA tensors are computed by, without the dispatcher; on CPU tensors."""
    return whole._differentiated(lambda *given: whole._run("CPU", *given), True, x, weights, layers)


@pytest.fixture
def as_on_cuda(monkeypatch):
    """While the test runs, CPU tensors are computed as a whole as CUDA tensors are."""
    monkeypatch.setattr(sequence, "run", _as_on_cuda)
    monkeypatch.setattr(sequence, "ordinary", lambda *tensors: "CUDA")
    monkeypatch.setattr(sequence, "_has_kernels", lambda x: True)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("kind", ["tied", "twice", "made of another"])
def test_kernels_that_come_more_than_once(kind, create_graph, as_on_cuda):
    """Each place has its own gradient, and none comes in twice."""
    torch.manual_seed(0)
    conv = nt.CapsuleConv2d(2, 2, 2, padding=1, in_capsule=(2, 2), out_capsule=(2, 2)).double()
    other = nt.CapsuleConv2d(2, 2, 2, in_capsule=(2, 2), out_capsule=(2, 2)).double()
    if kind == "made of another":
        weight = conv.weight
        del other._parameters["weight"]
        other.weight = weight * weight
    parts = conv, nt.Squash((-2, -1)), conv if kind == "tied" else other, nt.Squash((-2, -1))
    x = torch.randn(2, 2, 4, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    found = []
    for make in (nt.CapsuleSequential, torch.nn.Sequential):
        network = make(*parts)
        y = network(network(x)) if kind == "twice" else network(x)
        operands = [x, conv.weight]
        how = {"create_graph": create_graph, "retain_graph": True}
        found.append(torch.autograd.grad(y.square().sum(), operands, **how))
        if create_graph:
            penalty = sum(one.square().sum() for one in found[-1])
            found[-1] += torch.autograd.grad(penalty, operands, retain_graph=True)
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("trained", [(0,), (2,), (0, 2), (1,), ()])
@pytest.mark.parametrize("of_x", [True, False])
def test_some_gradients_are_not_wanted(trained, of_x, as_on_cuda):
    network, image = _network("mixed")
    weights = list(network.parameters())
    for number, w in enumerate(weights):
        w.requires_grad_(number in trained)
    x = torch.randn(2, *image, dtype=torch.float64, requires_grad=of_x)
    y = network(x)
    assert y.requires_grad == bool(trained or of_x)
    if y.requires_grad:
        y.square().sum().backward()
    found = [one.grad for one in (x, *weights)]
    for one in (x, *weights):
        one.grad = None
    wanted = _one_by_one(network, x).square().sum()
    if wanted.requires_grad:
        wanted.backward()
    for have, want in zip(found, (one.grad for one in (x, *weights))):
        assert (have is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(have, want, rtol=1e-12, atol=1e-13)


def test_gradients_in_a_batch_and_results_that_are_written_to(as_on_cuda):
    network, image = _network("published")
    x = torch.randn(2, *image, dtype=torch.float64)
    y, weights = network(x), list(network.parameters())
    dy = torch.randn(3, *y.shape, dtype=torch.float64)
    found = torch.autograd.grad(y, weights, dy, is_grads_batched=True, retain_graph=True)
    for number, one in enumerate(dy):
        for have, want in zip(found, torch.autograd.grad(y, weights, one, retain_graph=True)):
            torch.testing.assert_close(have[number], want, rtol=1e-12, atol=1e-13)
    doubled = network(x).mul_(2)
    for have, want in zip(
        torch.autograd.grad(doubled, weights, dy[0]), torch.autograd.grad(y, weights, 2 * dy[0])
    ):
        torch.testing.assert_close(have, want, rtol=1e-12, atol=1e-13)


class _OnCuda:
    """What a sequence asks of images, as if they were CUDA tensors."""

    is_cuda, dtype = True, torch.float32


class _Own(nt.CapsuleConv2d):
    def forward(self, x):
        return 2 * super().forward(x)


def test_modules_that_are_called_one_by_one():
    """Whatever a module does besides is done."""

    def network(conv=nt.CapsuleConv2d):
        return nt.CapsuleSequential(conv(2, 3, 2), nt.Squash((-2, -1)))

    assert network()._runs_whole(_OnCuda)
    assert not network()._runs_whole(torch.ones(1))
    assert not network(_Own)._runs_whole(_OnCuda)
    changed = network()
    changed[1].forward = lambda x: x
    assert not changed._runs_whole(_OnCuda)
    hooked = network()
    handle = hooked[0].register_forward_hook(lambda *given: None)
    assert not hooked._runs_whole(_OnCuda)
    handle.remove()
    assert hooked._runs_whole(_OnCuda)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *given: None)
    assert not hooked._runs_whole(_OnCuda)
    handle.remove()
    with torch.autograd.forward_ad.dual_level():
        assert not hooked._runs_whole(_OnCuda)
    hooked[0].keep_packed = True
    assert not hooked.requires_grad_(False).eval()._runs_whole(_OnCuda)
    parametrized = torch.nn.utils.parametrizations.weight_norm(nt.CapsuleConv2d(2, 3, 2))
    assert nt.CapsuleSequential(parametrized)._runs_whole(_OnCuda)


def test_modules_may_be_put_in_and_taken_out(as_on_cuda):
    network = nt.CapsuleSequential(nt.CapsuleConv2d(2, 3, 2), nt.Squash((-2, -1)))
    network.append(nt.CapsuleConv2d(3, 4, 2, out_capsule=(4, 2)))
    x = torch.randn(1, 2, 5, 5, 4, 4)
    torch.testing.assert_close(network(x), torch.nn.Sequential(*network)(x))
    network[2] = nt.CapsuleConv2d(7, 4, 2)
    with pytest.raises(ValueError, match="reads 7 channels; the convolution before it makes 3"):
        network(x)
    network[2] = nt.CapsuleConv2d(3, 4, 2)
    network[2].weight = torch.nn.Parameter(torch.ones(4, 5, 2, 2, 4, 4))
    with pytest.raises(ValueError, match=r"w has 5 input channels \(C\); x has 3"):
        network(x)


@_names
def test_kernels_on_the_simulator(name, monkeypatch):
    """What CUDA tensors take, layer by layer, in CPU tensors' memory."""
    network, image = _network(name, torch.float32)
    x = torch.randn(2, *image, requires_grad=True)
    y = network(x)
    dy = torch.randn_like(y)
    wanted = _all_of(y, x, network, dy)
    on = operators.CONVOLUTION.on
    monkeypatch.setitem(on, "CPU", on["CUDA"])
    monkeypatch.setitem(squash_operators.ON, "CPU", squash_operators.ON["CUDA"])
    OnSimulator(monkeypatch)
    for found, want in zip(_all_of(_as_operator(network, x), x, network, dy), wanted):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


def test_parameters_are_named_as_those_of_sequential():
    network, image = _network("published")
    other = torch.nn.Sequential(*_parts("published", torch.float64)[0])
    other.load_state_dict(network.state_dict())
    network.load_state_dict(other.state_dict())
    assert list(network.state_dict()) == ["0.weight", "2.weight"]
    assert "capsule=(3, 4)" in str(network)


def test_the_published_network_is_that_of_the_package():
    """Whose passes are one kernel each where there is a GPU for it."""
    from numbacaps.nn import CapsNet
    from tests.support.resident_networks import NETWORKS

    layers, image = NETWORKS["published"]
    torch.manual_seed(0)
    parts, capsule = [], image[3:]
    placed = CapsNet(layers, image).layers
    for one in placed:
        g, out = one.geometry, (one.geometry.D1, one.geometry.D3)
        how = {"in_capsule": capsule, "out_capsule": out, "stride": g.stride}
        parts.append(nt.CapsuleConv2d(g.C, g.P, (g.KH, g.KW), **how))
        parts.append(nt.ExponentialSquash(one.layer.squash, one.layer.slope))
        capsule = one.output_shape[3:]
    network = nt.CapsuleSequential(*parts, capsule=capsule)
    w_shapes = tuple(tuple(w.shape) for w in network.parameters())
    found = sequence_resident._placed(_described(network), image, w_shapes)
    for one, wanted in zip(found, placed, strict=True):
        assert one.description == wanted.description and one.geometry == wanted.geometry


def test_groups_of_several_capsules_are_none_of_the_package():
    conv = nt.CapsuleConv2d(1, 4, 2, in_capsule=(1, 1), out_capsule=(1, 8))
    for squash in (nt.ExponentialSquash(16), nt.ExponentialSquash(8, float("nan"))):
        network = nt.CapsuleSequential(conv, squash)
        w_shapes = (tuple(conv.weight.shape),)
        assert sequence_resident._placed(_described(network), (1, 2, 2, 1, 1), w_shapes) is None


@_names
def test_other_networks_are_none_of_the_package(name):
    network, image = _network(name, torch.float32)
    w_shapes = tuple(tuple(w.shape) for w in network.parameters())
    found = sequence_resident._placed(_described(network), image, w_shapes)
    assert found is None  # other formulas, or more than one position at the end


def test_bad_modules_are_refused_by_name():
    conv = nt.CapsuleConv2d(2, 3, 2)
    for error, message, parts in (
        (ValueError, "there are no modules", ()),
        (
            TypeError,
            r"modules\[1\] is a ReLU; it takes one of CapsuleConv2d",
            (conv, torch.nn.ReLU()),
        ),
        (ValueError, r"modules\[0\] is a Squash; it follows", (nt.Squash(), conv)),
        (ValueError, r"modules\[2\] is a Squash; it follows", (conv, nt.Squash(), nt.Squash())),
        (ValueError, r"modules\[0\] has a bias", (nt.CapsuleConv2d(2, 3, 2, bias=True),)),
        (ValueError, "reads 2 channels; the convolution before it makes 3", (conv, conv)),
        (
            ValueError,
            r"reads capsules \(4, 8\)",
            (conv, nt.CapsuleConv2d(3, 1, 1, in_capsule=(4, 8))),
        ),
        *(
            (ValueError, "dim of Squash is .*; it takes the last axes", (conv, nt.Squash(dim)))
            for dim in (1, 2, -4, (3, 4, 5))
        ),
    ):
        with pytest.raises(error, match=message):
            nt.CapsuleSequential(*parts)
    with pytest.raises(ValueError, match=r"capsule is \(3, 4\); it takes as many elements"):
        nt.CapsuleSequential(conv, capsule=(3, 4))
    with pytest.raises(
        ValueError, match=r"x has shape \(1, 1, 5, 5, 4, 4\); it takes \(N, 2, H, W"
    ):
        nt.CapsuleSequential(conv)(torch.ones(1, 1, 5, 5, 4, 4))


def test_operators_refuse_descriptions_by_name():
    network, image = _network("mixed")
    x, weights = torch.randn(2, *image).double(), [w.detach() for w in network.parameters()]
    numbers, slopes, words = written(_described(network))
    for message, given in (
        (
            "weights are 3; it takes one of each of 4 layers",
            (weights[:3], numbers, slopes, words, []),
        ),
        ("weights are 0; it takes one of each of 0 layers", ([], [], [], [], [])),
        ("needs are 2; it takes none, or", (weights, numbers, slopes, words, [True, True])),
        ("numbers end amid a layer", (weights, numbers[:-1], slopes, words, [])),
        ("words are 11; it takes 3 of each of 4", (weights, numbers, slopes, words[:-1], [])),
    ):
        with pytest.raises(ValueError, match=message):
            _operator(x, *given)
    needs = [False] * 5
    y, kept = _operator(x, weights, numbers, slopes, words, needs)
    assert _gradients(x, weights, kept, torch.ones_like(y), numbers, slopes, words, needs) == []


def test_operators_refuse_tensors_that_do_not_go_together():
    network, image = _network("mixed")
    x, weights = torch.randn(2, *image), list(network.parameters())
    described = written(_described(network))
    with pytest.raises(RuntimeError, match="x is torch.float32 and w torch.float64"):
        _operator(x, weights, *described, [])
    needs = [False, *[True] * len(weights)]
    _, kept = _operator(x.double(), [w.detach() for w in weights], *described, needs)
    with pytest.raises(RuntimeError, match=r"dy has shape \(2, 1\); it takes \(2, 2, "):
        _gradients(x.double(), weights, kept, torch.ones(2, 1).double(), *described, needs)


def test_a_slice_that_keeps_the_end_keeps_the_capsules_shape():
    parts = nt.CapsuleConv2d(2, 2, 2), nt.Squash((-2, -1)), nt.CapsuleConv2d(2, 3, 2)
    network = nt.CapsuleSequential(*parts, capsule=(2, 8))
    x = torch.randn(1, 2, 4, 4, 4, 4)
    assert network[2:](network[:2](x)).shape == network(x).shape == (1, 3, 2, 2, 2, 8)
    assert network[:2](x).shape == (1, 2, 3, 3, 4, 4) and network[0] is parts[0]
    twice = nt.CapsuleSequential(*parts, parts[1], capsule=(2, 8))  # the same squash at the end
    assert twice[:2](x).shape == (1, 2, 3, 3, 4, 4) and twice[2:](x).shape == (1, 3, 3, 3, 2, 8)


def test_the_capsules_may_lose_their_axes():
    part = nt.CapsuleConv2d(2, 3, 2, in_capsule=(1, 4), out_capsule=(1, 1))
    x = torch.randn(1, 2, 3, 3, 1, 4)
    assert nt.CapsuleSequential(part, capsule=())(x).shape == (1, 3, 2, 2)
    with pytest.raises(ValueError, match=r"capsule is \(\); it takes as many elements as \(4, 4\)"):
        nt.CapsuleSequential(nt.CapsuleConv2d(2, 3, 2), capsule=())


def test_a_routed_layer_may_share_its_kernel_between_channels():
    routed = nt.RoutedCapsuleConv2d(
        1, 2, 1, in_capsule=(2, 2), out_capsule=(2, 2), routing={"votes": "sum"}
    )
    before = nt.CapsuleConv2d(3, 4, 3, in_capsule=(2, 2), out_capsule=(2, 2))
    x = torch.randn(1, 3, 5, 5, 2, 2)
    torch.testing.assert_close(nt.CapsuleSequential(before, routed)(x), routed(before(x)))
