"""Routing for PyTorch: an operator with gradients.

On CUDA tensors numbacaps' kernels compute the votes again in every pass, forward and backward, and nothing is saved but
the operands, and the parents' states where they are small (:func:`numbacaps.routing.runner.kept_states`); votes that are summed over the window are stored, a band at a time. On CPU tensors :mod:`numbacaps.torch.plain_routing` does it. Under autocast routing is float32, as PyTorch's
softmax is.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from numbacaps.fused.precision import PRECISIONS
from numbacaps.product import parse_product
from numbacaps.routing.call import is_shared, rung, shapes_of_operands
from numbacaps.routing.options import (
    Options,
    check_activations,
    check_given,
    check_name,
    check_numbers,
    options_of,
)
from numbacaps.routing.runner import kept_states
from numbacaps.shapes import geometry_of
from numbacaps.torch import plain_routing as plain
from numbacaps.torch import routing_bands, routing_kernels
from numbacaps.torch.closed import (
    backend_below,
    backend_of,
    check_tensors,
    no_view,
    redispatched,
    refuse_tangents,
    refuse_traced_tangents,
    without_autocast,
)
from numbacaps.torch.closed import check as _check
from numbacaps.torch.fold import _canonical, _in_order
from numbacaps.torch.functional import pair
from numbacaps.torch.operators import shape_of_output
from numbacaps.torch.routing_kernels import KEEP_OF_BATCH

_TENSORS = "Tensor x, Tensor w, Tensor? activations, Tensor? beta_u, Tensor? beta_a, Tensor? logits"
_HOW = (
    "str routing, int iterations, str softmax_over, bool detach, str normalise, float lam, float epsilon, "
    "str votes, int[2] stride, int[2] padding, int[2] dilation, str product, int keep_states, "
    'str precision="auto"'
)
_library = torch.library.Library("numbacaps", "FRAGMENT")
_library.define(f"capsule_routing({_TENSORS}, {_HOW}) -> (Tensor, Tensor, Tensor)")
_library.define(
    "capsule_routing_gradient(Tensor dy, Tensor d_activations, Tensor states, "
    f"{_TENSORS}, {_HOW}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
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
_KEEPS = len(OPTIONS) + len(WINDOW)  # where it says that states are kept, behind the tensors
_KINDS = 256  # of calls whose options are kept


class _Form(NamedTuple):
    """What the operators' arguments behind the tensors say.

    Attributes
    ----------
    options : numbacaps.routing.options.Options
    window : tuple
        stride, padding, dilation, product.
    keeps_states : int
    precision : str
    """

    options: Options
    window: tuple
    keeps_states: int
    precision: str

    @property
    def moves(self):
        """stride, padding and dilation, by name."""
        return dict(zip(WINDOW, self.window[:3]))


def _read(how):
    """The :class:`_Form` of what follows the tensors, which is checked the first time it comes."""
    return _read_once(*(tuple(one) if isinstance(one, list) else one for one in how))


@lru_cache(_KINDS, typed=True)
def _read_once(*how):
    """The same, of hashable arguments."""
    # The dispatcher leaves the last one out where it is the default.
    precision = how[-1] if len(how) > _KEEPS + 1 else "auto"
    check_name("precision", precision, PRECISIONS)
    return _Form(Options(*how[: len(OPTIONS)]), how[len(OPTIONS) : _KEEPS], how[_KEEPS], precision)


def _given(tensors):
    """Those that are given, by name."""
    return {name: tensor for name, tensor in zip(_NAMES, tensors) if tensor is not None}


def _full(tensors):
    """In float32, of float64 in float64."""
    return [
        tensor if tensor is None or tensor.dtype == torch.float64 else tensor.float()
        for tensor in tensors
    ]


def _fitting(given, read):
    """The geometry of one image, as N may be a symbol; ValueError where an operand does not fit x and w."""
    x, w = given["x"], given["w"]
    one = (1, *map(int, x.shape[1:])), tuple(map(int, w.shape))
    _, g = _geometry_of(*one, read)
    takes = shapes_of_operands(g, read.options)
    takes["activations"] = (x.shape[0], *takes["activations"][1:])
    for name in _NAMES[2:]:
        if name in given and tuple(given[name].shape) != takes[name]:
            raise ValueError(f"{name} has shape {tuple(given[name].shape)}; it takes {takes[name]}")
    return g


def _empty(given, how):
    """Room for results: capsules, activations, and the states that are kept."""
    x, w, read = given["x"], given["w"], _read(how)
    g, options = _fitting(given, read), read.options
    y = shape_of_output(x.shape, w.shape, *read.window, "ieee")
    sums, numbers = torch.promote_types(x.dtype, torch.float32), 0
    if read.keeps_states and x.device.type == "cuda":
        images = x.shape[0] if read.keeps_states == KEEP_OF_BATCH else None
        numbers = kept_states(g, options, read.precision, sums.itemsize, images)
    states = (x.shape[0], numbers) if numbers else (0,)
    return (
        x.new_empty(y),
        x.new_empty(y[:4] if options.is_em else (0,)),
        x.new_empty(states, dtype=sums),
    )


# ---- CUDA


def _on_cuda(*arguments):
    tensors, how = arguments[:6], arguments[6:]
    given, read = _given(tensors), _read(how)
    _check(**given)
    if not tensors[0].shape[0]:
        return _empty(given, how)
    x, w, more = _of_kernels(given, read)
    form = read.options, read.window, read.precision
    y, a, states = _kernels(read.options).route(x, w, more, *form, read.keeps_states)
    a = tensors[0].new_empty(0) if a is None else a
    return y.to(tensors[0].dtype), a, _no_states(x) if states is None else states


def _gradient_on_cuda(dy, d_activations, states, *arguments):
    tensors, how = arguments[:6], arguments[6:]
    given, read = _given(tensors), _read(how)
    results = {"dy": dy, "d_activations": d_activations} if read.options.is_em else {"dy": dy}
    _check(**results, **given)
    if not dy.shape[0]:
        return [torch.zeros_like(tensor) for tensor in given.values()]
    x, w, more = _of_kernels(given, read)
    form = read.options, read.window, read.precision
    reached = dy.to(x.dtype), d_activations, states if states.numel() else None
    found = _kernels(read.options).gradients(x, w, *reached, more, *form)
    return [found[name].to(tensor.dtype) for name, tensor in given.items()]


def _kernels(options):
    """Who computes an operator on CUDA tensors."""
    return routing_bands if rung(options) == "stored" else routing_kernels


def _of_kernels(given, read):
    """x, w, and what is given besides; votes that are stored are in full precision."""
    if read.options.is_summed:
        given = dict(zip(given, _full(given.values())))
    more = {name: tensor for name, tensor in given.items() if name not in ("x", "w")}
    return given["x"], given["w"], more


# ---- CPU


def _geometry_of(x_shape, w_shape, read):
    product = parse_product(read.window[3])
    return product, geometry_of(x_shape, w_shape, product, **read.moves)


def _routed(given, how):
    """Capsules, and of EM routing activations, by plain PyTorch."""
    read, x, w = _read(how), given["x"], given["w"]
    options = read.options
    product, g = _geometry_of(tuple(x.shape), tuple(w.shape), read)
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
    _fitting(given, _read(how))
    if "activations" in given:
        check_values(given["activations"])
    with torch.no_grad():
        y, a = _routed(given, how)
    return no_view(y), no_view(a), _no_states(tensors[0])


def check_sums(options, tensor):
    """Refuse numbers of EM routing that are 0 or infinite where a tensor's capsules are added."""
    check_numbers(options, torch.promote_types(tensor.dtype, torch.float32), torch.finfo)


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
    unguarded = torch._C._SetExcludeDispatchKeyGuard(_AUTOGRAD, False)
    with unguarded, torch.enable_grad(), without_autocast(dy):
        own = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
        y, a = _routed(own, how)
        results, gradients = ((y, a), (dy, d_activations)) if how[0] == "em" else ((y,), (dy,))
        leaves = list(own.values())
        found = torch.autograd.grad(results, leaves, gradients, materialize_grads=True)
    return [one.contiguous() for one in found]


_routing = torch.ops.numbacaps.capsule_routing.default
_gradient = torch.ops.numbacaps.capsule_routing_gradient.default
_ON = {"CUDA": (_on_cuda, _gradient_on_cuda), "CPU": (_on_cpu, _gradient_on_cpu)}


def _of_all(gradients):
    """The gradient operator: what ``gradients`` finds of the operands that are given, and an empty tensor of each other one."""

    def run(dy, d_activations, states, *arguments):
        found = iter(gradients(dy, d_activations, states, *arguments))
        return tuple(dy.new_empty(0) if one is None else next(found) for one in arguments[:6])

    return run


for _backend, (_forward, _gradients) in _ON.items():
    _library.impl("capsule_routing", _forward, _backend)
    _library.impl("capsule_routing_gradient", _of_all(_gradients), _backend)


@torch.library.register_fake("numbacaps::capsule_routing", lib=_library)
def _(*arguments):
    _check(**(given := _given(arguments[:6])))
    return _empty(given, arguments[6:])


@torch.library.register_fake("numbacaps::capsule_routing_gradient", lib=_library)
@_of_all
def _(dy, d_activations, states, *arguments):
    _check(dy=dy, **(given := _given(arguments[:6])))
    return [tensor.new_empty(tensor.shape) for tensor in given.values()]


def _given_of(found, tensors):
    """Of the gradient operator's results those of operands that are given."""
    return [gradient for gradient, tensor in zip(found, tensors) if tensor is not None]


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


def _below(keys, tensors, how):
    """The results of tensors whose gradients are taken care of."""
    backend = backend_below(keys)
    if backend:
        return _ON[backend][0](*tensors, *how)
    return redispatched(_routing, keys, *tensors, *how)


class _Differentiated(torch.autograd.Function):
    """The operator and its gradient; of ordinary tensors what the dispatcher would find (:mod:`numbacaps.torch.closed`).

    ``is_ordinary`` is of the operands, which the gradient reads again; the gradients of the results are asked then.
    """

    @staticmethod
    def forward(context, keys, how, *tensors):
        context.is_ordinary = backend_below(keys) is not None
        y, a, states = _below(keys, tensors, how)
        context.save_for_backward(*tensors, states)
        context.how, context.shapes = how, (y.shape, a.shape)
        context.mark_non_differentiable(states)
        context.set_materialize_grads(False)
        return y, a, states

    @staticmethod
    def backward(context, dy, d_activations, _):
        *tensors, states = context.saved_tensors
        x, (of_y, of_a) = tensors[0], context.shapes
        dy = x.new_zeros(of_y) if dy is None else dy
        if d_activations is None:
            # Dynamic routing has no activations: the gradient operator takes a tensor there, and does not read it.
            d_activations = x.new_zeros(of_a) if len(of_a) > 1 else states
        given = dy, d_activations, states, *tensors, *context.how
        if not torch.is_grad_enabled():
            backends = {backend_of(dy), backend_of(d_activations)}
            backend = backends.pop() if context.is_ordinary and len(backends) == 1 else None
            found = _ON[backend][1](*given) if backend else _given_of(_gradient(*given), tensors)
        else:  # create_graph=True
            with torch.no_grad():
                found = _given_of(_gradient(*given), tensors)
            found = _Once.apply(len(found), *found, dy, d_activations, *tensors)
        found = iter(found)
        gradients = [None if tensor is None else next(found) for tensor in tensors]
        wanted = zip(gradients, context.needs_input_grad[2:])
        return None, None, *(one if is_wanted else None for one, is_wanted in wanted)


def _differentiated(keys, *arguments):
    tensors, how = arguments[:6], arguments[6:]
    refuse_traced_tangents(**dict(zip(_NAMES, tensors)))
    wanted = (tensor is not None and tensor.requires_grad for tensor in tensors)
    if torch.is_grad_enabled() and any(wanted):
        return _Differentiated.apply(keys, how, *tensors)
    return _below(keys, tensors, how)


_Differentiated.__name__ = _Differentiated.__qualname__ = "capsule_routing"
_library.impl("capsule_routing", _differentiated, "Autograd", with_keyset=True)


def _autocast(device):
    """Routing in full precision."""

    def run(*arguments):
        with torch.autocast(device, enabled=False):
            return _routing(*_full(arguments[:6]), *arguments[6:])

    return run


_library.impl("capsule_routing", _autocast("cuda"), "AutocastCUDA")
_library.impl("capsule_routing", _autocast("cpu"), "AutocastCPU")


@lru_cache(_KINDS, typed=True)
def _options_once(**named):
    return options_of(named)


def _options(named):
    """The options of some names, which are checked the first time they come."""
    if not torch.compiler.is_compiling():  # which traces no caches
        try:
            return _options_once(**named)
        except TypeError:
            pass  # of one that is refused, or that is no key, and is refused by name below
    return options_of(named)


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
    form = _options(options)
    given = {"activations": activations, "beta_u": beta_u, "beta_a": beta_a, "logits": logits}
    check_given(given, form)
    check_tensors(x=x, w=w, **{name: one for name, one in given.items() if one is not None})
    if isinstance(x, torch.Tensor):
        check_sums(form, x)
    window = pair("stride", stride, 1), pair("padding", padding, 0), pair("dilation", dilation, 1)
    check_name("precision", precision, PRECISIONS)
    how = *(getattr(form, name) for name in OPTIONS), *window, product
    if form.is_summed and is_shared(x.shape, w.shape):
        w = w.expand(-1, x.shape[1], *w.shape[2:])
    tensors = x, w, *given.values()
    refuse_tangents(x=x, w=w, **given)
    needs = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    keep = int(needs and torch.is_grad_enabled())
    if keep and not torch.compiler.is_compiling():  # there N may be a symbol
        keep = KEEP_OF_BATCH
    y, a, _ = _routing(*tensors, *how, keep, precision)
    return (y, a) if form.is_em else y
