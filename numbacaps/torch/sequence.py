"""A network of capsule convolutions and their activations that runs as a whole."""

import math

import torch
from torch import nn

from numbacaps.torch.closed import backend_of
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
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class CapsuleSequential(nn.Sequential):
    """``torch.nn.Sequential`` of capsule convolutions and their activations, which CUDA devices compute as a whole.

    In eager PyTorch a small network waits for the host. Here a pass is one operator and one node of autograd, whatever the number
    of layers. A network whose layers fit in one multiprocessor, such as the published one, is one kernel a pass. Names of parameters
    are those of ``torch.nn.Sequential``, so either loads the other's ``state_dict``.

    Parameters
    ----------
    *modules : CapsuleConv2d, Squash, ExponentialSquash, torch.nn.LeakyReLU
        Convolutions without bias, each followed by one activation or none. Capsules are read in the shape that the next
        convolution takes, where they have as many elements: (1, 32) may become (4, 8).
    capsule : tuple of int, optional
        Shape that the last capsules are returned in, of as many elements; their own by default.

    Notes
    -----
    ``forward`` takes what the first convolution takes, and returns what the last module does. Module by module run CPU tensors,
    float16 and bfloat16, under autocast, with hooks on a part, and where a part keeps its packed kernel. At the precision
    ``"auto"`` results are module by module's, but for a network that is one kernel a pass: that is ``"tf32x3"``, which is as exact, and
    in which an infinity may become NaN.

    Raises
    ------
    TypeError, ValueError
        A module is none of these, has a bias, follows none that it can follow, or reads other capsules.
    """

    def __init__(self, *modules, capsule=None):
        super().__init__(*modules)
        pairs = _pairs(self)
        for (before, _), (part, _) in zip(pairs, pairs[1:]):
            _check_follows(part, before)
        made = pairs[-1][0].out_capsule
        self.capsule = made if capsule is None else check_capsule("capsule", capsule)
        if math.prod(self.capsule) != math.prod(made):
            raise ValueError(f"capsule is {capsule}; it takes as many elements as {made} has")

    def forward(self, x):
        """The last module's result."""
        pairs = _pairs(self)
        check_shape("x", x, pairs[0][0]._takes())
        weights = [part.weight for part, _ in pairs]
        how = self._how_whole(x, weights)
        if how:
            return how(x, weights, _joined(pairs, self.capsule))
        for part, activation in pairs:
            x = part(_read_as(x, part.in_capsule))
            x = x if activation is None else activation(x)
        return _read_as(x, self.capsule)

    def extra_repr(self):
        """The shape of the last capsules."""
        return f"capsule={self.capsule}"

    def _how_whole(self, x, weights):
        """What computes the sequence as a whole; None where it runs module by module."""
        if not x.is_cuda or x.dtype not in _DTYPES or torch.is_autocast_enabled("cuda"):
            return None
        for part in self:
            if isinstance(part, CapsuleConv2d) and part._keeps_packed():
                return None
            if any(getattr(part, hooks) for hooks in _HOOKS):
                return None
        if torch.compiler.is_compiling():
            return traced
        is_ordinary = all(backend_of(tensor) == "CUDA" for tensor in (x, *weights))
        return run if is_ordinary else None


def _read_as(x, capsule):
    return x if x.shape[4:] == capsule else x.reshape(*x.shape[:4], *capsule)


def _pairs(parts):
    """Each convolution with its activation, or with None."""
    found = []
    for number, part in enumerate(parts):
        if isinstance(part, CapsuleConv2d):
            if part.bias is not None:
                raise ValueError(f"modules[{number}] has a bias; it takes bias=False")
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
    if part.in_channels != before.out_channels:
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
    group = last_elements((0, *part.out_capsule), activation.dim)
    if not group:
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
