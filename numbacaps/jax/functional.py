"""Functions of capsules on arrays of JAX.

The convolution and its two gradients are closed under differentiation: the gradients of each are made of the others.
"""

from functools import partial

import jax
import jax.numpy as jnp

from numbacaps.fused.precision import PRECISIONS
from numbacaps.jax import fold, kernels
from numbacaps.limits import refuse_unaddressable
from numbacaps.messages import did_you_mean
from numbacaps.product import inverse, parse_product
from numbacaps.shapes import geometry_of, output_shape

_MOST_STEP = 2**63 - 1
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def capsule_conv2d(x, w, stride=1, padding=0, dilation=1, *, product="ab,bc->ac", precision="auto"):
    """Capsule convolution, with gradients; as :func:`numbacaps.capsule_conv2d`.

    It can be traced, differentiated in reverse as often as is wanted, and mapped (``jax.vmap`` calls the kernels one after
    the other). A program's first run compiles the kernels.

    Parameters
    ----------
    x : Array (N, C, H, W, *T1)
    w : Array (P, C, KH, KW, *T2)
        Of the same dtype: float16, bfloat16, float32 or float64.
    stride, padding, dilation : int or pair of int
    product : str
        What two capsules make.
    precision : str
        How float32 is multiplied on CUDA devices; elsewhere XLA's highest is taken.

    Returns
    -------
    Array (N, P, OH, OW, *T3)

    Raises
    ------
    TypeError, ValueError
        As :func:`numbacaps.capsule_conv2d`.
    """
    x, w = jnp.asarray(x), jnp.asarray(w)
    for name, array in (("x", x), ("w", w)):
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"{name} has dtype {array.dtype.name}; it takes {', '.join(_DTYPES)}")
    if x.dtype != w.dtype:
        raise TypeError(f"w has dtype {w.dtype.name}; it takes that of x, {x.dtype.name}")
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise ValueError(f"precision is {precision!r}; it takes one of {list(PRECISIONS)}{hint}")
    of = parse_product(product)
    g = geometry_of(x.shape, w.shape, of, stride, padding, dilation)
    if g.N:
        _refuse_what_ends_xla(g, x.dtype)
    x_joined = _joined(x, of.x_order, g.input_shape)
    w_joined = _joined(w, of.w_order, g.kernel_shape)
    y = _convolve(g, precision, x_joined, w_joined)
    shape = output_shape(g, of, x.shape, w.shape)
    in_order = shape[:4] + tuple(shape[4 + axis] for axis in of.y_order)
    return _permuted(y.reshape(in_order), inverse(of.y_order))


def _refuse_what_ends_xla(g, dtype):
    """ValueError where XLA would overflow, which ends the process."""
    N, C, H, W, *capsule = g.input_shape
    padded = N, C, H + 2 * g.padding[0], W + 2 * g.padding[1], *capsule
    refuse_unaddressable(f"padding is {g.padding}: x with it", padded, dtype)
    for name in ("stride", "dilation"):
        if max(getattr(g, name)) > _MOST_STEP:
            raise ValueError(f"{name} is {getattr(g, name)}; XLA takes {_MOST_STEP} at the most")


def _permuted(array, order):
    return array.transpose(0, 1, 2, 3, *(4 + axis for axis in order))


def _joined(array, order, shape):
    """Capsule axes in the kernels' order, joined into three."""
    return _permuted(array, order).reshape(shape)


def _either(name, by_xla, g, precision, shape, *operands):
    """By numbacaps' kernels where the program runs on CUDA, else by XLA."""
    if g.N == 0:
        return jnp.zeros(shape, operands[0].dtype)
    by_kernels = partial(kernels.call, name, g, precision, shape)
    return jax.lax.platform_dependent(*operands, cuda=by_kernels, default=partial(by_xla, g))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _convolve(g, precision, x, w):
    """y, of arrays in the kernels' layout."""
    return _either("forward", fold.convolve, g, precision, g.output_shape, x, w)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _input_gradient(g, precision, dy, w):
    return _either("input_gradient", fold.input_gradient, g, precision, g.input_shape, dy, w)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _kernel_gradient(g, precision, x, dy):
    return _either("kernel_gradient", fold.kernel_gradient, g, precision, g.kernel_shape, x, dy)


def _with_operands(function):
    """``function``, and its operands for the way back."""
    return lambda g, precision, *operands: (function(g, precision, *operands), operands)


def _convolve_back(g, precision, operands, dy):
    x, w = operands
    return _input_gradient(g, precision, dy, w), _kernel_gradient(g, precision, x, dy)


def _input_gradient_back(g, precision, operands, ddx):
    dy, w = operands
    return _convolve(g, precision, ddx, w), _kernel_gradient(g, precision, ddx, dy)


def _kernel_gradient_back(g, precision, operands, ddw):
    x, dy = operands
    return _input_gradient(g, precision, dy, ddw), _convolve(g, precision, x, ddw)


for _function, _back in (
    (_convolve, _convolve_back),
    (_input_gradient, _input_gradient_back),
    (_kernel_gradient, _kernel_gradient_back),
):
    _function.defvjp(_with_operands(_function), _back)
