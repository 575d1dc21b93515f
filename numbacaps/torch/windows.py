"""Votes and their gradients by PyTorch's ``einsum``, for tensors on the CPU.

The windows of the padded input are a view; a vote is a product of a window's capsule and a kernel's, with the letters
of ``product``. Tensors of 2 bytes an element are added in float32.
"""

import torch

from numbacaps.torch.closed import no_view

_N, _C, _H, _W, _P, _I, _J = range(7)  # letters of einsum; the product's come behind them


def votes(x, w, stride, padding, dilation, product, sum_window):
    """(N, P, OH, OW, C, KH, KW, *T3), or without KH and KW their sum."""
    windows = _windows(_padded(_wide(x), padding), w.shape[2:4], stride, dilation)
    letters = _letters(product, sum_window)
    made = torch.einsum(windows, letters["x"], _wide(w), letters["w"], letters["votes"])
    return no_view(made.to(x.dtype).contiguous())


def input_gradient(dvotes, w, x_shape, stride, padding, dilation, product, sum_window):
    """The gradient of x, of shape ``x_shape``: that of every tap, added where the tap reads."""
    letters = _letters(product, sum_window)
    made = torch.einsum(_wide(dvotes), letters["votes"], _wide(w), letters["w"], letters["x"])
    padded = _padded(made.new_zeros(x_shape), padding)
    windows = _windows(padded, w.shape[2:4], stride, dilation)
    for kh in range(w.shape[2]):
        for kw in range(w.shape[3]):  # of one tap no two windows read the same capsule
            windows[..., kh, kw] += made[..., kh, kw]
    (down, across), (H, W) = padding, x_shape[2:4]
    dx = padded[:, :, down : down + H, across : across + W]
    return dx.to(dvotes.dtype).clone(memory_format=torch.contiguous_format)


def kernel_gradient(x, dvotes, w_shape, stride, padding, dilation, product, sum_window):
    """The gradient of w, of shape ``w_shape``."""
    windows = _windows(_padded(_wide(x), padding), w_shape[2:4], stride, dilation)
    letters = _letters(product, sum_window)
    made = torch.einsum(windows, letters["x"], _wide(dvotes), letters["votes"], letters["w"])
    return no_view(made.to(x.dtype).contiguous())


def _letters(product, sum_window):
    """Axes of the windows, the kernel and the votes, as einsum's numbers."""
    numbers = {axis: _J + 1 + i for i, axis in enumerate(dict.fromkeys(product.x + product.w))}
    x, w, y = ([numbers[axis] for axis in axes] for axes in (product.x, product.w, product.y))
    taps = [] if sum_window else [_I, _J]
    return {
        "x": [_N, _C, _H, _W, *x, _I, _J],
        "w": [_P, _C, _I, _J, *w],
        "votes": [_N, _P, _H, _W, _C, *taps, *y],
    }


def _padded(x, padding):
    """Zeros around the rows and columns, in memory of its own."""
    (down, across), (H, W) = padding, x.shape[2:4]
    padded = x.new_zeros(*x.shape[:2], H + 2 * down, W + 2 * across, *x.shape[4:])
    padded[:, :, down : down + H, across : across + W] = x
    return padded


def _windows(padded, window, stride, dilation):
    """A view (N, C, OH, OW, *T1, KH, KW)."""
    for axis, (size, step, apart) in enumerate(zip(window, stride, dilation), 2):
        padded = padded.unfold(axis, apart * (size - 1) + 1, step)[..., ::apart]
    return padded


def _wide(tensor):
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
