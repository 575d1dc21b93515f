"""What autocast changes, and what it does not: gradients are computed in the dtypes of the forward pass."""

import pytest

torch = pytest.importorskip("torch")

import numbacaps.torch as nt

pytestmark = pytest.mark.tiers("simulator")
_X = (2, 4, 6, 6, 4, 4)


def _layers():
    """Layers by name, each with the shapes of what it takes."""
    summed = {"routing": "dynamic", "votes": "sum"}
    return {
        "convolution": (nt.CapsuleConv2d(4, 3, 3), [_X]),
        "transposed": (nt.CapsuleConvTranspose2d(4, 3, 3), [_X]),
        "votes": (nt.CapsuleConv2d(4, 3, 3).votes, [_X]),
        "squash": (nt.Squash((-2, -1)), [_X]),
        "dynamic": (nt.RoutedCapsuleConv2d(4, 3, 3), [_X]),
        "summed": (nt.RoutedCapsuleConv2d(4, 3, 3, routing=summed), [_X]),
        "em": (nt.RoutedCapsuleConv2d(4, 3, 3, routing="em"), [_X, _X[:4]]),
    }


def _first(made):
    return made[0] if isinstance(made, tuple) else made


@pytest.mark.parametrize("name", _layers())
def test_a_gradient_that_is_asked_for_under_autocast(name):
    torch.manual_seed(0)
    layer, shapes = _layers()[name]
    operands = [torch.rand(shape, requires_grad=True) for shape in shapes]
    total = _first(layer(*operands)).square().sum()
    wanted = torch.autograd.grad(total, operands, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(total, operands)
    for one, right in zip(found, wanted):
        torch.testing.assert_close(one, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


def test_a_gradients_gradient_under_autocast():
    torch.manual_seed(0)
    x, w = (
        torch.rand(shape, requires_grad=True) for shape in ((1, 2, 4, 4, 2, 2), (3, 2, 2, 2, 2, 2))
    )
    (dx,) = torch.autograd.grad(nt.capsule_conv2d(x, w).square().sum(), x, create_graph=True)
    wanted = torch.autograd.grad(dx.square().sum(), (x, w), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(dx.square().sum(), (x, w))
    for one, right in zip(found, wanted):
        torch.testing.assert_close(one, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_routing_of_votes_is_in_full_precision(dtype):
    """Votes that agree differ in digits that two bytes do not have."""
    torch.manual_seed(0)
    votes, a = 5 + 0.02 * torch.randn(2, 3, 16, 4, 4), torch.rand(2, 16)
    for layer, given in ((nt.EMRouting(3), (votes, a)), (nt.DynamicRouting(), (votes,))):
        wanted = layer(*given)
        with torch.autocast("cpu", dtype):
            found = layer(*given)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nt.CapsuleConv2d(4, 3, 3, bias=True), _X),
        (lambda: nt.CapsuleConvTranspose2d(4, 3, 3, bias=True), _X),
        (lambda: nt.CapsuleLinear(4, 3, bias=True), (2, 4, 4, 4)),
    ],
)
def test_a_bias_has_the_dtype_that_autocast_chose(layer, shape):
    with torch.autocast("cpu", torch.bfloat16):
        assert layer()(torch.rand(shape)).dtype == torch.bfloat16


@pytest.mark.parametrize("loss", [nt.margin_loss, nt.spread_loss])
def test_losses_are_in_full_precision(loss):
    """As PyTorch's own."""
    scores, labels = torch.rand(4, 10).bfloat16(), torch.tensor([1, 2, 3, 4])
    assert loss(scores, labels).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(scores, labels), loss(scores.float(), labels))
