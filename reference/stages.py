"""Algorithms 3 and 4 of the paper: capsule convolution as stages, each one by loops.

Every array has a row of products as its middle axes. A position of the window is
``l = oh*OW + ow``, of L = OH*OW; an element of the window is ``q = (c*KH + kh)*KW + kw``, of
Q = C*KH*KW. Algorithm 3, forward (Figures 3, 4 and 5 of the paper are its steps 1, 2 and 3, Figure 6 is steps 4 and 5):

    step 1  capsule_im2col(I)                      I_flat  (N, L, Q, G, D1, D2)
    step 2  input_extend(I_flat)                   I'      (N, P, L, Q, G, D1, D2)
    step 3  kernel_extend(K)                       K'      (P, L, Q, G, D2, D3)
    step 4  strided_batched_matrix_multiply        O'      (N, P, L, Q, G, D1, D3)
    step 5  output_reduce(O')                      O       (N, P, OH, OW, G, D1, D3)

Algorithm 4, backward:

    output_extend(dO)                              dO'     (N, P, L, Q, G, D1, D3)
    strided_batched_matrix_multiply, I'^T dO'      dK'     (N, P, L, Q, G, D2, D3)
    kernel_reduce(dK')                             dK      (P, C, KH, KW, G, D2, D3)
    strided_batched_matrix_multiply, dO' K'^T      dI'     (N, P, L, Q, G, D1, D2)
    input_reduce(dI')                              dI_flat (N, L, Q, G, D1, D2)
    capsule_col2im(dI_flat)                        dI      (N, C, H, W, G, D1, D2)

Readings of Algorithm 4: the input's gradient has the shape of the input, (D1, D2), where the paper
prints (D1, D3); the second multiply takes dO', where the paper prints O'; the multiply that names
dK' alone is its sum over N and L, which is `kernel_reduce`; `input_reduce` takes dI'.
"""

import numpy as np

from .checks import check_capsules, check_equal, check_output_gradient, check_rank
from .window import drop_padding, ieee, output_size, pair, window_step, zero_pad


def capsule_im2col(x, window, stride=1, padding=0, dilation=1):
    """Algorithm 3, step 1: one column of capsules per output position.

    Parameters
    ----------
    x : ndarray, (N, C, H, W, G, D1, D2)
        Input.
    window : int or pair of int
        (KH, KW).
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    ndarray, (N, L, Q, G, D1, D2)
        I_flat, dtype of `x`.

    Raises
    ------
    ValueError
        If the rank is not 7, the window is empty or covers more than the padded input, the stride
        or the dilation is below 1, or the padding is below 0.
    TypeError
        If a window, stride, padding or dilation is not an integer.
    """
    check_rank("x", x, "N, C, H, W, G, D1, D2")
    KH, KW = pair("window", window, 1)
    stride, padding, dilation = window_step(stride, padding, dilation)
    N, C, H, W, G, D1, D2 = x.shape
    OH, OW = output_size((H, W), (KH, KW), stride, padding, dilation)
    padded = zero_pad(x, padding)

    columns = np.empty((N, OH * OW, C * KH * KW, G, D1, D2), x.dtype)
    for n in range(N):
        for oh in range(OH):
            for ow in range(OW):
                l = oh * OW + ow
                for c in range(C):
                    for kh in range(KH):
                        for kw in range(KW):
                            q = (c * KH + kh) * KW + kw
                            h = oh * stride[0] + kh * dilation[0]
                            w = ow * stride[1] + kw * dilation[1]
                            columns[n, l, q] = padded[n, c, h, w]
    return columns


def input_extend(columns, P):
    """Algorithm 3, step 2: the columns, once per output channel.

    Parameters
    ----------
    columns : ndarray, (N, L, Q, G, D1, D2)
        I_flat.
    P : int
        Output channels.

    Returns
    -------
    ndarray, (N, P, L, Q, G, D1, D2)
        I', dtype of `columns`.

    Raises
    ------
    ValueError
        If the rank is not 6.
    """
    check_rank("columns", columns, "N, L, Q, G, D1, D2")
    N = columns.shape[0]
    extended = np.empty((N, P, *columns.shape[1:]), columns.dtype)
    for n in range(N):
        for p in range(P):
            extended[n, p] = columns[n]
    return extended


def kernel_extend(w, L):
    """Algorithm 3, step 3: the capsules of each output channel, once per output position.

    Parameters
    ----------
    w : ndarray, (P, C, KH, KW, G, D2, D3)
        Kernel.
    L : int
        Output positions.

    Returns
    -------
    ndarray, (P, L, Q, G, D2, D3)
        K', dtype of `w`. It has no batch axis: all images share it.

    Raises
    ------
    ValueError
        If the rank is not 7.
    """
    check_rank("w", w, "P, C, KH, KW, G, D2, D3")
    P, C, KH, KW, G, D2, D3 = w.shape
    extended = np.empty((P, L, C * KH * KW, G, D2, D3), w.dtype)
    for p in range(P):
        for l in range(L):
            for c in range(C):
                for kh in range(KH):
                    for kw in range(KW):
                        q = (c * KH + kh) * KW + kw
                        extended[p, l, q] = w[p, c, kh, kw]
    return extended


@ieee
def strided_batched_matrix_multiply(a, b, transpose_a=False, transpose_b=False):
    """Algorithms 3 and 4: every small product by itself, nothing summed across them.

    The paper names K' first. Its capsules are rows, so the product is ``I' @ K'``, and `a` is the
    left operand here.

    Parameters
    ----------
    a, b : ndarray, (..., rows, columns)
        All axes but the last two count matrices. They broadcast, so that K' needs no batch axis.
    transpose_a, transpose_b : bool
        Multiply by the transpose of each matrix.

    Returns
    -------
    ndarray, (..., rows of a, columns of b)
        One product per matrix, in the dtype that NumPy gives to ``a @ b``.

    Raises
    ------
    ValueError
        If an operand has fewer than two axes, the inner sizes differ, or the other axes do not
        broadcast.
    """
    for name, operand in (("a", a), ("b", b)):
        if operand.ndim < 2:
            raise ValueError(f"{name}: must have at least 2 axes, not shape {operand.shape}")
    if transpose_a:
        a = np.swapaxes(a, -1, -2)
    if transpose_b:
        b = np.swapaxes(b, -1, -2)
    check_equal("b", "the number of rows of each matrix", b.shape[-2], a.shape[-1])
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"b: its axes {b.shape[:-2]} do not broadcast with {a.shape[:-2]} of a"
        ) from None

    a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    products = np.empty((*batch, a.shape[-2], b.shape[-1]), np.result_type(a, b))
    for index in np.ndindex(batch):
        products[index] = a[index] @ b[index]
    return products


@ieee
def output_reduce(products, OH, OW):
    """Algorithm 3, step 5: the sum of the products of each output capsule.

    Parameters
    ----------
    products : ndarray, (N, P, L, Q, G, D1, D3)
        O'.
    OH, OW : int
        Height and width of the output; L must be their product.

    Returns
    -------
    ndarray, (N, P, OH, OW, G, D1, D3)
        O, dtype of `products`.

    Raises
    ------
    ValueError
        If the rank is not 7 or L is not OH * OW.
    """
    check_rank("products", products, "N, P, L, Q, G, D1, D3")
    N, P, L, Q, G, D1, D3 = products.shape
    check_equal("products", "L (axis 2)", L, OH * OW)
    output = np.zeros((N, P, OH, OW, G, D1, D3), products.dtype)
    for n in range(N):
        for p in range(P):
            for oh in range(OH):
                for ow in range(OW):
                    for q in range(Q):
                        output[n, p, oh, ow] += products[n, p, oh * OW + ow, q]
    return output


def output_extend(dy, Q):
    """Algorithm 4: the gradient of each output capsule, once per product summed into it.

    Parameters
    ----------
    dy : ndarray, (N, P, OH, OW, G, D1, D3)
        dO.
    Q : int
        Products per output capsule.

    Returns
    -------
    ndarray, (N, P, L, Q, G, D1, D3)
        dO', dtype of `dy`.

    Raises
    ------
    ValueError
        If the rank is not 7.
    """
    check_rank("dy", dy, "N, P, OH, OW, G, D1, D3")
    N, P, OH, OW, G, D1, D3 = dy.shape
    extended = np.empty((N, P, OH * OW, Q, G, D1, D3), dy.dtype)
    for n in range(N):
        for p in range(P):
            for oh in range(OH):
                for ow in range(OW):
                    for q in range(Q):
                        extended[n, p, oh * OW + ow, q] = dy[n, p, oh, ow]
    return extended


@ieee
def input_reduce(d_input_products):
    """Algorithm 4: the sum over the output channels, the transpose of `input_extend`.

    Parameters
    ----------
    d_input_products : ndarray, (N, P, L, Q, G, D1, D2)
        dI'.

    Returns
    -------
    ndarray, (N, L, Q, G, D1, D2)
        Gradient of the columns, dtype of `d_input_products`.

    Raises
    ------
    ValueError
        If the rank is not 7.
    """
    check_rank("d_input_products", d_input_products, "N, P, L, Q, G, D1, D2")
    N, P = d_input_products.shape[:2]
    d_columns = np.zeros((N, *d_input_products.shape[2:]), d_input_products.dtype)
    for n in range(N):
        for p in range(P):
            d_columns[n] += d_input_products[n, p]
    return d_columns


@ieee
def kernel_reduce(d_kernel_products, C, KH, KW):
    """Algorithm 4: the sum over images and positions, the transpose of `kernel_extend`.

    The paper calls the batched multiply for it, which is a product with ones.

    Parameters
    ----------
    d_kernel_products : ndarray, (N, P, L, Q, G, D2, D3)
        dK'.
    C, KH, KW : int
        Input channels and window; Q must be their product.

    Returns
    -------
    ndarray, (P, C, KH, KW, G, D2, D3)
        dK, dtype of `d_kernel_products`.

    Raises
    ------
    ValueError
        If the rank is not 7 or Q is not C * KH * KW.
    """
    check_rank("d_kernel_products", d_kernel_products, "N, P, L, Q, G, D2, D3")
    N, P, L, Q, G, D2, D3 = d_kernel_products.shape
    check_equal("d_kernel_products", "Q (axis 3)", Q, C * KH * KW)
    dw = np.zeros((P, C, KH, KW, G, D2, D3), d_kernel_products.dtype)
    for n in range(N):
        for p in range(P):
            for l in range(L):
                for c in range(C):
                    for kh in range(KH):
                        for kw in range(KW):
                            q = (c * KH + kh) * KW + kw
                            dw[p, c, kh, kw] += d_kernel_products[n, p, l, q]
    return dw


@ieee
def capsule_col2im(d_columns, input_shape, window, stride=1, padding=0, dilation=1):
    """Algorithm 4, last step: the transpose of `capsule_im2col`; overlapping windows add up.

    Parameters
    ----------
    d_columns : ndarray, (N, L, Q, G, D1, D2)
        Gradient of the columns.
    input_shape : tuple of int
        (N, C, H, W, G, D1, D2).
    window : int or pair of int
        (KH, KW).
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    ndarray, (N, C, H, W, G, D1, D2)
        dI, dtype of `d_columns`. What falls into the padding is dropped.

    Raises
    ------
    ValueError
        If `input_shape` has not 7 sizes, `d_columns` is not of the shape that they and the window
        ask for, or the window does not fit, as for `capsule_im2col`.
    TypeError
        If a window, stride, padding or dilation is not an integer.
    """
    check_equal("input_shape", "the number of sizes", len(input_shape), 7)
    KH, KW = pair("window", window, 1)
    stride, padding, dilation = window_step(stride, padding, dilation)
    N, C, H, W, G, D1, D2 = input_shape
    OH, OW = output_size((H, W), (KH, KW), stride, padding, dilation)
    check_equal("d_columns", "shape", d_columns.shape, (N, OH * OW, C * KH * KW, G, D1, D2))

    d_padded = zero_pad(np.zeros(input_shape, d_columns.dtype), padding)
    for n in range(N):
        for oh in range(OH):
            for ow in range(OW):
                l = oh * OW + ow
                for c in range(C):
                    for kh in range(KH):
                        for kw in range(KW):
                            q = (c * KH + kh) * KW + kw
                            h = oh * stride[0] + kh * dilation[0]
                            w = ow * stride[1] + kw * dilation[1]
                            d_padded[n, c, h, w] += d_columns[n, l, q]
    return drop_padding(d_padded, padding)


def staged_forward(x, w, stride=1, padding=0, dilation=1):
    """Algorithm 3: the five forward stages, one after the other.

    Parameters
    ----------
    x : ndarray, (N, C, H, W, G, D1, D2)
        Input.
    w : ndarray, (P, C, KH, KW, G, D2, D3)
        Kernel, dtype of `x`.
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    ndarray, (N, P, OH, OW, G, D1, D3)
        Output, dtype of `x`.

    Raises
    ------
    ValueError, TypeError
        As `capsule_convolution`.
    """
    check_capsules(x, w)
    stride, padding, dilation = window_step(stride, padding, dilation)
    P, _, KH, KW = w.shape[:4]
    OH, OW = output_size(x.shape[2:4], (KH, KW), stride, padding, dilation, name="w")
    columns = capsule_im2col(x, (KH, KW), stride, padding, dilation)
    extended_input = input_extend(columns, P)
    extended_kernel = kernel_extend(w, OH * OW)
    products = strided_batched_matrix_multiply(extended_input, extended_kernel)
    return output_reduce(products, OH, OW)


def staged_backward(x, w, dy, stride=1, padding=0, dilation=1):
    """Algorithm 4: the backward stages, one after the other.

    Parameters
    ----------
    x : ndarray, (N, C, H, W, G, D1, D2)
        Input.
    w : ndarray, (P, C, KH, KW, G, D2, D3)
        Kernel, dtype of `x`.
    dy : ndarray, (N, P, OH, OW, G, D1, D3)
        Gradient of the output, dtype of `x`.
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    dx : ndarray, (N, C, H, W, G, D1, D2)
        Gradient of the input, dtype of `x`.
    dw : ndarray, (P, C, KH, KW, G, D2, D3)
        Gradient of the kernel, dtype of `x`.

    Raises
    ------
    ValueError, TypeError
        As `capsule_convolution_backward`.
    """
    check_capsules(x, w)
    stride, padding, dilation = window_step(stride, padding, dilation)
    P, C, KH, KW = w.shape[:4]
    OH, OW = output_size(x.shape[2:4], (KH, KW), stride, padding, dilation, name="w")
    check_output_gradient(x, w, dy, (OH, OW))
    extended_dy = output_extend(dy, C * KH * KW)

    columns = capsule_im2col(x, (KH, KW), stride, padding, dilation)
    extended_input = input_extend(columns, P)
    d_kernel_products = strided_batched_matrix_multiply(
        extended_input, extended_dy, transpose_a=True
    )
    dw = kernel_reduce(d_kernel_products, C, KH, KW)

    extended_kernel = kernel_extend(w, OH * OW)
    d_input_products = strided_batched_matrix_multiply(
        extended_dy, extended_kernel, transpose_b=True
    )
    d_columns = input_reduce(d_input_products)
    dx = capsule_col2im(d_columns, x.shape, (KH, KW), stride, padding, dilation)
    return dx, dw
