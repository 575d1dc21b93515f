"""The fold for PyTorch: a capsule convolution as one ``conv2d``, for tensors on the CPU.

    out (N, P, OH, OW, G, D1, D3)  from  x (N, C, H, W, G, D1, D2)  and  w (P, C, KH, KW, G, D2, D3)

D1 joins the images, D2 the input channels, D3 the output channels, and G makes groups. Tensors are in the callers'
layout; ``product`` is a :class:`numbacaps.product.Product`.
"""

from math import prod

import torch

from numbacaps.product import inverse
from numbacaps.torch.closed import no_view


def convolve(x, w, stride, padding, dilation, product):
    """The convolution."""
    sizes = product.sizes(x.shape[4:], w.shape[4:])
    G = prod(sizes[axis] for axis in product.g)
    operands = _fold_x(x, product), _fold_w(w, product)
    y = torch.nn.functional.conv2d(*map(_wide, operands), None, stride, padding, dilation, G)
    return _unfold(y.to(x.dtype), x.shape[0], sizes, product.g, product.d1, product.d3, product.y)


def input_gradient(dy, w, x_shape, stride, padding, dilation, product):
    """The gradient of x, of shape ``x_shape``."""
    sizes = product.sizes(x_shape[4:], w.shape[4:])
    x = _fold_x(dy.new_zeros(x_shape), product)
    how = stride, padding, dilation, (True, False, False)
    dx = _backward(_fold_y(dy, product), x, _fold_w(w, product), sizes, product, *how)[0]
    return _unfold(dx.to(dy.dtype), x_shape[0], sizes, product.g, product.d1, product.d2, product.x)


def kernel_gradient(x, dy, w_shape, stride, padding, dilation, product):
    """The gradient of w, of shape ``w_shape``."""
    sizes = product.sizes(x.shape[4:], w_shape[4:])
    w = _fold_w(x.new_zeros(w_shape), product)
    how = stride, padding, dilation, (False, True, False)
    dw = _backward(_fold_y(dy, product), _fold_x(x, product), w, sizes, product, *how)[1]
    G, D2, D3 = (prod(sizes[axis] for axis in axes) for axes in (product.g, product.d2, product.d3))
    P, C, KH, KW = w_shape[:4]
    dw = dw.to(x.dtype).reshape(G, P, D3, C, D2, KH, KW).permute(1, 3, 5, 6, 0, 4, 2)
    return _in_order(dw, sizes, product.g + product.d2 + product.d3, product.w)


def _backward(dy, x, w, sizes, product, stride, padding, dilation, wanted):
    """PyTorch's own gradients of the folded convolution."""
    G = prod(sizes[axis] for axis in product.g)
    backward = torch.ops.aten.convolution_backward
    operands = (_wide(operand).contiguous() for operand in (dy, x, w))
    return backward(*operands, None, stride, padding, dilation, False, (0, 0), G, wanted)


def _fold_x(x, product):
    """(N * D1, G * C * D2, H, W)"""
    return _fold_images(x, product.x, product.g, product.d1, product.d2)


def _fold_y(y, product):
    """(N * D1, G * P * D3, OH, OW)"""
    return _fold_images(y, product.y, product.g, product.d1, product.d3)


def _fold_images(array, axes, g, d1, d):
    array = _canonical(array, axes, g, d1, d)
    N, C, H, W, G, D1, D = array.shape
    return array.permute(0, 5, 4, 1, 6, 2, 3).reshape(N * D1, G * C * D, H, W)


def _fold_w(w, product):
    """(G * P * D3, C * D2, KH, KW)"""
    w = _canonical(w, product.w, product.g, product.d2, product.d3)
    P, C, KH, KW, G, D2, D3 = w.shape
    return w.permute(4, 0, 6, 1, 5, 2, 3).reshape(G * P * D3, C * D2, KH, KW)


def _unfold(images, N, sizes, g, d1, d, axes):
    """(N, C, H, W, *capsule) from (N * D1, G * C * D, H, W)."""
    G, D1, D = (prod(sizes[axis] for axis in some) for some in (g, d1, d))
    channels, H, W = images.shape[1:]
    images = images.reshape(N, D1, G, channels // (G * D), D, H, W).permute(0, 3, 5, 6, 2, 1, 4)
    return _in_order(images, sizes, g + d1 + d, axes)


def _in_order(array, sizes, have, want):
    """Three capsule axes taken apart, and put into the callers' order."""
    array = array.reshape(*array.shape[:4], *(sizes[axis] for axis in have))
    order = inverse(tuple(want.index(axis) for axis in have))
    return no_view(array.permute(0, 1, 2, 3, *(4 + axis for axis in order)).contiguous())


def _canonical(array, axes, *wanted):
    """Capsule axes in the kernels' order, joined into three."""
    order = (4 + axes.index(axis) for axis in "".join(wanted))
    sizes = dict(zip(axes, array.shape[4:]))
    capsule = (prod(sizes[axis] for axis in some) for some in wanted)
    return array.permute(0, 1, 2, 3, *order).reshape(*array.shape[:4], *capsule)


def _wide(tensor):
    """Tensors of 2 bytes an element as float32, in which they are added."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
