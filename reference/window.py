"""Where the window stands: the arithmetic that all the loops of the reference share.

For an output row ``oh`` and a window row ``kh``, Algorithm 2 of the paper reads the input row
``oh * stride + kh``. With dilation and padding, both absent from the paper, that becomes
``oh * stride + kh * dilation - padding``. The reference pads the input first, so the loops never
subtract the padding and read ``oh * stride + kh * dilation`` of the padded input.

The padding is made of zeros that multiply like any other value. A product of one of them with an
infinity is NaN, as IEEE 754 says.
"""

import operator

import numpy as np

# Infinities and NaNs are results here, not accidents, so the loops do not warn about them.
ieee = np.errstate(over="ignore", under="ignore", invalid="ignore")


def pair(name, value, smallest):
    """Read an argument that is one int for both directions or a pair of them.

    Parameters
    ----------
    name : str
        Name of the argument, for the error.
    value : int or pair of int
        One value for both directions, or (vertical, horizontal).
    smallest : int
        Smallest value allowed.

    Returns
    -------
    (int, int)
        The vertical and the horizontal value.

    Raises
    ------
    TypeError
        If a value is not an integer.
    ValueError
        If there are not two values, or one is below `smallest`.
    """
    values = (value, value) if np.ndim(value) == 0 else tuple(value)
    try:
        values = tuple(operator.index(v) for v in values)
    except TypeError:
        raise TypeError(f"{name}: takes an int or a pair of ints, not {value!r}") from None
    if len(values) != 2:
        raise ValueError(f"{name}: takes an int or a pair of ints, not {value!r}")
    if min(values) < smallest:
        raise ValueError(f"{name}: must be at least {smallest}, not {value!r}")
    return values


def window_step(stride, padding, dilation):
    """Read the three arguments that say how the window moves.

    Parameters
    ----------
    stride, padding, dilation : int or pair of int
        One value for both directions, or (vertical, horizontal).

    Returns
    -------
    stride, padding, dilation : (int, int)
        The same as pairs.

    Raises
    ------
    TypeError, ValueError
        As `pair`: a stride or a dilation below 1, a padding below 0.
    """
    return pair("stride", stride, 1), pair("padding", padding, 0), pair("dilation", dilation, 1)


def output_size(size, window, stride, padding, dilation, name="window"):
    """Number of positions of the window: W' and H' of the paper's Algorithm 2.

    Parameters
    ----------
    size : (int, int)
        (H, W) of the input without its padding.
    window : (int, int)
        (KH, KW).
    stride, padding, dilation : (int, int)
        Pairs, as `window_step` returns them.
    name : str
        Name of the argument that carries the window, for the error.

    Returns
    -------
    (int, int)
        (OH, OW), with ``OH = (H + 2*padding - dilation*(KH - 1) - 1) // stride + 1``.

    Raises
    ------
    ValueError
        If the window is empty or covers more than the padded input.
    """
    positions = []
    for axis, lines in enumerate(("rows", "columns")):
        if window[axis] < 1:
            raise ValueError(f"{name}: the window has no {lines}")
        covered = dilation[axis] * (window[axis] - 1) + 1
        padded = size[axis] + 2 * padding[axis]
        if covered > padded:
            raise ValueError(
                f"{name}: the window covers {covered} {lines}, the padded input has {padded}"
            )
        positions.append((padded - covered) // stride[axis] + 1)
    return tuple(positions)


def zero_pad(x, padding):
    """Put the input into the middle of a larger array of zeros.

    Parameters
    ----------
    x : ndarray, (N, C, H, W, ...)
    padding : (int, int)
        Rows added above and below, columns added left and right.

    Returns
    -------
    ndarray, (N, C, H + 2*padding[0], W + 2*padding[1], ...)
        C-contiguous, dtype of `x`.
    """
    N, C, H, W = x.shape[:4]
    padded = np.zeros((N, C, H + 2 * padding[0], W + 2 * padding[1], *x.shape[4:]), x.dtype)
    padded[:, :, padding[0] : padding[0] + H, padding[1] : padding[1] + W] = x
    return padded


def drop_padding(padded, padding):
    """Cut the middle out again: the transpose of `zero_pad`.

    Parameters
    ----------
    padded : ndarray, (N, C, H + 2*padding[0], W + 2*padding[1], ...)
    padding : (int, int)
        Rows taken off above and below, columns taken off left and right.

    Returns
    -------
    ndarray, (N, C, H, W, ...)
        C-contiguous, dtype of `padded`.
    """
    H = padded.shape[2] - 2 * padding[0]
    W = padded.shape[3] - 2 * padding[1]
    middle = padded[:, :, padding[0] : padding[0] + H, padding[1] : padding[1] + W]
    return np.ascontiguousarray(middle)
