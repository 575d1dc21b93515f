"""Squash behind LeakyReLU as an operator, and its gradient as another.

On CUDA tensors each is one kernel (:mod:`numbacaps.squash`), in place of some ten of PyTorch with as many nodes of autograd:
in eager PyTorch a small network waits for the host. On CPU tensors they are :func:`value` and :func:`gradient` in plain PyTorch,
and so are gradients of gradients on any device.
"""

from math import prod

import numpy as np
import torch
from torch.autograd import forward_ad

from numbacaps.squash import prepared
from numbacaps.squash.formulas import EPSILON, FORMULAS
from numbacaps.torch import kernels
from numbacaps.torch.closed import backend_back, backend_below, no_view, ordinary, redispatched

_DTYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
_HOW = "int group, float slope, str formula"
_library = torch.library.Library("numbacaps", "FRAGMENT")
_library.define(f"capsule_squash(Tensor x, {_HOW}) -> Tensor")
_library.define(f"capsule_squash_gradient(Tensor x, Tensor dy, {_HOW}) -> Tensor")


def factor(square, formula):
    """f: what squash multiplies a capsule by, from |a|^2."""
    square = square.clamp(max=torch.finfo(square.dtype).max)  # where it overflows, a constant
    inverse = torch.rsqrt(square + EPSILON)
    if formula == "rational":
        return square / (1 + square) * inverse
    return -torch.expm1(-(square + EPSILON) * inverse) * inverse


def _along(square, dot, formula):
    """(a . dy) * 2 f', 0 where |a|^2 overflows. Of long capsules f' is too small for float32, so the product comes first."""
    overflows = square.isinf()
    square, dot = square.masked_fill(overflows, 1), dot.masked_fill(overflows, 0)
    inverse = torch.rsqrt(square + EPSILON)
    if formula == "rational":
        less = 1 / (1 + square)
        return dot * inverse * (2 * less * less - square * inverse * inverse * less)
    less = torch.expm1(-(square + EPSILON) * inverse)  # exp(-n) - 1
    return dot * inverse * ((1 + less + less * inverse) * inverse)


def _leaky(x, slope):
    return x if slope == 1 else torch.nn.functional.leaky_relu(x, slope)


def value(x, group, slope, formula):
    """y, in plain PyTorch."""
    a = _leaky(x.reshape(-1, group), slope)
    return (a * factor(a.square().sum(1, keepdim=True), formula)).reshape(x.shape)


def gradient(x, dy, group, slope, formula):
    """dx, in plain PyTorch."""
    x_groups, dy = x.reshape(-1, group), dy.reshape(-1, group)
    a = _leaky(x_groups, slope)
    square, dot = a.square().sum(1, keepdim=True), (a * dy).sum(1, keepdim=True)
    da = dy * factor(square, formula) + a * _along(square, dot, formula)
    return (da if slope == 1 else torch.where(x_groups > 0, da, slope * da)).reshape(x.shape)


def _check(x, group, formula, dy=None):
    if x.dtype not in _DTYPES:
        raise RuntimeError(f"x is {x.dtype}; it takes torch.float32 or torch.float64")
    if formula not in FORMULAS:
        raise ValueError(f"formula is {formula!r}; it takes one of {list(FORMULAS)}")
    if group < 1 or x.dim() < 2 or prod(x.shape[1:]) % group:
        raise ValueError(
            f"group is {group}; it takes a divisor of the elements of an image, x is {tuple(x.shape)}"
        )
    if dy is not None and (dy.shape != x.shape or dy.dtype is not x.dtype or dy.device != x.device):
        raise RuntimeError(
            f"dy is {dy.dtype} {tuple(dy.shape)} on {dy.device}; "
            f"it takes {x.dtype} {tuple(x.shape)} on {x.device}, as x is"
        )


def _value_on_cuda(x, *how):
    _check(x, how[0], how[2])
    return _launch(prepared.value, how, x)


def _gradient_on_cuda(x, dy, *how):
    _check(x, how[0], how[2], dy)
    return _launch(prepared.gradient, how, x, dy)


def _launch(made, how, *tensors):
    """Launch the kernel of tensors that are read; what it writes."""
    tensors = [one if one.is_contiguous() else one.detach().contiguous() for one in tensors]
    x = tensors[0]
    result, N = x.new_empty(x.shape), x.shape[0]
    size = x.numel()
    if size:
        with kernels.Place(x) as place:
            tensors.append(result)
            divisor = prepared.divisor_of(*[one.data_ptr() for one in tensors])
            of = prepared.Squash(*how)
            launch = made(place.index, of, N, size // N, _DTYPES[x.dtype], divisor)
            arguments = [number for one in tensors for number in kernels.argument(one)]
            launch(place.launch_stream, arguments)
    return result


def _value_on_cpu(x, *how):
    _check(x, how[0], how[2])
    return no_view(value(x, *how).contiguous())


def _gradient_on_cpu(x, dy, *how):
    _check(x, how[0], how[2], dy)
    return no_view(gradient(x, dy, *how).contiguous())


_value = torch.ops.numbacaps.capsule_squash.default
_gradient = torch.ops.numbacaps.capsule_squash_gradient.default
ON = {"CUDA": (_value_on_cuda, _gradient_on_cuda), "CPU": (_value_on_cpu, _gradient_on_cpu)}
for _backend in ON:
    for _at, _name in enumerate(("capsule_squash", "capsule_squash_gradient")):
        _library.impl(_name, lambda *given, on=_backend, at=_at: ON[on][at](*given), _backend)


@torch.library.register_fake("numbacaps::capsule_squash", lib=_library)
def _(x, *how):
    _check(x, how[0], how[2])
    return x.new_empty(x.shape)


@torch.library.register_fake("numbacaps::capsule_squash_gradient", lib=_library)
def _(x, dy, *how):
    _check(x, how[0], how[2], dy)
    return x.new_empty(x.shape)


class _Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, keys, x, how):
        ctx.save_for_backward(x)
        ctx.how, ctx.is_ordinary = how, backend_below(keys) is not None
        return _below(_value, 0, keys, (x,), how)

    @staticmethod
    def backward(ctx, dy):
        (x,), how = ctx.saved_tensors, ctx.how
        backend = backend_back(ctx, dy)
        dx = ON[backend][1](x, dy, *how) if backend else _gradient(x, dy, *how)
        return None, dx, None


def _below(operator, at, keys, tensors, how):
    """An operator of tensors whose gradients are taken care of."""
    backend = backend_below(keys)
    if backend:
        return ON[backend][at](*tensors, *how)
    return redispatched(operator, keys, *tensors, *how)


def _differentiated_value(keys, x, *how):
    if torch.is_grad_enabled() and x.requires_grad:
        return _Squash.apply(keys, x, how)
    return _below(_value, 0, keys, (x,), how)


def _differentiated_gradient(keys, x, dy, *how):
    differentiated = torch.is_grad_enabled() and (x.requires_grad or dy.requires_grad)
    if differentiated or forward_ad._current_level >= 0:
        _check(x, how[0], how[2], dy)
        return gradient(x, dy, *how)  # whose own gradients and tangents are PyTorch's
    return _below(_gradient, 1, keys, (x, dy), how)


_library.impl("capsule_squash", _differentiated_value, "Autograd", with_keyset=True)
_library.impl("capsule_squash_gradient", _differentiated_gradient, "Autograd", with_keyset=True)


def squashed(x, group, slope, formula):
    """y by the operator in eager PyTorch; torch.compile makes one kernel of the formula itself.

    In forward-mode differentiation it is the formula, which has tangents, and in transforms of CPU tensors.
    """
    if x.dim() < 2 or torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return value(x, group, slope, formula)
    how = group, float(slope), formula
    backend = ordinary(x)
    if backend:
        return _differentiated_value(backend, x, *how)
    return _value(x, *how) if x.is_cuda else value(x, *how)
