"""Algorithm 1 of the paper: convolution, a linear combination of scalars.

Figure 1 draws it. With ``O(i, j, m) += I(i+p, j+q, n) * K(m, p, q, n)`` the paper's letters are
``i = ow``, ``j = oh``, ``p = kw``, ``q = kh``, ``m = p`` and ``n = c`` of this project. The paper
prints ``x`` and ``y`` where its loop variables are ``p`` and ``q``.

Capsule convolution turns each scalar of this into a small matrix: see `capsule_convolution`.
"""

import numpy as np

from .checks import check_dtype, check_equal, check_rank
from .window import ieee, output_size, window_step, zero_pad


@ieee
def convolution(x, w, stride=1, padding=0, dilation=1):
    """Convolve scalars by the loops of Algorithm 1, in the paper's order.

    Parameters
    ----------
    x : ndarray, (N, C, H, W)
        Input.
    w : ndarray, (P, C, KH, KW)
        Kernel, dtype of `x`.
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    ndarray, (N, P, OH, OW)
        Output, dtype of `x`, summed in that dtype.

    Raises
    ------
    ValueError
        If a rank is not 4, the channels differ, the window covers more than the padded input, the
        stride or the dilation is below 1, or the padding is below 0.
    TypeError
        If the dtypes differ, or a stride, padding or dilation is not an integer.
    """
    check_rank("x", x, "N, C, H, W")
    check_rank("w", w, "P, C, KH, KW")
    check_equal("w", "C (axis 1)", w.shape[1], x.shape[1])
    check_dtype("w", w, x.dtype)
    stride, padding, dilation = window_step(stride, padding, dilation)
    N, C, H, W = x.shape
    P, _, KH, KW = w.shape
    OH, OW = output_size((H, W), (KH, KW), stride, padding, dilation, name="w")
    padded = zero_pad(x, padding)

    output = np.zeros((N, P, OH, OW), x.dtype)
    for n in range(N):
        for ow in range(OW):
            for oh in range(OH):
                for kw in range(KW):
                    for kh in range(KH):
                        h = oh * stride[0] + kh * dilation[0]
                        w_in = ow * stride[1] + kw * dilation[1]
                        for p in range(P):
                            for c in range(C):
                                output[n, p, oh, ow] += padded[n, c, h, w_in] * w[p, c, kh, kw]
    return output
