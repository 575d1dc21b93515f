"""Layers that route: capsule convolutions whose sum is routing, and routing of votes that somebody else made.

Dynamic routing returns squashed capsules, of lengths from 0 to 1, so no squash follows it. EM routing does not squash.
"""

import math
from collections.abc import Mapping

import torch
from torch import nn

from numbacaps.routing.options import Options, check_given, options_of
from numbacaps.torch import plain_routing as plain
from numbacaps.torch.closed import backend_of, check, check_device, check_tensors, without_autocast
from numbacaps.torch.couplings import routing_couplings
from numbacaps.torch.modules import (
    CapsuleConv2d,
    CapsuleLinear,
    check_capsule,
    check_count,
    check_shape,
)
from numbacaps.torch.routing import OPTIONS, WINDOW, capsule_routing, check_sums, check_values


def _shown(options):
    """The routing, its iterations, and the options that are not the defaults."""
    usual = Options(options.routing, options.iterations)
    names = [
        name
        for name in OPTIONS
        if name in OPTIONS[:2] or getattr(options, name) != getattr(usual, name)
    ]
    return ", ".join(f"{name}={getattr(options, name)!r}" for name in names)


class _Routed:
    """What routed layers have in common: the options of routing, and what is learned besides the kernel."""

    def __init__(
        self, *arguments, routing="dynamic", learn_logits=False, device=None, dtype=None, **options
    ):
        if not isinstance(routing, (str, Mapping)):
            raise TypeError(
                f"routing is {routing!r}; it takes 'dynamic', 'em', or options by name, as "
                "{'routing': 'em', 'iterations': 2}"
            )
        named = {"routing": routing} if isinstance(routing, str) else dict(routing)
        self.options = options_of(named)
        for name in options:
            if name in OPTIONS:
                told = {**named, name: options[name]}
                raise TypeError(f"{name} is an option of routing; give routing={told}")
        if learn_logits and self.options.is_em:
            raise ValueError("learn_logits is True; routing 'em' has no logits")
        super().__init__(*arguments, device=device, dtype=dtype, **options)
        if self.bias is not None:
            raise ValueError("bias is True; routing takes none")
        made = {"device": self.weight.device, "dtype": self.weight.dtype}
        betas = self.options.is_em
        for name in ("beta_u", "beta_a"):
            zeros = torch.zeros(self.out_channels, **made)
            self.register_parameter(name, nn.Parameter(zeros) if betas else None)
        zeros = torch.zeros(self._logits_shape(), **made)
        self.register_parameter("logits", nn.Parameter(zeros) if learn_logits else None)

    def reset_parameters(self):
        """A kernel with which parents begin about as long as children, where logits are 0; betas and logits are 0.

        The standard deviation counts the couplings of the first iteration. For DigitCaps (1152 children of 8 elements, 10 parents)
        it is 0.104.
        """
        nn.init.normal_(self.weight, std=1 / (self._first_coupling() * math.sqrt(self._fan_in())))
        for name in ("beta_u", "beta_a", "logits"):
            learned = self._parameters.get(name)  # while the layer is made there are none yet
            if learned is not None:
                nn.init.zeros_(learned)

    def _first_coupling(self):
        """With it votes are weighted first; of EM routing such that a parent's variance is that of one vote."""
        children = self._children_of_one()
        if self.options.is_em:
            return children**-0.5
        return 1 / (self.out_channels if self.options.softmax_over == "parents" else children)

    def _routed(self, function, x, activations):
        """Of :func:`capsule_routing` or what takes the same."""
        named = {name: getattr(self.options, name) for name in OPTIONS}
        own = {"beta_u": self.beta_u, "beta_a": self.beta_a, "precision": self.precision}
        return function(x, activations=activations, **own, **self._convolution(x), **named)

    def extra_repr(self):
        learned = "" if self.logits is None else ", learn_logits=True"
        return f"{super().extra_repr()}, {_shown(self.options)}{learned}"


class RoutedCapsuleConv2d(_Routed, CapsuleConv2d):
    """A capsule convolution whose sum is routing.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, in_capsule, out_capsule, stride, padding, dilation, product, device, dtype
        As :class:`numbacaps.torch.CapsuleConv2d`.
    precision : str
        As :func:`capsule_routing`.
    learn_logits : bool
        Dynamic routing begins with logits that are learned.
    routing : dict or str
        "dynamic" or "em"; or the options of :func:`capsule_routing` by name.

    Attributes
    ----------
    weight : Parameter (out_channels, in_channels, KH, KW, *T2)
    beta_u, beta_a : Parameters (out_channels,) of EM routing, None else
    logits : Parameter (out_channels, in_channels, KH, KW), of summed votes (out_channels, in_channels), or None
        Channels that share the kernel share them, too.

    Notes
    -----
    ``forward`` takes (N, in_channels, H, W, *in_capsule), and of EM routing activations (N, in_channels, H, W); it returns
    capsules, of EM routing with activations. Dynamic routing has squashed them; EM routing does not squash. With
    ``votes="sum"`` and ``in_channels=1`` x may have any number of channels, which share the kernel, as in SegCaps. TypeError and ValueError as of :class:`numbacaps.torch.CapsuleConv2d`.
    """

    def _logits_shape(self):
        return self.weight.shape[: 2 if self.options.is_summed else 4]

    def _children_of_one(self):
        """Children of a parent: pixels of its window, in every channel; of summed votes channels."""
        taps = 1 if self.options.is_summed else math.prod(self.kernel_size)
        return self.in_channels * taps

    def _convolution(self, x):
        """What routing is told of the kernel and its window."""
        window = {name: getattr(self, name) for name in WINDOW}
        logits = self.logits
        if logits is not None and self._is_shared:
            logits = logits.expand(-1, x.shape[1])
        return {"w": self.weight, "logits": logits, **window}

    @property
    def _is_shared(self):
        """Whether channels of x share the kernel, and may be any number."""
        return self.options.is_summed and self.in_channels == 1

    def _takes(self):
        N, channels, *others = super()._takes()
        return N, "C" if self._is_shared else channels, *others

    def _weight_of(self, x):
        w = self.weight
        return w.expand(-1, x.shape[1], *w.shape[2:]) if self._is_shared else w

    def forward(self, x, activations=None):
        """The parents."""
        check_shape("x", x, self._takes())
        return self._routed(capsule_routing, x, activations)

    def couplings(self, x, activations=None):
        """How much of each child goes to which parent (:func:`numbacaps.torch.routing_couplings`)."""
        check_shape("x", x, self._takes())
        return self._routed(routing_couplings, x, activations)


class RoutedCapsuleLinear(_Routed, CapsuleLinear):
    """A layer in which every input capsule has a kernel of its own for every output capsule, as DigitCaps.

    Parameters
    ----------
    in_channels : int or tuple of int
        Children; of a grid its axes, as (C, H, W).
    out_channels : int
        Parents.
    in_capsule, out_capsule : tuple of int
        Their shapes; vectors are (1, length).
    routing, learn_logits, product, precision, device, dtype
        As :class:`RoutedCapsuleConv2d`.

    Attributes
    ----------
    weight : Parameter (out_channels, children, *T2)
        That of :class:`numbacaps.torch.CapsuleLinear`, so each loads the other's.
    beta_u, beta_a : Parameters (out_channels,) of EM routing, None else
    logits : Parameter (out_channels, children), or None

    Notes
    -----
    ``forward`` takes (N, *in_channels, *in_capsule), and of EM routing activations (N, *in_channels); it returns (N,
    out_channels, *out_capsule), of EM routing with activations. Dynamic routing has squashed them; EM routing does not squash. It
    raises TypeError where an argument is no tensor, and ValueError where it has other axes, or where dynamic routing is
    given activations.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        in_capsule=(1, 8),
        out_capsule=(1, 16),
        *,
        device=None,
        dtype=None,
        **options,
    ):
        made = {"device": device, "dtype": dtype}
        super().__init__(in_channels, out_channels, in_capsule, out_capsule, **made, **options)

    def _logits_shape(self):
        return self.weight.shape[:2]

    def _children_of_one(self):
        """Children of a parent: all."""
        return math.prod(self.in_channels)

    def _convolution(self, x):
        """What routing is told of the kernel, whose window is one pixel."""
        logits = self.logits
        if logits is not None and not self.options.is_summed:
            logits = logits[:, :, None, None]
        return {"w": self.weight[:, :, None, None], "logits": logits, "product": self.product}

    def forward(self, x, activations=None):
        """The parents."""
        made = self._routed(capsule_routing, *self._as_channels(x, activations))
        if self.options.is_em:
            y, a = made
            return y[:, :, 0, 0], a[:, :, 0, 0]
        return made[:, :, 0, 0]

    def couplings(self, x, activations=None):
        """How much of each child goes to which parent: (N, out_channels, children), without a gradient."""
        found = self._routed(routing_couplings, *self._as_channels(x, activations))
        return found[:, :, 0, 0, :, 0, 0]

    def _as_channels(self, x, activations):
        """x and activations as of one pixel."""
        check_given({"activations": activations}, self.options)
        lead = x.shape[: 1 + len(self.in_channels)] if isinstance(x, torch.Tensor) else ()
        x = self._children(x)
        if activations is not None:
            check_shape("activations", activations, lead)
            activations = activations.flatten(1)[:, :, None, None]
        return x[:, :, None, None], activations


class _Routing(nn.Module):
    """Routing of votes that somebody else made: (N, P, *positions, I, *capsule)."""

    def __init__(self, positions, capsule, routing, options):
        super().__init__()
        check_count("positions", positions, least=0)
        if "routing" in options:
            raise TypeError(f"{type(self).__name__} takes no routing; it is {routing!r}")
        self.positions, self.options = positions, options_of({"routing": routing, **options})
        self.capsule = None if capsule is None else check_capsule("capsule", capsule)
        if self.options.is_summed:
            raise ValueError(
                "votes is 'sum'; it takes 'children': whose votes they are is not known"
            )

    def _check_votes(self, votes, parents="P"):
        """Refuse what are no votes for ``parents``, a number or a name for any."""
        check_tensors(votes=votes)
        check(votes=votes)
        lead = "N", parents, *["position"] * self.positions, "I"
        capsule = votes.shape[len(lead) :] if self.capsule is None else self.capsule
        check_shape("votes", votes, (*lead, *capsule))
        if 0 in capsule:
            raise ValueError(
                f"votes has shape {tuple(votes.shape)}; it takes capsules of an element or more"
            )

    def _flat(self, votes):
        """Votes (N, L, I, P, E), and the shape of capsules."""
        least = 3 + self.positions
        lead, I, capsule = votes.shape[: least - 1], votes.shape[least - 1], votes.shape[least:]
        wide = votes.to(torch.promote_types(votes.dtype, torch.float32))
        size = capsule.numel() if capsule else 1
        flat = wide.reshape(*lead[:2], lead[2:].numel(), I, size).permute(0, 2, 3, 1, 4)
        return flat, (*lead, *capsule)

    def extra_repr(self):
        capsule = "" if self.capsule is None else f"capsule={self.capsule}, "
        return f"positions={self.positions}, {capsule}{_shown(self.options)}"


class DynamicRouting(_Routing):
    """Dynamic routing of votes (N, P, *positions, I, *capsule); returns (N, P, *positions, *capsule), squashed.

    Parameters
    ----------
    positions : int
        Axes of positions, between parents and children; 2 for votes of a convolution, whose children are three axes:
        ``DynamicRouting(positions=2, capsule=(4, 4))(layer.votes(x).flatten(4, 6))``.
    capsule : tuple of int, optional
        The capsules' shape, which is checked then. By default it is all that follows the children.
    options
        ``iterations``, ``softmax_over`` and ``detach`` of :func:`capsule_routing`.

    Notes
    -----
    ``forward`` raises TypeError where an argument is no tensor, RuntimeError where votes are no floats, and ValueError where
    a shape does not fit.
    """

    def __init__(self, *, positions=0, capsule=None, **options):
        super().__init__(positions, capsule, "dynamic", options)

    def forward(self, votes, logits=None):
        """The parents; ``logits`` (P, I)."""
        self._check_votes(votes)
        if logits is not None:
            check_shape("logits", logits, (votes.shape[1], votes.shape[2 + self.positions]))
            check_device(votes=votes, logits=logits)
            check(logits=logits)
        flat, shape = self._flat(votes)
        with without_autocast(votes):
            v = plain.dynamic(flat, logits, self.options)
        return v.transpose(1, 2).reshape(shape).to(votes.dtype)


def _check_values(activations):
    """Refuse activations outside of 0 to 1, where a look at them neither waits for a device nor breaks a graph."""
    if not torch.compiler.is_compiling() and backend_of(activations) == "CPU":
        check_values(activations)


class EMRouting(_Routing):
    """EM routing of votes (N, P, *positions, I, *capsule), with ``beta_u`` and ``beta_a`` of its own.

    Parameters
    ----------
    out_channels : int
        Parents.
    positions, capsule : optional
        As of :class:`DynamicRouting`.
    options
        ``iterations``, ``lam``, ``epsilon`` and ``detach`` of :func:`capsule_routing`.
    device, dtype : optional

    Attributes
    ----------
    beta_u, beta_a : Parameters (out_channels,)

    Notes
    -----
    ``forward`` raises what that of :class:`DynamicRouting` does, and ValueError where activations are not from 0 to 1; on CUDA
    devices, under ``torch.compile`` and in transforms of ``torch.func`` their values are not looked at.
    """

    def __init__(
        self, out_channels, *, positions=0, capsule=None, device=None, dtype=None, **options
    ):
        super().__init__(positions, capsule, "em", options)
        check_count("out_channels", out_channels)
        if self.options.normalise != "window":
            raise ValueError("normalise is 'all'; EMRouting takes 'window', the only one of votes")
        self.out_channels = out_channels
        made = {"device": device, "dtype": dtype}
        self.beta_u = nn.Parameter(torch.empty(out_channels, **made))
        self.beta_a = nn.Parameter(torch.empty(out_channels, **made))
        self.reset_parameters()

    def reset_parameters(self):
        """Both betas are 0."""
        nn.init.zeros_(self.beta_u)
        nn.init.zeros_(self.beta_a)

    def extra_repr(self):
        return f"{self.out_channels}, {super().extra_repr()}"

    def forward(self, votes, activations):
        """Parents, and their activations (N, P, *positions); ``activations`` (N, *positions, I)."""
        self._check_votes(votes, self.out_channels)
        check_sums(self.options, votes)
        check_shape(
            "activations", activations, (votes.shape[0], *votes.shape[2 : 3 + self.positions])
        )
        check_device(votes=votes, activations=activations, beta_u=self.beta_u)
        _check_values(activations)
        if votes.shape[2 + self.positions] == 0:
            raise ValueError(f"votes has shape {tuple(votes.shape)}; it takes a child or more")
        flat, shape = self._flat(votes)
        a = activations.to(flat.dtype).reshape(flat.shape[:3])
        betas = self.beta_u.to(flat.dtype), self.beta_a.to(flat.dtype)
        with without_autocast(votes):
            mu, out = plain.em(flat, a, *betas, self.options)
        lead = shape[: 2 + self.positions]
        return (
            mu.transpose(1, 2).reshape(shape).to(votes.dtype),
            out.transpose(1, 2).reshape(lead).to(votes.dtype),
        )
