"""Squash as an operator: its values, gradients and contracts on CPU tensors, its kernels on the simulator in their memory."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)
from numbacaps.torch import squash_operators  # noqa: E402
from numbacaps.torch.functional import last_elements  # noqa: E402
from tests.support.torch_cuda import OnSimulator  # noqa: E402

pytestmark = pytest.mark.tiers("simulator")
_FORMULAS = "rational", "exponential"
_formulas = pytest.mark.parametrize("formula", _FORMULAS)
_value = torch.ops.numbacaps.capsule_squash.default
_gradient = torch.ops.numbacaps.capsule_squash_gradient.default


def _written_out(x, group, slope, formula):
    """The formulas as they are published, of float64."""
    a = torch.nn.functional.leaky_relu(x, slope).reshape(-1, group)
    square = a.square().sum(1, keepdim=True)
    n = (square + 1e-7).sqrt()
    f = square / (1 + square) / n if formula == "rational" else (1 - torch.exp(-n)) / n
    return (a * f).reshape(x.shape)


def _operands(dtype=torch.float64, shape=(3, 2, 2, 6), scale=1.0):
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return (scale * x).to(dtype).requires_grad_(), dy.to(dtype)


@_formulas
def test_values_and_gradients_of_any_order(formula):
    x, dy = _operands()
    for group, slope in ((6, 1.0), (3, 0.1)):
        how = group, slope, formula
        y, wanted = _value(x, *how), _written_out(x, *how)
        torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-12)
        (dx,), (right,) = (torch.autograd.grad(one, x, dy) for one in (y, wanted))
        torch.testing.assert_close(dx, right, rtol=1e-10, atol=1e-12)
        assert torch.autograd.gradcheck(lambda x: _value(x, *how), x)
        assert torch.autograd.gradgradcheck(lambda x: _value(x, *how), x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own
@_formulas
def test_operators_keep_their_contracts(formula):
    x, dy = _operands(torch.float32)
    for operator, tensors in ((_value, (x,)), (_gradient, (x, dy.requires_grad_()))):
        found = torch.library.opcheck(operator, (*tensors, 3, 0.1, formula))
        assert len(found) == 4 and set(found.values()) == {"SUCCESS"}


@pytest.fixture
def on_simulator(monkeypatch):
    """While the test runs, the operators do with CPU tensors what they do with CUDA tensors."""
    monkeypatch.setitem(squash_operators.ON, "CPU", squash_operators.ON["CUDA"])
    return OnSimulator(monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("where", ["kernels", "plain PyTorch"])
@_formulas
def test_capsules_of_any_length(formula, where, scale, dtype, request):
    """Of groups that fill no 16 bytes, behind LeakyReLU."""
    if where == "kernels":
        request.getfixturevalue("on_simulator")
    x, dy = _operands(dtype, scale=scale)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    for group, slope in ((12, 1.0), (3, 0.1)):
        how = group, slope, formula
        y = _value(x, *how)
        (dx,) = torch.autograd.grad(y, x, dy)
        wide = x.detach().double().requires_grad_()
        right = _written_out(wide, *how)
        (wanted,) = torch.autograd.grad(right, wide, dy.double())
        for have, want in ((y.detach(), right.detach()), (dx, wanted)):
            error = (have.double() - want).abs().max() / want.abs().max()
            assert have.dtype == dtype and error <= tolerance


@pytest.mark.parametrize(
    "shape, dim", [((3, 4), -1), ((3, 4), (0, 1)), ((2, 3, 4), (2, 0)), ((5,), 0)]
)
def test_the_function_of_any_axes(shape, dim):
    """Of capsules so long that what crosses them cancels in their gradient."""
    x = torch.randn(shape, dtype=torch.float64)
    x, dy = x.requires_grad_(), torch.randn_like(x)
    for scale in (1.0, 1e15):
        wide = (scale * x.detach()).requires_grad_()
        square = wide.square().sum(dim, keepdim=True)
        right = wide * (square / (1 + square) / (square + 1e-7).sqrt())
        narrow = wide.detach().float().requires_grad_()
        y = nt.squash(narrow, dim)
        (dx,), (wanted,) = (
            torch.autograd.grad(one, of, dy.to(one.dtype))
            for one, of in ((y, narrow), (right, wide))
        )
        torch.testing.assert_close(y.double(), right, rtol=1e-5, atol=1e-6)
        assert (dx.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert torch.autograd.gradgradcheck(lambda x: nt.squash(x, dim), x)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: nt.squash(x),
        lambda x: nt.squash(x, 0),
        lambda x: nt.squash(x, (0, 1, 2)),
        lambda x: nt.exponential_squash(x, 4),
    ],
    ids=["last", "first", "all", "exponential"],
)
def test_results_are_written_to_in_place(run):
    """As an inplace layer behind does; they are no views, and lie as x does."""
    x = torch.randn(2, 3, 4, requires_grad=True)
    y = run(x)
    assert y.is_contiguous() and not y._is_view()
    wanted = torch.relu(y)
    (right,) = torch.autograd.grad(wanted.sum(), x)
    again = run(x)
    again[0].add_(0)
    torch.relu_(again)
    torch.testing.assert_close(again, wanted)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), x)[0], right)


@pytest.mark.parametrize(
    "shape, dim", [((0, 3, 4), 0), ((2, 0, 4), 1), ((2, 3, 0), -1), ((0,), 0), ((2, 3), None)]
)
def test_the_function_of_no_elements_and_of_all_axes(shape, dim):
    x = torch.randn(shape)
    assert nt.squash(x, dim).shape == x.shape
    assert nt.exponential_squash(torch.ones(5), 1).shape == (5,)


@_formulas
def test_kernels_read_tensors_as_they_lie(formula, on_simulator):
    """Of tensors with other strides, with no images, and of a gradient that is one number everywhere."""
    x, _ = _operands(torch.float32)
    how = 4, 1.0, formula
    moved = x.detach().transpose(1, 3).requires_grad_()  # (3, 6, 2, 2)
    y = _value(moved, *how)
    (dx,) = torch.autograd.grad(y.sum(), moved)
    wide = moved.detach().double().contiguous().requires_grad_()
    right = _written_out(wide, *how)
    torch.testing.assert_close(y.detach().double(), right.detach(), rtol=1e-5, atol=1e-6)
    (wanted,) = torch.autograd.grad(right.sum(), wide)
    torch.testing.assert_close(dx.double(), wanted, rtol=1e-4, atol=1e-5)
    assert _value(x.detach()[:0], *how).shape == (0, 2, 2, 6)


@pytest.mark.filterwarnings("ignore:overflow encountered")  # on a GPU nothing warns
@pytest.mark.parametrize("where", ["kernels", "plain PyTorch"])
@_formulas
def test_numbers_that_overflow_give_finite_results(formula, where, request):
    if where == "kernels":
        request.getfixturevalue("on_simulator")
    x, dy = _operands(torch.float32, scale=1e20)
    y = _value(x, 4, 1.0, formula)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=where == "plain PyTorch")
    assert y.isfinite().all() and dx.isfinite().all()
    if dx.requires_grad:
        assert torch.autograd.grad(dx.sum(), x)[0].isfinite().all()
    assert _value(torch.full((1, 4), float("nan")), 4, 1.0, formula).isnan().all()


def test_the_function_of_axes_gives_finite_results_of_numbers_that_overflow():
    x = torch.full((2, 4), 1e20, requires_grad=True)
    y = nt.squash(x)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert y.isfinite().all() and dx.isfinite().all()


def test_the_layer_is_the_published_activation():
    x, _ = _operands(torch.float32)
    layer = nt.ExponentialSquash(3, slope=0.1)
    wanted = _written_out(x.detach().double(), 3, 0.1, "exponential")
    torch.testing.assert_close(layer(x).detach().double(), wanted, rtol=1e-5, atol=1e-6)
    assert layer(x.half()).dtype == torch.float16
    assert str(layer) == "ExponentialSquash(3, slope=0.1)"


def test_bad_input_is_refused_by_name():
    x, dy = _operands(torch.float32)
    for error, message, call in (
        (ValueError, "group is 5; it takes a divisor", lambda: _value(x, 5, 1.0, "rational")),
        (ValueError, "formula is 'sigmoid'", lambda: _value(x, 3, 1.0, "sigmoid")),
        (RuntimeError, "x is torch.float16", lambda: _value(x.half(), 3, 1.0, "rational")),
        (RuntimeError, "dy is torch.float32", lambda: _gradient(x, dy[:1], 3, 1.0, "rational")),
        (ValueError, "group is 0.5; it takes an int", lambda: nt.ExponentialSquash(0.5)),
        (ValueError, "slope is 'a'; it takes a number", lambda: nt.ExponentialSquash(3, "a")),
        (ValueError, "slope is True; it takes a number", lambda: nt.ExponentialSquash(3, True)),
        (ValueError, "slope is array", lambda: nt.ExponentialSquash(3, np.ones(3))),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("group", [0, -2, 4])
def test_groups_are_parts_of_an_image(group):
    """One that reaches into the next image would be squashed together with it."""
    with pytest.raises(ValueError, match=f"group is {group}; it takes a divisor of the 6 elements"):
        nt.exponential_squash(torch.ones(2, 6), group)


@pytest.mark.parametrize("dim", [5, -4, (-1, -6), ()])
def test_a_kernel_squashes_axes_that_there_are(dim):
    """Of other axes plain PyTorch says what is wrong, or squashes all."""
    assert last_elements((2, 3, 4), dim) == 0
    assert last_elements((), -1) == 0


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda x: nt.squash(x.numpy()), TypeError, "x is a ndarray; it takes a torch.Tensor"),
        (lambda x: nt.exponential_squash(x, 2.0), TypeError, "group is 2.0; it takes an int"),
        (lambda x: nt.exponential_squash(x, True), TypeError, "group is True; it takes an int"),
        (lambda x: nt.exponential_squash(x, 2, "a"), TypeError, "slope is 'a'; it takes a number"),
    ],
)
def test_arguments_of_the_functions(call, error, said):
    with pytest.raises(error, match=said):
        call(torch.ones(1, 4))
