"""Routing for PyTorch: an operator with gradients, and layers.

On CUDA tensors numbacaps' kernels compute the votes again in every pass, forward and backward, and nothing is saved but
the operands; on CPU tensors :mod:`numbacaps.torch.plain_routing` does it. Under autocast routing is float32, as PyTorch's
softmax is.
"""

import torch
from torch import nn

import numbacaps
from numbacaps.product import parse_product
from numbacaps.routing.options import Options, check_given, check_votes
from numbacaps.shapes import geometry_of
from numbacaps.torch import plain_routing as plain
from numbacaps.torch.closed import check as _check
from numbacaps.torch.fold import _canonical, _in_order
from numbacaps.torch.functional import pair
from numbacaps.torch.modules import CapsuleConv2d
from numbacaps.torch.operators import shape_of_output

_TENSORS = "Tensor x, Tensor w, Tensor? activations, Tensor? beta_u, Tensor? beta_a, Tensor? logits"
_HOW = (
    "str routing, int iterations, str softmax_over, bool detach, str normalise, float lam, float epsilon, "
    "int[2] stride, int[2] padding, int[2] dilation, str product"
)
_library = torch.library.Library("numbacaps", "FRAGMENT")
_library.define(f"capsule_routing({_TENSORS}, {_HOW}) -> (Tensor, Tensor)")
_library.define(
    f"capsule_routing_gradient(Tensor dy, Tensor d_activations, {_TENSORS}, {_HOW}) -> Tensor[]"
)
_NAMES = ("x", "w", "activations", "beta_u", "beta_a", "logits")
_OPTIONS = ("routing", "iterations", "softmax_over", "detach", "normalise", "lam", "epsilon")
_WINDOW = ("stride", "padding", "dilation", "product")


def _named(how):
    """The options by name: those of the routing, those of the window."""
    window = dict(zip(_WINDOW, how[len(_OPTIONS) :]))
    window |= {name: tuple(window[name]) for name in _WINDOW[:3]}
    return dict(zip(_OPTIONS, how)), window


def _given(tensors):
    """Those that are given, by name."""
    return {name: tensor for name, tensor in zip(_NAMES, tensors) if tensor is not None}


def _shapes(x, w, how):
    """Of capsules and activations."""
    _, window = _named(how)
    order = window["stride"], window["padding"], window["dilation"], window["product"], "ieee"
    y = shape_of_output(x.shape, w.shape, *order)
    return y, y[:4] if how[0] == "em" else (0,)


# ---- CUDA


def _as_tensor(array, like):
    """A device array as a tensor, without a copy."""
    return torch.as_tensor(array, device=like.device).view(like.dtype)


def _on_cuda(*arguments):
    tensors, how = arguments[:6], arguments[6:]
    given = {name: tensor.detach() for name, tensor in _given(tensors).items()}
    _check(**given)
    options, window = _named(how)
    options.pop("detach")
    x, w = given.pop("x"), given.pop("w")
    y_shape, a_shape = _shapes(x, w, how)
    y = x.new_empty(y_shape)
    if not x.shape[0]:
        return y, x.new_empty(a_shape)
    found = numbacaps.capsule_routing(x, w, **given, out=y, **options, **window)
    return y, _as_tensor(found[1], x) if how[0] == "em" else x.new_empty(a_shape)


def _gradient_on_cuda(dy, d_activations, *arguments):
    tensors, how = arguments[:6], arguments[6:]
    given = {name: tensor.detach() for name, tensor in _given(tensors).items()}
    options, window = _named(how)
    if not dy.shape[0]:
        return [torch.zeros_like(tensor) for tensor in given.values()]
    operands = dict(given)
    if how[0] == "em":
        operands["d_activations"] = d_activations.detach()
    x, w = operands.pop("x"), operands.pop("w")
    found = numbacaps.capsule_routing_backward(x, w, dy.detach(), **operands, **options, **window)
    return [_as_tensor(getattr(found, name), dy) for name in given]


# ---- CPU


def _geometry(x, w, window, shared=False):
    product = parse_product(window["product"])
    w_shape = (w.shape[0], x.shape[1], *w.shape[2:]) if shared else w.shape
    how = {name: window[name] for name in ("stride", "padding", "dilation")}
    return product, geometry_of(tuple(x.shape), tuple(w_shape), product, **how)


def _routed(tensors, how, summed=False):
    """Capsules, and of EM routing activations, by plain PyTorch."""
    given, (options, window) = _given(tensors), _named(how)
    options, x, w = Options(**options), given["x"], given["w"]
    shared = summed and w.shape[1] == 1
    product, g = _geometry(x, w, window, shared)
    wide = torch.promote_types(x.dtype, torch.float32)
    sizes = product.sizes(x.shape[4:], w.shape[4:])
    of_x = _canonical(x.to(wide), product.x, product.g, product.d1, product.d2)
    of_w = _canonical(w.to(wide), product.w, product.g, product.d2, product.d3)
    V = plain.votes(of_x, of_w, g, summed)
    more = {name: tensor.to(wide) for name, tensor in given.items() if name not in ("x", "w")}
    a = x.new_empty(0)
    if options.is_em:
        a = more.get("activations", x.new_ones(x.shape[:4], dtype=wide))
        nothing = x.new_zeros(g.P, dtype=wide)
        betas = more.get("beta_u", nothing), more.get("beta_a", nothing)
        of_children, numbers = plain.children(a, g)
        y, a = plain.em(V, of_children, *betas, options, numbers, g.C * g.H * g.W)
        a = a.transpose(1, 2).reshape(g.N, g.P, g.OH, g.OW).to(x.dtype).contiguous()
    else:
        logits = more.get("logits")
        y = plain.dynamic(V, None if logits is None else logits.flatten(1), options)
    y = y.transpose(1, 2).reshape(g.output_shape).to(x.dtype)
    return _in_order(y, sizes, product.g + product.d1 + product.d3, product.y), a


def _on_cpu(*arguments):
    tensors, how = arguments[:6], arguments[6:]
    _check(**_given(tensors))
    with torch.no_grad():
        return _routed(tensors, how)


def _gradient_on_cpu(dy, d_activations, *arguments):
    tensors, how = arguments[:6], arguments[6:]
    with torch.enable_grad():
        own = [one if one is None else one.detach().requires_grad_() for one in tensors]
        y, a = _routed(own, how)
        leaves = list(_given(own).values())
        results, gradients = ((y, a), (dy, d_activations)) if how[0] == "em" else ((y,), (dy,))
        found = torch.autograd.grad(results, leaves, gradients, allow_unused=True)
    return [
        torch.zeros_like(leaf) if one is None else one.contiguous()
        for one, leaf in zip(found, leaves)
    ]


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
    x, w = arguments[:2]
    y, a = _shapes(x, w, arguments[6:])
    return x.new_empty(y), x.new_empty(a)


@torch.library.register_fake("numbacaps::capsule_routing_gradient", lib=_library)
def _(dy, d_activations, *arguments):
    return [tensor.new_empty(tensor.shape) for tensor in _given(arguments[:6]).values()]


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:6])
    ctx.how = inputs[6:]


def _backward(context, dy, d_activations):
    tensors = context.saved_tensors
    found = iter(_gradient(dy, d_activations, *tensors, *context.how))
    gradients = [None if tensor is None else next(found) for tensor in tensors]
    wanted = zip(gradients, context.needs_input_grad)
    return (*(one if is_wanted else None for one, is_wanted in wanted), *[None] * 11)


torch.library.register_autograd(
    "numbacaps::capsule_routing", _backward, setup_context=_keep, lib=_library
)


def _autocast(device):
    """Routing in float32, of float64 in float64."""

    def run(*arguments):
        tensors = [
            tensor if tensor is None or tensor.dtype == torch.float64 else tensor.float()
            for tensor in arguments[:6]
        ]
        with torch.autocast(device, enabled=False):
            return _routing(*tensors, *arguments[6:])

    return run


_library.impl("capsule_routing", _autocast("cuda"), "AutocastCUDA")
_library.impl("capsule_routing", _autocast("cpu"), "AutocastCPU")


def capsule_routing(
    x, w, *, activations=None, beta_u=None, beta_a=None, logits=None, votes="children",
    stride=1, padding=0, dilation=1, product="ab,bc->ac", **options,
):  # fmt: skip
    """Parent capsules by routing, with gradients; as :func:`numbacaps.capsule_routing`.

    Parameters
    ----------
    x : Tensor (N, C, H, W, *T1)
    w : Tensor (P, C, KH, KW, *T2)
    activations : Tensor (N, C, H, W), optional
    beta_u, beta_a : Tensors (P,), optional
    logits : Tensor (P, C, KH, KW), optional
    votes : str
        "children", or "sum", which is plain PyTorch on every device.
    stride, padding, dilation, product
        Those of the window.
    options
        ``routing``, ``iterations``, ``softmax_over``, ``normalise``, ``lam``, ``epsilon``; and ``detach``: the last
        iteration's couplings count as constants in the gradient.

    Returns
    -------
    Tensor (N, P, OH, OW, *T3), of EM routing with activations (N, P, OH, OW)
    """
    form = Options(**options)
    check_votes(votes, form)
    given = {"activations": activations, "beta_u": beta_u, "beta_a": beta_a, "logits": logits}
    check_given(given, form)
    window = pair("stride", stride, 1), pair("padding", padding, 0), pair("dilation", dilation, 1)
    how = *(getattr(form, name) for name in _OPTIONS), *window, product
    tensors = x, w, *given.values()
    _check_shapes(x, w, given, window, product, votes)
    if votes == "sum":
        return _routed(tensors, how, summed=True)[0]
    y, a = _routing(*tensors, *how)
    return (y, a) if form.is_em else y


def _check_shapes(x, w, given, window, product, votes):
    """Refuse operands that do not fit x and w."""
    window = dict(zip(_WINDOW, (*window, product)))
    _geometry(x, w, window, votes == "sum" and w.dim() > 4 and w.shape[1] == 1)
    P, C = w.shape[0], x.shape[1]
    takes = {
        "activations": tuple(x.shape[:4]),
        "beta_u": (P,),
        "beta_a": (P,),
        "logits": (P, C) if votes == "sum" else (P, C, *w.shape[2:4]),
    }
    for name, tensor in given.items():
        if tensor is not None and tuple(tensor.shape) != takes[name]:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it takes {takes[name]}")


# ---- layers


class RoutedCapsuleConv2d(CapsuleConv2d):
    """A capsule convolution whose sum is routing.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, in_capsule, out_capsule, stride, padding, dilation, product, device, dtype
        As :class:`numbacaps.torch.CapsuleConv2d`.
    learn_logits : bool
        Dynamic routing begins with logits that are learned.
    routing : dict or str
        "dynamic" or "em"; or the options of :func:`capsule_routing` by name.

    Attributes
    ----------
    weight : Parameter (out_channels, in_channels, KH, KW, *T2)
    beta_u, beta_a : Parameters (out_channels,) of EM routing, None else
    logits : Parameter (out_channels, in_channels, KH, KW) or None

    Notes
    -----
    ``forward`` takes (N, in_channels, H, W, *in_capsule), and of EM routing activations (N, in_channels, H, W); it returns
    capsules, of EM routing with activations.
    """

    def __init__(self, *arguments, routing="dynamic", learn_logits=False, **options):
        named = {"routing": routing} if isinstance(routing, str) else dict(routing)
        self.options = Options(**named)
        if learn_logits and self.options.is_em:
            raise ValueError("learn_logits is True; routing 'em' has no logits")
        if options.get("bias"):
            raise ValueError("bias is True; routing takes none")
        super().__init__(*arguments, **options)
        made = {"device": self.weight.device, "dtype": self.weight.dtype}
        betas = self.options.is_em
        for name in ("beta_u", "beta_a"):
            zeros = torch.zeros(self.out_channels, **made)
            self.register_parameter(name, nn.Parameter(zeros) if betas else None)
        zeros = torch.zeros(self.weight.shape[:4], **made)
        self.register_parameter("logits", nn.Parameter(zeros) if learn_logits else None)

    def forward(self, x, activations=None):
        """The parents."""
        named = {name: getattr(self.options, name) for name in _OPTIONS}
        own = {"beta_u": self.beta_u, "beta_a": self.beta_a, "logits": self.logits}
        window = {name: getattr(self, name) for name in _WINDOW}
        return capsule_routing(x, self.weight, activations=activations, **own, **window, **named)

    def extra_repr(self):
        named = ", ".join(f"{name}={getattr(self.options, name)!r}" for name in _OPTIONS[:2])
        return f"{super().extra_repr()}, {named}"


class RoutedCapsuleLinear(nn.Module):
    """A layer in which every input capsule has a kernel of its own for every output capsule, as DigitCaps.

    Parameters
    ----------
    in_capsules, out_capsules : int
        How many.
    in_capsule, out_capsule : tuple of int
        Their shapes; vectors are (1, length).
    routing, learn_logits, product, device, dtype
        As :class:`RoutedCapsuleConv2d`.

    Notes
    -----
    ``forward`` takes (N, in_capsules, *in_capsule), and of EM routing activations (N, in_capsules); it returns (N,
    out_capsules, *out_capsule), of EM routing with activations.
    """

    def __init__(
        self, in_capsules, out_capsules, in_capsule=(1, 8), out_capsule=(1, 16), **options
    ):
        super().__init__()
        self.convolution = RoutedCapsuleConv2d(
            in_capsules, out_capsules, 1, in_capsule, out_capsule, **options
        )

    def forward(self, x, activations=None):
        """The parents."""
        x = x[:, :, None, None]
        if self.convolution.options.is_em:
            y, a = self.convolution(
                x, None if activations is None else activations[:, :, None, None]
            )
            return y[:, :, 0, 0], a[:, :, 0, 0]
        return self.convolution(x)[:, :, 0, 0]


class _Routing(nn.Module):
    """Routing of votes that somebody else made: (N, P, *positions, I, *capsule)."""

    def __init__(self, positions=0, routing="dynamic", **options):
        super().__init__()
        self.positions, self.options = positions, Options(routing, **options)

    def _flat(self, votes):
        """Votes (N, L, I, P, E), and the shape of capsules."""
        least = 3 + self.positions
        if votes.dim() < least:
            raise ValueError(f"votes has shape {tuple(votes.shape)}; it takes {least} axes or more")
        lead, I, capsule = votes.shape[: least - 1], votes.shape[least - 1], votes.shape[least:]
        wide = votes.to(torch.promote_types(votes.dtype, torch.float32))
        size = capsule.numel() if capsule else 1
        flat = wide.reshape(*lead[:2], -1, I, size).permute(0, 2, 3, 1, 4)
        return flat, (*lead, *capsule)


class DynamicRouting(_Routing):
    """Dynamic routing of votes (N, P, *positions, I, *capsule); returns (N, P, *positions, *capsule).

    Parameters
    ----------
    positions : int
        Axes of positions, between parents and children.
    options
        ``iterations``, ``softmax_over`` and ``detach`` of :func:`capsule_routing`.
    """

    def __init__(self, positions=0, **options):
        super().__init__(positions, "dynamic", **options)

    def forward(self, votes, logits=None):
        """The parents; ``logits`` (P, I)."""
        flat, shape = self._flat(votes)
        v = plain.dynamic(flat, logits, self.options)
        return v.transpose(1, 2).reshape(shape).to(votes.dtype)


class EMRouting(_Routing):
    """EM routing of votes (N, P, *positions, I, *capsule), with ``beta_u`` and ``beta_a`` of its own.

    Parameters
    ----------
    out_channels : int
        Parents.
    positions : int
        Axes of positions, between parents and children.
    options
        ``iterations``, ``lam``, ``epsilon`` and ``detach`` of :func:`capsule_routing`.
    """

    def __init__(self, out_channels, positions=0, **options):
        super().__init__(positions, "em", **options)
        if self.options.normalise != "window":
            raise ValueError("normalise is 'all'; EMRouting takes 'window', the only one of votes")
        self.beta_u = nn.Parameter(torch.zeros(out_channels))
        self.beta_a = nn.Parameter(torch.zeros(out_channels))

    def forward(self, votes, activations):
        """Parents, and their activations (N, P, *positions); ``activations`` (N, *positions, I)."""
        flat, shape = self._flat(votes)
        a = activations.to(flat.dtype).reshape(flat.shape[:3])
        mu, out = plain.em(flat, a, self.beta_u, self.beta_a, self.options)
        lead = shape[: 2 + self.positions]
        return (
            mu.transpose(1, 2).reshape(shape).to(votes.dtype),
            out.transpose(1, 2).reshape(lead).to(votes.dtype),
        )
