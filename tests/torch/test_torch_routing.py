"""Routing of numbacaps.torch on CPU tensors: values, gradients, the operator's contract, the layers."""

import numpy as np
import pytest

import numbacaps
from tests.support import routing as support

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)
from numbacaps.torch import routing as operators  # noqa: E402

pytestmark = pytest.mark.tiers("simulator")


def _tensors(given):
    """Operands in float64, all leaves but the gradients."""
    made = {name: torch.tensor(np.float64(array)) for name, array in given.items()}
    for name in made.keys() - {"dy", "d_activations"}:
        made[name].requires_grad_()
    return made


def _check(g, given, wanted, **form):
    tensors = _tensors(given)
    dy, d_out = tensors.pop("dy"), tensors.pop("d_activations", None)
    found = nt.capsule_routing(**tensors, **support.window(g), **form)
    found = found if isinstance(found, tuple) else (found,)
    for one, want in zip(found, wanted.results):
        np.testing.assert_allclose(one.detach(), want, rtol=1e-9, atol=1e-9)
    torch.autograd.backward(found, (dy, d_out)[: len(found)])
    for name, want in wanted.gradients.items():
        scale = np.abs(want).max()
        np.testing.assert_allclose(tensors[name].grad, want, rtol=1e-7, atol=1e-9 * scale + 1e-12)


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("over", ["parents", "children"])
@pytest.mark.parametrize("case", support.CASES)
def test_dynamic(case, over, detach, rng):
    g = support.CASES[case]
    given = support.operands(g, rng, em=False)
    wanted = support.want_dynamic(g, given, softmax_over=over, detach=detach)
    if detach:
        given["logits"] = given["logits"].copy()
    _check(g, given, wanted, softmax_over=over, detach=detach)


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("normalise", ["window", "all"])
@pytest.mark.parametrize("case", support.CASES)
def test_em(case, normalise, detach, rng):
    g = support.CASES[case]
    given = support.operands(g, rng, em=True)
    wanted = support.want_em(g, given, normalise=normalise, detach=detach)
    _check(g, given, wanted, routing="em", lam=1.0, normalise=normalise, detach=detach)


@pytest.mark.parametrize("shared", [False, True])
def test_votes_summed_over_the_window(shared, rng):
    g = support.CASES["window"]
    given = support.operands(g, rng, em=False)
    given["logits"] = given["logits"][..., 0, 0]
    given["w"] = given["w"][:, :1] if shared else given["w"]
    _check(g, given, support.want_dynamic(g, given, kind="sum"), votes="sum")


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_gradcheck(routing):
    made = {"dtype": torch.float64, "requires_grad": True}
    x, w = torch.randn(2, 3, 3, 3, 2, 2, **made), torch.randn(2, 3, 2, 2, 2, 2, **made)
    a = torch.rand(2, 3, 3, 3, **made)
    beta = torch.randn(2, **made)
    logits = torch.randn(2, 3, 2, 2, **made)
    if routing == "em":
        assert torch.autograd.gradcheck(
            lambda x, w, a, u: nt.capsule_routing(
                x, w, activations=a, beta_u=u, routing="em", lam=1.0
            ),
            (x, w, a, beta),
        )
    else:
        assert torch.autograd.gradcheck(
            lambda x, w, b: nt.capsule_routing(x, w, logits=b), (x, w, logits)
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_the_operator_keeps_its_contract(routing):
    x, w = torch.randn(2, 2, 3, 3, 2, 2), torch.randn(2, 2, 2, 2, 2, 2)
    more = [torch.rand(2, 2, 3, 3), torch.randn(2), torch.randn(2), None]
    tensors = [x, w, *(more if routing == "em" else [None] * 4)]
    for tensor in tensors:
        if tensor is not None:
            tensor.requires_grad_()
    how = (routing, 3, "parents", False, "window", 1.0, 1e-6, (1, 1), (0, 0), (1, 1), "ab,bc->ac")
    found = torch.library.opcheck(torch.ops.numbacaps.capsule_routing.default, (*tensors, *how))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_cuda_tensors_reach_the_kernels(routing, monkeypatch, rng):
    """What the operator hands over, and takes back; NumPy computes in the kernels' place."""
    g = support.CASES["window"]
    given = support.operands(g, rng, em=routing == "em")

    def by_numpy(function):
        def run(*arrays, **options):
            arrays = [array.numpy() for array in arrays]
            options = {
                name: value.numpy() if isinstance(value, torch.Tensor) else value
                for name, value in options.items()
            }
            return function(*arrays, **options, algorithm="numpy")

        return run

    for name in ("capsule_routing", "capsule_routing_backward"):
        monkeypatch.setattr(operators.numbacaps, name, by_numpy(getattr(numbacaps, name)))
    monkeypatch.setattr(operators, "_as_tensor", lambda array, like: torch.from_numpy(array))
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    arguments = [tensors.get(name) for name in operators._NAMES]
    window = g.stride, g.padding, g.dilation, "gab,gbc->gac"
    how = (routing, 3, "parents", False, "window", 1.0, 1e-6, *window)
    for device in ("cpu", "cuda"):
        forward, back = (
            getattr(operators, f"_on_{device}"),
            getattr(operators, f"_gradient_on_{device}"),
        )
        y, a = forward(*arguments, *how)
        d_out = tensors.get("d_activations", a)
        found = y, a, *back(tensors["dy"], d_out, *arguments, *how)
        if device == "cpu":
            want = found
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_autocast_routes_in_float32():
    layer = nt.RoutedCapsuleConv2d(2, 3, 2, routing={"routing": "em", "lam": 1.0})
    x, a = torch.randn(1, 2, 3, 3, 4, 4), torch.rand(1, 2, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, out = layer(x.bfloat16(), a)
    want, _ = layer(x.bfloat16().float(), a)
    assert y.dtype == out.dtype == torch.float32
    torch.testing.assert_close(y, want)


def test_layers():
    digits = nt.RoutedCapsuleLinear(6, 3, learn_logits=True)
    x = torch.randn(2, 6, 1, 8)
    y = digits(x)
    assert y.shape == (2, 3, 1, 16) and (y.norm(dim=(-2, -1)) < 1).all()
    y.sum().backward()
    assert digits.convolution.logits.grad.abs().sum() > 0
    assert "iterations=3" in repr(digits)
    classes = nt.RoutedCapsuleLinear(6, 3, (4, 4), (4, 4), routing="em")
    y, a = classes(torch.randn(2, 6, 4, 4), torch.rand(2, 6))
    assert y.shape == (2, 3, 4, 4) and a.shape == (2, 3)


def test_votes_of_somebody_else(rng):
    g = support.CASES["window"]
    given = support.operands(g, rng, em=True)
    given["logits"] = np.zeros((g.P, g.C, g.KH, g.KW), np.float32)
    x, w = (np.float64(given[name]) for name in ("x", "w"))
    votes = numbacaps.capsule_votes(x, w, algorithm="numpy", **support.window(g))
    votes = torch.tensor(votes.reshape(g.N, g.P, g.OH, g.OW, g.Q, g.G, g.D1, g.D3))
    y = nt.DynamicRouting(positions=2)(votes)
    np.testing.assert_allclose(y, support.want_dynamic(g, given).results[0], atol=1e-9)
    given["activations"][...] = 1
    given["beta_u"][...] = given["beta_a"][...] = 0
    from numbacaps.routing.host import capsules

    a = (
        torch.tensor(np.float64(capsules(g) >= 0))
        .reshape(1, g.OH, g.OW, g.Q)
        .expand(g.N, -1, -1, -1)
    )
    y, out = nt.EMRouting(g.P, positions=2, lam=1.0).double()(votes, a)
    wanted = support.want_em(g, given)
    np.testing.assert_allclose(y.detach(), wanted.results[0], atol=1e-7)
    np.testing.assert_allclose(out.detach(), wanted.results[1], atol=1e-7)


def test_bad_input_is_refused_by_name():
    x, w = torch.randn(1, 2, 3, 3, 2, 2), torch.randn(3, 2, 2, 2, 2, 2)
    for options, said in (
        ({"routing": "kmeans"}, "routing is 'kmeans'"),
        ({"iterations": 0}, "iterations is 0; it takes 1 or more"),
        ({"activations": torch.ones(1, 2, 3, 3)}, "activations is given; routing 'dynamic'"),
        ({"logits": torch.ones(3, 2)}, r"logits has shape \(3, 2\); it takes \(3, 2, 2, 2\)"),
        ({"routing": "em", "votes": "sum"}, "votes is 'sum'"),
    ):
        with pytest.raises(ValueError, match=said):
            nt.capsule_routing(x, w, **options)
    with pytest.raises(ValueError, match="learn_logits is True"):
        nt.RoutedCapsuleConv2d(2, 3, 2, routing="em", learn_logits=True)
    with pytest.raises(ValueError, match="votes has shape"):
        nt.DynamicRouting()(torch.ones(2, 3))
