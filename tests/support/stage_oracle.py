"""The stages as NumPy one-liners in float64: the oracle at sizes where reference/'s loops are slow.

``expected(geometry, x, w, dy)`` gives what every stage makes. test_stages.py holds it against
reference/ at small sizes.
"""

import numpy as np


def _windows(geometry, padded):
    """View (N, C, KH, KW, OH, OW, ...) of the padded input."""
    g = geometry
    n, c, h, w, *capsule = padded.strides
    return np.lib.stride_tricks.as_strided(
        padded,
        (g.N, g.C, g.KH, g.KW, g.OH, g.OW, *padded.shape[4:]),
        (n, c, h * g.dilation[0], w * g.dilation[1], h * g.stride[0], w * g.stride[1], *capsule),
    )


def _padded(geometry, x):
    (vertical, horizontal), rest = geometry.padding, x.ndim - 4
    widths = ((0, 0), (0, 0), (vertical, vertical), (horizontal, horizontal), *((0, 0),) * rest)
    return np.pad(x, widths)


def expected(geometry, x, w, dy):
    """Result of every stage, by name, in float64 and in the stages' shapes."""
    g = geometry
    x, w, dy = (array.astype(np.float64) for array in (x, w, dy))
    columns = np.moveaxis(_windows(g, _padded(g, x)), (4, 5), (1, 2))
    columns = columns.reshape(g.N, g.L, g.Q, *x.shape[4:])
    extended_input = np.repeat(columns[:, None], g.P, axis=1)
    extended_kernel = np.repeat(w.reshape(g.P, 1, g.Q, *w.shape[4:]), g.L, axis=1)
    products = extended_input @ extended_kernel
    extended_dy = np.repeat(dy.reshape(g.N, g.P, g.L, 1, *dy.shape[4:]), g.Q, axis=3)
    kernel_products = extended_input.swapaxes(-1, -2) @ extended_dy
    input_products = extended_dy @ extended_kernel.swapaxes(-1, -2)
    d_columns = input_products.sum(axis=1)
    d_padded = _padded(g, np.zeros_like(x))
    windows = _windows(g, d_padded)
    parts = d_columns.reshape(g.N, g.OH, g.OW, g.C, g.KH, g.KW, *x.shape[4:])
    for kh in range(g.KH):
        for kw in range(g.KW):  # one (kh, kw) at a time, where the windows do not overlap
            windows[:, :, kh, kw] += np.moveaxis(parts[:, :, :, :, kh, kw], 3, 1)
    (vertical, horizontal) = g.padding
    dx = d_padded[:, :, vertical : vertical + g.H, horizontal : horizontal + g.W]
    return {
        "capsule_im2col": columns,
        "input_extend": extended_input,
        "kernel_extend": extended_kernel,
        "strided_batched_matmul": products,
        "output_reduce": products.sum(axis=3).reshape(g.output_shape),
        "output_extend": extended_dy,
        "kernel_gradient_matmul": kernel_products,
        "kernel_reduce": kernel_products.sum(axis=(0, 2)).reshape(g.kernel_shape),
        "input_gradient_matmul": input_products,
        "input_reduce": d_columns,
        "capsule_col2im": dx,
    }
