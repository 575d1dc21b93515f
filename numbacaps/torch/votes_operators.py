"""The operators of the votes: the votes and their two gradients, closed under differentiation.

On CUDA tensors they run the kernels of :mod:`numbacaps.votes` as the convolution's (:mod:`numbacaps.torch.kernels`); on CPU tensors
:mod:`numbacaps.torch.windows`. Votes are multiplied by ordinary arithmetic, so ``precision`` takes no other.
"""

from numbacaps.product import parse_product
from numbacaps.torch import kernels, windows
from numbacaps.torch.closed import Kernels, Kind, check_gradient, define
from numbacaps.torch.operators import shape_of_output

PRECISIONS = ("auto", "ieee")  # which are one here


def shape_of_votes(x_shape, w_shape, *how):
    """(N, P, OH, OW, C, KH, KW, *T3), with ``sum_window`` without KH and KW; N may be a symbol."""
    *others, precision, sum_window = how
    y = shape_of_output(x_shape, w_shape, *others, precision)
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; votes take one of {list(PRECISIONS)}")
    return (*y[:4], *w_shape[1 : 2 if sum_window else 4], *y[4:])


def _votes(x, w, how):
    shape_of_votes(x.shape, w.shape, *how)
    return windows.votes(x, w, *_on_host(how))


def _input_gradient(dvotes, w, x_shape, how):
    check_gradient(VOTES, dvotes, x_shape, w.shape, how)
    return windows.input_gradient(dvotes, w, x_shape, *_on_host(how))


def _kernel_gradient(x, dvotes, w_shape, how):
    check_gradient(VOTES, dvotes, x.shape, w_shape, how)
    return windows.kernel_gradient(x, dvotes, w_shape, *_on_host(how))


def _on_host(how):
    """The options that count on the CPU."""
    stride, padding, dilation, product, _, sum_window = how
    return stride, padding, dilation, parse_product(product), sum_window


VOTES = Kind(
    names=("capsule_votes", "capsule_votes_input_gradient", "capsule_votes_kernel_gradient"),
    given="dvotes",
    options=(
        "int[2] stride, int[2] padding, int[2] dilation, str product, str precision, bool sum_window"
    ),
    shape_of=shape_of_votes,
    on={
        "CUDA": Kernels(kernels.votes, kernels.votes_input_gradient, kernels.votes_kernel_gradient),
        "CPU": Kernels(_votes, _input_gradient, _kernel_gradient),
    },
)
_library, votes = define(VOTES)  # (x, w, options)
