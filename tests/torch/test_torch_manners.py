"""What a user of PyTorch expects of operators and layers besides their values: refusals, empty batches, what they say."""

import copy
import pickle
import re
import warnings
from functools import partial

import pytest

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  (where torch is)

import numbacaps.torch as nt  # noqa: E402
from numbacaps.torch import squash_operators  # noqa: E402
from numbacaps.torch.closed import ordinary  # noqa: E402
from numbacaps.torch.operators import CONVOLUTION  # noqa: E402
from numbacaps.torch.votes_operators import VOTES  # noqa: E402
from tests.support.torch_listener import Listener  # noqa: E402

pytestmark = pytest.mark.tiers("simulator")
_X, _W = (2, 2, 4, 4, 2, 3), (3, 2, 2, 2, 3, 2)

_FUNCTIONS = {
    "convolution": nt.capsule_conv2d,
    "transposed": lambda y, w: nt.capsule_conv_transpose2d(y, w, (len(y), *_X[1:])),
    "votes": nt.capsule_votes,
    "linear": lambda x, w: nt.capsule_linear(x[:, :, 0, 0], w[:, :, 0, 0]),
    "dynamic": nt.capsule_routing,
    "em": lambda x, w: nt.capsule_routing(x, w, routing="em")[0],
    "em over all": lambda x, w: nt.capsule_routing(x, w, routing="em", normalise="all")[1],
    "sums": lambda x, w: nt.capsule_routing(x, w, votes="sum"),
    "sums, shared": lambda x, w: nt.capsule_routing(x, w[:, :1], votes="sum"),
}
_functions = pytest.mark.parametrize("function", _FUNCTIONS)


def _operands(function, images=2, **how):
    shape = (3, 3, 3, 2, 2) if function == "transposed" else _X[1:]
    return torch.randn(images, *shape, **how), torch.randn(_W, **how)


@_functions
def test_no_images(function):
    x, w = _operands(function, 0, requires_grad=True)
    y, some = _FUNCTIONS[function](x, w), _FUNCTIONS[function](*_operands(function))
    assert y.shape == (0, *some.shape[1:])
    y.sum().backward()
    assert x.grad.shape == x.shape and (w.grad == 0).all()


@_functions
def test_layouts_of_operands_do_not_matter(function):
    """Results are contiguous, as the fake ones are."""
    run, (x, w) = _FUNCTIONS[function], _operands(function)
    turned = [
        one.permute(*reversed(range(one.dim()))).contiguous().permute(*reversed(range(one.dim())))
        for one in (x, w)
    ]
    found, right = run(*turned), run(x, w)
    torch.testing.assert_close(found, right)
    assert found.is_contiguous()
    fake = run(*(one.to("meta") for one in turned))
    assert (fake.shape, fake.stride(), fake.dtype) == (found.shape, found.stride(), found.dtype)


def test_channels_last_is_read_as_it_lies():
    """Numbers are capsules too; the result is contiguous, eager and fake."""
    x, w = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3)
    right = torch.nn.functional.conv2d(x, w)
    x, w = (one.to(memory_format=torch.channels_last) for one in (x, w))
    y = nt.capsule_conv2d(x, w, product=",->")
    torch.testing.assert_close(y, right)
    fake = nt.capsule_conv2d(x.to("meta"), w.to("meta"), product=",->")
    assert y.is_contiguous() and fake.stride() == y.stride()


@pytest.mark.filterwarnings("ignore:`torch.jit.script.*` is deprecated:DeprecationWarning")
@_functions
def test_forward_mode_is_refused(function):
    """Operators of torch.library would take a tangent for zeros."""
    run, (x, w) = _FUNCTIONS[function], _operands(function)
    with pytest.raises(NotImplementedError, match="has a tangent .* no derivative here"):
        torch.func.jvp(lambda x: run(x, w), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(w, w)
        with pytest.raises(NotImplementedError, match="w has a tangent"):
            run(x, dual)


@pytest.mark.filterwarnings("ignore:`torch.jit.script.*` is deprecated:DeprecationWarning")
@pytest.mark.slow(but=["convolution-eager"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@_functions
def test_forward_mode_is_refused_in_what_is_compiled(function, backend):
    """What has been traced comes to the operator alone, whose tangent would be dropped."""
    run, (x, w) = _FUNCTIONS[function], _operands(function)

    def tangent(x, t):
        return torch.func.jvp(lambda x: run(x, w), (x,), (t,))[1]

    compiled = torch.compile(tangent, backend=backend), torch.compile(run, backend=backend)
    with pytest.raises(Exception, match="has a tangent .* no derivative here"):
        compiled[0](x, torch.ones_like(x))
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(Exception, match="has a tangent .* no derivative here"):
            compiled[1](torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)), w)


@pytest.mark.parametrize("total", [torch.sum, lambda y: y.square().sum()], ids=["sum", "squares"])
@pytest.mark.parametrize("function", ["dynamic", "em", "sums, shared"])
def test_gradients_of_routings_gradients_are_refused(function, total):
    """Also as a part of a sum that has gradients of its own."""
    x, w = _operands(function, requires_grad=True)
    y = _FUNCTIONS[function](x, w)
    want = torch.autograd.grad(total(y), (x, w), retain_graph=True)
    found = torch.autograd.grad(total(y), (x, w), create_graph=True)
    for one, wanted in zip(found, want):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0)
    with pytest.raises(NotImplementedError, match="no gradient of its gradient"):
        (x.square().sum() + found[0].square().sum()).backward()


_LAYERS = {
    "RoutedCapsuleConv2d(2, 3, kernel_size=(1, 1), in_capsule=(4, 4), out_capsule=(4, 4), routing='em', iterations=2, "
    "normalise='all', lam=0.1)": lambda: nt.RoutedCapsuleConv2d(
        2, 3, 1, routing={"routing": "em", "iterations": 2, "normalise": "all", "lam": 0.1}
    ),
    "RoutedCapsuleConv2d(2, 3, kernel_size=(1, 1), in_capsule=(4, 4), out_capsule=(4, 4), routing='dynamic', "
    "iterations=3, learn_logits=True)": lambda: nt.RoutedCapsuleConv2d(2, 3, 1, learn_logits=True),
    "RoutedCapsuleLinear(6, 3, in_capsule=(1, 8), out_capsule=(1, 16), routing='em', iterations=3)": (
        lambda: nt.RoutedCapsuleLinear(6, 3, routing="em")
    ),
    "DynamicRouting(positions=2, routing='dynamic', iterations=1, detach=True)": lambda: (
        nt.DynamicRouting(positions=2, iterations=1, detach=True)
    ),
    "EMRouting(3, positions=0, routing='em', iterations=3)": lambda: nt.EMRouting(3),
    "MarginLoss(m_plus=0.9, m_minus=0.1, down_weight=0.5, reduction='sum')": lambda: nt.MarginLoss(
        reduction="sum"
    ),
    "SpreadLoss(margin=0.2, reduction='mean')": nt.SpreadLoss,
}


@pytest.mark.parametrize("said", _LAYERS)
def test_what_layers_say_and_their_copies_say(said):
    layer = _LAYERS[said]()
    for one in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(one) == said
        assert list(one.state_dict()) == list(layer.state_dict())


_SHAPE = "it takes a size for each axis, as (4, 4) for 4 rows and 4 columns"
# A number in the place of a capsule's shape, and what is said of it.
_NO_SHAPES = {
    f"in_capsule is 2; {_SHAPE}": [lambda: nt.CapsuleConv2d(8, 16, 3, in_capsule=2)],
    f"out_capsule is 1; {_SHAPE}": [lambda: nt.RoutedCapsuleConv2d(8, 16, 3, out_capsule=1)],
    f"in_capsule is 8; {_SHAPE}": [
        lambda: nt.CapsuleLinear(1152, 10, 8, 16),
        lambda: nt.RoutedCapsuleLinear(1152, 10, 8, 16),
    ],
    f"out_capsule is 16; {_SHAPE}": [
        lambda: nt.CapsuleLinear(1152, 10, (1, 8), 16),
        lambda: nt.RoutedCapsuleLinear(1152, 10, (1, 8), 16),
    ],
}


@pytest.mark.parametrize("said", _NO_SHAPES)
def test_a_number_is_no_shape_of_a_capsule(said):
    for make in _NO_SHAPES[said]:
        with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
            make()


@pytest.mark.parametrize(
    "layer", [nt.CapsuleConv2d, nt.CapsuleConvTranspose2d, nt.RoutedCapsuleConv2d]
)
@pytest.mark.parametrize("stride", [2, (2, 2)])
def test_a_stride_is_not_taken_for_the_shape_of_a_capsule(layer, stride):
    """torch.nn.Conv2d takes it behind kernel_size."""
    said = (
        f"{stride} follows kernel_size without a name; {layer.__name__} takes in_capsule, stride and all other "
        "options by name, as in_capsule=(4, 4), stride=2"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        layer(8, 16, 3, stride)


def test_routed_layers_refuse_what_they_would_not_do():
    with pytest.raises(ValueError, match="out_channels is 0; it takes an int of 1 or more"):
        nt.RoutedCapsuleLinear(1152, 0)
    with pytest.raises(ValueError, match="bias is True; routing takes none"):
        nt.RoutedCapsuleConv2d(2, 3, 1, bias=True)
    x, a = torch.ones(2, 6, 1, 8), torch.ones(2, 6)
    with pytest.raises(ValueError, match="activations is given; routing 'dynamic' takes none"):
        nt.RoutedCapsuleLinear(6, 3)(x, a)
    layer = nt.RoutedCapsuleLinear(6, 3, routing="em")
    for wrong in (a[0], a[:1], a[:, :5], a[..., None]):
        said = f"activations has shape {tuple(wrong.shape)}; it takes (2, 6)"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            layer(x, wrong)
    with pytest.raises(TypeError, match="activations is a list; it takes a torch.Tensor"):
        layer(x, [1.0])


def test_what_layers_do_not_take_is_named():
    with pytest.raises(TypeError, match="^CapsuleConv2d takes no 'groups'$"):
        nt.CapsuleConv2d(2, 3, 1, groups=2)
    said = "iterations is an option of routing; give routing={'routing': 'em', 'iterations': 2}"
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        nt.RoutedCapsuleConv2d(2, 3, 1, routing="em", iterations=2)
    said = "'iters' is no option of routing; it takes .*; did you mean 'iterations'"
    with pytest.raises(TypeError, match=said):
        nt.RoutedCapsuleLinear(2, 3, routing={"routing": "em", "iters": 2})
    with pytest.raises(TypeError, match="'lambda' is no option of routing"):
        nt.capsule_routing(*_ONES, **{"lambda": 1.0})


_SUMMED = {"routing": "dynamic", "votes": "sum"}
_GRID = (2, 4, 7, 7, 4, 4), "N, 4, H, W, 4, 4"
# What of a layer is called, a shape that it takes, and what is said of others.
_READS = {
    "conv": (lambda: nt.CapsuleConv2d(4, 3, 3).forward, *_GRID),
    "votes": (lambda: nt.CapsuleConv2d(4, 3, 3).votes, *_GRID),
    "transposed": (lambda: nt.CapsuleConvTranspose2d(4, 3, 3).forward, *_GRID),
    "linear": (lambda: nt.CapsuleLinear(6, 3).forward, (2, 6, 4, 4), "N, 6, 4, 4"),
    "linear votes": (lambda: nt.CapsuleLinear(6, 3).votes, (2, 6, 4, 4), "N, 6, 4, 4"),
    "routed": (lambda: nt.RoutedCapsuleConv2d(4, 3, 3).forward, *_GRID),
    "routed votes": (lambda: nt.RoutedCapsuleConv2d(4, 3, 3).votes, *_GRID),
    "routed sums": (lambda: nt.RoutedCapsuleConv2d(4, 3, 3, routing=_SUMMED).forward, *_GRID),
    "routed linear": (lambda: nt.RoutedCapsuleLinear(6, 3).forward, (2, 6, 1, 8), "N, 6, 1, 8"),
    "routed linear votes": (lambda: nt.RoutedCapsuleLinear(6, 3).votes, (2, 6, 1, 8), "N, 6, 1, 8"),
}


@pytest.mark.parametrize("of", _READS)
def test_layers_refuse_other_channels_and_capsules(of):
    """Each axis of them, one axis more or less, and what is no tensor."""
    make, shape, takes = _READS[of]
    run, name, rank = make(), "y" if of == "transposed" else "x", len(shape)
    run(torch.ones(shape))
    named = [axis for axis, size in enumerate(takes.split(", ")) if size.isdigit()]
    others = [shape[:axis] + (shape[axis] + 1,) + shape[axis + 1 :] for axis in named]
    others += [shape[:axis] + (1,) + shape[axis + 1 :] for axis in named if shape[axis] != 1]
    for wrong in (*others, *(shape[:axes] for axes in range(rank)), (*shape, 1)):
        said = f"{name} has shape {wrong}; it takes ({takes})"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            run(torch.ones(wrong))
    with pytest.raises(TypeError, match=f"^{name} is a list; it takes a torch.Tensor$"):
        run([1.0])


def test_channels_may_share_the_kernel_of_summed_votes():
    """As in SegCaps: the layer has one channel, and x any number."""
    layer = nt.RoutedCapsuleConv2d(1, 2, 3, routing=_SUMMED)
    x = torch.randn(2, 3, 5, 5, 4, 4)
    torch.testing.assert_close(layer(x), nt.capsule_routing(x, layer.weight, votes="sum"))
    w = layer.weight.expand(-1, 3, -1, -1, -1, -1)
    torch.testing.assert_close(layer.votes(x, True), nt.capsule_votes(x, w, sum_window=True))
    with pytest.raises(ValueError, match=r"it takes \(N, C, H, W, 4, 4\)"):
        layer(x[..., :3, :])


def test_channels_that_share_the_kernel_share_the_logits():
    torch.manual_seed(0)
    layer = nt.RoutedCapsuleConv2d(1, 2, 3, routing=_SUMMED, learn_logits=True)
    torch.nn.init.normal_(layer.logits)
    x, logits = torch.randn(2, 3, 5, 5, 4, 4), layer.logits.expand(2, 3)
    right = nt.capsule_routing(x, layer.weight, votes="sum", logits=logits)
    torch.testing.assert_close(layer(x), right)
    layer(x).square().sum().backward()
    assert layer.logits.grad.abs().max() > 0
    assert layer.couplings(x).shape == (2, 2, 3, 3, 3, 1, 1)


def test_a_convolution_is_traced_by_fx():
    """Whose proxies have no shape to look at."""
    layer, x = torch.nn.Sequential(nt.CapsuleConv2d(2, 3, 3)), torch.randn(2, 2, 5, 5, 4, 4)
    assert torch.equal(torch.fx.symbolic_trace(layer)(x), layer(x))
    scores, labels = torch.rand(4, 10), torch.tensor([1, 2, 3, 4])
    for loss in (nt.MarginLoss(), nt.SpreadLoss()):
        assert torch.equal(torch.fx.symbolic_trace(loss)(scores, labels), loss(scores, labels))


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        (nt.CapsuleConv2d, (2, 3, 3)),
        (nt.CapsuleConvTranspose2d, (2, 3, 3)),
        (nt.CapsuleLinear, (2, 3)),
        (nt.RoutedCapsuleConv2d, (2, 3, 3)),
        (nt.RoutedCapsuleLinear, (2, 3)),
    ],
)
def test_layers_are_made_without_initialisation(layer, arguments):
    made = torch.nn.utils.skip_init(layer, *arguments, dtype=torch.float64)
    assert made.weight.dtype == torch.float64 and made.weight.device.type == "cpu"


def test_a_transposed_layer_names_its_own_capsules():
    of = {"in_capsule": (4, 4), "out_capsule": (4,)}
    with pytest.raises(ValueError, match=r"^out_capsule is \(4,\); .* takes 2 axes"):
        nt.CapsuleConvTranspose2d(2, 3, 3, **of)
    of = {"in_capsule": (3, 4), "out_capsule": (4, 4)}
    with pytest.raises(ValueError, match="^in_capsule has size 3 .*; out_capsule has 4 there"):
        nt.CapsuleConvTranspose2d(2, 3, 3, **of)


@pytest.mark.parametrize("size", [5, (5, 5), None])
def test_a_transposed_convolution_takes_the_whole_shape(size):
    with pytest.raises(
        ValueError, match=r"^output_size is .*; it takes the whole shape .*, 6 axes"
    ):
        nt.capsule_conv_transpose2d(
            torch.ones(1, 3, 3, 3, 2, 2), torch.ones(3, 2, 2, 2, 2, 2), size
        )


_ONES = torch.ones(1, 2, 3, 3, 4, 4), torch.ones(3, 2, 1, 1, 4, 4)


@pytest.mark.parametrize("function", [nt.capsule_conv2d, nt.capsule_votes, nt.capsule_routing])
def test_arrays_of_other_libraries_are_refused(function):
    x, w = _ONES
    with pytest.raises(TypeError, match="^x is a ndarray; it takes a torch.Tensor$"):
        function(x.numpy(), w)
    with pytest.raises(TypeError, match="^w is a list; it takes a torch.Tensor$"):
        function(x, [1.0])


@pytest.mark.parametrize("name", ["activations", "beta_u", "logits"])
def test_arrays_that_routing_takes_besides_are_refused(name):
    x, w = _ONES
    routing = "dynamic" if name == "logits" else "em"
    with pytest.raises(TypeError, match=f"^{name} is a list; it takes a torch.Tensor$"):
        nt.capsule_routing(x, w, routing=routing, **{name: [1.0]})


@pytest.mark.parametrize("loss", [nt.margin_loss, nt.spread_loss])
def test_labels_are_a_class_an_image(loss):
    scores, labels = torch.rand(4, 10), torch.tensor([1, 2, 3, 4])
    for wrong in (labels[:3], labels[:1], labels[:, None], torch.eye(10)[labels].long()):
        said = f"labels has shape {tuple(wrong.shape)}; it takes (4,), a class an image"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            loss(scores, wrong)
    for wrong in (labels.float(), labels.int()):
        with pytest.raises(TypeError, match="labels has dtype .*; it takes torch.int64"):
            loss(scores, wrong)
    with pytest.raises(ValueError, match=r"has shape \(10,\); it takes \(N, classes\)"):
        loss(scores[0], labels[:1])
    with pytest.raises(TypeError, match="labels is a list; it takes a torch.Tensor"):
        loss(scores, [1, 2, 3, 4])


@pytest.mark.parametrize("wrong", [-0.25, 1.5])
def test_activations_are_from_0_to_1(wrong):
    x, w = _ONES
    a = torch.full((1, 2, 3, 3), 0.5)
    a[0, 1, 2, 0] = wrong
    with pytest.raises(
        ValueError, match="activations has values from .* it takes values from 0 to 1"
    ):
        nt.capsule_routing(x, w, activations=a, routing="em")
    a[0, 1, 2, 0] = torch.nan  # which flows
    y, _ = nt.capsule_routing(x, w, activations=a, routing="em")
    assert y.isnan().any() and y.isfinite().any()


_VOTES = torch.ones(2, 3, 5, 6, 4, 4)  # of 6 children for 3 parents, at 5 positions


def _routings():
    """Both routings of votes; activations go to one of them."""
    em = nt.EMRouting(3, positions=1)
    return nt.DynamicRouting(positions=1), lambda votes: em(votes, torch.ones(2, 5, 6))


def test_routing_of_votes_refuses_what_are_none():
    for route in _routings():
        route(_VOTES), route(_VOTES[..., 0, 0])  # a scalar is a capsule
        with pytest.raises(TypeError, match="^votes is a list; it takes a torch.Tensor$"):
            route([1.0])
        with pytest.raises(RuntimeError, match="^votes is torch.int64; it takes torch.float16"):
            route(_VOTES.long())
        with pytest.raises(
            ValueError, match=r"votes has shape \(2, 3, 5\); it takes \(N, [P3], pos"
        ):
            route(_VOTES[..., 0, 0, 0])
    for routing in (nt.DynamicRouting, partial(nt.EMRouting, 3)):
        with pytest.raises(ValueError, match="positions is -1; it takes an int of 0 or more"):
            routing(positions=-1)
    with pytest.raises(ValueError, match="out_channels is 0; it takes an int of 1 or more"):
        nt.EMRouting(0)


def test_votes_of_a_convolution_are_routed_where_their_children_are_one_axis():
    layer = nt.CapsuleConv2d(2, 3, 2, precision="ieee").double()
    x = torch.randn(2, 2, 4, 4, 4, 4, dtype=torch.float64)
    votes = layer.votes(x)
    routing = nt.DynamicRouting(positions=2, capsule=(4, 4))
    y = nt.capsule_routing(x, layer.weight, precision="ieee")
    torch.testing.assert_close(routing(votes.flatten(4, 6)), y)
    said = r"votes has shape \(2, 3, 3, 3, 2, 2, 2, 4, 4\); it takes \(N, P, position, position, I, 4, 4\)"
    with pytest.raises(ValueError, match=said):
        routing(votes)
    assert "capsule=(4, 4)" in repr(routing)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: nt.DynamicRouting(routing="em"), "DynamicRouting takes no routing; it is 'dyn"),
        (lambda: nt.DynamicRouting(iters=2), "'iters' is no option of routing; it takes"),
        (lambda: nt.RoutedCapsuleConv2d(8, 4, 3, routing=None), "routing is None; it takes 'dyn"),
        (lambda: nt.RoutedCapsuleLinear(8, 4, routing=3), "routing is 3; it takes 'dynamic', 'em'"),
        (lambda: nt.SpreadLoss(margin="0.2"), "margin is '0.2'; it takes a number"),
        (lambda: nt.MarginLoss(m_plus=True), "m_plus is True; it takes a number"),
        (lambda: nt.MarginLoss(m_plus=torch.ones(2)), "m_plus is tensor([1., 1.]); it takes a n"),
        (
            lambda: nt.MarginLoss(down_weight=torch.tensor(0.5, requires_grad=True)),
            "down_weight is tensor(0.5000, requires_grad=True); it takes a number that wants no gradient",
        ),
        (lambda: nt.layouts.from_vectors([1.0]), "x is a list; it takes a torch.Tensor"),
    ],
)
def test_what_layers_of_routing_and_losses_do_not_take(made, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        made()


def test_losses_refuse_other_reductions_when_they_are_made():
    for loss in (nt.SpreadLoss, nt.MarginLoss):
        with pytest.raises(ValueError, match="reduction is 'avg'; it takes 'mean'"):
            loss(reduction="avg")


def test_numbers_that_sums_would_round_to_0_are_refused():
    x, w = _ONES
    votes, a = torch.ones(2, 3, 5, 4, 4), torch.ones(2, 5)
    for run in (
        lambda: nt.capsule_routing(x, w, routing="em", epsilon=1e-50),
        lambda: nt.EMRouting(3, epsilon=1e-50)(votes, a),
    ):
        with pytest.raises(ValueError, match="epsilon is 1e-50; torch.float32 takes 1.18e-38 to 3"):
            run()
    nt.capsule_routing(x.double(), w.double(), routing="em", epsilon=1e-50)


@pytest.mark.parametrize("caps", [-8, 8.0, True])
def test_poses_are_of_whole_capsules(caps):
    with pytest.raises(ValueError, match="caps is .*; it takes an int of 1 or more"):
        nt.layouts.from_poses(torch.ones(1, 2, 2, 17), caps)


def test_numbers_that_are_no_floats_are_not_squashed():
    for run in (nt.Squash(), nt.ExponentialSquash(2)):
        with pytest.raises(RuntimeError, match="x is torch.int64; it takes a dtype of floats"):
            run(torch.ones(2, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("made", "children"),
    [
        (lambda: nt.RoutedCapsuleLinear((32, 6, 6), 10), (32, 6, 6, 1, 8)),
        (lambda: nt.RoutedCapsuleLinear(300, 5, (4, 4), (4, 4)), (300, 4, 4)),
        (
            lambda: nt.RoutedCapsuleLinear(
                300, 5, (4, 4), (4, 4), routing={"routing": "dynamic", "softmax_over": "children"}
            ),
            (300, 4, 4),
        ),
        (lambda: nt.RoutedCapsuleConv2d(16, 12, 3), (16, 3, 3, 4, 4)),
        (lambda: nt.RoutedCapsuleConv2d(16, 12, 3, routing=_SUMMED), (16, 3, 3, 4, 4)),
        (
            lambda: nt.RoutedCapsuleConv2d(
                16, 12, 3, routing={**_SUMMED, "softmax_over": "children"}
            ),
            (16, 3, 3, 4, 4),
        ),
    ],
)
def test_parents_of_a_new_layer_are_about_as_long_as_children(made, children):
    """Before the squash: the sums of the first iteration."""
    torch.manual_seed(0)
    layer = made()
    x = torch.randn(64, *children)
    if isinstance(layer, nt.RoutedCapsuleLinear):
        votes = layer.votes(x)
    else:
        votes = layer.votes(x, sum_window=layer.options.is_summed)[:, :, 0, 0]
        votes = votes.flatten(2, -3)
    by_parents = layer.options.softmax_over == "parents"
    sums = votes.sum(2) / (layer.out_channels if by_parents else votes.shape[2])
    assert 0.8 < sums.std() < 1.25


def test_a_routed_layer_takes_a_grid():
    torch.manual_seed(0)
    grid, flat = nt.RoutedCapsuleLinear((4, 3, 3), 5), nt.RoutedCapsuleLinear(36, 5)
    flat.load_state_dict(grid.state_dict())
    x = torch.randn(2, 4, 3, 3, 1, 8)
    torch.testing.assert_close(grid(x), flat(x.flatten(1, 3)))
    how = {"routing": "em", "in_capsule": (4, 4), "out_capsule": (4, 4)}
    grid, a = nt.RoutedCapsuleLinear((4, 3, 3), 5, **how), torch.rand(2, 4, 3, 3)
    assert [made.shape for made in grid(torch.randn(2, 4, 3, 3, 4, 4), a)] == [(2, 5, 4, 4), (2, 5)]
    with pytest.raises(ValueError, match=r"activations has shape \(2, 36\); it takes \(2, 4, 3, 3"):
        grid(torch.randn(2, 4, 3, 3, 4, 4), a.flatten(1))


def test_what_is_whole_does_not_route_by_em():
    em = nt.RoutedCapsuleConv2d(4, 4, 1, routing="em")
    with pytest.raises(ValueError, match=r"modules\[1\] routes by EM, which takes and returns"):
        nt.CapsuleSequential(nt.CapsuleConv2d(8, 4, 1), em)


def test_routing_of_votes_refuses_operands_that_do_not_fit():
    logits, a = torch.zeros(3, 6), torch.ones(2, 5, 6)
    dynamic, em = nt.DynamicRouting(positions=1), nt.EMRouting(3, positions=1)
    dynamic(_VOTES, logits), em(_VOTES, a)
    for wrong in (logits[:1], logits[:, :1], logits.T, logits[0], logits[None]):
        said = f"logits has shape {tuple(wrong.shape)}; it takes (3, 6)"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            dynamic(_VOTES, wrong)
    for wrong in (a[:1], a[:, :1], a[..., :1], a.mT, a[0], a.flatten()):
        said = f"activations has shape {tuple(wrong.shape)}; it takes (2, 5, 6)"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            em(_VOTES, wrong)
    for run, name in ((dynamic, "logits"), (em, "activations")):
        with pytest.raises(TypeError, match=f"^{name} is a list; it takes a torch.Tensor$"):
            run(_VOTES, [1.0])
    for parents in (1, 2, 4):
        said = f"votes has shape (2, 3, 5, 6, 4, 4); it takes (N, {parents}, position, I, 4, 4)"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            nt.EMRouting(parents, positions=1)(_VOTES, a)


@pytest.mark.parametrize("wrong", [-0.25, 1.5])
def test_routing_of_votes_takes_activations_from_0_to_1(wrong):
    em, a = nt.EMRouting(3, positions=1), torch.full((2, 5, 6), 0.5)
    a[0, 1, 2] = wrong
    with pytest.raises(ValueError, match="activations has values from .* takes values from 0 to 1"):
        em(_VOTES, a.requires_grad_())
    a = a.detach()
    a[0, 1, 2] = torch.nan  # which flows
    y, _ = em(_VOTES, a)
    assert y.isnan().any() and y.isfinite().any()
    assert em(_VOTES[:0], a[:0])[1].shape == (0, 3, 5)


def test_activations_that_cannot_be_looked_at_are_not():
    """In a transform, as one graph, and of tensors without values."""
    em, a = nt.EMRouting(3, positions=1), torch.rand(2, 5, 6)
    votes = torch.rand(2, 3, 5, 6, 4, 4)
    want = em(votes, a)
    several = torch.func.vmap(em)(votes[None], a[None])
    compiled = torch.compile(em, fullgraph=True, backend="eager")(votes, a)
    for found in ([one[0] for one in several], compiled):
        for one, wanted in zip(found, want):
            torch.testing.assert_close(one, wanted)
    empty = nt.EMRouting(3, positions=1, device="meta")(votes.to("meta"), a.to("meta"))
    assert [one.shape for one in empty] == [one.shape for one in want]


def test_reset_parameters_gives_what_construction_gives():
    made = {"device": "cpu", "dtype": torch.float64}
    for make in (
        lambda: nt.RoutedCapsuleConv2d(2, 3, 2, routing="em", **made),
        lambda: nt.RoutedCapsuleConv2d(2, 3, 2, learn_logits=True, **made),
        lambda: nt.RoutedCapsuleLinear(2, 3, routing="em", **made),
        lambda: nt.EMRouting(3, **made),
    ):
        torch.manual_seed(3)
        layer = make()
        want = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
        for parameter in layer.parameters():
            assert parameter.dtype == torch.float64
            torch.nn.init.ones_(parameter)
        torch.manual_seed(3)
        layer.reset_parameters()
        for name, tensor in layer.state_dict().items():
            assert torch.equal(tensor, want[name])
    assert nt.EMRouting(3, device="meta").beta_u.is_meta


def _differentiated(function, x, w, dy):
    """The result and both gradients."""
    leaves = [one.detach().clone().requires_grad_() for one in (x, w)]
    y = function(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, dy)


_LINEAR = pytest.mark.parametrize("function", [nt.capsule_conv2d, nt.capsule_votes])


def _em(x, w):
    """Capsules by EM routing."""
    return nt.capsule_routing(x, w, routing="em")[0]


def _three(function):
    generator = torch.Generator().manual_seed(0)
    x, w = (
        torch.randn(shape, generator=generator)
        for shape in ((2, 2, 3, 3, 2, 2), (3, 2, 2, 2, 2, 2))
    )
    return x, w, torch.randn(function(x, w).shape, generator=generator)


@_LINEAR
def test_whoever_listens_hears_of_the_operators(function):
    """A mode, as PyTorch's counters of operations are, also in the backward pass."""
    operands = _three(function)
    with Listener() as listener:
        _differentiated(function, *operands)
    name = function.__name__
    gradients = (
        ("capsule_input_gradient", "capsule_kernel_gradient")
        if name == "capsule_conv2d"
        else ("capsule_votes_input_gradient", "capsule_votes_kernel_gradient")
    )
    for operator in (name, *gradients):
        assert listener.heard.count(operator) == 1


@_LINEAR
def test_views_whose_sign_is_pending(function):
    """PyTorch negates such a view when it is read: its memory holds the other sign."""
    x, w, dy = _three(function)
    wanted = _differentiated(function, x, w, dy)
    with torch.no_grad():
        torch.testing.assert_close(function(torch._neg_view(x), w), -wanted[0])
    for found, right in zip(_differentiated(function, x, w, torch._neg_view(dy))[1:], wanted[1:]):
        torch.testing.assert_close(found, -right)


def _as_memory(run):
    """A function of what lies in its tensors' memory, as kernels read it."""

    def read(*given):
        is_neg = (isinstance(one, torch.Tensor) and one.is_neg() for one in given)
        return run(*(torch._neg_view(one) if neg else one for one, neg in zip(given, is_neg)))

    return read


@_LINEAR
def test_operands_whose_sign_is_pending_have_gradients(function, monkeypatch):
    """The gradients read the operands again, and they read memory."""
    kind = CONVOLUTION if function is nt.capsule_conv2d else VOTES
    x, w, dy = _three(function)
    y, dx, dw = _differentiated(function, x, w, dy)
    monkeypatch.setitem(kind.on, "CPU", type(kind.on["CPU"])(*map(_as_memory, kind.on["CPU"])))
    of_w, of_x = (one.clone().requires_grad_() for one in (w, x))
    negative = function(torch._neg_view(x), of_w)
    torch.testing.assert_close(negative, -y)
    torch.testing.assert_close(torch.autograd.grad(negative, of_w, dy)[0], -dw)
    negative = function(of_x, torch._neg_view(w))
    torch.testing.assert_close(torch.autograd.grad(negative, of_x, dy)[0], -dx)


def test_a_squash_of_a_tensor_whose_sign_is_pending_has_a_gradient(monkeypatch):
    """With a slope it is not the one of the other sign."""
    torch.manual_seed(0)
    x, how = torch.randn(2, 4), (4, 0.1, "exponential")
    (wanted,) = torch.autograd.grad(
        squash_operators.value(of := (-x).requires_grad_(), *how).sum(), of
    )
    on = tuple(map(_as_memory, squash_operators.ON["CPU"]))
    monkeypatch.setitem(squash_operators.ON, "CPU", on)
    of = torch._neg_view(x).requires_grad_()
    (found,) = torch.autograd.grad(torch.ops.numbacaps.capsule_squash(of, *how).sum(), of)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nt.CapsuleConv2d(2, 3, 3, in_capsule=(1, 4), out_capsule=(1, 1)), (2, 2, 5, 5, 1, 4)),
        (lambda: nt.CapsuleConv2d(2, 3, 5, in_capsule=(1, 4), out_capsule=(1, 8)), (2, 2, 5, 5, 1, 4)),
        (lambda: nt.CapsuleConvTranspose2d(2, 3, 3, in_capsule=(1, 1), out_capsule=(1, 1)), (2, 2, 5, 5, 1, 1)),
        (lambda: nt.CapsuleConv2d(2, 1, 3).votes, (2, 2, 3, 3, 4, 4)),
        (lambda: nt.CapsuleLinear(7, 3, (1, 4), (1, 8)), (2, 7, 1, 4)),
        (lambda: nt.RoutedCapsuleLinear(7, 3, (1, 4), (1, 8)), (2, 7, 1, 4)),
        (lambda: nt.RoutedCapsuleConv2d(2, 3, 3), (2, 2, 3, 3, 4, 4)),
    ],
)  # fmt: skip
def test_results_may_be_written_to_in_place(layer, shape):
    torch.manual_seed(0)
    layer, x = layer(), torch.randn(shape, requires_grad=True)
    (wanted,) = torch.autograd.grad((2 * layer(x)).square().sum(), x)
    (found,) = torch.autograd.grad(layer(x).mul_(2).square().sum(), x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("function", [nt.capsule_conv2d, nt.capsule_votes, nt.capsule_routing, _em])
def test_several_gradients_at_once(function):
    """``is_grads_batched`` takes them through ``vmap``."""
    x, w, dy = _three(function)
    leaves = [one.requires_grad_() for one in (x, w)]
    y = function(*leaves)
    wanted = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it goes gradient by gradient
        found = torch.autograd.grad(y, leaves, torch.stack([dy, 2 * dy]), is_grads_batched=True)
    for both, one in zip(found, wanted):
        torch.testing.assert_close(both, torch.stack([one, 2 * one]))


class _Named(torch.Tensor):
    """A subclass, which may see to functions itself."""


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated:DeprecationWarning")
def test_calls_go_past_the_dispatcher_only_where_nothing_else_comes_first():
    x, w = _ONES
    assert ordinary(x, torch.nn.Parameter(w)) == "CPU"
    assert ordinary(x.as_subclass(_Named), w) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert ordinary(x, w) is None
    with FakeTensorMode() as mode:
        assert ordinary(mode.from_tensor(x)) is None and ordinary(x) is None
    with torch.device("cpu"):  # a mode that sees every function
        assert ordinary(x, w) is None
    found = []
    torch.func.vmap(lambda one: found.extend([ordinary(one), ordinary(w)]) or one)(x)
    torch.jit.trace(lambda one: found.append(ordinary(one, w)) or one + 1, (x,), check_trace=False)
    assert found == [None] * 3
    traced = torch.jit.trace(lambda one: nt.capsule_conv2d(one, w), (x,), check_trace=False)
    assert "numbacaps::capsule_conv2d" in str(traced.graph)
    torch.testing.assert_close(traced(2 * x), 2 * nt.capsule_conv2d(x, w))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_transposed_layer_is_traced():
    """While it is, sizes are tensors."""
    layer, y = nt.CapsuleConvTranspose2d(3, 4, 3), torch.randn(2, 3, 5, 5, 4, 4)
    traced = torch.jit.trace(layer, (y,))
    torch.testing.assert_close(traced(2 * y), layer(2 * y))
