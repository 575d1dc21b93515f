"""The votes' operators on CPU tensors, and the layers on them: values, gradients, contracts."""

import re

import numpy as np
import pytest

import numbacaps
import reference
from tests.support.cases import SMALL

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)
from numbacaps.torch import kernels, votes_operators  # noqa: E402
from tests.support.torch_cuda import OnSimulator  # noqa: E402

pytestmark = pytest.mark.tiers("simulator")
_SUMS = pytest.mark.parametrize("sum_window", [False, True], ids=["taps", "windows"])


@_SUMS
@pytest.mark.parametrize("case", SMALL)
def test_values_and_gradients_are_the_references(case, sum_window, rng):
    g = SMALL[case]
    x, w = rng.standard_normal(g.input_shape), rng.standard_normal(g.kernel_shape)
    dvotes = rng.standard_normal(g.summed_votes_shape if sum_window else g.votes_shape)
    how = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    how["sum_window"] = sum_window
    want = (
        reference.capsule_votes(x, w, **how),
        *reference.capsule_votes_backward(x, w, dvotes, **how),
    )
    x, w = (torch.tensor(array, requires_grad=True) for array in (x, w))
    votes = nt.capsule_votes(x, w, product="gab,gbc->gac", **how)
    votes.backward(torch.tensor(dvotes))
    for found, wanted in zip((votes, x.grad, w.grad), want):
        np.testing.assert_allclose(found.detach(), wanted, rtol=1e-12, atol=1e-12)


PRODUCTS = {
    "ab,bc->ac": ((2, 3), (3, 2)),
    "agb,bgc->cga": ((2, 2, 3), (3, 2, 1)),
    "abk,kcd->abcd": ((2, 1, 2), (2, 1, 3)),
    ",->": ((), ()),
}


@pytest.mark.slow
@_SUMS
@pytest.mark.parametrize("product", PRODUCTS)
def test_gradients_of_gradients(product, sum_window):
    x_capsule, w_capsule = PRODUCTS[product]
    made = {"dtype": torch.float64, "requires_grad": True}
    x, w = torch.randn(2, 2, 3, 3, *x_capsule, **made), torch.randn(1, 2, 2, 2, *w_capsule, **made)
    how = {"stride": (2, 1), "padding": (1, 0), "product": product, "sum_window": sum_window}

    def vote(x, w):
        return nt.capsule_votes(x, w, **how)

    assert torch.autograd.gradcheck(vote, (x, w))
    assert torch.autograd.gradgradcheck(vote, (x, w))
    arrays = (tensor.detach().numpy() for tensor in (x, w))
    want = numbacaps.capsule_votes(*arrays, algorithm="numpy", **how)
    np.testing.assert_allclose(vote(x, w).detach(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@_SUMS
@pytest.mark.parametrize("operator", ["", "_input_gradient", "_kernel_gradient"])
def test_operators_keep_their_contracts(operator, sum_window):
    x, w = torch.randn(2, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2)
    how = (1, 1), (0, 0), (1, 1), "ab,bc->ac", "ieee", sum_window
    dvotes = torch.randn(nt.capsule_votes(x, w, sum_window=sum_window).shape)
    for tensor in (x, w, dvotes):
        tensor.requires_grad_()
    given = {
        "": (x, w),
        "_input_gradient": (dvotes, w, x.shape),
        "_kernel_gradient": (x, dvotes, w.shape),
    }[operator]
    which = getattr(torch.ops.numbacaps, f"capsule_votes{operator}").default
    found = torch.library.opcheck(which, (*given, *how))
    assert len(found) == 4 and set(found.values()) == {"SUCCESS"}


@_SUMS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_two_bytes(dtype, sum_window):
    x, w = torch.randn(2, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2, requires_grad=True)
    want = nt.capsule_votes(x, w, sum_window=sum_window)
    with torch.autocast("cpu", dtype=dtype):
        votes = nt.capsule_votes(x, w, sum_window=sum_window)
    assert votes.dtype == dtype
    torch.testing.assert_close(votes.float(), want, atol=0.05, rtol=0.05)
    votes.float().sum().backward()
    assert w.grad.dtype == torch.float32


_CUDA, _CPU = (votes_operators.VOTES.on[backend] for backend in ("CUDA", "CPU"))
_GIVEN = {
    "forward": lambda x, w, dvotes: (x, w),
    "input_gradient": lambda x, w, dvotes: (dvotes, w, x.shape),
    "kernel_gradient": lambda x, w, dvotes: (x, dvotes, w.shape),
}


@_SUMS
@pytest.mark.parametrize("operator", _GIVEN)
@pytest.mark.parametrize("product", ["ab,bc->ac", "agb,bgc->cga"])
def test_the_cuda_side_computes_the_same(product, operator, sum_window, monkeypatch):
    """Its kernels on the simulator, in the tensors' own memory, for captured calls too."""
    side = OnSimulator(monkeypatch)
    x_capsule, w_capsule = PRODUCTS[product]
    x, w = torch.randn(2, 2, 4, 3, *x_capsule), torch.randn(3, 2, 2, 2, *w_capsule)
    how = (1, 2), (1, 0), (2, 1), product, "auto", sum_window
    dvotes = torch.randn(torch.ops.numbacaps.capsule_votes(x, w, *how).shape)
    if operator != "forward":
        dvotes = dvotes.transpose(0, 1).contiguous().transpose(0, 1)
    on_cuda, given = getattr(_CUDA, operator), _GIVEN[operator](x, w, dvotes)
    found, right = on_cuda(*given, how), getattr(_CPU, operator)(*given, how)
    assert found.is_contiguous()
    torch.testing.assert_close(found, right)
    side.capturing = True
    torch.testing.assert_close(on_cuda(*given, how), right)
    assert len(kernels._captured) == 1
    kernels.forget_captured()
    kernels._plans.clear()
    with pytest.raises(RuntimeError, match="is captured before it has run: call it once before"):
        on_cuda(*given, how)


@_SUMS
def test_no_images_on_the_cuda_side(sum_window, monkeypatch):
    OnSimulator(monkeypatch)
    x, w = torch.randn(0, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2)
    how = (1, 1), (0, 0), (1, 1), "ab,bc->ac", "ieee", sum_window
    dvotes = _CUDA.forward(x, w, how)
    assert dvotes.shape == nt.capsule_votes(x, w, sum_window=sum_window).shape
    assert _CUDA.input_gradient(dvotes, w, x.shape, how).shape == x.shape
    none = _CUDA.kernel_gradient(x, dvotes, w.shape, how)
    assert none.shape == w.shape and (none == 0).all()


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("side", [_CUDA, _CPU])
def test_both_sides_refuse_what_votes_are_not_multiplied_by(side, precision, monkeypatch):
    OnSimulator(monkeypatch)
    x, w = torch.randn(1, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2)
    how = (1, 1), (0, 0), (1, 1), "ab,bc->ac", precision, False
    dvotes = nt.capsule_votes(x, w)
    for operator, given in _GIVEN.items():
        with pytest.raises(ValueError, match=rf"precision is '{precision}'; .*\['auto', 'ieee'\]"):
            getattr(side, operator)(*given(x, w, dvotes), how)


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_a_layer_at_tf32_has_no_votes(kind):
    layer, x = _LAYERS[kind](precision="tf32"), torch.randn(2, 2, 3, 3, *_INPUTS[kind])
    assert layer(x).isfinite().all()
    with pytest.raises(ValueError, match="precision is 'tf32'; votes take one of"):
        layer.votes(x)


def test_what_the_cuda_side_refuses(monkeypatch):
    OnSimulator(monkeypatch)
    x, w = torch.randn(1, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2)
    how = (1, 1), (0, 0), (1, 1), "ab,bc->ac"
    for sum_window, shape in ((True, "1, 3, 3, 3, 2, 2, 2"), (False, "1, 3, 3, 3, 2, 2, 2, 2, 2")):
        match = re.escape(f"dvotes has shape (1, 2); it takes ({shape})")
        with pytest.raises(RuntimeError, match=match):
            _CUDA.input_gradient(x[0, :, 0, 0, 0, 0][None], w, x.shape, (*how, "ieee", sum_window))


def test_no_images():
    x, w = torch.randn(0, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2, requires_grad=True)
    votes = nt.capsule_votes(x, w)
    assert votes.shape == (0, 3, 3, 3, 2, 2, 2, 2, 2)
    votes.sum().backward()
    assert (w.grad == 0).all()


def test_bad_input_is_refused_by_name():
    x, w = torch.randn(1, 2, 4, 4, 2, 3), torch.randn(3, 2, 2, 2, 3, 2)
    with pytest.raises(RuntimeError, match="x is torch.float32 and w torch.float64"):
        nt.capsule_votes(x, w.double())
    with pytest.raises(ValueError, match="precision is 'tf23'"):
        nt.capsule_votes(x, w, precision="tf23")
    with pytest.raises(ValueError, match="stride is 0; it takes 1 or more"):
        nt.capsule_votes(x, w, 0)
    how = (1, 1), (0, 0), (1, 1), "ab,bc->ac", "ieee", True
    ops = torch.ops.numbacaps
    with pytest.raises(RuntimeError, match=r"dvotes has shape \(1, 2\); it takes \(1, 3, 3, 3, 2"):
        ops.capsule_votes_input_gradient(torch.randn(1, 2), w, x.shape, *how)
    with pytest.raises(RuntimeError, match=r"dvotes has shape \(1, 2\); it takes \(1, 3, 3, 3, 2"):
        ops.capsule_votes_kernel_gradient(x, torch.randn(1, 2), w.shape, *how)
    with pytest.raises(ValueError, match=r"x has shape \(3,\); it takes \(N, children, \*T\)"):
        nt.capsule_linear(torch.randn(3), w)


def test_a_linear_layer_has_a_weight_per_child():
    """Its votes are einsum's, their sum is forward, and the convolution whose window is the grid is the same."""
    layer = nt.CapsuleLinear((3, 2, 2), 4, (1, 5), (1, 6), bias=True)
    torch.nn.init.normal_(layer.bias)
    assert layer.weight.shape == (4, 12, 5, 6) and layer.bias.shape == (4, 1, 6)
    x = torch.randn(7, 3, 2, 2, 1, 5)
    votes = layer.votes(x)
    want = torch.einsum("niab,pibc->npiac", x.flatten(1, 3), layer.weight)
    torch.testing.assert_close(votes, want)
    torch.testing.assert_close(layer(x), votes.sum(2) + layer.bias)
    convolution = nt.CapsuleConv2d(3, 4, 2, in_capsule=(1, 5), out_capsule=(1, 6))
    with torch.no_grad():
        convolution.weight.copy_(layer.weight.unflatten(1, (3, 2, 2)))
    torch.testing.assert_close(convolution(x).flatten(1, 3) + layer.bias, layer(x))
    torch.testing.assert_close(convolution.votes(x).flatten(4, 6).flatten(1, 3), votes)
    with pytest.raises(ValueError, match=re.escape("it takes (N, 3, 2, 2, 1, 5)")):
        layer(x[:, :2])
    with pytest.raises(ValueError, match="in_channels is 0; it takes an int of 1 or more"):
        nt.CapsuleLinear((3, 0), 1)


def test_votes_of_a_convolution_sum_to_it():
    layer = nt.CapsuleConv2d(
        2, 3, (2, 3), in_capsule=(2, 3), out_capsule=(2, 4), stride=(1, 2), padding=1
    )
    x = torch.randn(2, 2, 4, 5, 2, 3)
    torch.testing.assert_close(layer.votes(x).sum((4, 5, 6)), layer(x))
    torch.testing.assert_close(layer.votes(x, sum_window=True).sum(4), layer(x))


_LAYERS = {
    "conv": lambda **how: nt.CapsuleConv2d(2, 3, 2, in_capsule=(2, 3), out_capsule=(2, 4), **how),
    "transposed": lambda **how: nt.CapsuleConvTranspose2d(
        2, 3, 2, in_capsule=(2, 4), out_capsule=(2, 3), **how
    ),
    "linear": lambda **how: nt.CapsuleLinear((2, 3, 3), 3, (2, 3), (2, 4), **how),
}
_INPUTS = {"conv": (2, 3), "transposed": (2, 4), "linear": (2, 3)}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", _LAYERS)
def test_layers_are_modules(kind, bias):
    make, x = _LAYERS[kind], torch.randn(2, 2, 3, 3, *_INPUTS[kind])
    first, second = make(bias=bias), make(bias=bias)
    if bias:
        torch.nn.init.normal_(first.bias)
    assert list(first.state_dict()) == ["weight"] + ["bias"] * bias
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    for layer in (first, second):
        torch.manual_seed(3)
        layer.reset_parameters()
    assert torch.equal(first.weight, second.weight)
    assert not bias or (first.bias == 0).all()
    assert make(dtype=torch.float64).weight.dtype == torch.float64
    assert ("bias=True" in repr(first)) == bias


def test_what_a_linear_layer_says_of_itself():
    layer = nt.CapsuleLinear((32, 6, 6), 10, (1, 8), (1, 16), precision="tf32")
    assert repr(layer) == (
        "CapsuleLinear((32, 6, 6), 10, in_capsule=(1, 8), out_capsule=(1, 16), precision='tf32')"
    )
    assert layer.weight.std().item() == pytest.approx((2 / (1152 * 8)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("kind", _LAYERS)
def test_layers_can_be_parametrized(kind):
    """As weight normalisation and pruning do it."""

    class Doubled(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    layer, x = _LAYERS[kind](), torch.randn(2, 2, 3, 3, *_INPUTS[kind])
    plain = layer(x)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
    torch.testing.assert_close(layer(x), 2 * plain)
    layer(x).sum().backward()
    assert layer.parametrizations.weight.original.grad is not None
