"""Squash as an operator on CUDA tensors: against float64, in graphs, on streams, of tensors that begin anywhere."""

import pytest

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)

pytestmark = [
    pytest.mark.tiers("gpu"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch has no CUDA"),
]
_formulas = pytest.mark.parametrize("formula", ["rational", "exponential"])
_value = torch.ops.numbacaps.capsule_squash.default
_gradient = torch.ops.numbacaps.capsule_squash_gradient.default
_SHAPE = (5, 4, 3, 3, 4, 16)


def _operands(dtype, shape=_SHAPE, scale=1.0):
    made = {"generator": torch.Generator("cuda").manual_seed(0), "device": "cuda"}
    x, dy = (torch.randn(shape, **made) for _ in range(2))
    return (scale * x).to(dtype).requires_grad_(), dy.to(dtype)


def _close(found, wanted, within, scale=None):
    scale = wanted.abs().max() if scale is None else scale
    assert found.is_cuda and (found.double().cpu() - wanted).abs().max() <= within * scale


def _right(x, dy, *how):
    """The value and the gradient in float64 on the CPU."""
    wide = x.detach().double().cpu().requires_grad_()
    y = _value(wide, *how)
    return y.detach(), *torch.autograd.grad(y, wide, dy.double().cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
@_formulas
def test_values_and_gradients_in_float64(formula, scale, dtype):
    x, dy = _operands(dtype, scale=scale)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for group, slope in ((64, 1.0), (8, 0.1), (3, 0.1), (1, 1.0)):
        how = group, slope, formula
        y = _value(x, *how)
        (dx,) = torch.autograd.grad(y, x, dy)
        right_y, right_dx = _right(x, dy, *how)
        _close(y.detach(), right_y, tolerance)
        # Along a long capsule the gradient's two terms cancel, each of the size of dy * |y| / |x|.
        term = (dy.double() * y.double() / x.double()).abs().max().cpu()
        _close(dx, right_dx, tolerance, max(term, right_dx.abs().max()))


@_formulas
def test_gradients_of_gradients_and_contracts(formula):
    x, dy = _operands(torch.float64, (2, 2, 2, 6))
    how = 3, 0.1, formula
    assert torch.autograd.gradcheck(lambda x: _value(x, *how), x, nondet_tol=0.0)
    assert torch.autograd.gradgradcheck(lambda x: _value(x, *how), x)
    for operator, tensors in ((_value, (x,)), (_gradient, (x, dy.requires_grad_()))):
        found = torch.library.opcheck(operator, (*tensors, *how))
        assert set(found.values()) == {"SUCCESS"}


def test_tensors_that_begin_amid_16_bytes():
    x, dy = _operands(torch.float32, (4, 65))
    for first in (1, 2):
        one, other = (tensor.detach().flatten()[first : first + 256] for tensor in (x, dy))
        one, other = one.view(4, 64).requires_grad_(), other.view(4, 64)
        assert one.data_ptr() % 16
        y = _value(one, 8, 1.0, "rational")
        (dx,) = torch.autograd.grad(y, one, other)
        for have, want in zip((y.detach(), dx), _right(one, other, 8, 1.0, "rational")):
            _close(have, want, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_functions(dtype):
    """The kernel gives what the formula in PyTorch's operations gives, also over axes that are not the last ones."""
    x, _ = _operands(dtype)
    within = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5}[dtype]
    wide = x.detach().double().cpu()
    for dim in (-1, (-2, -1), (4, 5), 1):
        found = nt.squash(x, dim)
        assert found.dtype == dtype
        _close(found.detach(), nt.squash(wide, dim), within)
    _close(nt.exponential_squash(x, 8, 0.1).detach(), nt.exponential_squash(wide, 8, 0.1), within)


@pytest.mark.filterwarnings("ignore:`torch.jit.script.*` is deprecated:DeprecationWarning")
def test_tangents_are_those_of_the_formula():
    x, tangent = (one.detach() for one in _operands(torch.float32))
    for function in (nt.squash, lambda x: nt.exponential_squash(x, 8, 0.1)):
        _, found = torch.func.jvp(function, (x,), (tangent,))
        wide = x.double().cpu(), tangent.double().cpu()
        _, wanted = torch.func.jvp(function, wide[:1], wide[1:])
        _close(found, wanted, 1e-5)


@_formulas
def test_a_graph_replays_both_passes_and_nothing_waits(formula):
    x, dy = _operands(torch.float32)
    how = 8, 0.1, formula

    def step():
        y = _value(x, *how)
        return y, *torch.autograd.grad(y, x, dy)

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        step()
        beside.synchronize()
        torch.cuda._sleep(4 * 10**9)  # cycles, about two seconds
        step()
        assert not beside.query()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    with torch.no_grad():
        x.mul_(-2)
    graph.replay()
    torch.cuda.synchronize()
    for have, want in zip(results, _right(x, dy, *how)):
        _close(have.detach(), want, 1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_layers_are_one_graph():
    torch._dynamo.reset()
    layers = torch.nn.Sequential(nt.ExponentialSquash(8, 0.1), nt.Squash((-2, -1)))
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    x, _ = _operands(torch.float32)
    torch.testing.assert_close(compiled(x), layers(x), rtol=1e-5, atol=1e-6)
