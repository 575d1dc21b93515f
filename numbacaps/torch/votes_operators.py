"""The operators of the votes: the votes and their two gradients, closed under differentiation.

On CUDA tensors they run the kernels of :mod:`numbacaps.votes` as the convolution's (:mod:`numbacaps.torch.kernels`); on CPU tensors
:mod:`numbacaps.torch.windows`. Votes are multiplied by ordinary arithmetic, so on CUDA tensors ``precision`` takes
``"ieee"``.
"""

import torch

from numbacaps.product import parse_product
from numbacaps.torch import kernels, windows
from numbacaps.torch.closed import check, close
from numbacaps.torch.operators import shape_of_output

_HOW = "int[2] stride, int[2] padding, int[2] dilation, str product, str precision, bool sum_window"
_NAMES = "capsule_votes", "capsule_votes_input_gradient", "capsule_votes_kernel_gradient"
_library = torch.library.Library("numbacaps", "FRAGMENT")
_library.define(f"{_NAMES[0]}(Tensor x, Tensor w, {_HOW}) -> Tensor")
_library.define(f"{_NAMES[1]}(Tensor dvotes, Tensor w, SymInt[] x_shape, {_HOW}) -> Tensor")
_library.define(f"{_NAMES[2]}(Tensor x, Tensor dvotes, SymInt[] w_shape, {_HOW}) -> Tensor")


def shape_of_votes(x_shape, w_shape, *how):
    """(N, P, OH, OW, C, KH, KW, *T3), with ``sum_window`` without KH and KW; N may be a symbol."""
    *others, sum_window = how
    y = shape_of_output(x_shape, w_shape, *others)
    return (*y[:4], *w_shape[1 : 2 if sum_window else 4], *y[4:])


def _check_gradient(dvotes, x_shape, w_shape, how):
    """Refuse a gradient that is not shaped like the votes."""
    wanted = tuple(shape_of_votes(x_shape, w_shape, *how))
    if tuple(dvotes.shape) != wanted:
        raise RuntimeError(f"dvotes has shape {tuple(dvotes.shape)}; it takes {wanted}")


def _votes_cuda(x, w, *how):
    check(x=x, w=w)
    return kernels.votes(x, w, *how)


def _input_gradient_cuda(dvotes, w, x_shape, *how):
    check(dvotes=dvotes, w=w)
    return kernels.votes_input_gradient(dvotes, w, x_shape, *how)


def _kernel_gradient_cuda(x, dvotes, w_shape, *how):
    check(x=x, dvotes=dvotes)
    return kernels.votes_kernel_gradient(x, dvotes, w_shape, *how)


def _votes_cpu(x, w, *how):
    check(x=x, w=w)
    shape_of_votes(x.shape, w.shape, *how)
    return windows.votes(x, w, *_fold(how))


def _input_gradient_cpu(dvotes, w, x_shape, *how):
    check(dvotes=dvotes, w=w)
    _check_gradient(dvotes, x_shape, w.shape, how)
    return windows.input_gradient(dvotes, w, x_shape, *_fold(how))


def _kernel_gradient_cpu(x, dvotes, w_shape, *how):
    check(x=x, dvotes=dvotes)
    _check_gradient(dvotes, x.shape, w_shape, how)
    return windows.kernel_gradient(x, dvotes, w_shape, *_fold(how))


def _fold(how):
    """The options that count on the CPU."""
    stride, padding, dilation, product, _, sum_window = how
    return stride, padding, dilation, parse_product(product), sum_window


for _name, _on_cuda, _on_cpu in zip(
    _NAMES,
    (_votes_cuda, _input_gradient_cuda, _kernel_gradient_cuda),
    (_votes_cpu, _input_gradient_cpu, _kernel_gradient_cpu),
):
    _library.impl(_name, _on_cuda, "CUDA")
    _library.impl(_name, _on_cpu, "CPU")


@torch.library.register_fake(f"numbacaps::{_NAMES[0]}", lib=_library)
def _(x, w, *how):
    check(x=x, w=w)
    return x.new_empty(shape_of_votes(x.shape, w.shape, *how))


@torch.library.register_fake(f"numbacaps::{_NAMES[1]}", lib=_library)
def _(dvotes, w, x_shape, *how):
    return dvotes.new_empty(x_shape)


@torch.library.register_fake(f"numbacaps::{_NAMES[2]}", lib=_library)
def _(x, dvotes, w_shape, *how):
    return x.new_empty(w_shape)


close(_library, _NAMES, options=6)
