"""numbacaps' kernels on CUDA tensors: memory, streams and graphs."""

from copy import deepcopy
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

import numbacaps.torch as nt  # noqa: E402
from numbacaps.torch import kernels  # noqa: E402
from numbacaps.torch.packings import Packings  # noqa: E402
from tests.support.routing import in_bands  # noqa: E402

pytestmark = pytest.mark.tiers("gpu")
_X, _W = (3, 4, 7, 6, 2, 5), (3, 4, 3, 2, 5, 4)
_HOW = {"stride": 2, "padding": (1, 0)}


def _operands(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator).cuda() for shape in (_X, _W))


def _em(x, w, normalise="window", **how):
    """Capsules, each as long as it is active."""
    form = {"routing": "em", "lam": 1.0, "normalise": normalise}
    y, a = nt.capsule_routing(x, w, activations=x[..., 0, 0].sigmoid(), **form, **how)
    return y * a[..., None, None]


_FUNCTIONS = pytest.mark.parametrize(
    "function",
    [
        nt.capsule_conv2d,
        nt.capsule_votes,
        partial(nt.capsule_votes, sum_window=True),
        nt.capsule_routing,
        # Routing makes more of votes' errors: in three terms those of its gradients are beyond the bound below.
        partial(nt.capsule_routing, votes="sum", precision="ieee"),
        _em,
        partial(_em, normalise="all"),
    ],
    ids=[
        *("convolution", "votes", "summed votes", "dynamic routing", "routing of sums"),
        *("em routing", "em over all"),
    ],
)


def _step(function, x, w):
    y = function(x, w, **_HOW)
    return y, *torch.autograd.grad(y.square().sum(), (x, w))


def _close(function, have, x, w):
    """Whether results are those of float64 on the CPU."""
    x, w = (one.detach().cpu().double().requires_grad_() for one in (x, w))
    for got, right in zip(have, _step(function, x, w), strict=True):
        torch.testing.assert_close(
            got.detach().cpu().double(), right.detach(), rtol=1e-5, atol=1e-4
        )


@_FUNCTIONS
def test_a_graph_replays_forward_and_backward_on_new_values(function):
    x, w = (one.requires_grad_() for one in _operands())
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(
            2
        ):  # of leaves of their own: what sums up a leaf's gradient stays on its first stream
            _step(function, *(one.detach().requires_grad_() for one in (x, w)))
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = _step(function, x, w)
    for seed in (1, 2):
        with torch.no_grad():
            for one, new in zip((x, w), _operands(seed)):
                one.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        _close(function, results, x, w)
    del graph
    kernels.forget_captured()


@pytest.mark.parametrize("nbytes", [1, 20_000])
def test_a_graph_replays_sums_in_bands(nbytes):
    """Of rows and of images."""
    with in_bands(nbytes):
        test_a_graph_replays_forward_and_backward_on_new_values(
            partial(nt.capsule_routing, votes="sum", precision="ieee")
        )


def test_bands_of_one_channel_begin_anywhere():
    """Each in x itself, of which some begin at 16 bytes; the first one's kernel is packed for all."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * 24 * 32 * 20 + 1, generator=generator).cuda()[1:].view(2, 1, 24, 32, 4, 5)
    w = torch.randn(4, 1, 3, 3, 5, 4, generator=generator).cuda()
    step = partial(_step, partial(nt.capsule_routing, votes="sum"))
    with in_bands(30_000):
        have = step(x.requires_grad_(), w.requires_grad_())
    plain, right = (
        step(*(one.detach().cpu().to(dtype).requires_grad_() for one in (x, w)))
        for dtype in (torch.float32, torch.float64)
    )
    for got, rounded, wanted in zip(have, plain, right, strict=True):
        error, usual = ((one.detach().cpu() - wanted).abs().max() for one in (got, rounded))
        assert error <= 3 * usual  # of PyTorch's float32


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # of the warm-up's stream
def test_a_network_is_two_graphs():
    """One forward and one backward, by PyTorch's own function: the same bits on new images and new weights."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        nt.CapsuleConv2d(4, 8, 3, in_capsule=(2, 5), out_capsule=(2, 4), stride=2),
        nt.Squash((-2, -1)),
        nt.RoutedCapsuleConv2d(8, 4, 2, in_capsule=(2, 4), out_capsule=(2, 4)),
    ).cuda()
    plain = deepcopy(network)
    graphed = torch.cuda.make_graphed_callables(network, (_operands()[0],))
    for seed in (1, 2):
        x, _ = _operands(seed)
        found = []
        for one in (plain, graphed):
            one.zero_grad()
            y = one(x)
            y.square().sum().backward()
            found.append([y, *(weight.grad for weight in one.parameters())])
            with torch.no_grad():
                for weight in one.parameters():
                    weight.mul_(0.9)
        for wanted, have in zip(*found, strict=True):
            assert torch.equal(wanted, have)
    del network, graphed
    kernels.forget_captured()


@_FUNCTIONS
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_what_was_not_run_before_is_not_captured(function):
    """Of as many images as no other test has, nor one of its bands: these run kernels of their own."""
    x, w = _operands()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="is captured before it has run: call it once before"):
        with torch.cuda.graph(graph):
            function(x.repeat(7, 1, 1, 1, 1, 1), w, **_HOW)


def test_workspaces_are_pytorchs():
    """What a call takes beside its result is given back, and counted by PyTorch."""
    x, w = (one.repeat(4, 4, 4, 4, 1, 1) for one in _operands())
    w = w[:, : x.shape[1], :3, :3].contiguous()
    nt.capsule_conv2d(x, w)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = nt.capsule_conv2d(x, w)
    assert torch.cuda.memory_allocated() - before <= -(-y.nbytes // 512) * 512


@_FUNCTIONS
def test_nothing_waits_for_the_gpu(function):
    x, w = (one.requires_grad_() for one in _operands())
    _step(function, x, w)
    torch.cuda.synchronize()
    torch.cuda._sleep(4 * 10**9)  # cycles, about two seconds
    results = _step(function, x, w)
    assert not torch.cuda.current_stream().query()
    _close(function, results, x, w)


@torch.no_grad()
def test_a_layer_in_eval_packs_its_kernel_once(monkeypatch):
    """Its output is the same bits, on any stream, and follows the kernel."""
    monkeypatch.setattr(kernels, "_packings", Packings(64))
    layer = nt.CapsuleConv2d(32, 32, 3, precision="tf32").cuda()
    layer.keep_packed = True
    x = torch.randn(2, 32, 14, 14, 4, 4, device="cuda")
    layer(x)
    assert len(kernels._packings) == 0
    for step in range(3):
        wanted = layer.train()(x)
        layer.eval()
        assert all(torch.equal(layer(x), wanted) for _ in range(3))
        assert len(kernels._packings) == 1
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            assert all(torch.equal(layer(x), wanted) for _ in range(2))
            torch.cuda.current_stream().synchronize()
        layer.weight.mul_(-2)
        torch.testing.assert_close(layer(x), -2 * wanted)


@torch.no_grad()
def test_a_graph_of_a_layer_in_eval_reads_the_kernel_as_it_is():
    layer = nt.CapsuleConv2d(32, 32, 3, precision="tf32").cuda().eval()
    layer.keep_packed = True
    x = torch.randn(2, 32, 14, 14, 4, 4, device="cuda")
    wanted = layer(x).clone()
    graph = torch.cuda.CUDAGraph()
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        layer(x)
    torch.cuda.current_stream().wait_stream(beside)
    with torch.cuda.graph(graph):
        y = layer(x)
    layer.weight.mul_(-2)
    graph.replay()
    torch.testing.assert_close(y, -2 * wanted)
    del graph
    kernels.forget_captured()


@pytest.mark.parametrize("product", ["ab,bc->ac", "ba,cb->ca", "ab,bc->ca"])
def test_any_order_of_capsule_axes(product):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 3, 5, 5, 3, 3), generator=generator)
    w = torch.randn((2, 3, 2, 2, 3, 3), generator=generator)
    y = nt.capsule_conv2d(x.cuda(), w.cuda(), product=product)
    right = nt.capsule_conv2d(x.double(), w.double(), product=product)
    assert y.is_contiguous()
    torch.testing.assert_close(y.cpu().double(), right, rtol=1e-5, atol=1e-4)
