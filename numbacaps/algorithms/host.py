"""The fold by NumPy, on the host: windows laid out a block at a time, one matrix product for each g.

    forward           out = columns @ w           columns (G, pixels, KH*KW*C*D2): each pixel's window, zeros outside
    votes             tap by tap and channel by channel, the sum over D2 alone; so do their gradients
    backward, input   dcolumns = dy @ w^T, whose taps are added where they were read
    backward, kernel  dw = columns^T @ dy, block after block

A pixel is (image, output row, output column, d1). Taps are copied whole: ``KH * KW`` strided copies fill a block, and
only indices that lie inside the input are ever formed, however large padding, stride or dilation are. A block has at
most :data:`BLOCK` elements, or one output position. Besides it a pass holds the images of the block in the order in
which they are copied, and the kernel. No CUDA is touched.
"""

from itertools import product

import numpy as np

from numbacaps.algorithms.passes import Passes, told
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.launch import ceil_div

# Elements of the columns: 8 MiB of float32. Of 2^16 to 2^23 the least time of both passes over four layers together
# (windows of 3 and 5, capsules of 4 to 16, 1 to 16 images); 2^16 took 2.5 times as long, 2^20 1.3 times, 2^22 1.2 times. Measured on two
# shared cores of an x86-64 server in November 2026.
BLOCK = 1 << 21


class HostPasses(Passes):
    """The passes by NumPy: there is nothing to compile."""

    def explain(self):
        """The matrix product of every pass."""
        M, N, K = self.geometry.gemm
        head = "forward, backward_input, backward_kernel: NumPy's matmul on the host"
        how = f"{M} rows, {N} columns and sums of {K} for each of G = {self.geometry.G}"
        return told(head, how=how)

    def explain_forward(self):
        """What multiplies, and where an activation is computed."""
        return "NumPy's matmul on the host, activation apart"


def forward(geometry, x, w, out, *, stream, workspace):
    """Write the output; arrays are NumPy's, or the simulator's, as the two below take them."""
    g, sums = geometry, sum_dtype(x.dtype)
    x, w, out = _seen(g, x=x, w=w, out=out)
    kernel = _kernel_matrix(g, w, sums)
    with np.errstate(all="ignore"):
        for images in _images(g, _column(g)):
            gathered = _gathered(x[images], sums)
            for rows, columns in _positions(g, _column(g)):
                y = _columns(g, gathered, rows, columns) @ kernel
                _write_pixels(out[images, :, slice(*rows), slice(*columns)], y)


def votes(geometry, x, w, out, *, stream, workspace, sum_window=False):
    """Write the products before their sum, or the sums of those of a window."""
    g, sums = geometry, sum_dtype(x.dtype)
    x, w, out = _seen(g, x=x, w=w, **{_votes_of(sum_window): out})
    kernel = _tap_matrices(g, w, sums)
    with np.errstate(all="ignore"):
        for images in _images(g, _votes_column(g)):
            gathered = _gathered(x[images], sums)
            for rows, columns in _positions(g, _votes_column(g)):
                block = out[images, :, slice(*rows), slice(*columns)]
                total = np.zeros(block.shape if sum_window else (), sums)
                for kh, kw in product(range(g.KH), range(g.KW)):
                    made = _tap(g, gathered, rows, columns, kh, kw) @ kernel[kh, kw]
                    made = made.reshape(g.G, g.C, *_pixel_sizes(block), g.P, g.D3)
                    made = made.transpose(2, 6, 3, 4, 1, 0, 5, 7)
                    if sum_window:
                        total += made
                    else:
                        block[:, :, :, :, :, kh, kw] = made
                if sum_window:
                    block[...] = total


def votes_backward(geometry, x, w, dvotes, dx, dw, *, stream, workspace, sum_window=False):
    """Write both gradients of the votes; ``dx`` or ``dw`` is None where that one is not wanted."""
    which = _votes_of(sum_window)
    with np.errstate(all="ignore"):
        if dx is not None:
            _votes_backward_input(geometry, *_seen(geometry, **{"w": w, which: dvotes, "dx": dx}))
        if dw is not None:
            _votes_backward_kernel(geometry, *_seen(geometry, **{"x": x, which: dvotes, "dw": dw}))


def _votes_backward_input(g, w, dvotes, dx):
    sums = sum_dtype(dvotes.dtype)
    kernel = _tap_matrices(g, w, sums).swapaxes(-1, -2)
    for images in _images(g, _votes_column(g)):
        gradient = np.zeros((g.G, dx[images].shape[0], g.H, g.W, g.D1, g.C, g.D2), sums)
        for rows, columns in _positions(g, _votes_column(g)):
            block = dvotes[images, :, slice(*rows), slice(*columns)]
            for (kh, kw), to, source in _taps(g, rows, columns):
                made = _vote_pixels(g, block, kh, kw, sums) @ kernel[kh, kw]
                made = made.reshape(g.G, g.C, *_pixel_sizes(block), g.D2)
                gradient[:, :, *source] += np.moveaxis(made, 1, 5)[:, :, *to]
        dx[images] = gradient.transpose(1, 5, 2, 3, 0, 4, 6)


def _votes_backward_kernel(g, x, dvotes, dw):
    sums = sum_dtype(dvotes.dtype)
    total = np.zeros((g.KH, g.KW, g.G, g.C, g.D2, g.P * g.D3), sums)
    for images in _images(g, _votes_column(g)):
        gathered = _gathered(x[images], sums)
        for rows, columns in _positions(g, _votes_column(g)):
            block = dvotes[images, :, slice(*rows), slice(*columns)]
            for kh, kw in product(range(g.KH), range(g.KW)):
                tap = _tap(g, gathered, rows, columns, kh, kw)
                total[kh, kw] += tap.swapaxes(-1, -2) @ _vote_pixels(g, block, kh, kw, sums)
    total = total.reshape(g.KH, g.KW, g.G, g.C, g.D2, g.P, g.D3)
    dw[...] = total.transpose(5, 3, 0, 1, 2, 4, 6)


def backward(geometry, x, w, dy, dx, dw, *, stream, workspace):
    """Write both gradients; ``dx`` or ``dw`` is None where that gradient is not wanted."""
    with np.errstate(all="ignore"):
        if dx is not None:
            _backward_input(geometry, *_seen(geometry, w=w, dy=dy, dx=dx))
        if dw is not None:
            _backward_kernel(geometry, *_seen(geometry, x=x, dy=dy, dw=dw))


def _backward_input(g, w, dy, dx):
    sums = sum_dtype(dy.dtype)
    kernel = _kernel_matrix(g, w, sums).swapaxes(1, 2)
    for images in _images(g, _column(g)):
        gradient = np.zeros((g.G, dx[images].shape[0], g.H, g.W, g.D1, g.C, g.D2), sums)
        for rows, columns in _positions(g, _column(g)):
            pixels = _pixels(dy[images, :, slice(*rows), slice(*columns)], sums)
            made = (pixels @ kernel).reshape(_columns_shape(g, gradient, rows, columns))
            for (kh, kw), to, source in _taps(g, rows, columns):
                gradient[:, :, *source] += made[:, :, *to, :, kh, kw]
        dx[images] = gradient.transpose(1, 5, 2, 3, 0, 4, 6)


def _backward_kernel(g, x, dy, dw):
    sums = sum_dtype(dy.dtype)
    total = np.zeros((g.G, g.Q * g.D2, g.P * g.D3), sums)
    for images in _images(g, _column(g)):
        gathered = _gathered(x[images], sums)
        for rows, columns in _positions(g, _column(g)):
            pixels = _pixels(dy[images, :, slice(*rows), slice(*columns)], sums)
            total += _columns(g, gathered, rows, columns).swapaxes(1, 2) @ pixels
    total = total.reshape(g.G, g.KH, g.KW, g.C, g.D2, g.P, g.D3)
    dw[...] = total.transpose(5, 3, 1, 2, 0, 4, 6)


def _votes_of(sum_window):
    """The geometry's name of such votes."""
    return "summed_votes" if sum_window else "votes"


def _votes_column(g):
    """Elements that an output position has of a tap and its votes."""
    return g.G * g.C * g.D1 * (g.D2 + g.P * g.D3)


def _pixel_sizes(block):
    """(N, OH, OW, D1) of a block of votes."""
    return block.shape[0], *block.shape[2:4], block.shape[-2]


def _tap_matrices(g, w, sums):
    """(KH, KW, G, C, D2, P*D3)"""
    moved = np.ascontiguousarray(w.transpose(2, 3, 4, 1, 5, 0, 6), sums)
    return moved.reshape(g.KH, g.KW, g.G, g.C, g.D2, g.P * g.D3)


def _tap(g, gathered, rows, columns, kh, kw):
    """(G, C, pixels, D2): what a tap of a block's pixels reads; zeros over the edge."""
    size = rows[1] - rows[0], columns[1] - columns[0]
    made = np.zeros((g.G, gathered.shape[1], *size, g.D1, g.C, g.D2), gathered.dtype)
    for _, to, source in _taps(g, rows, columns, [kh], [kw]):
        made[:, :, *to] = gathered[:, :, *source]
    return np.moveaxis(made, 5, 1).reshape(g.G, g.C, -1, g.D2)


def _vote_pixels(g, block, kh, kw, sums):
    """(G, C, pixels, P*D3): the votes of a tap, of a block (N, P, OH, OW, C, ...); those of all taps have no KH, KW."""
    votes = block[:, :, :, :, :, kh, kw] if block.ndim == 10 else block
    moved = np.ascontiguousarray(votes.transpose(5, 4, 0, 2, 3, 6, 1, 7), sums)
    return moved.reshape(g.G, g.C, -1, g.P * g.D3)


def _seen(geometry, **arrays):
    """NumPy arrays on the memory of operands, in the geometry's shapes."""
    return [
        getattr(array, "_ary", array).reshape(geometry.shape_of(name))
        for name, array in arrays.items()
    ]


def _column(g):
    """Elements of the columns that an output position has."""
    return g.G * g.D1 * g.Q * g.D2


def _images(g, position):
    """The images that are worked on at a time, as slices, where an output position takes so many elements."""
    at_once = max(1, BLOCK // (position * g.L))
    return [slice(first, first + at_once) for first in range(0, g.N, at_once)]


def _positions(g, position):
    """The blocks of output positions of these images: ((first row, past the last), (first column, past the last))."""
    at_once = max(1, BLOCK // position)
    across = min(g.OW, at_once)
    down = min(g.OH, max(1, at_once // g.OW))
    for row, column in product(range(0, g.OH, down), range(0, g.OW, across)):
        yield (row, min(row + down, g.OH)), (column, min(column + across, g.OW))


def _taps(g, rows, columns, khs=None, kws=None):
    """Of a block's taps that lie somewhere inside the input: ((kh, kw), where in the block, where in the input)."""
    khs, kws = khs or range(g.KH), kws or range(g.KW)
    down = [(kh, *_inside(g, 0, g.H, kh, *rows)) for kh in khs]
    across = [(kw, *_inside(g, 1, g.W, kw, *columns)) for kw in kws]
    for (kh, to_row, from_row), (kw, to_column, from_column) in product(down, across):
        if to_row and to_column:
            yield (kh, kw), (to_row, to_column), (from_row, from_column)


def _inside(g, axis, size, tap, first, last):
    """Of outputs ``first`` to ``last`` along an axis: (those whose tap is inside, what they read); Nones if none is."""
    stride, offset = g.stride[axis], tap * g.dilation[axis] - g.padding[axis]
    low, high = max(first, ceil_div(-offset, stride)), min(last, (size - 1 - offset) // stride + 1)
    if low >= high:
        return None, None
    source = slice(low * stride + offset, (high - 1) * stride + offset + 1, stride)
    return slice(low - first, high - first), source


def _gathered(x, sums):
    """Images as (G, N, H, W, D1, C, D2): what a tap of a pixel reads is one run."""
    return np.ascontiguousarray(x.transpose(4, 0, 2, 3, 5, 1, 6), sums)


def _columns_shape(g, gathered, rows, columns):
    size = rows[1] - rows[0], columns[1] - columns[0]
    return (g.G, gathered.shape[1], *size, g.D1, g.KH, g.KW, g.C, g.D2)


def _columns(g, gathered, rows, columns):
    """(G, pixels, KH*KW*C*D2): the windows of a block's pixels; where they reach over the edge lie zeros."""
    made = np.zeros(_columns_shape(g, gathered, rows, columns), gathered.dtype)
    for (kh, kw), to, source in _taps(g, rows, columns):
        made[:, :, *to, :, kh, kw] = gathered[:, :, *source]
    return made.reshape(g.G, -1, g.Q * g.D2)


def _kernel_matrix(g, w, sums):
    """(G, KH*KW*C*D2, P*D3)"""
    moved = np.ascontiguousarray(w.transpose(4, 2, 3, 1, 5, 0, 6), sums)
    return moved.reshape(g.G, g.Q * g.D2, g.P * g.D3)


def _pixels(dy, sums):
    """(G, pixels, P*D3) of a block of the output."""
    moved = np.ascontiguousarray(dy.transpose(4, 0, 2, 3, 5, 1, 6), sums)
    return moved.reshape(moved.shape[0], -1, moved.shape[5] * moved.shape[6])


def _write_pixels(block, pixels):
    """Write such pixels to a block of the output."""
    N, P, OH, OW, G, D1, D3 = block.shape
    block[...] = pixels.reshape(G, N, OH, OW, D1, P, D3).transpose(1, 5, 2, 3, 0, 4, 6)
