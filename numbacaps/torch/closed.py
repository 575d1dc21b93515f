"""Three operators that are each other's gradients: their rules for autograd and autocast.

A map that is linear in x and in w has two gradients, and the three are the partial derivatives of one trilinear form:

    map(x, w) = y                  x: input_gradient(dy, w)        w: kernel_gradient(x, dy)
    input_gradient(dy, w) = dx     dy: map(ddx, w)                 w: kernel_gradient(ddx, dy)
    kernel_gradient(x, dy) = dw    x: input_gradient(dy, ddw)      dy: map(x, ddw)

So gradients of gradients are these operators again, and the saved tensors are the operands alone.
"""

import torch
from torch.autograd.forward_ad import unpack_dual

_DTYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64


def check(**tensors):
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


def refuse_tangents(**tensors):
    """Refuse forward-mode differentiation, whose tangents operators of ``torch.library`` drop without a word."""
    if torch.compiler.is_compiling():
        return
    for name, tensor in tensors.items():
        if tensor is not None and unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                f"{name} has a tangent (torch.func.jvp, forward_ad), of which there is no derivative here; "
                "torch.autograd.grad has gradients"
            )


def close(library, names, options):
    """Register the rules of three operators of ``numbacaps``.

    Parameters
    ----------
    library : torch.library.Library
        That has defined them.
    names : three str
        The map, its input's gradient and its kernel's.
    options : int
        Arguments behind the tensors; the gradients have the shape of their result before these.
    """
    forward, of_x, of_w = (getattr(torch.ops.numbacaps, name) for name in names)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.how = inputs[-options:]

    def backward_of_forward(ctx, dy):
        x, w = ctx.saved_tensors
        dx = of_x(dy, w, x.shape, *ctx.how) if ctx.needs_input_grad[0] else None
        dw = of_w(x, dy, w.shape, *ctx.how) if ctx.needs_input_grad[1] else None
        return (dx, dw, *[None] * options)

    def backward_of_input_gradient(ctx, ddx):
        dy, w = ctx.saved_tensors
        of_dy = forward(ddx, w, *ctx.how) if ctx.needs_input_grad[0] else None
        dw = of_w(ddx, dy, w.shape, *ctx.how) if ctx.needs_input_grad[1] else None
        return (of_dy, dw, None, *[None] * options)

    def backward_of_kernel_gradient(ctx, ddw):
        x, dy = ctx.saved_tensors
        dx = of_x(dy, ddw, x.shape, *ctx.how) if ctx.needs_input_grad[0] else None
        of_dy = forward(x, ddw, *ctx.how) if ctx.needs_input_grad[1] else None
        return (dx, of_dy, None, *[None] * options)

    rules = backward_of_forward, backward_of_input_gradient, backward_of_kernel_gradient
    for name, operator, rule in zip(names, (forward, of_x, of_w), rules):
        torch.library.register_autograd(f"numbacaps::{name}", rule, setup_context=keep, lib=library)
        library.impl(name, _autocast(operator, "cuda"), "AutocastCUDA")
        library.impl(name, _autocast(operator, "cpu"), "AutocastCPU")


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
