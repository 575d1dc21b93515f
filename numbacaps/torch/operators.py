"""The operators: three linear maps, each of which is the gradient of the others.

    conv(x, w) = y              x: input_gradient(dy, w)        w: kernel_gradient(x, dy)
    input_gradient(dy, w) = dx  dy: conv(ddx, w)                w: kernel_gradient(ddx, dy)
    kernel_gradient(x, dy) = dw x: input_gradient(dy, ddw)      dy: conv(x, ddw)

So gradients of gradients are these operators again. Saved tensors are the operands alone. On CUDA tensors they run
numbacaps' kernels on PyTorch's current stream; on CPU tensors :mod:`numbacaps.torch.fold`.
"""

import torch

from numbacaps.fused.precision import PRECISIONS
from numbacaps.messages import did_you_mean
from numbacaps.product import parse_product
from numbacaps.shapes import geometry_of, output_shape
from numbacaps.torch import fold, kernels

_HOW = "int[2] stride, int[2] padding, int[2] dilation, str product, str precision"
_DTYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64
_library = torch.library.Library("numbacaps", "DEF")
_library.define(f"capsule_conv2d(Tensor x, Tensor w, {_HOW}) -> Tensor")
_library.define(f"capsule_input_gradient(Tensor dy, Tensor w, SymInt[] x_shape, {_HOW}) -> Tensor")
_library.define(f"capsule_kernel_gradient(Tensor x, Tensor dy, SymInt[] w_shape, {_HOW}) -> Tensor")


def shape_of_output(x_shape, w_shape, stride, padding, dilation, product, precision):
    """(N, P, OH, OW, *T3); N may be a symbol. Raises as :func:`numbacaps.capsule_conv2d`."""
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise ValueError(f"precision is {precision!r}; it takes one of {list(PRECISIONS)}{hint}")
    product = parse_product(product)
    one = (1, *map(int, x_shape[1:]))
    w_shape = tuple(map(int, w_shape))
    geometry = geometry_of(one, w_shape, product, tuple(stride), tuple(padding), tuple(dilation))
    return (x_shape[0], *output_shape(geometry, product, one, w_shape)[1:])


def _check(**tensors):
    """Refuse tensors that do not go together, in PyTorch's manner."""
    (first, one), *others = tensors.items()
    if one.dtype not in _DTYPES:
        raise RuntimeError(f"{first} is {one.dtype}; it takes {', '.join(map(str, _DTYPES))}")
    for name, other in others:
        if other.device != one.device:
            raise RuntimeError(
                f"{first} is on {one.device} and {name} on {other.device}; both take one device"
            )
        if other.dtype != one.dtype:
            raise RuntimeError(
                f"{first} is {one.dtype} and {name} {other.dtype}; both take one dtype"
            )


def _conv_cuda(x, w, *how):
    _check(x=x, w=w)
    return kernels.convolve(x, w, *how)


def _input_gradient_cuda(dy, w, x_shape, *how):
    _check(dy=dy, w=w)
    return kernels.input_gradient(dy, w, x_shape, *how)


def _kernel_gradient_cuda(x, dy, w_shape, *how):
    _check(x=x, dy=dy)
    return kernels.kernel_gradient(x, dy, w_shape, *how)


def _conv_cpu(x, w, *how):
    _check(x=x, w=w)
    shape_of_output(x.shape, w.shape, *how)
    return fold.convolve(x, w, *how[:3], parse_product(how[3]))


def _input_gradient_cpu(dy, w, x_shape, *how):
    _check(dy=dy, w=w)
    _check_gradient(dy, x_shape, w.shape, how)
    return fold.input_gradient(dy, w, x_shape, *how[:3], parse_product(how[3]))


def _kernel_gradient_cpu(x, dy, w_shape, *how):
    _check(x=x, dy=dy)
    _check_gradient(dy, x.shape, w_shape, how)
    return fold.kernel_gradient(x, dy, w_shape, *how[:3], parse_product(how[3]))


def _check_gradient(dy, x_shape, w_shape, how):
    """Refuse a gradient that is not shaped like the output."""
    wanted = tuple(shape_of_output(x_shape, w_shape, *how))
    if tuple(dy.shape) != wanted:
        raise RuntimeError(f"dy has shape {tuple(dy.shape)}; it takes {wanted}")


for _name, _on_cuda, _on_cpu in (
    ("capsule_conv2d", _conv_cuda, _conv_cpu),
    ("capsule_input_gradient", _input_gradient_cuda, _input_gradient_cpu),
    ("capsule_kernel_gradient", _kernel_gradient_cuda, _kernel_gradient_cpu),
):
    _library.impl(_name, _on_cuda, "CUDA")
    _library.impl(_name, _on_cpu, "CPU")

_conv = torch.ops.numbacaps.capsule_conv2d
_input_gradient = torch.ops.numbacaps.capsule_input_gradient
_kernel_gradient = torch.ops.numbacaps.capsule_kernel_gradient


@torch.library.register_fake("numbacaps::capsule_conv2d", lib=_library)
def _(x, w, *how):
    _check(x=x, w=w)
    return x.new_empty(shape_of_output(x.shape, w.shape, *how))


@torch.library.register_fake("numbacaps::capsule_input_gradient", lib=_library)
def _(dy, w, x_shape, *how):
    return dy.new_empty(x_shape)


@torch.library.register_fake("numbacaps::capsule_kernel_gradient", lib=_library)
def _(x, dy, w_shape, *how):
    return x.new_empty(w_shape)


def _keep(ctx, inputs, output):
    """Save both operands, and how they were multiplied."""
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.how = inputs[-5:]


def _of_conv(context, dy):
    x, w = context.saved_tensors
    dx = dw = None
    if context.needs_input_grad[0]:
        dx = _input_gradient(dy, w, x.shape, *context.how)
    if context.needs_input_grad[1]:
        dw = _kernel_gradient(x, dy, w.shape, *context.how)
    return (dx, dw, *[None] * 5)


def _of_input_gradient(context, ddx):
    dy, w = context.saved_tensors
    of_dy = of_w = None
    if context.needs_input_grad[0]:
        of_dy = _conv(ddx, w, *context.how)
    if context.needs_input_grad[1]:
        of_w = _kernel_gradient(ddx, dy, w.shape, *context.how)
    return (of_dy, of_w, *[None] * 6)


def _of_kernel_gradient(context, ddw):
    x, dy = context.saved_tensors
    of_x = of_dy = None
    if context.needs_input_grad[0]:
        of_x = _input_gradient(dy, ddw, x.shape, *context.how)
    if context.needs_input_grad[1]:
        of_dy = _conv(x, ddw, *context.how)
    return (of_x, of_dy, *[None] * 6)


for _name, _backward in (
    ("capsule_conv2d", _of_conv),
    ("capsule_input_gradient", _of_input_gradient),
    ("capsule_kernel_gradient", _of_kernel_gradient),
):
    torch.library.register_autograd(
        f"numbacaps::{_name}", _backward, setup_context=_keep, lib=_library
    )


def _autocast(operator, device):
    """An operator's rule under autocast: its tensors in the dtype that autocast asks for."""

    def run(one, other, *how):
        wanted = torch.get_autocast_dtype(device)
        one, other = (
            tensor.to(wanted)
            if tensor.is_floating_point() and tensor.dtype != torch.float64
            else tensor
            for tensor in (one, other)
        )
        with torch.autocast(device, enabled=False):
            return operator(one, other, *how)

    return run


for _operator, _name in (
    (_conv, "capsule_conv2d"),
    (_input_gradient, "capsule_input_gradient"),
    (_kernel_gradient, "capsule_kernel_gradient"),
):
    _library.impl(_name, _autocast(_operator, "cuda"), "AutocastCUDA")
    _library.impl(_name, _autocast(_operator, "cpu"), "AutocastCPU")
