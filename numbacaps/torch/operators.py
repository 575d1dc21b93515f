"""The operators of the convolution: the convolution and its two gradients, closed under differentiation.

On CUDA tensors they run numbacaps' kernels on PyTorch's current stream; on CPU tensors :mod:`numbacaps.torch.fold`.
``keep_packed`` says that what is packed of w is to be kept for the next call (:mod:`numbacaps.torch.packings`); on CPU
tensors nothing is packed.
"""

import torch

from numbacaps.fused.precision import PRECISIONS
from numbacaps.messages import did_you_mean
from numbacaps.product import parse_product
from numbacaps.shapes import geometry_of, output_shape
from numbacaps.torch import fold, kernels
from numbacaps.torch.closed import check as _check
from numbacaps.torch.closed import close

_HOW = (
    "int[2] stride, int[2] padding, int[2] dilation, str product, str precision, bool keep_packed"
)
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
    shape_of_output(x.shape, w.shape, *how[:5])
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
    wanted = tuple(shape_of_output(x_shape, w_shape, *how[:5]))
    if tuple(dy.shape) != wanted:
        raise RuntimeError(f"dy has shape {tuple(dy.shape)}; it takes {wanted}")


for _name, _on_cuda, _on_cpu in (
    ("capsule_conv2d", _conv_cuda, _conv_cpu),
    ("capsule_input_gradient", _input_gradient_cuda, _input_gradient_cpu),
    ("capsule_kernel_gradient", _kernel_gradient_cuda, _kernel_gradient_cpu),
):
    _library.impl(_name, _on_cuda, "CUDA")
    _library.impl(_name, _on_cpu, "CPU")


@torch.library.register_fake("numbacaps::capsule_conv2d", lib=_library)
def _(x, w, *how):
    _check(x=x, w=w)
    return x.new_empty(shape_of_output(x.shape, w.shape, *how[:5]))


@torch.library.register_fake("numbacaps::capsule_input_gradient", lib=_library)
def _(dy, w, x_shape, *how):
    return dy.new_empty(x_shape)


@torch.library.register_fake("numbacaps::capsule_kernel_gradient", lib=_library)
def _(x, dy, w_shape, *how):
    return x.new_empty(w_shape)


close(
    _library,
    ("capsule_conv2d", "capsule_input_gradient", "capsule_kernel_gradient"),
    options=6,
)
