"""The operators of the convolution: the convolution and its two gradients, closed under differentiation.

On CUDA tensors they run numbacaps' kernels on PyTorch's current stream; on CPU tensors :mod:`numbacaps.torch.fold`.
``keep_packed`` says that what is packed of w is to be kept for the next call (:mod:`numbacaps.torch.packings`); on CPU
tensors nothing is packed.
"""

from numbacaps.fused.precision import PRECISIONS
from numbacaps.messages import did_you_mean
from numbacaps.product import parse_product
from numbacaps.shapes import geometry_of, output_shape
from numbacaps.torch import fold, kernels
from numbacaps.torch.closed import Kernels, Kind, check_gradient, define


def shape_of_output(x_shape, w_shape, stride, padding, dilation, product, precision, *_):
    """(N, P, OH, OW, *T3); N may be a symbol. Raises as :func:`numbacaps.capsule_conv2d`."""
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise ValueError(f"precision is {precision!r}; it takes one of {list(PRECISIONS)}{hint}")
    product = parse_product(product)
    one = (1, *map(int, x_shape[1:]))
    w_shape = tuple(map(int, w_shape))
    geometry = geometry_of(one, w_shape, product, tuple(stride), tuple(padding), tuple(dilation))
    return (x_shape[0], *output_shape(geometry, product, one, w_shape)[1:])


def _on_host(how):
    """The options that count on the CPU."""
    return *how[:3], parse_product(how[3])


def _convolve(x, w, how):
    shape_of_output(x.shape, w.shape, *how)
    return fold.convolve(x, w, *_on_host(how))


def _input_gradient(dy, w, x_shape, how):
    check_gradient(CONVOLUTION, dy, x_shape, w.shape, how)
    return fold.input_gradient(dy, w, x_shape, *_on_host(how))


def _kernel_gradient(x, dy, w_shape, how):
    check_gradient(CONVOLUTION, dy, x.shape, w_shape, how)
    return fold.kernel_gradient(x, dy, w_shape, *_on_host(how))


CONVOLUTION = Kind(
    names=("capsule_conv2d", "capsule_input_gradient", "capsule_kernel_gradient"),
    given="dy",
    options=(
        "int[2] stride, int[2] padding, int[2] dilation, str product, str precision, bool keep_packed"
    ),
    shape_of=shape_of_output,
    on={
        "CUDA": Kernels(kernels.convolve, kernels.input_gradient, kernels.kernel_gradient),
        "CPU": Kernels(_convolve, _input_gradient, _kernel_gradient),
    },
)
_library, convolve = define(CONVOLUTION)  # (x, w, options)
