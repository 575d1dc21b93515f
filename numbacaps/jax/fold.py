"""The fold for JAX: a capsule convolution as one convolution of XLA's, on any device.

    out (N, P, OH, OW, G, D1, D3)  from  x (N, C, H, W, G, D1, D2)  and  w (P, C, KH, KW, G, D2, D3)

D1 joins the images, D2 the input channels, D3 the output channels, and G makes groups.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax


def convolve(g, x, w):
    """The convolution; ``g`` is a :class:`numbacaps.geometry.Geometry`. Numbers of 2 bytes are added in float32."""
    images = x.transpose(0, 5, 4, 1, 6, 2, 3).reshape(g.N * g.D1, g.G * g.C * g.D2, g.H, g.W)
    kernel = w.transpose(4, 0, 6, 1, 5, 2, 3).reshape(g.G * g.P * g.D3, g.C * g.D2, g.KH, g.KW)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    # Padded apart: of some strides XLA (jax 0.10.2) aborts on the gradient of a convolution that pads.
    edges = [(0, 0), (0, 0), *((size, size) for size in g.padding)]
    y = lax.conv_general_dilated(
        jnp.pad(images.astype(wide), edges),
        kernel.astype(wide),
        g.stride,
        [(0, 0), (0, 0)],
        rhs_dilation=g.dilation,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=g.G,
        precision=lax.Precision.HIGHEST,
    )
    y = y.reshape(g.N, g.D1, g.G, g.P, g.D3, g.OH, g.OW).transpose(0, 3, 5, 6, 2, 1, 4)
    return y.astype(x.dtype)


def input_gradient(g, dy, w):
    """The gradient of x, for that of the output."""
    x = jax.ShapeDtypeStruct(g.input_shape, dy.dtype)
    return jax.linear_transpose(lambda x: convolve(g, x, w), x)(dy)[0]


def kernel_gradient(g, x, dy):
    """The gradient of w, for that of the output."""
    w = jax.ShapeDtypeStruct(g.kernel_shape, x.dtype)
    return jax.linear_transpose(partial(convolve, g, x), w)(dy)[0]
