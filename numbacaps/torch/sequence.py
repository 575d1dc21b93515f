"""A network of capsule convolutions and their activations that runs as a whole."""

import math

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from numbacaps.torch.closed import ordinary
from numbacaps.torch.functional import last_elements
from numbacaps.torch.modules import (
    CapsuleConv2d,
    ExponentialSquash,
    Squash,
    check_capsule,
    check_shape,
)
from numbacaps.torch.sequence_operators import LEAKY, Joined, run, traced

_DTYPES = torch.float32, torch.float64
_ACTIVATIONS = Squash, ExponentialSquash, nn.LeakyReLU
_FORWARDS = tuple(one.forward for one in (CapsuleConv2d, *_ACTIVATIONS))
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class CapsuleSequential(nn.Sequential):
    """``torch.nn.Sequential`` of capsule convolutions and their activations, which CUDA devices compute as a whole.

    In eager PyTorch a small network waits for the host. Here a pass is one operator and one node of autograd, whatever the number
    of layers. Where a network fits in one multiprocessor, as the published one does, one kernel computes all layers. Parameters have
    the names that ``torch.nn.Sequential`` gives them, so either loads the other's ``state_dict``.

    Parameters
    ----------
    *modules : CapsuleConv2d, RoutedCapsuleConv2d, Squash, ExponentialSquash, torch.nn.LeakyReLU
        Convolutions without bias, each followed by one activation or none. Capsules are read in the shape that the next
        convolution takes, where they have as many elements: (1, 32) may become (4, 8).
    capsule : tuple of int, optional
        Shape that the last capsules are returned in, of as many elements; their own by default.

    Notes
    -----
    ``forward`` takes what the first convolution takes, and returns what the last module does.

    One kernel computes all layers where these conditions hold: compute capability 9.0; float32 at ``"auto"``, ``"tf32"`` or
    ``"tf32x3"``; an ExponentialSquash behind every convolution; one position at the end; sizes that fit
    (:func:`numbacaps.nn.resident.layout.layout_of`); no gradient of x; without gradients, and not at ``"tf32"``, at most two images a
    multiprocessor. Its bits are others than module by module's. There ``"auto"`` is ``"tf32x3"``, in which an infinity may become NaN.

    Other networks run layer by layer, with module by module's bits. Modules are called one by one for CPU tensors, float16 and
    bfloat16, under autocast and ``torch.func``, and where a module has hooks, a ``forward`` of its own or ``keep_packed``.

    Raises
    ------
    TypeError, ValueError
        A module is none of these, has a bias, follows none that it can follow, or reads other capsules.
    """

    def __init__(self, *modules, capsule=None):
        super().__init__(*modules)
        self._returned = None if capsule is None else check_capsule("capsule", capsule)
        self._returned_as(_pairs(self))

    def __getitem__(self, which):
        found = super().__getitem__(which)
        if isinstance(which, slice) and range(len(self))[which][-1] == len(self) - 1:
            found._returned = self._returned  # the end is the same
        return found

    def forward(self, x):
        """The last module's result."""
        pairs = _pairs(self)
        returned = self._returned_as(pairs)
        check_shape("x", x, pairs[0][0]._takes())
        if self._runs_whole(x):
            weights = [part.weight for part, _ in pairs]
            if torch.compiler.is_compiling() or torch.jit.is_tracing():
                return traced(x, weights, _joined(pairs, returned))
            if ordinary(x, *weights) == "CUDA":
                return run(x, weights, _joined(pairs, returned))
        for part, activation in pairs:
            x = part(_read_as(x, part.in_capsule))
            x = x if activation is None else activation(x)
        return _read_as(x, returned)

    def _returned_as(self, pairs):
        """Shape that the last capsules are returned in."""
        made = pairs[-1][0].out_capsule
        if self._returned is None:
            return made
        if math.prod(self._returned) != math.prod(made):
            raise ValueError(
                f"capsule is {self._returned}; it takes as many elements as {made} has"
            )
        return self._returned

    def _runs_whole(self, x):
        """Whether the modules need not be called one by one, as far as can be told without their weights."""
        if not _has_kernels(x) or torch.is_autocast_enabled("cuda"):
            return False
        if forward_ad._current_level >= 0 or _has_any_global_hook():
            return False
        for part in self:
            if type(part).forward not in _FORWARDS or "forward" in part.__dict__:
                return False
            if isinstance(part, CapsuleConv2d) and part._keeps_packed():
                return False
            if any(getattr(part, hooks) for hooks in _HOOKS):
                return False
        return True

    def extra_repr(self):
        """The shape of the last capsules, where it was given."""
        return "" if self._returned is None else f"capsule={self._returned}"


def _has_kernels(x):
    return x.is_cuda and x.dtype in _DTYPES


def _read_as(x, capsule):
    return x if x.shape[4:] == capsule else x.reshape(*x.shape[:4], *capsule)


def _pairs(parts):
    """Each convolution with its activation, or with None."""
    found = []
    for number, part in enumerate(parts):
        if isinstance(part, CapsuleConv2d):
            if part.bias is not None:
                raise ValueError(f"modules[{number}] has a bias; it takes bias=False")
            if getattr(part, "beta_u", None) is not None:
                raise ValueError(
                    f"modules[{number}] routes by EM, which takes and returns activations; it takes one that routes by "
                    "'dynamic', or none that routes"
                )
            if found:
                _check_follows(part, found[-1][0])
            found.append((part, None))
            continue
        kind = type(part).__name__
        if not isinstance(part, _ACTIVATIONS):
            names = ", ".join(one.__name__ for one in (CapsuleConv2d, *_ACTIVATIONS))
            raise TypeError(f"modules[{number}] is a {kind}; it takes one of {names}")
        if not found or found[-1][1] is not None:
            raise ValueError(f"modules[{number}] is a {kind}; it follows a CapsuleConv2d")
        found[-1] = found[-1][0], part
        _activation_of(*found[-1])
    if not found:
        raise ValueError("there are no modules; it takes one CapsuleConv2d or more")
    return found


def _check_follows(part, before):
    """Refuse a convolution that does not read what the one before it makes."""
    takes = part._takes()[1]  # a name in place of a size takes any number
    if takes != before.out_channels and not isinstance(takes, str):
        raise ValueError(
            f"{part} reads {part.in_channels} channels; the convolution before it makes {before.out_channels}"
        )
    if math.prod(part.in_capsule) != math.prod(before.out_capsule):
        raise ValueError(
            f"{part} reads capsules {part.in_capsule}; the convolution before it makes {before.out_capsule}, "
            "which have another number of elements"
        )


def _activation_of(part, activation):
    """(group, slope, formula) of a convolution's activation; None of none."""
    if activation is None:
        return None
    if isinstance(activation, nn.LeakyReLU):
        return 0, float(activation.negative_slope), LEAKY
    if isinstance(activation, ExponentialSquash):
        return activation.group, float(activation.slope), "exponential"
    group = last_elements((0, 0, 0, 0, *part.out_capsule), activation.dim)
    if not group or math.prod(part.out_capsule) % group:
        raise ValueError(
            f"dim of Squash is {activation.dim}; it takes the last axes of the capsule {part.out_capsule}, as -1"
        )
    return group, 1.0, "rational"


def _joined(pairs, last):
    """What the sequence computes, layer by layer."""
    shapes, found = [part.in_capsule for part, _ in pairs[1:]] + [last], []
    for (part, activation), read_as in zip(pairs, shapes):
        how = part.stride, part.padding, part.dilation, part.product, part.precision, False
        found.append(Joined(how, _activation_of(part, activation), part.out_capsule, read_as))
    return tuple(found)
