"""The same sums a second way: views of the windows and einsum, in float64.

This checks the loops, so it shares none of their index arithmetic. Which input element a window
reads is left to ``numpy.lib.stride_tricks.sliding_window_view``, what is summed to the letters of
an einsum. The letters are

    c channel    h, w output position    i, j window position    p output channel
    g group      a, b, d the sizes D1, D2, D3

The work is done one image and one group at a time; the votes one element of the window at a time.
The unfolded windows then stay small, and each einsum becomes one large matrix multiply, because
every letter is summed or belongs to one operand alone. This makes it fast enough to be the float64
oracle of large arrays.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .checks import check_capsules, check_equal
from .window import ieee, output_size, window_step


def _read(x, w, stride, padding, dilation):
    """Check the arguments and return x padded and w, both float64, and the three pairs."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    check_capsules(x, w)
    stride, padding, dilation = window_step(stride, padding, dilation)
    output_size(x.shape[2:4], w.shape[2:4], stride, padding, dilation, name="w")  # for its errors
    rows, columns = ((width, width) for width in padding)
    padded = np.pad(x, ((0, 0), (0, 0), rows, columns, (0, 0), (0, 0), (0, 0)))
    return padded, w, stride, padding, dilation


def _view_windows(padded, window, stride, dilation):
    """View (N, C, H, W, G, D1, D2) as (N, C, OH, OW, G, D1, D2, KH, KW), without a copy."""
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True))
    windows = sliding_window_view(padded, extent, axis=(2, 3), writeable=True)
    return windows[:, :, :: stride[0], :: stride[1], ..., :: dilation[0], :: dilation[1]]


@ieee
def capsule_convolution_einsum(x, w, stride=1, padding=0, dilation=1):
    """What Algorithms 2, 3 and 5 compute, by einsum in float64.

    Parameters
    ----------
    x : array_like, (N, C, H, W, G, D1, D2)
        Input.
    w : array_like, (P, C, KH, KW, G, D2, D3)
        Kernel.
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    ndarray of float64, (N, P, OH, OW, G, D1, D3)
        Output.

    Raises
    ------
    ValueError
        If a rank is not 7, C, G or D2 of the two arrays differ, the window covers more than the
        padded input, the stride or the dilation is below 1, or the padding is below 0.
    TypeError
        If a stride, padding or dilation is not an integer.
    """
    padded, w, stride, padding, dilation = _read(x, w, stride, padding, dilation)
    P, _, KH, KW, _, _, D3 = w.shape
    windows = _view_windows(padded, (KH, KW), stride, dilation)
    N, _, OH, OW, G, D1 = windows.shape[:6]

    output = np.empty((N, P, OH, OW, G, D1, D3))
    for n in range(N):
        for g in range(G):
            output[n, :, :, :, g] = np.einsum(
                "chwabij,pcijbd->phwad", windows[n, :, :, :, g], w[:, :, :, :, g], optimize=True
            )
    return output


@ieee
def capsule_votes_einsum(x, w, stride=1, padding=0, dilation=1):
    """The products that Algorithm 3 sums (its O'), each by itself, by einsum in float64.

    Parameters
    ----------
    x : array_like, (N, C, H, W, G, D1, D2)
        Input.
    w : array_like, (P, C, KH, KW, G, D2, D3)
        Kernel.
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    ndarray of float64, (N, P, OH, OW, C, KH, KW, G, D1, D3)
        The vote of each input capsule for each output capsule; their sum over C, KH and KW is
        `capsule_convolution_einsum`.

    Raises
    ------
    ValueError, TypeError
        As `capsule_convolution_einsum`.
    """
    padded, w, stride, padding, dilation = _read(x, w, stride, padding, dilation)
    P, C, KH, KW, _, _, D3 = w.shape
    windows = _view_windows(padded, (KH, KW), stride, dilation)
    N, _, OH, OW, G, D1 = windows.shape[:6]

    votes = np.empty((N, P, OH, OW, C, KH, KW, G, D1, D3))
    for c, i, j, g in np.ndindex(C, KH, KW, G):
        votes[:, :, :, :, c, i, j, g] = np.einsum(
            "nhwab,pbd->nphwad", windows[:, c, :, :, g, :, :, i, j], w[:, c, i, j, g], optimize=True
        )
    return votes


@ieee
def capsule_convolution_backward_einsum(x, w, dy, stride=1, padding=0, dilation=1):
    """What Algorithm 4 computes, both gradients, by einsum in float64.

    Parameters
    ----------
    x : array_like, (N, C, H, W, G, D1, D2)
        Input.
    w : array_like, (P, C, KH, KW, G, D2, D3)
        Kernel.
    dy : array_like, (N, P, OH, OW, G, D1, D3)
        Gradient of the output.
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    dx : ndarray of float64, (N, C, H, W, G, D1, D2)
        Gradient of the input.
    dw : ndarray of float64, (P, C, KH, KW, G, D2, D3)
        Gradient of the kernel.

    Raises
    ------
    ValueError, TypeError
        As `capsule_convolution_einsum`, and ValueError if `dy` has not the shape of the output.
    """
    H, W = np.shape(x)[2:4]
    padded, w, stride, padding, dilation = _read(x, w, stride, padding, dilation)
    P, _, KH, KW, _, _, D3 = w.shape
    windows = _view_windows(padded, (KH, KW), stride, dilation)
    N, _, OH, OW, G, D1 = windows.shape[:6]
    dy = np.asarray(dy, np.float64)
    check_equal("dy", "shape", dy.shape, (N, P, OH, OW, G, D1, D3))

    d_padded, dw = np.zeros_like(padded), np.zeros_like(w)
    d_windows = _view_windows(d_padded, (KH, KW), stride, dilation)
    for n in range(N):
        for g in range(G):
            windows_g, w_g, dy_g = windows[n, :, :, :, g], w[:, :, :, :, g], dy[n, :, :, :, g]
            dw[:, :, :, :, g] += np.einsum("chwabij,phwad->pcijbd", windows_g, dy_g, optimize=True)
            d_unfolded = np.einsum("phwad,pcijbd->chwabij", dy_g, w_g, optimize=True)
            # Windows overlap, but at one fixed (i, j) no two of them read the same element.
            for i in range(KH):
                for j in range(KW):
                    d_windows[n, :, :, :, g, :, :, i, j] += d_unfolded[..., i, j]
    rows, columns = slice(padding[0], padding[0] + H), slice(padding[1], padding[1] + W)
    return np.ascontiguousarray(d_padded[:, :, rows, columns]), dw
