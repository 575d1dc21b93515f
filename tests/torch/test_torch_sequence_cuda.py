"""A sequence of layers as a whole on CUDA tensors: as one kernel a pass, and layer by layer."""

import pytest

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)
import reference  # noqa: E402
from numbacaps.device.gpu import multiprocessors  # noqa: E402
from numbacaps.fused.precision import has_warpgroups  # noqa: E402
from numbacaps.torch import sequence, sequence_resident  # noqa: E402

pytestmark = [
    pytest.mark.tiers("gpu"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch has no CUDA"),
]
_IMAGE = 1, 28, 28, 1, 1
_SUM = 1 << 12  # products of the longest sum, of a few images


def _published(precision="auto", device="cuda", dtype=torch.float32, slope=0.1):
    """The paper's five layers, whose weights are always the same; without LeakyReLU with a slope of 1."""
    torch.manual_seed(0)
    layers = (
        (1, 1, 2, (1, 1), (1, 32), 8),
        (1, 4, 1, (4, 8), (4, 16), 8),
        (4, 8, 2, (4, 16), (4, 8), 8),
        (8, 4, 1, (4, 8), (4, 16), 8),
        (4, 10, 1, (4, 16), (4, 8), 32),
    )
    parts = []
    for C, P, stride, one, other, group in layers:
        how = {"in_capsule": one, "out_capsule": other, "stride": stride, "precision": precision}
        parts += [nt.CapsuleConv2d(C, P, 3, **how), nt.ExponentialSquash(group, slope)]
    return nt.CapsuleSequential(*parts).to(device, dtype)


def _with_padding(precision="auto"):
    """Layers that go one by one: windows reach over the edge, squash is Sabour's."""
    torch.manual_seed(0)
    how = {"precision": precision}
    parts = [
        *(nt.CapsuleConv2d(3, 4, 3, padding=1, **how), nt.Squash((-2, -1))),
        *(nt.CapsuleConv2d(4, 8, 3, stride=2, **how), torch.nn.LeakyReLU(0.2)),
        *(nt.CapsuleConv2d(8, 5, 3, out_capsule=(4, 3), **how), nt.Squash((-2, -1))),
    ]
    return nt.CapsuleSequential(*parts).cuda()


def _images(N, image=_IMAGE, device="cuda"):
    return torch.rand((N, *image), generator=torch.Generator(device).manual_seed(1), device=device)


def _kernels(network, with_gradients=True, N=3, image=_IMAGE):
    """What runs the network as one kernel a pass, or None."""
    pairs = sequence._pairs(network)
    described = sequence._joined(pairs, pairs[-1][0].out_capsule)
    x = _images(N, image)
    return sequence_resident.passes_of(x, list(network.parameters()), described, with_gradients)


def _given(y):
    """What reaches a result."""
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)


def _all_of(network, x):
    """Results, and gradients of the weights."""
    y = network(x)
    return y.detach(), *torch.autograd.grad(y, list(network.parameters()), _given(y))


def _module_by_module(network, x):
    """Outside of the sequence, which sees a hook and gives way."""
    handle = network[0].register_forward_hook(lambda *given: None)
    try:
        return _all_of(network, x)
    finally:
        handle.remove()


def _in_float64(network, x, **how):
    twin = _published(device="cpu", dtype=torch.float64, **how)
    twin.load_state_dict(network.state_dict())
    return _all_of(twin, x.cpu().double())


def _close(found, wanted, precision):
    limit = 6 * reference.tolerance("float32", _SUM, precision)
    for have, want in zip(found, wanted, strict=True):
        error = (have.double().cpu() - want).abs().max() / want.abs().max()
        assert error <= limit


def _rounding(precision):
    return "tf32" if precision == "tf32" else "tf32x3"


@pytest.mark.parametrize("N", [1, 3, 140, 300])
@pytest.mark.parametrize("precision", ["auto", "tf32x3", "tf32"])
def test_the_published_network_in_float64(precision, N):
    """Also of more images than there are multiprocessors; the same bits every time.

    Where sums are close to 0, rounding decides on which side LeakyReLU takes them, which many images have some of: there is none.
    """
    network, x = _published(precision, slope=1.0), _images(N)
    assert (_kernels(network) is not None) == has_warpgroups()
    found = _all_of(network, x)
    _close(found, _in_float64(network, x, slope=1.0), _rounding(precision))
    for one, again in zip(found, _all_of(network, x)):
        assert torch.equal(one, again)
    with torch.no_grad():  # in three terms many images go layer by layer
        is_layered = precision != "tf32" and N > 2 * multiprocessors()
        assert (_kernels(network, False, N) is None) == is_layered or not has_warpgroups()
        _close([network(x)], [found[0].cpu().double()], _rounding(precision))


def test_the_published_network_with_its_slope():
    network, x = _published(), _images(3)
    _close(_all_of(network, x), _in_float64(network, x), "tf32x3")


@pytest.mark.parametrize("precision", ["auto", "tf32", "ieee"])
def test_layer_by_layer_has_the_bits_of_the_modules(precision):
    image = 3, 9, 8, 4, 4
    network, x = _with_padding(precision), _images(5, image)
    assert _kernels(network, image=image) is None
    wanted = _module_by_module(network, x)
    for one, other in zip(_all_of(network, x), wanted, strict=True):
        assert torch.equal(one, other)
    x.requires_grad_()
    y = network(x)
    dy = torch.ones_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    network[0].register_forward_hook(lambda *given: None)
    (want,) = torch.autograd.grad(network(x), x, dy)
    assert torch.equal(dx, want)


def test_a_gradient_of_the_images():
    """Wanted, it makes the network go layer by layer."""
    network, x = _published(), _images(3).requires_grad_()
    dy = torch.ones_like(network(x))
    found = torch.autograd.grad(network(x), x, dy)
    twin = _published(device="cpu", dtype=torch.float64)
    wide = x.detach().cpu().double().requires_grad_()
    _close(found, torch.autograd.grad(twin(wide), wide, dy.cpu().double()), "tf32x3")


def test_gradients_of_gradients():
    """Those of the operators, so that a penalty of a gradient can be trained with."""
    network = _published()
    twin = _published(device="cpu", dtype=torch.float64)

    def penalty(of, x):
        x.requires_grad_()
        (dx,) = torch.autograd.grad(of(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), list(of.parameters()))

    x = _images(2)
    for have, want in zip(penalty(network, x), penalty(twin, x.detach().cpu().double())):
        assert (have.double().cpu() - want).abs().max() <= 1e-3 * want.abs().max()


def test_a_graph_replays_a_step():
    network, x = _published(), _images(8)
    weights, beside = list(network.parameters()), torch.cuda.Stream()
    dy = _given(network(x))
    with torch.cuda.stream(beside):
        wanted = _all_of(network, x)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = network(x)
        found = y.detach(), *torch.autograd.grad(y, weights, dy)
    for tensor in found:
        tensor.fill_(float("nan"))
    graph.replay()
    for one, other in zip(found, wanted):
        assert torch.equal(one, other)


def test_a_capture_before_the_first_call_is_refused():
    network, x = _published("tf32"), _images(11)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1  # a graph of nothing is not captured
        with pytest.raises(RuntimeError, match="captured for 11 images before it has run"):
            network(x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("make", [_published, _with_padding])
def test_compiled_it_is_one_operator(make):
    import torch._dynamo.testing

    torch._dynamo.reset()
    network = make()
    image = _IMAGE if make is _published else (3, 9, 8, 4, 4)
    counted = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(network, fullgraph=True, backend=counted)
    for N in (4, 6):
        x = _images(N, image)
        wanted = _all_of(network, x)
        y = compiled(x)
        found = y.detach(), *torch.autograd.grad(y, list(network.parameters()), _given(y))
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)
    called = [str(node.target) for node in counted.graphs[0].graph.nodes]
    assert called.count("numbacaps.capsule_sequence.default") == 1


def test_images_that_begin_anywhere_and_results_that_are_written_to():
    network, x = _published(), _images(3)
    wanted = _all_of(network, x)
    apart = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    assert apart.data_ptr() % 16
    for one, other in zip(_all_of(network, apart), wanted):
        assert torch.equal(one, other)
    y = network(x)
    y *= 2
    dy = _given(y) / 2
    for one, other in zip(torch.autograd.grad(y, list(network.parameters()), dy), wanted[1:]):
        assert torch.equal(one, other)


def test_no_images():
    network = _published()
    y, *gradients = _all_of(network, _images(0))
    assert y.shape == (0, 10, 1, 1, 4, 8) and not any(one.any() for one in gradients)


def test_autocast_goes_module_by_module():
    network, x = _with_padding(), _images(2, (3, 9, 8, 4, 4))
    with torch.autocast("cuda", torch.float16):
        y = network(x)
    error = (y.float() - network(x)).abs().max()
    assert 0 < error <= 2e-2 * network(x).abs().max()


def test_one_kernel_computes_both_passes(monkeypatch):
    if not has_warpgroups():
        pytest.skip("this GPU has no warpgroup products")
    network, x, calls = _published(), _images(3), []
    for name in ("run", "run_back"):

        def listened(*given, one=getattr(sequence_resident.Passes, name), name=name):
            calls.append(name)
            return one(*given)

        monkeypatch.setattr(sequence_resident.Passes, name, listened)
    y = network(x)
    y.sum().backward()
    assert calls == ["run", "run_back"]
    # Behind the one node of autograd lie the weights.
    behind = [node.variable for node, _ in y.grad_fn.next_functions if node is not None]
    for found, w in zip(behind, network.parameters(), strict=True):
        assert found is w and w.grad is not None


def test_some_layers_are_not_trained():
    network, x = _published(), _images(3)
    wanted = _all_of(network, x)
    weights = list(network.parameters())
    for w in weights[:3]:
        w.requires_grad_(False)
    y = network(x)
    for have, want in zip(torch.autograd.grad(y, weights[3:], _given(y)), wanted[4:], strict=True):
        assert torch.equal(have, want)
