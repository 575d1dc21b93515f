"""The paper's Figures 1 and 2 from runs: a convolution of scalars, and the ones that come to 48."""

import numpy as np

import numbacaps

_PAPER = 5, 4, 3  # of Figures 1 and 2: the input's sides, the kernel's, and depth, or a capsule's


def scalar_convolution(trace):
    """A convolution of the digit's pixels by one number of each kernel capsule.

    Parameters
    ----------
    trace : experiments.walk.records.Trace

    Returns
    -------
    dict
        ``window`` and ``kernel``: (KH, KW) lists; ``sum``, as the kernel "indexed" wrote it; and
        ``row``, ``column`` of the window's upper left pixel: where the sum is largest.
    """
    pixels = trace.plan.patches.pixels[0]
    kernel = trace.operands["K"].array[0, 0, :, :, 0, 0, 0]
    kernel = kernel[: pixels.shape[0], : pixels.shape[1]]
    sums = _convolved(pixels[None, None], kernel[None, None])[0, 0]
    row, column = (int(i) for i in np.unravel_index(sums.argmax(), sums.shape))
    high, wide = kernel.shape
    return {
        "window": pixels[row : row + high, column : column + wide].tolist(),
        "kernel": kernel.tolist(),
        "sum": float(sums[row, column]),
        "row": row,
        "column": column,
    }


def ones():
    """The paper's two examples, all of ones.

    Returns
    -------
    dict
        ``scalars``: a (2, 2, 2) list, 5 x 5 x 4 numbers under a kernel of 4 x 4 x 3; ``capsules``: a
        (2, 2, 3, 3, 3) list, 5 x 5 capsules under 4 x 4, each 3 x 3 x 3.
    """
    side, window, depth = _PAPER
    x = np.ones(
        (2, depth, side, side), np.float32
    )  # an image for each place of the kernel in depth
    scalars = _convolved(x, np.ones((1, depth, window, window), np.float32))[:, 0]
    capsule = (depth,) * 3
    capsules = numbacaps.capsule_conv2d(
        np.ones((1, 1, side, side, *capsule), np.float32),
        np.ones((1, 1, window, window, *capsule), np.float32),
        product="gab,gbc->gac",
        algorithm="indexed",
    )
    return {"scalars": scalars.tolist(), "capsules": capsules[0, 0].tolist()}


def _convolved(x, w):
    """A convolution of scalars (N, C, H, W) by (P, C, KH, KW), as one of 1 x 1 capsules."""
    out = numbacaps.capsule_conv2d(x[..., None, None], w[..., None, None], algorithm="indexed")
    return out[..., 0, 0]
