"""Routing of numbacaps.torch on CPU tensors: values, gradients, the operator's contract, the layers."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import numbacaps
from numbacaps.routing import runner as routing_runner
from numbacaps.routing.bands import bands_of
from numbacaps.routing.options import Options
from numbacaps.routing.runner import Runner
from tests.support import routing as support

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)
from numbacaps.torch import kernels, plain_routing, routing_bands, routing_kernels, routing_layers  # noqa: E402
from numbacaps.torch import routing as operators  # noqa: E402
from tests.support.torch_cuda import OnSimulator  # noqa: E402
from tests.support.torch_listener import Listener  # noqa: E402

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
@pytest.mark.parametrize("case", support.CASES)
def test_votes_summed_over_the_window(case, shared, rng):
    g = support.CASES[case]
    given = support.operands_of_sums(g, rng, shared)
    _check(g, given, support.want_dynamic(g, given, kind="sum"), votes="sum")


@pytest.mark.parametrize("size", [0, 1e-45, 1e-38, 1e-22, 1e-20, 1e-18, 1, 1e20, 1e38])
def test_the_gradient_of_squash_is_finite(size):
    """Parents from which all votes go elsewhere are as short; their gradients are, too, and need not be precise."""
    capsule, found = torch.tensor([3.0, -4, 0]) / 5, []
    for dtype in (torch.float32, torch.float64):
        s = (capsule.double() * size).to(dtype).requires_grad_()
        y = plain_routing.squash(s)
        found.append((y.detach(), *torch.autograd.grad(y, s, torch.tensor([1, 2, 3], dtype=dtype))))
    for have, want in zip(*found):
        atol = 1e-44 + (size if size < 1e-18 else 0)
        torch.testing.assert_close(have.double(), want, rtol=1e-5, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["dynamic", "em", "sums"])
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
    elif routing == "sums":
        of_channels = logits.detach()[..., 0, 0].clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, w, b: nt.capsule_routing(x, w[:, :1], logits=b, votes="sum"),
            (x, w, of_channels),
        )
    else:
        assert torch.autograd.gradcheck(
            lambda x, w, b: nt.capsule_routing(x, w, logits=b), (x, w, logits)
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    "routing, votes, precision",
    [
        ("dynamic", "children", ()),
        ("dynamic", "children", ("ieee",)),
        ("em", "children", ("tf32",)),
        ("dynamic", "sum", ()),
    ],
)
def test_the_operator_keeps_its_contract(routing, votes, precision):
    """Also where the precision is left out, which is the default then."""
    x, w = torch.randn(2, 2, 3, 3, 2, 2), torch.randn(2, 2, 2, 2, 2, 2)
    more = [torch.rand(2, 2, 3, 3), torch.randn(2), torch.randn(2), None]
    tensors = [x, w, *(more if routing == "em" else [None] * 4)]
    lam = 1.0 if routing == "em" else 0.01
    how = (routing, 3, "parents", False, "window", lam, 1e-6, votes)
    how = (*how, (1, 1), (0, 0), (1, 1), "ab,bc->ac", True, *precision)
    forward, gradient = (
        getattr(torch.ops.numbacaps, name).default
        for name in ("capsule_routing", "capsule_routing_gradient")
    )
    y, a, states = forward(*tensors, *how)
    reaches = torch.randn_like(y), torch.randn_like(a), states
    found = torch.library.opcheck(gradient, (*reaches, *tensors, *how))
    assert set(found.values()) == {"SUCCESS"}
    for tensor in tensors:
        if tensor is not None:
            tensor.requires_grad_()
    found = torch.library.opcheck(forward, (*tensors, *how))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("routing", ["dynamic", "em", "sums"])
def test_gradients_are_the_same_under_a_dispatch_mode(routing, rng):
    """Which calls the operators itself, with autograd switched off."""
    from torch.utils.flop_counter import FlopCounterMode

    reaches, tensors, how = _arguments(routing, rng)
    leaves = [tensor.requires_grad_() for tensor in tensors if tensor is not None]
    found = []
    for mode in (nullcontext(), FlopCounterMode(display=False)):
        with mode:
            results = torch.ops.numbacaps.capsule_routing(*tensors, *how)
            torch.autograd.backward(results[: len(reaches)], reaches)
        found.append([leaf.grad for leaf in leaves])
        for leaf in leaves:
            leaf.grad = None
    for alone, under in zip(*found):
        assert torch.equal(alone, under)


@pytest.mark.parametrize("images", [2, 0])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=["capsules", "activations", "both"])
def test_em_of_which_some_results_are_used(used, images):
    """Nothing reaches the others; of a batch of no images all gradients are zeros."""
    x, w = torch.randn(images, 2, 3, 3, 2, 2), torch.randn(3, 2, 2, 2, 2, 2)
    a = torch.rand(images, 2, 3, 3)
    leaves = [tensor.double().requires_grad_() for tensor in (x, w, a)]
    results = nt.capsule_routing(*leaves[:2], activations=leaves[2], routing="em", lam=1.0)
    found = torch.autograd.grad([results[i].sum() for i in used], leaves)
    again = nt.capsule_routing(*leaves[:2], activations=leaves[2], routing="em", lam=1.0)
    every = [again[i].sum() if i in used else 0 * again[i].sum() for i in range(2)]
    for one, want in zip(found, torch.autograd.grad(every, leaves), strict=True):
        torch.testing.assert_close(one, want)
    if not images:
        assert not any(one.any() for one in found)


@pytest.mark.parametrize("number", [0, 1], ids=["capsules", "activations"])
def test_what_reaches_a_result_may_be_a_view_whose_sign_is_pending(number, monkeypatch, rng):
    """PyTorch negates it when it is read: its memory, which kernels read, holds the other sign."""
    OnSimulator(monkeypatch)
    monkeypatch.setitem(operators._ON, "CPU", operators._ON["CUDA"])
    reaches, tensors, how = _arguments("em", rng)
    leaves = [tensor.requires_grad_() for tensor in tensors if tensor is not None]
    found = []
    for pending in (False, True):
        given = list(reaches)
        if pending:
            given[number] = torch._neg_view(-given[number])
        # The dispatcher, which resolves the view, calls plain PyTorch: the kernels are to be as exact.
        results = torch.ops.numbacaps.capsule_routing(*tensors, *how, "ieee")[:2]
        found.append(torch.autograd.grad(results, leaves, given))
    for plain, pending in zip(*found, strict=True):
        torch.testing.assert_close(pending, plain)


@pytest.mark.parametrize("routing", ["dynamic", "em", "sums"])
def test_whoever_listens_hears_of_the_operators(routing, rng):
    """A mode, as PyTorch's counters of operations are, also in the backward pass."""
    reaches, tensors, how = _arguments(routing, rng)
    for tensor in tensors:
        if tensor is not None:
            tensor.requires_grad_()
    with Listener() as listener:
        results = torch.ops.numbacaps.capsule_routing(*tensors, *how)
        torch.autograd.backward(results[: len(reaches)], reaches)
    for name in ("capsule_routing", "capsule_routing_gradient"):
        assert listener.heard.count(name) == 1


_FORMS = {
    "dynamic": ("dynamic", {}),
    "over children": ("dynamic", {"softmax_over": "children"}),
    "em": ("em", {"lam": 1.0}),
    "em over all windows": ("em", {"lam": 1.0, "normalise": "all"}),
    "sums": ("dynamic", {"votes": "sum"}),
    "sums over children": ("dynamic", {"votes": "sum", "softmax_over": "children"}),
}


def _arguments(form, rng, case="window", given_too=True, dtype=torch.float32):
    """(dy, d_activations), the tensors of both operators, and their options."""
    routing, options = _FORMS[form]
    g = support.CASES[case]
    made = support.operands(g, rng, em=routing == "em")
    options = Options(routing=routing, **options)
    if options.is_summed:
        made = support.operands_of_sums(g, rng)
    tensors = {name: torch.from_numpy(array).to(dtype) for name, array in made.items()}
    reaches = tensors.pop("dy"), tensors.pop("d_activations", torch.empty(0))
    named = operators._NAMES[: None if given_too else 2]
    how = *(getattr(options, name) for name in operators.OPTIONS), g.stride, g.padding, g.dilation
    every = [
        tensors[name] if name in named and name in tensors else None for name in operators._NAMES
    ]
    return reaches, every, (*how, "gab,gbc->gac", True)


def _both(device, reaches, tensors, how):
    """Results and gradients by the functions of a device."""
    forward, back = (getattr(operators, name + device) for name in ("_on_", "_gradient_on_"))
    *results, states = forward(*tensors, *how)
    return *results, *back(*reaches, states, *tensors, *how)


def _same(found, wanted, within=1e-3):
    assert all(one.is_contiguous() for one in found)
    for one, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, want, rtol=within, atol=within)


@pytest.mark.parametrize("given_too", [True, False], ids=["all given", "x and w"])
@pytest.mark.parametrize("form", _FORMS)
def test_the_cuda_side_computes_the_same(form, given_too, monkeypatch, rng):
    """Its kernels on the simulator, in the tensors' own memory; then on new values, captured."""
    side = OnSimulator(monkeypatch)
    for capturing in (False, True):
        side.capturing = capturing
        given = _arguments(form, rng, given_too=given_too)
        _same(_both("cuda", *given), _both("cpu", *given))
    # Votes that are summed are a convolution: there are its forward pass and both gradients, too.
    assert len(kernels._captured) == (5 if form.startswith("sums") else 2)
    kernels.forget_captured()
    assert not kernels._captured


@pytest.mark.parametrize("nbytes", [1, 5000])
@pytest.mark.parametrize("form", ["sums", "sums over children"])
def test_the_cuda_side_in_bands(form, nbytes, monkeypatch, rng):
    """Of an image's rows, or of images; then captured, on new values, with what the first call has decided."""
    side = OnSimulator(monkeypatch)
    with support.in_bands(nbytes):
        for capturing in (False, True):
            side.capturing = capturing
            given = _arguments(form, rng)
            _same(_both("cuda", *given), _both("cpu", *given))
        assert len(bands_of(support.CASES["window"], 4, True)) > 1
    kernels.forget_captured()


def test_the_cuda_side_in_one_band_of_rows(monkeypatch, rng):
    """Its gradient has the rows of x alone."""
    OnSimulator(monkeypatch)
    g, nbytes = support.ONE_BAND
    monkeypatch.setitem(support.CASES, "one band", g)
    given = _arguments("sums", rng, case="one band")
    with support.in_bands(nbytes):
        _same(_both("cuda", *given), _both("cpu", *given))
    numbacaps.clear_caches()


def test_bands_that_begin_amid_16_bytes_take_the_same_kernels(monkeypatch):
    """Of one channel a band is a view of x, which begins where its rows do."""
    OnSimulator(monkeypatch)
    whole, found = torch.randn(2 * 1 * 6 * 3 * 1 * 3 + 1), []
    x, w = whole[1:].view(2, 1, 6, 3, 1, 3), torch.randn(2, 1, 2, 2, 3, 2)
    convolve = kernels.convolve
    monkeypatch.setattr(
        kernels, "convolve", lambda x, *how: found.append(x.data_ptr() % 16) or convolve(x, *how)
    )
    window = (1, 1), (0, 0), (1, 1), "ab,bc->ac"
    with support.in_bands(1):
        y, _, _ = routing_bands.route(x, w, {}, Options(votes="sum"), window, "auto", False)
    assert found == [0] * 10
    torch.testing.assert_close(y, nt.capsule_routing(x, w, votes="sum"))
    numbacaps.clear_caches()


def test_bands_that_are_alike_pack_the_kernel_once():
    """Those that read no packed copy never have one."""
    rooms = kernels.SharedRooms("cpu")
    found = [
        rooms.of(*how)
        for how in (("a", True), ("a", True), ("b", True), ("c", False), ("c", False))
    ]
    assert [one["packed"] for one in found] == [False, True, False, False, False]
    assert found[0]["room"] is found[1]["room"] is not found[2]["room"]
    assert found[3]["room"] is found[4]["room"]


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_the_precision_reaches_the_runner(routing, monkeypatch, rng):
    """Each has one of its own; both of a call have the same."""
    OnSimulator(monkeypatch)
    numbacaps.clear_caches()
    found = []
    make = partial(_noted, found)
    monkeypatch.setattr(routing_kernels, "Runner", make)
    given = _arguments(routing, rng)
    results = {}
    for precision in ("auto", "ieee", "tf32", "ieee"):
        *others, how = given
        results[precision] = _both("cuda", *others, (*how, precision))
    assert found == ["auto"] * 2 + ["ieee"] * 2 + ["tf32"] * 2
    _same(_both("cuda", *given), results["auto"], 0)
    _same(results["ieee"], _both("cpu", *given))
    numbacaps.clear_caches()


def test_states_of_a_small_batch_are_kept(monkeypatch, rng):
    """Of EM routing, for the gradient that follows, whose bits stay what they are; those that are large beside x only so."""
    OnSimulator(monkeypatch)
    monkeypatch.setitem(operators._ON, "CPU", operators._ON["CUDA"])
    reaches, tensors, (*how, _) = _arguments("em", rng)
    leaves = [tensor.requires_grad_() for tensor in tensors if tensor is not None]
    sizes, found = [], []
    for keep in (0, 1, routing_kernels.KEEP_OF_BATCH):
        *results, states = torch.ops.numbacaps.capsule_routing(*tensors, *how, keep)
        sizes.append(states.numel())
        found.append(torch.autograd.grad(results, leaves, reaches))
    assert sizes[:2] == [0, 0] and sizes[2] > 0
    for gradients in found[1:]:
        assert all(map(torch.equal, gradients, found[0]))


def _noted(found, *how, precision, keeps):
    found.append(precision)
    return Runner(*how, precision=precision, keeps=keeps)


def test_precisions_are_checked_by_name_and_shown(rng):
    x, w = torch.randn(2, 2, 3, 3, 2, 2), torch.randn(3, 2, 2, 2, 2, 2)
    said = "precision is 'tf23'; it takes one of .* did you mean 'tf32'"
    for run in (nt.capsule_routing, nt.routing_couplings):
        assert torch.equal(run(x, w, precision="tf32"), run(x, w))  # CPU tensors
        with pytest.raises(ValueError, match=said):
            run(x, w, precision="tf23")
    reaches, tensors, how = _arguments("dynamic", rng)
    for run in (operators._on_cpu, operators._on_cuda, operators._routing):
        with pytest.raises((ValueError, RuntimeError), match=said):
            run(*tensors, *how, "tf23")
    for make in (partial(nt.RoutedCapsuleConv2d, 2, 3, 1), partial(nt.RoutedCapsuleLinear, 2, 3)):
        with pytest.raises(ValueError, match="precision is 'tf23'; it takes one of"):
            make(precision="tf23")
        assert "precision" not in repr(make())
        assert "precision='tf32', routing='dynamic'" in repr(make(precision="tf32"))


@pytest.mark.parametrize("couplings", [False, True])
def test_layers_route_at_their_precision(couplings, monkeypatch):
    layer, x = nt.RoutedCapsuleConv2d(2, 3, 1, precision="ieee"), torch.randn(1, 2, 3, 3, 4, 4)
    found = {}
    for name in ("capsule_routing", "routing_couplings"):
        monkeypatch.setattr(routing_layers, name, lambda *_, **options: found.update(options))
    (layer.couplings if couplings else layer)(x)
    assert found["precision"] == "ieee"


@pytest.mark.parametrize("routing", ["dynamic", "em", "sums"])
def test_what_has_not_run_on_the_cuda_side_is_not_captured(routing, monkeypatch, rng):
    side = OnSimulator(monkeypatch)
    reaches, tensors, how = _arguments(routing, rng)
    numbacaps.clear_caches()
    said = "is captured before it has run: call it once before"
    operators._on_cuda(*tensors, *how)
    side.capturing = True
    operators._on_cuda(*tensors, *how)
    for run in (
        lambda: operators._gradient_on_cuda(*reaches, torch.empty(0), *tensors, *how),
        lambda: operators._on_cuda(tensors[0][:1], tensors[1], *[None] * 4, *how),
        lambda: operators._on_cuda(*tensors, how[0], 2, *how[2:]),
    ):
        with pytest.raises(RuntimeError, match=said):
            run()
    kernels.forget_captured()
    numbacaps.clear_caches()
    with pytest.raises(RuntimeError, match=said):
        operators._on_cuda(*tensors, *how)


@pytest.mark.parametrize("routing", ["dynamic", "em", "sums"])
def test_the_cuda_side_on_parts_of_a_batch(routing, monkeypatch, rng):
    """The parts share a workspace, and add up what the images share; the last one has fewer images."""
    OnSimulator(monkeypatch)
    monkeypatch.setattr(routing_kernels, "Runner", partial(Runner, part=2))
    numbacaps.clear_caches()
    given = _arguments(routing, rng, case="class")
    _same(_both("cuda", *given), _both("cpu", *given))
    numbacaps.clear_caches()


@pytest.mark.parametrize("routing", ["dynamic", "em", "sums"])
def test_the_cuda_side_on_other_batches_and_dtypes(routing, monkeypatch, rng):
    """One image, none, tensors that do not lie as the kernels read them, numbers of 2 and of 8 bytes."""
    OnSimulator(monkeypatch)
    (dy, d_out), (x, w, *more), how = _arguments(routing, rng, case="class")
    for count in (1, 0):
        few = [
            None if one is None else one[:count] if i == 0 else one for i, one in enumerate(more)
        ]
        given = (dy[:count], d_out[:count]), (x[:count], w, *few), how
        if count:
            _same(_both("cuda", *given), _both("cpu", *given))
        else:
            assert [one.shape for one in _both("cuda", *given)][0] == dy[:0].shape
    strided = [one.transpose(0, 1).contiguous().transpose(0, 1) for one in (dy, x, w)]
    given = (strided[0], d_out), (*strided[1:], *more), how
    _same(_both("cuda", *given), _both("cpu", *given))
    for dtype, within in ((torch.float16, 3e-2), (torch.float64, 1e-9)):
        given = _arguments(routing, rng, case="class", dtype=dtype)
        _same(_both("cuda", *given), _both("cpu", *given), within)


@pytest.mark.parametrize("form", _FORMS)
def test_later_calls_repeat_what_was_written_down(form, monkeypatch, rng):
    """On their own tensors; nothing is decided again."""
    OnSimulator(monkeypatch)
    numbacaps.clear_caches()
    _both("cuda", *_arguments(form, rng))
    monkeypatch.setattr(routing_runner, "Recording", None)
    given = _arguments(form, rng)
    _same(_both("cuda", *given), _both("cpu", *given))
    numbacaps.clear_caches()


def test_states_are_kept_where_they_are_little(monkeypatch, rng):
    """Then the gradient does not compute them again; the bits are the same. Parts of a batch have theirs apart."""
    OnSimulator(monkeypatch)
    monkeypatch.setattr(routing_kernels, "Runner", partial(Runner, part=2))
    numbacaps.clear_caches()
    x, w = torch.randn(3, 100, 1, 1, 1, 2), torch.randn(2, 100, 1, 1, 2, 2)
    dy, nothing = torch.randn(3, 2, 1, 1, 1, 2), torch.empty(0)
    how = *(getattr(Options(), name) for name in operators.OPTIONS), (1, 1), (0, 0), (1, 1)
    how, tensors = (*how, "ab,bc->ac"), (x, w, *[None] * 4)
    y, _, states = operators._on_cuda(*tensors, *how, True)
    assert states.shape == (3, 4 * 2 * 5)
    again, _, none = operators._on_cuda(*tensors, *how, False)
    assert torch.equal(y, again) and none.numel() == 0
    want = operators._gradient_on_cuda(dy, nothing, none, *tensors, *how, False)
    calls, forward = [], Runner._forward
    monkeypatch.setattr(Runner, "_forward", lambda *of: calls.append(of) or forward(*of))
    found = operators._gradient_on_cuda(dy, nothing, states, *tensors, *how, True)
    assert not calls and all(map(torch.equal, found, want))
    few = x[:, :4].contiguous(), w[:, :4].contiguous(), *[None] * 4
    assert operators._on_cuda(*few, *how, True)[2].numel() == 0  # they are more than a fourth of x
    numbacaps.clear_caches()


@pytest.mark.parametrize("product", ["ba,cb->ca", "ab,bc->ca"])
def test_the_cuda_side_on_sums_of_other_products(product, monkeypatch, rng):
    """Whose capsules are turned, and of channels that share a kernel."""
    OnSimulator(monkeypatch)
    shapes = (2, 3, 4, 3, 3, 3), (2, 1, 2, 2, 3, 3), (2, 2, 3, 2, 3, 3)
    x, w, dy = (torch.from_numpy(rng.standard_normal(shape, np.float32)) for shape in shapes)
    options = Options(votes="sum")
    how = *(getattr(options, name) for name in operators.OPTIONS), (1, 1), (0, 0), (1, 1)
    how = *how, product, True
    given = (dy, torch.empty(0)), (x, w.expand(-1, 3, -1, -1, -1, -1), *[None] * 4), how
    _same(_both("cuda", *given), _both("cpu", *given))


def test_what_the_cuda_side_refuses(monkeypatch, rng):
    OnSimulator(monkeypatch)
    monkeypatch.setattr(routing_kernels.RoutingCall, "__enter__", None)  # nothing is launched
    (dy, d_out), tensors, how = _arguments("em", rng)
    for i, said in ((2, "activations"), (3, "beta_u"), (4, "beta_a")):
        wrong = [*tensors[:i], tensors[i][..., :1], *tensors[i + 1 :]]
        with pytest.raises(ValueError, match=f"{said} has shape .*; it takes "):
            operators._on_cuda(*wrong, *how)
        with pytest.raises(ValueError, match=f"{said} has shape .*; it takes "):
            operators._gradient_on_cuda(dy, d_out, torch.empty(0), *wrong, *how)
    with pytest.raises(ValueError, match="activations is given; routing 'dynamic' takes none"):
        operators._on_cuda(*tensors, *_arguments("dynamic", rng)[2])
    with pytest.raises(RuntimeError, match="dy is torch.float64 and d_activations torch.float32"):
        operators._gradient_on_cuda(dy.double(), d_out, torch.empty(0), *tensors, *how)
    monkeypatch.undo()
    OnSimulator(monkeypatch)
    with pytest.raises(RuntimeError, match=r"dy has shape \(2, 3\); it takes \(2, 3, "):
        operators._gradient_on_cuda(dy[:, :, 0, 0, 0, 0, 0], d_out, torch.empty(0), *tensors, *how)
    with pytest.raises(ValueError, match=r"d_activations has shape \(2, 3, 1, 1\); it takes"):
        operators._gradient_on_cuda(dy, d_out[..., :1, :1], torch.empty(0), *tensors, *how)


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
    assert digits.logits.grad.abs().sum() > 0
    assert "iterations=3" in repr(digits)
    classes = nt.RoutedCapsuleLinear(6, 3, (4, 4), (4, 4), routing="em")
    y, a = classes(torch.randn(2, 6, 4, 4), torch.rand(2, 6))
    assert y.shape == (2, 3, 4, 4) and a.shape == (2, 3)


@pytest.mark.parametrize("learn_logits", [False, True])
@pytest.mark.parametrize("votes", ["children", "sum"])
def test_a_linear_layer_routes_as_a_convolution_of_one_pixel(votes, learn_logits):
    how = {"in_capsule": (2, 3), "out_capsule": (2, 4), "learn_logits": learn_logits}
    how["routing"] = {"routing": "dynamic", "votes": votes}
    linear, convolution = (
        nt.RoutedCapsuleLinear(5, 3, **how),
        nt.RoutedCapsuleConv2d(5, 3, 1, **how),
    )
    with torch.no_grad():
        convolution.weight.copy_(linear.weight[:, :, None, None])
        if learn_logits:
            torch.nn.init.normal_(linear.logits)
            convolution.logits.copy_(linear.logits.view_as(convolution.logits))
    x = torch.randn(2, 5, 2, 3)
    as_pixel = x[:, :, None, None]
    torch.testing.assert_close(linear(x), convolution(as_pixel)[:, :, 0, 0])
    torch.testing.assert_close(
        linear.couplings(x), convolution.couplings(as_pixel)[:, :, 0, 0, :, 0, 0]
    )


def test_a_linear_layer_and_a_routed_one_load_each_other_s_weights():
    """Children of a grid are in the order of its axes, as ``flatten`` has them."""
    plain = nt.CapsuleLinear((3, 2, 2), 4, (1, 8), (1, 16))
    routed = nt.RoutedCapsuleLinear(12, 4)
    routed.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 2, 2, 1, 8)
    votes = plain.votes(x)
    torch.testing.assert_close(routed.votes(x.flatten(1, 3)), votes)
    torch.testing.assert_close(routed(x.flatten(1, 3)), nt.DynamicRouting()(votes))
    again = nt.CapsuleLinear((3, 2, 2), 4, (1, 8), (1, 16))
    again.load_state_dict(routed.state_dict())
    assert torch.equal(again(x), plain(x))


@pytest.mark.parametrize("learn_logits", [False, True])
def test_a_layer_of_summed_votes(learn_logits):
    """Of SegCaps' kind; the same from votes that were made before."""
    routing = {"routing": "dynamic", "votes": "sum"}
    how = {"padding": 2, "routing": routing, "learn_logits": learn_logits}
    layer = nt.RoutedCapsuleConv2d(3, 2, 5, in_capsule=(1, 4), out_capsule=(1, 6), **how)
    x = torch.randn(2, 3, 7, 6, 1, 4)
    y = layer(x)
    assert y.shape == (2, 2, 7, 6, 1, 6) and "votes='sum'" in repr(layer)
    votes = nt.capsule_votes(x, layer.weight, padding=2, sum_window=True)
    torch.testing.assert_close(y, nt.DynamicRouting(positions=2)(votes))
    y.square().sum().backward()
    assert layer.weight.grad.abs().sum() > 0
    if learn_logits:
        assert layer.logits.shape == (2, 3) and layer.logits.grad.abs().sum() > 0


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
        ({"votes": "sums"}, "votes is 'sums'.* did you mean 'sum'"),
        (
            {"votes": "sum", "logits": torch.ones(3, 2, 2, 2)},
            r"logits has shape \(3, 2, 2, 2\); it takes \(3, 2\)",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            nt.capsule_routing(x, w, **options)
    with pytest.raises(ValueError, match="learn_logits is True"):
        nt.RoutedCapsuleConv2d(2, 3, 2, routing="em", learn_logits=True)
    with pytest.raises(ValueError, match="votes is 'sum'; it takes 'children'"):
        nt.DynamicRouting(votes="sum")
    with pytest.raises(ValueError, match="votes has shape"):
        nt.DynamicRouting()(torch.ones(2, 3))


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_couplings_say_which_parents_children_go_to(routing, rng):
    form = {"routing": routing, "iterations": 2}
    layer = nt.RoutedCapsuleConv2d(2, 3, 2, in_capsule=(2, 3), out_capsule=(2, 2), routing=form)
    x = torch.as_tensor(rng.standard_normal((2, 2, 4, 3, 2, 3)), dtype=torch.float32)
    more = {"activations": torch.rand(2, 2, 4, 3)} if routing == "em" else {}
    found = layer.couplings(x, **more)
    assert found.shape == (2, 3, 3, 2, 2, 2, 2) and not found.requires_grad
    torch.testing.assert_close(found.sum(1), torch.ones(2, 3, 2, 2, 2, 2))
    arrays = {name: one.numpy() for name, one in more.items()}
    weight = layer.weight.detach().numpy()
    how = form | arrays | {"algorithm": "numpy", "couplings": True}
    *_, wanted = numbacaps.capsule_routing(x.numpy(), weight, **how)
    torch.testing.assert_close(found, torch.as_tensor(wanted))
    half = nt.routing_couplings(x.half(), layer.weight.half(), **more, **form, detach=True)
    torch.testing.assert_close(half, found, rtol=0.1, atol=0.02)
    linear = nt.RoutedCapsuleLinear(5, 3, (1, 4), (1, 2), routing=form)
    more = {"activations": torch.rand(2, 5)} if routing == "em" else {}
    assert linear.couplings(torch.randn(2, 5, 1, 4), **more).shape == (2, 3, 5)
    with pytest.raises(TypeError, match="x is a ndarray"):
        nt.routing_couplings(x.numpy(), layer.weight)


@pytest.mark.parametrize("normalise", ["window", "all"])
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_of_an_activation_that_is_0(seed, normalise):
    """Such a child weighs nothing, and what it would weigh may be more than all others do."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((1, 6, 3, 3, 2, 2)), rng.standard_normal((3, 6, 2, 2, 2, 2))
    a = rng.random((1, 6, 3, 3)) * (rng.random((1, 6, 3, 3)) > 0.3)
    dy = rng.standard_normal((1, 3, 4, 4, 2, 2))
    how = {"routing": "em", "normalise": normalise, "padding": 1}
    own = torch.tensor(a, requires_grad=True)
    y, _ = nt.capsule_routing(torch.tensor(x), torch.tensor(w), activations=own, **how)
    y.backward(torch.tensor(dy))
    want = numbacaps.capsule_routing_backward(
        x, w, dy, activations=a, algorithm="numpy", **how
    ).activations
    assert (a == 0).any() and np.abs(want[a == 0]).max() > 0
    np.testing.assert_allclose(own.grad, want, rtol=1e-8, atol=1e-8 * np.abs(want).max())


def test_the_gradient_of_such_a_gradient():
    torch.manual_seed(1)
    layer = nt.EMRouting(3, dtype=torch.float64, epsilon=0.1)
    a = torch.tensor([[1.0, 0.7, 0.9, 0.4, 0, 0]], dtype=torch.float64, requires_grad=True)

    def gradient(votes):
        y, _ = layer(votes, a)
        return torch.autograd.grad(y.square().sum(), a, create_graph=True)[0]

    votes = torch.randn(1, 3, 6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gradient, votes, atol=1e-4, rtol=1e-4)


def test_em_routing_of_votes_of_another_dtype_and_of_none():
    votes, a = torch.randn(2, 3, 5, 4), torch.rand(2, 5)
    torch.manual_seed(0)
    layer = nt.EMRouting(3)
    want = layer(votes, a)
    for one, other in zip(layer.double()(votes, a), want, strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(ValueError, match="votes has shape .*takes a child or more"):
        layer(votes[:, :, :0], a[:, :0])


def test_operands_on_another_device_are_refused():
    """A layer that was made on "meta", and of which a state without betas was loaded."""
    with torch.device("meta"):
        layer = nt.RoutedCapsuleConv2d(3, 4, 3, routing="em")
    state = nt.CapsuleConv2d(3, 4, 3).state_dict()
    layer.load_state_dict(state, strict=False, assign=True)
    x, a = torch.randn(2, 3, 5, 5, 4, 4), torch.rand(2, 3, 5, 5)
    with pytest.raises(RuntimeError, match="x is on cpu and beta_u on meta; both take one device"):
        layer(x, a)
    votes = torch.randn(2, 3, 4, 8)
    with pytest.raises(RuntimeError, match="votes is on cpu and activations on meta"):
        nt.EMRouting(3)(votes, torch.rand(2, 4, device="meta"))


@pytest.mark.parametrize(
    "call, error, said",
    [
        (
            lambda v: nt.DynamicRouting()(v[..., :0]),
            ValueError,
            "takes capsules of an element or more",
        ),
        (
            lambda v: nt.DynamicRouting()(v, torch.zeros(3, 4, dtype=torch.complex64)),
            RuntimeError,
            "logits is torch.complex64",
        ),
        (
            lambda v: nt.routing_couplings(
                torch.ones(2, 3, 5, 5, 4, 4).int(), torch.ones(4, 3, 3, 3, 4, 4)
            ),
            RuntimeError,
            "x is torch.int32",
        ),
        (lambda v: nt.CapsuleLinear((), 4), ValueError, r"in_channels is \(\); it takes an axis"),
    ],
    ids=["no elements", "complex logits", "integers", "no children"],
)
def test_what_has_no_routing_is_refused_by_name(call, error, said):
    with pytest.raises(error, match=said):
        call(torch.randn(2, 3, 4, 8))
