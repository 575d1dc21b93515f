"""Votes: the products of Algorithm 2 before their sum, and their gradients, by the same loops.

    V[n,p,oh,ow,c,kh,kw,g] = I[n, c, oh*stride + kh*dilation - padding, ..., g] @ K[p,c,kh,kw,g]

Routing weighs the votes before it adds them. Where the votes of a window are added first, one vote is left for each
input channel (``sum_window``), and its gradient goes to every tap of the window.
"""

import numpy as np

from .capsule_convolution import matrix_multiply, matrix_multiply_backward
from .checks import check_capsules, check_dtype, check_equal
from .window import drop_padding, ieee, output_size, window_step, zero_pad


def _products(x, w, padded_size, stride, dilation, sum_window):
    """(offset in I, offset in K, offset in V) of every small product, in the loop order of Algorithm 2."""
    N, C, _, _, G, D1, D2 = x.shape
    P, _, KH, KW, _, _, D3 = w.shape
    H, W = padded_size
    taps = 1 if sum_window else KH * KW
    OH, OW = output_size(padded_size, (KH, KW), stride, (0, 0), dilation, name="w")
    for n, p, oh, ow, c, kh, kw, g in np.ndindex(N, P, OH, OW, C, KH, KW, G):
        h, w_in = oh * stride[0] + kh * dilation[0], ow * stride[1] + kw * dilation[1]
        i_idx = ((((n * C + c) * H + h) * W + w_in) * G + g) * D1 * D2
        idx = ((((p * C + c) * KH + kh) * KW + kw) * G + g) * D2 * D3
        tap = 0 if sum_window else kh * KW + kw
        v_idx = ((((n * P + p) * OH + oh) * OW + ow) * C + c) * taps + tap
        yield i_idx, idx, (v_idx * G + g) * D1 * D3


def _votes_shape(x, w, stride, padding, dilation, sum_window):
    positions = output_size(x.shape[2:4], w.shape[2:4], stride, padding, dilation, name="w")
    window = () if sum_window else w.shape[2:4]
    capsule = x.shape[4], x.shape[5], w.shape[6]
    return (x.shape[0], w.shape[0], *positions, x.shape[1], *window, *capsule)


@ieee
def capsule_votes(x, w, stride=1, padding=0, dilation=1, sum_window=False):
    """The vote of each input capsule for each output capsule.

    Parameters
    ----------
    x : ndarray, (N, C, H, W, G, D1, D2)
        Input.
    w : ndarray, (P, C, KH, KW, G, D2, D3)
        Kernel, dtype of `x`.
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).
    sum_window : bool
        Add the votes of a window, channel by channel.

    Returns
    -------
    ndarray, (N, P, OH, OW, C, KH, KW, G, D1, D3), or (N, P, OH, OW, C, G, D1, D3) with `sum_window`
        Dtype of `x`, summed in that dtype.

    Raises
    ------
    ValueError, TypeError
        As `capsule_convolution`.
    """
    check_capsules(x, w)
    stride, padding, dilation = window_step(stride, padding, dilation)
    shape = _votes_shape(x, w, stride, padding, dilation, sum_window)
    padded = zero_pad(x, padding)
    I, K, V = padded.reshape(-1), w.reshape(-1), np.zeros(np.prod(shape, dtype=int), x.dtype)
    sizes = x.shape[5], x.shape[6], w.shape[6]
    offsets = _products(x, w, padded.shape[2:4], stride, dilation, sum_window)
    for i_idx, idx, v_idx in offsets:
        matrix_multiply(I, i_idx, K, idx, V, v_idx, *sizes)
    return V.reshape(shape)


@ieee
def capsule_votes_backward(x, w, dvotes, stride=1, padding=0, dilation=1, sum_window=False):
    """Both gradients of `capsule_votes`.

    Parameters
    ----------
    x, w, stride, padding, dilation, sum_window
        As `capsule_votes`.
    dvotes : ndarray
        Gradient of the votes, of their shape and dtype.

    Returns
    -------
    dx : ndarray, (N, C, H, W, G, D1, D2)
        Gradient of the input, dtype of `x`, summed in that dtype.
    dw : ndarray, (P, C, KH, KW, G, D2, D3)
        Gradient of the kernel, dtype of `x`, summed in that dtype.

    Raises
    ------
    ValueError, TypeError
        As `capsule_votes`, and if `dvotes` has not the shape or the dtype of the votes.
    """
    check_capsules(x, w)
    stride, padding, dilation = window_step(stride, padding, dilation)
    shape = _votes_shape(x, w, stride, padding, dilation, sum_window)
    check_equal("dvotes", "shape", dvotes.shape, shape)
    check_dtype("dvotes", dvotes, x.dtype)
    padded = zero_pad(x, padding)
    I, K, dV = padded.reshape(-1), w.reshape(-1), dvotes.reshape(-1)
    dI, dK = np.zeros_like(I), np.zeros_like(K)
    sizes = x.shape[5], x.shape[6], w.shape[6]
    offsets = _products(x, w, padded.shape[2:4], stride, dilation, sum_window)
    for i_idx, idx, v_idx in offsets:
        matrix_multiply_backward(I, i_idx, K, idx, dV, v_idx, dI, dK, *sizes)
    return drop_padding(dI.reshape(padded.shape), padding), dK.reshape(w.shape)
