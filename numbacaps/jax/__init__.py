"""Capsule convolutions for JAX: a function with gradients of any order, in and out of ``jax.jit``.

On CUDA devices it runs numbacaps' kernels, which XLA calls on its own stream (:mod:`numbacaps.jax.foreign`); elsewhere one
convolution of XLA's (:mod:`numbacaps.jax.fold`), so that the same code runs anywhere. It takes the extra ``jax``.

    import jax
    from numbacaps.jax import capsule_conv2d

    dw = jax.grad(lambda w: capsule_conv2d(x, w, padding=1).sum())(w)
"""

from numbacaps.extras import require

require("jax", "jax", "numbacaps.jax")

from numbacaps.jax.functional import capsule_conv2d  # noqa: E402  (what lacks is named first)

__all__ = ["capsule_conv2d"]
