"""numbacaps.torch on CPU tensors: values, gradients, the operators' contracts, the layers."""

import re

import numpy as np
import pytest

import numbacaps
from tests.support.cases import SMALL, operands, oracle

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)

pytestmark = pytest.mark.tiers("simulator")
_ONE = ((1, 1), (0, 0), (1, 1), "ab,bc->ac", "ieee", False)


@pytest.mark.parametrize("case", SMALL)
def test_values_and_gradients_are_the_references(case, rng):
    g = SMALL[case]
    x, w, dy = operands(g, "float64", rng)
    want = oracle(g, x, w, dy)
    x, w = (torch.tensor(array, requires_grad=True) for array in (x, w))
    y = nt.capsule_conv2d(x, w, g.stride, g.padding, g.dilation, product="gab,gbc->gac")
    y.backward(torch.tensor(dy))
    for found, wanted in zip((y, x.grad, w.grad), want):
        np.testing.assert_allclose(found.detach(), wanted, rtol=1e-12, atol=1e-12)


# Products whose axes come in other orders than the kernels'.
PRODUCTS = {
    "ab,bc->ac": ((2, 3), (3, 2)),
    "ba,cb->ca": ((3, 2), (2, 3)),
    "agb,bgc->cga": ((2, 2, 3), (3, 2, 1)),
    "abk,kcd->abcd": ((2, 1, 2), (2, 1, 3)),
    ",->": ((), ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS)
def test_gradients_of_gradients(product):
    x_capsule, w_capsule = PRODUCTS[product]
    made = {"dtype": torch.float64, "requires_grad": True}
    x, w = torch.randn(2, 2, 4, 3, *x_capsule, **made), torch.randn(1, 2, 2, 2, *w_capsule, **made)

    def convolve(x, w):
        return nt.capsule_conv2d(x, w, (2, 1), (1, 0), product=product)

    assert torch.autograd.gradcheck(convolve, (x, w))
    assert torch.autograd.gradgradcheck(convolve, (x, w))
    want = numbacaps.capsule_conv2d(
        *(tensor.detach().numpy() for tensor in (x, w)),
        stride=(2, 1),
        padding=(1, 0),
        product=product,
        algorithm="numpy",
    )
    np.testing.assert_allclose(convolve(x, w).detach(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # opcheck's own, of PyTorch 2.14
@pytest.mark.parametrize("operator", ["capsule_conv2d", "input_gradient", "kernel_gradient"])
def test_operators_keep_their_contracts(operator):
    x, w = torch.randn(2, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2)
    dy = torch.randn(2, 3, 3, 3, 2, 2)
    for tensor in (x, w, dy):
        tensor.requires_grad_()
    ops = torch.ops.numbacaps
    which, arguments = {
        "capsule_conv2d": (ops.capsule_conv2d, (x, w)),
        "input_gradient": (ops.capsule_input_gradient, (dy, w, x.shape)),
        "kernel_gradient": (ops.capsule_kernel_gradient, (x, dy, w.shape)),
    }[operator]
    found = torch.library.opcheck(which.default, (*arguments, *_ONE))
    assert len(found) == 4 and set(found.values()) == {"SUCCESS"}


def _network():
    return torch.nn.Sequential(
        nt.CapsuleConv2d(2, 3, 3, in_capsule=(2, 3), out_capsule=(2, 4), bias=True),
        nt.Squash((-2, -1)),
        nt.CapsuleConv2d(3, 2, 2, in_capsule=(2, 4), out_capsule=(2, 2)),
    )


@pytest.mark.slow
def test_compiles_as_one_graph_once_for_all_batch_sizes():
    import torch._dynamo.testing

    torch._dynamo.reset()
    network = _network()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, backend=counted)
    for N in (2, 3, 5, 7):
        x = torch.randn(N, 2, 6, 6, 2, 3)
        torch.testing.assert_close(compiled(x), network(x))
    assert counted.frame_count <= 2  # for a first size, then for all others


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    network, x = _network(), torch.randn(2, 2, 6, 6, 2, 3)
    with torch.autocast("cpu", dtype=dtype):
        y = network(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), network(x), atol=0.05, rtol=0.05)
    y.float().sum().backward()
    assert network[0].weight.grad.dtype == torch.float32


def test_transpose_is_the_input_gradient():
    convolution = nt.CapsuleConv2d(
        2, 3, 3, in_capsule=(2, 3), out_capsule=(2, 4), stride=2, padding=1
    )
    transposed = nt.CapsuleConvTranspose2d(
        3, 2, 3, in_capsule=(2, 4), out_capsule=(2, 3), stride=2, padding=1, output_padding=1
    )
    transposed.weight = convolution.weight
    x = torch.randn(2, 2, 6, 6, 2, 3, requires_grad=True)
    y = convolution(x)
    back = transposed(y.detach())
    assert back.shape == x.shape
    torch.testing.assert_close(back, torch.autograd.grad(y, x, y.detach())[0])


def test_modules_are_modules():
    first, second = (
        nt.CapsuleConv2d(2, 3, 3, in_capsule=(4, 2), out_capsule=(4, 5)),
        nt.CapsuleConv2d(2, 3, 3, in_capsule=(4, 2), out_capsule=(4, 5)),
    )
    assert first.weight.shape == (3, 2, 3, 3, 2, 5) and first.bias is None
    second.load_state_dict(first.state_dict())
    x = torch.randn(1, 2, 5, 5, 4, 2)
    assert torch.equal(first(x), second(x))
    torch.manual_seed(3)
    first.reset_parameters()
    torch.manual_seed(3)
    second.reset_parameters()
    assert torch.equal(first.weight, second.weight)
    assert repr(nt.CapsuleConv2d(2, 3, 3, stride=2, bias=True)) == (
        "CapsuleConv2d(2, 3, kernel_size=(3, 3), in_capsule=(4, 4), out_capsule=(4, 4), "
        "stride=(2, 2), bias=True)"
    )
    many = nt.CapsuleConv2d(64, 64, 3, in_capsule=(8, 8), out_capsule=(8, 8))
    assert many.weight.std().item() == pytest.approx((2 / (64 * 9 * 8)) ** 0.5, rel=0.02)


def test_squash_and_losses():
    capsules = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e18, 0.0]], requires_grad=True)
    lengths = nt.squash(capsules).norm(dim=1)
    torch.testing.assert_close(lengths[:2], torch.tensor([25 / 26, 0.0]))
    nt.squash(capsules).sum().backward()
    assert torch.isfinite(capsules.grad[:2]).all() and (capsules.grad[1] == 0).all()
    lengths, labels = torch.tensor([[0.8, 0.3, 0.05]]), torch.tensor([0])
    torch.testing.assert_close(nt.margin_loss(lengths, labels), torch.tensor(0.01 + 0.5 * 0.04))
    torch.testing.assert_close(nt.spread_loss(lengths, labels, 0.6), torch.tensor(0.1**2 + 0.0))
    assert nt.MarginLoss()(lengths, labels) == nt.margin_loss(lengths, labels)
    assert nt.SpreadLoss(0.6)(lengths, labels) == nt.spread_loss(lengths, labels, 0.6)
    near = torch.tensor([[0.8, 0.7, 0.05]])  # the second one is within the first margin of 0.2
    torch.testing.assert_close(nt.spread_loss(near, labels), torch.tensor(0.1**2))
    assert nt.SpreadLoss()(near, labels) == nt.spread_loss(near, labels)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # PyTorch's
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_the_margin_loss(reduction):
    """By differences, of its gradients too; those of plain operations; and of no images."""
    torch.manual_seed(0)
    labels, margins = torch.tensor([2, 0, 1]), (0.7, 0.2, 0.4)
    lengths = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)

    def loss(lengths):
        return nt.margin_loss(lengths, labels, *margins, reduction=reduction)

    def written_out(lengths):
        present = torch.nn.functional.one_hot(labels, 4).bool()
        lacks = (0.7 - lengths).clamp(min=0) ** 2
        losses = torch.where(present, lacks, 0.4 * (lengths - 0.2).clamp(min=0) ** 2).sum(1)
        return losses if reduction == "none" else getattr(losses, reduction)()

    dy = torch.randn_like(loss(lengths))
    found, wanted = (
        torch.autograd.grad(one(lengths), lengths, dy)[0] for one in (loss, written_out)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(loss(lengths), written_out(lengths))
    assert torch.autograd.gradcheck(loss, lengths) and torch.autograd.gradgradcheck(loss, lengths)
    several = torch.stack([dy, 2 * dy])
    (found,) = torch.autograd.grad(loss(lengths), lengths, several, is_grads_batched=True)
    torch.testing.assert_close(found, torch.stack([wanted, 2 * wanted]), rtol=1e-13, atol=1e-14)
    tangent = torch.randn_like(lengths)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(lengths, tangent)
        along = torch.autograd.forward_ad.unpack_dual(loss(dual)).tangent
    torch.testing.assert_close((along * dy).sum(), (wanted * tangent).sum())
    none = torch.rand(0, 4, requires_grad=True)
    y = nt.margin_loss(none, labels[:0], reduction=reduction)
    assert torch.autograd.grad(y, none, torch.zeros_like(y))[0].shape == (0, 4)


def test_bad_input_is_refused_by_name():
    x, w = torch.randn(1, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2)
    with pytest.raises(RuntimeError, match="x is torch.float32 and w torch.float64"):
        nt.capsule_conv2d(x, w.double())
    with pytest.raises(ValueError, match=re.escape("w has 2 input channels (C); x has 1")):
        nt.capsule_conv2d(x[:, :1], w)
    with pytest.raises(TypeError, match=r"stride is 1\.5; it takes an int or a pair of ints"):
        nt.capsule_conv2d(x, w, 1.5)
    with pytest.raises(ValueError, match="out_capsule has size 3 along axis 'a'"):
        nt.CapsuleConv2d(1, 1, 1, in_capsule=(2, 2), out_capsule=(3, 2))
    with pytest.raises(
        ValueError, match="output_padding is 1 rows; it takes less than the stride, 1"
    ):
        nt.CapsuleConvTranspose2d(1, 1, 1, output_padding=1)
    with pytest.raises(ValueError, match="output_size="):
        nt.capsule_conv_transpose2d(x, w, (1, 2, 4, 4, 2, 3))
    with pytest.raises(ValueError, match="reduction is 'all'"):
        nt.margin_loss(torch.ones(1, 2), torch.tensor([0]), reduction="all")
    with pytest.raises(ValueError, match="reduction is 'all'"):
        nt.spread_loss(torch.ones(1, 2), torch.tensor([0]), reduction="all")
    with pytest.raises(ValueError, match="down_weight is -1; it takes 0 or more"):
        nt.margin_loss(torch.ones(1, 2), torch.tensor([0]), down_weight=-1)
    for value, least in (("stride", 1), ("padding", 0), ("dilation", 1), ("kernel_size", 1)):
        with pytest.raises(ValueError, match=f"{value} is {least - 1}; it takes {least} or more"):
            nt.CapsuleConv2d(1, 1, **{"kernel_size": 1, value: least - 1})
    with pytest.raises(ValueError, match="precision is 'tf23'; it takes one of .* did you mean"):
        nt.capsule_conv2d(x, w, precision="tf23")
    with pytest.raises(ValueError, match="precision is 'tf23'"):
        nt.CapsuleConv2d(1, 1, 1, precision="tf23")
    with pytest.raises(RuntimeError, match="x is torch.int64; it takes torch.float16"):
        nt.capsule_conv2d(x.long(), w.long())
    with pytest.raises(ValueError, match="in_channels is 0; it takes an int of 1 or more"):
        nt.CapsuleConv2d(0, 1, 1)
    with pytest.raises(ValueError, match=r"out_capsule is \(4, 0\); it takes ints of 1 or more"):
        nt.CapsuleConv2d(1, 1, 1, out_capsule=(4, 0))


@pytest.mark.parametrize(
    ("loss", "numbers"),
    [(nt.SpreadLoss, ("margin",)), (nt.MarginLoss, ("m_plus", "m_minus", "down_weight"))],
)
def test_a_compiled_loss_follows_its_numbers(loss, numbers):
    torch._dynamo.reset()
    made, scores, labels = loss(), torch.rand(4, 3), torch.tensor([0, 2, 1, 0])
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    for number in numbers:
        for value in (0.25, 0.375, 0.5):
            setattr(made, number, value)
            torch.testing.assert_close(compiled(scores, labels), made(scores, labels))
