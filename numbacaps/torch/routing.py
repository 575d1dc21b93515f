"""Routing for PyTorch: an operator with gradients.

On CUDA tensors numbacaps' kernels compute the votes again in every pass, forward and backward, and nothing is saved but
the operands, and of dynamic routing the parents' states where they are little beside x; votes that are summed over the window are stored, a band at a time. On CPU tensors :mod:`numbacaps.torch.plain_routing` does it. Under autocast routing is float32, as PyTorch's
softmax is.
"""

import torch

from numbacaps.fused.precision import PRECISIONS
from numbacaps.product import parse_product
from numbacaps.routing.call import is_shared, rung, shapes_of_operands
from numbacaps.routing.options import (
    Options,
    check_activations,
    check_given,
    check_name,
    options_of,
)
from numbacaps.routing.runner import kept_states
from numbacaps.shapes import geometry_of
from numbacaps.torch import plain_routing as plain
from numbacaps.torch import routing_bands, routing_kernels
from numbacaps.torch.closed import check as _check
from numbacaps.torch.closed import check_tensors, refuse_tangents
from numbacaps.torch.fold import _canonical, _in_order
from numbacaps.torch.functional import pair
from numbacaps.torch.operators import shape_of_output

_TENSORS = "Tensor x, Tensor w, Tensor? activations, Tensor? beta_u, Tensor? beta_a, Tensor? logits"
_HOW = (
    "str routing, int iterations, str softmax_over, bool detach, str normalise, float lam, float epsilon, "
    "str votes, int[2] stride, int[2] padding, int[2] dilation, str product, bool keep_states, "
    'str precision="auto"'
)
_library = torch.library.Library("numbacaps", "FRAGMENT")
_library.define(f"capsule_routing({_TENSORS}, {_HOW}) -> (Tensor, Tensor, Tensor)")
_library.define(
    "capsule_routing_gradient(Tensor dy, Tensor d_activations, Tensor states, "
    f"{_TENSORS}, {_HOW}) -> Tensor[]"
)
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_NAMES = ("x", "w", "activations", "beta_u", "beta_a", "logits")
OPTIONS = (
    "routing",
    "iterations",
    "softmax_over",
    "detach",
    "normalise",
    "lam",
    "epsilon",
    "votes",
)
WINDOW = ("stride", "padding", "dilation", "product")
_KEEPS = len(OPTIONS) + len(
    WINDOW
)  # where of what follows the tensors it says that states are kept


def _named(how):
    """The options by name: those of the routing, those of the window."""
    window = dict(zip(WINDOW, how[len(OPTIONS) :]))
    window |= {name: tuple(window[name]) for name in WINDOW[:3]}
    return dict(zip(OPTIONS, how)), window


def _precision(how):
    """The last one, which the dispatcher leaves out where it is the default; ValueError where it is none."""
    found = how[-1] if len(how) > _KEEPS + 1 else "auto"
    check_name("precision", found, PRECISIONS)
    return found


def _given(tensors):
    """Those that are given, by name."""
    return {name: tensor for name, tensor in zip(_NAMES, tensors) if tensor is not None}


def _full(tensors):
    """In float32, of float64 in float64."""
    return [
        tensor if tensor is None or tensor.dtype == torch.float64 else tensor.float()
        for tensor in tensors
    ]


def _fitting(given, how):
    """The options, and the geometry of one image, as N may be a symbol; ValueError where an operand does not fit x and w."""
    options, window = _named(how)
    _precision(how)
    options, x, w = Options(**options), given["x"], given["w"]
    one = (1, *map(int, x.shape[1:])), tuple(map(int, w.shape))
    _, g = _geometry_of(*one, window)
    takes = shapes_of_operands(g, options)
    takes["activations"] = (x.shape[0], *takes["activations"][1:])
    for name in _NAMES[2:]:
        if name in given and tuple(given[name].shape) != takes[name]:
            raise ValueError(f"{name} has shape {tuple(given[name].shape)}; it takes {takes[name]}")
    return options, g


def _empty(given, how):
    """Room for results: capsules, activations, and the states that are kept."""
    x, w, (options, g), (_, window) = given["x"], given["w"], _fitting(given, how), _named(how)
    y = shape_of_output(x.shape, w.shape, *window.values(), "ieee")
    numbers = kept_states(g, options)
    keeps = numbers and how[_KEEPS] and x.device.type == "cuda"
    sums = torch.promote_types(x.dtype, torch.float32)
    states = (x.shape[0], numbers) if keeps else (0,)
    return (
        x.new_empty(y),
        x.new_empty(y[:4] if options.is_em else (0,)),
        x.new_empty(states, dtype=sums),
    )


# ---- CUDA


def _on_cuda(*arguments):
    tensors, how = arguments[:6], arguments[6:]
    given = _given(tensors)
    _check(**given)
    x, w, more, *form = _of_kernels(given, how)
    if not x.shape[0]:
        return _empty(given, how)
    y, a, states = _kernels(form[0]).route(x, w, more, *form, how[_KEEPS])
    a = tensors[0].new_empty(0) if a is None else a
    return y.to(tensors[0].dtype), a, _no_states(x) if states is None else states


def _gradient_on_cuda(dy, d_activations, states, *arguments):
    tensors, how = arguments[:6], arguments[6:]
    given = _given(tensors)
    results = {"dy": dy, "d_activations": d_activations} if how[0] == "em" else {"dy": dy}
    _check(**results, **given)
    if not dy.shape[0]:
        return [torch.zeros_like(tensor) for tensor in given.values()]
    x, w, *others = _of_kernels(given, how)
    states = states if states.numel() else None
    reached = dy.to(x.dtype), d_activations
    found = _kernels(others[1]).gradients(x, w, *reached, states, *others)
    return [found[name].to(tensor.dtype) for name, tensor in given.items()]


def _kernels(options):
    """Who computes an operator on CUDA tensors."""
    return routing_bands if rung(options) == "stored" else routing_kernels


def _of_kernels(given, how):
    """x, w, what is given besides, the options, the window, the precision; votes that are stored are in full precision."""
    options, window = _named(how)
    options = Options(**options)
    if options.is_summed:
        given = dict(zip(given, _full(given.values())))
    more = {name: tensor for name, tensor in given.items() if name not in ("x", "w")}
    return given["x"], given["w"], more, options, tuple(window.values()), _precision(how)


# ---- CPU


def _geometry_of(x_shape, w_shape, window):
    product = parse_product(window["product"])
    how = {name: window[name] for name in ("stride", "padding", "dilation")}
    return product, geometry_of(x_shape, w_shape, product, **how)


def _routed(given, how):
    """Capsules, and of EM routing activations, by plain PyTorch."""
    options, window = _named(how)
    options, x, w = Options(**options), given["x"], given["w"]
    product, g = _geometry_of(tuple(x.shape), tuple(w.shape), window)
    wide = torch.promote_types(x.dtype, torch.float32)
    sizes = product.sizes(x.shape[4:], w.shape[4:])
    of_x = _canonical(x.to(wide), product.x, product.g, product.d1, product.d2)
    of_w = _canonical(w.to(wide), product.w, product.g, product.d2, product.d3)
    V = plain.votes(of_x, of_w, g, options.is_summed)
    more = {name: tensor.to(wide) for name, tensor in given.items() if name not in ("x", "w")}
    a = x.new_empty(0)
    if options.is_em:
        a = more.get("activations", x.new_ones(x.shape[:4], dtype=wide))
        nothing = x.new_zeros(g.P, dtype=wide)
        betas = more.get("beta_u", nothing), more.get("beta_a", nothing)
        numbers = plain.numbers_of(g, x.device)
        of_children = plain.children(a, numbers)
        y, a = plain.em(V, of_children, *betas, options, numbers, g.C * g.H * g.W)
        a = a.transpose(1, 2).reshape(g.N, g.P, g.OH, g.OW).to(x.dtype).contiguous()
    else:
        logits = more.get("logits")
        y = plain.dynamic(V, None if logits is None else logits.flatten(1), options)
    y = y.transpose(1, 2).reshape(g.output_shape).to(x.dtype)
    return _in_order(y, sizes, product.g + product.d1 + product.d3, product.y), a


def _on_cpu(*arguments):
    tensors, how = arguments[:6], arguments[6:]
    _check(**(given := _given(tensors)))
    _fitting(given, how)
    if "activations" in given:
        check_values(given["activations"])
    with torch.no_grad():
        return (*_routed(given, how), _no_states(tensors[0]))


def check_values(activations):
    """Refuse activations of a CPU tensor outside of 0 to 1; NaN may pass."""
    if activations.numel():
        known = activations.detach().nan_to_num(0.0)
        check_activations(known.min(), known.max())


def _no_states(x):
    return x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32))


def _gradient_on_cpu(dy, d_activations, states, *arguments):
    given, how = _given(arguments[:6]), arguments[6:]
    # Where a dispatch mode has called the operator, autograd is switched off.
    with torch._C._SetExcludeDispatchKeyGuard(_AUTOGRAD, False), torch.enable_grad():
        own = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
        y, a = _routed(own, how)
        results, gradients = ((y, a), (dy, d_activations)) if how[0] == "em" else ((y,), (dy,))
        leaves = list(own.values())
        found = torch.autograd.grad(results, leaves, gradients, materialize_grads=True)
    return [one.contiguous() for one in found]


for _name, _cuda, _cpu in (
    ("capsule_routing", _on_cuda, _on_cpu),
    ("capsule_routing_gradient", _gradient_on_cuda, _gradient_on_cpu),
):
    _library.impl(_name, _cuda, "CUDA")
    _library.impl(_name, _cpu, "CPU")

_routing = torch.ops.numbacaps.capsule_routing
_gradient = torch.ops.numbacaps.capsule_routing_gradient


@torch.library.register_fake("numbacaps::capsule_routing", lib=_library)
def _(*arguments):
    return _empty(_given(arguments[:6]), arguments[6:])


@torch.library.register_fake("numbacaps::capsule_routing_gradient", lib=_library)
def _(dy, d_activations, states, *arguments):
    return [tensor.new_empty(tensor.shape) for tensor in _given(arguments[:6]).values()]


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:6], output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.how = inputs[6:]


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again, as functions of all that they depend on."""

    @staticmethod
    def forward(context, count, *tensors):
        return tuple(one.clone() for one in tensors[:count])

    @staticmethod
    def backward(context, *_):
        raise NotImplementedError(
            "capsule_routing has no gradient of its gradient; DynamicRouting and EMRouting have one"
        )


def _backward(context, dy, d_activations, _):
    *tensors, states = context.saved_tensors
    with torch.no_grad():
        found = _gradient(dy, d_activations, states, *tensors, *context.how)
    if torch.is_grad_enabled():  # create_graph=True
        found = _Once.apply(len(found), *found, dy, d_activations, *tensors)
    found = iter(found)
    gradients = [None if tensor is None else next(found) for tensor in tensors]
    wanted = zip(gradients, context.needs_input_grad)
    return (
        *(one if is_wanted else None for one, is_wanted in wanted),
        *[None] * len(context.how),
    )


torch.library.register_autograd(
    "numbacaps::capsule_routing", _backward, setup_context=_keep, lib=_library
)


def _autocast(device):
    """Routing in full precision."""

    def run(*arguments):
        with torch.autocast(device, enabled=False):
            return _routing(*_full(arguments[:6]), *arguments[6:])

    return run


_library.impl("capsule_routing", _autocast("cuda"), "AutocastCUDA")
_library.impl("capsule_routing", _autocast("cpu"), "AutocastCPU")


def capsule_routing(
    x, w, *, activations=None, beta_u=None, beta_a=None, logits=None,
    stride=1, padding=0, dilation=1, product="ab,bc->ac", precision="auto", **options,
):  # fmt: skip
    """Parent capsules by routing, with gradients; as :func:`numbacaps.capsule_routing`.

    Parameters
    ----------
    x : Tensor (N, C, H, W, *T1)
    w : Tensor (P, C, KH, KW, *T2)
    activations : Tensor (N, C, H, W), optional
        From 0 to 1; on CUDA devices values are not looked at.
    beta_u, beta_a : Tensors (P,), optional
    logits : Tensor (P, C, KH, KW), of summed votes (P, C), optional
    stride, padding, dilation, product
        Those of the window.
    precision : str
        As :func:`numbacaps.capsule_routing`: how votes of float32 are multiplied on CUDA devices. CPU tensors are multiplied exactly
        as float32 is.
    options
        ``routing``, ``iterations``, ``softmax_over``, ``normalise``, ``lam``, ``epsilon``, ``votes``; and ``detach``:
        the last iteration's couplings count as constants in the gradient.

    Returns
    -------
    Tensor (N, P, OH, OW, *T3), of EM routing with activations (N, P, OH, OW)
    """
    check_tensors(x=x, w=w)
    form = options_of(options)
    given = {"activations": activations, "beta_u": beta_u, "beta_a": beta_a, "logits": logits}
    check_given(given, form)
    window = pair("stride", stride, 1), pair("padding", padding, 0), pair("dilation", dilation, 1)
    check_name("precision", precision, PRECISIONS)
    how = *(getattr(form, name) for name in OPTIONS), *window, product
    if form.is_summed and is_shared(x.shape, w.shape):
        w = w.expand(-1, x.shape[1], *w.shape[2:])
    tensors = x, w, *given.values()
    refuse_tangents(x=x, w=w, **given)
    needs = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    y, a, _ = _routing(*tensors, *how, needs and torch.is_grad_enabled(), precision)
    return (y, a) if form.is_em else y
