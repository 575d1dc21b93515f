"""Algorithm 2 of the paper: general capsule convolution, and its gradients by the same loops.

Figure 2 draws it: a window of capsules maps to one capsule of the output, by

    O[n,p,oh,ow,g] = sum over c, kh, kw of
        I[n, c, oh*stride + kh*dilation - padding, ow*stride + kw*dilation - padding, g]
        @ K[p,c,kh,kw,g]

The code keeps the paper's flat arrays, its three offsets and its loop order. The letters differ,
since the paper uses some of them twice: paper ``p, i, j, s, m, n, c`` are ``p, oh, ow, c, kh, kw,
g`` here, and the batch loop ``n``, which the paper leaves out, goes around them.

Two of the paper's formulas need a reading:

* Its innermost loop runs over ``D1``, but that is also the number of rows of each matrix. The loop
  is over the batch axis G of a rank-3 capsule, so a capsule of the input holds ``G * D1 * D2``
  elements and its matrix ``g`` starts at ``g * D1 * D2`` in it. The paper prints ``D1 * D2`` for
  both, which drops a factor from the input's and from the output's offset. The kernel's offset
  has all three factors, and is right with G for its ``D1``.
* ``W`` in the input's offset is the width of the padded input.

Algorithm 5 is this with every iteration in parallel.
"""

import numpy as np

from .checks import check_capsules, check_output_gradient
from .window import drop_padding, ieee, output_size, window_step, zero_pad


def matrix_multiply(I, i_idx, K, idx, O, o_idx, D1, D2, D3):
    """Add one small product into the output: ``matrix_multiply`` of Algorithms 2 and 5.

    Parameters
    ----------
    I : ndarray, flat
        Input; a (D1, D2) matrix starts at `i_idx`.
    i_idx : int
    K : ndarray, flat
        Kernel; a (D2, D3) matrix starts at `idx`.
    idx : int
    O : ndarray, flat
        Output, changed in place; a (D1, D3) matrix starts at `o_idx`.
    o_idx : int
    D1, D2, D3 : int
    """
    for d1 in range(D1):
        for d3 in range(D3):
            for d2 in range(D2):
                O[o_idx + d1 * D3 + d3] += I[i_idx + d1 * D2 + d2] * K[idx + d2 * D3 + d3]


def matrix_multiply_backward(I, i_idx, K, idx, dO, o_idx, dI, dK, D1, D2, D3):
    """Add the gradients of one small product: ``dI += dO K^T`` and ``dK += I^T dO``.

    Parameters
    ----------
    I, i_idx, K, idx
        As for `matrix_multiply`.
    dO : ndarray, flat
        Gradient of the output; a (D1, D3) matrix starts at `o_idx`.
    o_idx : int
    dI : ndarray, flat
        Gradient of the input, laid out as `I`, changed in place.
    dK : ndarray, flat
        Gradient of the kernel, laid out as `K`, changed in place.
    D1, D2, D3 : int
    """
    for d1 in range(D1):
        for d3 in range(D3):
            for d2 in range(D2):
                i, k, o = i_idx + d1 * D2 + d2, idx + d2 * D3 + d3, o_idx + d1 * D3 + d3
                dI[i] += dO[o] * K[k]
                dK[k] += I[i] * dO[o]


@ieee
def capsule_convolution(x, w, stride=1, padding=0, dilation=1):
    """Convolve capsules by the loops of Algorithm 2.

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
        Output, dtype of `x`, summed in that dtype.

    Raises
    ------
    ValueError
        If a rank is not 7, C, G or D2 of the two arrays differ, the window covers more than the
        padded input, the stride or the dilation is below 1, or the padding is below 0.
    TypeError
        If the dtypes differ, or a stride, padding or dilation is not an integer.
    """
    check_capsules(x, w)
    stride, padding, dilation = window_step(stride, padding, dilation)
    N, C, _, _, G, D1, D2 = x.shape
    P, _, KH, KW, _, _, D3 = w.shape
    OH, OW = output_size(x.shape[2:4], (KH, KW), stride, padding, dilation, name="w")
    padded = zero_pad(x, padding)
    H, W = padded.shape[2:4]

    I, K = padded.reshape(-1), w.reshape(-1)
    O = np.zeros(N * P * OH * OW * G * D1 * D3, x.dtype)
    for n in range(N):
        for p in range(P):
            for oh in range(OH):
                for ow in range(OW):
                    row_offset, col_offset = oh * stride[0], ow * stride[1]
                    for c in range(C):
                        for kh in range(KH):
                            for kw in range(KW):
                                h = row_offset + kh * dilation[0]
                                w_in = col_offset + kw * dilation[1]
                                for g in range(G):
                                    idx = ((p * C + c) * KH + kh) * KW + kw
                                    idx = idx * G * D2 * D3 + g * D2 * D3
                                    i_idx = ((n * C + c) * H + h) * W + w_in
                                    i_idx = i_idx * G * D1 * D2 + g * D1 * D2
                                    o_idx = ((n * P + p) * OH + oh) * OW + ow
                                    o_idx = o_idx * G * D1 * D3 + g * D1 * D3
                                    matrix_multiply(I, i_idx, K, idx, O, o_idx, D1, D2, D3)
    return O.reshape(N, P, OH, OW, G, D1, D3)


@ieee
def capsule_convolution_backward(x, w, dy, stride=1, padding=0, dilation=1):
    """Both gradients of `capsule_convolution`, by the loops and offsets of Algorithm 2.

    The paper gives the backward pass as stages only (Algorithm 4); this is what they compute.

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
        Gradient of the input, dtype of `x`, summed in that dtype.
    dw : ndarray, (P, C, KH, KW, G, D2, D3)
        Gradient of the kernel, dtype of `x`, summed in that dtype.

    Raises
    ------
    ValueError, TypeError
        As `capsule_convolution`, and if `dy` has not the shape or the dtype of the output.
    """
    check_capsules(x, w)
    stride, padding, dilation = window_step(stride, padding, dilation)
    N, C, _, _, G, D1, D2 = x.shape
    P, _, KH, KW, _, _, D3 = w.shape
    OH, OW = output_size(x.shape[2:4], (KH, KW), stride, padding, dilation, name="w")
    check_output_gradient(x, w, dy, (OH, OW))
    padded = zero_pad(x, padding)
    H, W = padded.shape[2:4]

    I, K, dO = padded.reshape(-1), w.reshape(-1), dy.reshape(-1)
    dI, dK = np.zeros_like(I), np.zeros_like(K)
    for n in range(N):
        for p in range(P):
            for oh in range(OH):
                for ow in range(OW):
                    row_offset, col_offset = oh * stride[0], ow * stride[1]
                    for c in range(C):
                        for kh in range(KH):
                            for kw in range(KW):
                                h = row_offset + kh * dilation[0]
                                w_in = col_offset + kw * dilation[1]
                                for g in range(G):
                                    idx = ((p * C + c) * KH + kh) * KW + kw
                                    idx = idx * G * D2 * D3 + g * D2 * D3
                                    i_idx = ((n * C + c) * H + h) * W + w_in
                                    i_idx = i_idx * G * D1 * D2 + g * D1 * D2
                                    o_idx = ((n * P + p) * OH + oh) * OW + ow
                                    o_idx = o_idx * G * D1 * D3 + g * D1 * D3
                                    matrix_multiply_backward(
                                        I, i_idx, K, idx, dO, o_idx, dI, dK, D1, D2, D3
                                    )
    return drop_padding(dI.reshape(padded.shape), padding), dK.reshape(w.shape)
