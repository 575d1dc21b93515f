"""Small networks through ``torch.export`` and ``torch.compile``: one graph, for every batch size, with the same numbers."""

import pytest

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)

pytestmark = [pytest.mark.tiers("simulator"), pytest.mark.slow]


class _Network(torch.nn.Module):
    """A convolution, one iteration of weighing its votes, and a layer of a weight per child."""

    def __init__(self):
        super().__init__()
        self.first = nt.CapsuleConv2d(2, 3, 3, in_capsule=(2, 3), out_capsule=(2, 4), bias=True)
        self.second = nt.CapsuleConv2d(3, 2, 2, in_capsule=(2, 4), out_capsule=(2, 2), stride=2)
        self.classes = nt.CapsuleLinear((2, 2, 2), 5, (2, 2), (2, 3), bias=True)
        self.squash = nt.Squash((-2, -1))

    def forward(self, x):
        x = self.squash(self.first(x))
        votes = self.second.votes(x, sum_window=True)  # (N, 2, 2, 2, 3, 2, 2)
        x = self.squash((votes.norm(dim=(5, 6)).softmax(1)[..., None, None] * votes).sum(4))
        return self.squash(self.classes(x)).flatten(2).norm(dim=2)


def _images(N):
    return torch.randn(N, 2, 6, 6, 2, 3)


def test_compiles_as_one_graph_and_only_once_more_for_other_batch_sizes():
    import torch._dynamo.testing

    torch._dynamo.reset()
    network = _Network()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, backend=counted)
    for N, most in ((2, 1), (3, 2), (5, 2), (7, 2)):
        x = _images(N)
        torch.testing.assert_close(compiled(x), network(x))
        assert counted.frame_count <= most


def test_a_training_step_is_the_same_compiled():
    torch._dynamo.reset()
    network, labels = _Network(), torch.tensor([0, 4, 2])
    compiled, found = torch.compile(network, fullgraph=True, backend="aot_eager"), []
    x = _images(3)
    for run in (network, compiled):
        network.zero_grad()
        nt.margin_loss(run(x), labels).backward()
        found.append([parameter.grad.clone() for parameter in network.parameters()])
    for eager, graph in zip(*found):
        torch.testing.assert_close(graph, eager)


def test_batch_sizes_that_are_marked_dynamic_are_compiled_once():
    import torch._dynamo.testing

    torch._dynamo.reset()
    network = _Network()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, backend=counted)
    for N in (2, 3, 9):
        x = _images(N)
        torch._dynamo.mark_dynamic(x, 0)
        compiled(x).sum().backward()
    assert counted.frame_count == 1


def test_export():
    """The operators stay whole in the exported graph, which takes other batch sizes."""
    network = _Network().eval()
    N = torch.export.Dim("N", min=2, max=1024)
    exported = torch.export.export(network, (_images(4),), dynamic_shapes=({0: N},))
    called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert called.count("numbacaps.capsule_conv2d.default") == 2
    assert called.count("numbacaps.capsule_votes.default") == 1
    for count in (4, 7):
        x = _images(count)
        torch.testing.assert_close(exported.module()(x), network(x))


_LAYERS = {
    "dynamic": lambda: nt.RoutedCapsuleConv2d(2, 3, 2, learn_logits=True),
    "em": lambda: nt.RoutedCapsuleConv2d(2, 3, 2, routing={"routing": "em", "lam": 1.0}),
    "sums": lambda: nt.RoutedCapsuleConv2d(2, 3, 2, routing={"routing": "dynamic", "votes": "sum"}),
    "classes": lambda: nt.RoutedCapsuleLinear(6, 3, (4, 4), (4, 4)),
    "transposed": lambda: nt.CapsuleConvTranspose2d(2, 3, 3, stride=2, bias=True),
}


def _inputs(kind, N):
    """Capsules, and of EM routing activations."""
    lead = (N, 6) if kind == "classes" else (N, 2, 4, 4)
    x = torch.randn(*lead, 4, 4, requires_grad=True)
    return (x, torch.rand(lead, requires_grad=True)) if kind == "em" else (x,)


def _with_gradients(run, layer, inputs):
    """Results, and the gradients of the sum of their squares."""
    found = run(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    loss = sum(one.square().sum() for one in found)
    return *found, *torch.autograd.grad(loss, (*inputs, *layer.parameters()))


@pytest.mark.parametrize("kind", _LAYERS)
def test_layers_compile_as_one_graph_forward_and_backward(kind):
    import torch._dynamo.testing

    torch._dynamo.reset()
    layer = _LAYERS[kind]()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counted)
    for N, most in ((2, 1), (3, 2), (5, 2), (7, 2)):
        inputs = _inputs(kind, N)
        found, wanted = (_with_gradients(run, layer, inputs) for run in (compiled, layer))
        torch.testing.assert_close(found, wanted)
        assert counted.frame_count <= most


@pytest.mark.parametrize("kind", _LAYERS)
def test_layers_are_exported_for_any_batch_size(kind):
    """Each as one operator."""
    layer, given = _LAYERS[kind]().eval(), _inputs(kind, 4)
    N = torch.export.Dim("N")
    exported = torch.export.export(layer, given, dynamic_shapes=tuple({0: N} for _ in given))
    called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert sum(name.startswith("numbacaps.") for name in called) == 1
    for count in (4, 7):
        inputs = _inputs(kind, count)
        torch.testing.assert_close(exported.module()(*inputs), layer(*inputs))


def test_compiled_layers_refuse_what_does_not_fit():
    """By their operators, before anything runs."""
    torch._dynamo.reset()
    y, w = torch.randn(2, 3, 3, 3, 4, 4), torch.randn(3, 2, 2, 2, 4, 4)
    transposed = torch.compile(nt.capsule_conv_transpose2d, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"dy has shape \(2, 3, 3, 3, 4, 4\); it takes"):
        transposed(y, w, (2, 2, 5, 5, 4, 4))
    x, logits = torch.randn(2, 2, 4, 4, 4, 4), torch.zeros(3, 2)
    routed = torch.compile(nt.capsule_routing, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"logits has shape \(3, 2\); it takes \(3, 2, 2, 2\)"):
        routed(x, w, logits=logits)
