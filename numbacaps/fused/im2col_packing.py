"""The launcher of :mod:`numbacaps.fused.im2col`; when the matrix is not written, and what it costs.

The product reads the matrix with a window of one pixel (:func:`of_matrix`), and its kernel is packed for that (:func:`in_rows`).
"""

from dataclasses import replace
from math import prod

import numpy as np

from numbacaps.device.compiled import Compiled, aligned, as_argument
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.launch import ceil_div
from numbacaps.device.upload import uploaded
from numbacaps.fused.im2col import BLOCKS, PART, THREADS, WORDS, make_im2col, rows_of_block
from numbacaps.fused.mma_sync.choose_tile import LAUNCH
from numbacaps.fused.pixel_packing import seen_as
from numbacaps.made_once import made_once

MOST_BYTES = 480 << 20  # of the matrix; up to three times its elements are counted in 32 bits
_PARTS = 16  # of a block; fewer where multiprocessors would have no block otherwise
# Cycles of a multiprocessor to write a word, besides those of a byte of it; and to read a byte of pixels that windows reach.
# Fitted by eye to times of 20 drawn products (H200, 2026-12-01).
_WRITTEN, _WRITTEN_BYTE, _READ_BYTE = 0.15, 0.06, 0.04
_FAR = 2**29  # rows and columns, and how far taps reach, are below this
_OUTSIDE = -2 * _FAR  # rows down, of a k that is filled up
_ONE = np.zeros(1, np.int64)  # the tap of a window of one pixel


def _run(product, dtype):
    """Elements of the largest word that a capsule's row is a whole number of."""
    return max(word // dtype.itemsize for word in WORDS if product.D * dtype.itemsize % word == 0)


def _parts(product, dtype):
    """(parts of a row, elements of a part)."""
    of_part = PART // dtype.itemsize
    return ceil_div(product.K, of_part), of_part


def _rows(product, G):
    """Rows of the matrix that an image has."""
    p = product.pixels
    return p.rows * p.columns * G * p.D1


def elements(product, images, G, dtype):
    """Elements of the matrix.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    """
    parts, of_part = _parts(product, dtype)
    return images * parts * _rows(product, G) * of_part


def im2col_cycles(product, images, G, dtype):
    """Estimated cycles of writing the matrix; parameters as those of :func:`elements`."""
    run = _run(product, dtype)
    each = _WRITTEN + _WRITTEN_BYTE * run * dtype.itemsize
    written = elements(product, images, G, dtype) / run * each
    p = product.pixels
    axes = zip(p.extent, (p.rows, p.columns), (product.tap_rows, product.tap_columns))
    reached = prod(min(size, count * len(taps)) for size, count, taps in axes)  # pixels, at most
    capsules = images * product.channels * G * p.D1 * reached
    read = capsules * product.D * dtype.itemsize * _READ_BYTE
    return LAUNCH + (written + read) / multiprocessors()


def of_matrix(product, G, dtype):
    """The product as it reads the matrix (N, parts, rows, columns, G, D1, 32 bytes); what it says of the kernel is of no use."""
    p, (parts, of_part) = product.pixels, _parts(product, dtype)
    pixel = G * p.D1 * of_part
    row, part = p.columns * pixel, _rows(product, G) * of_part
    pixels = replace(
        p,
        gathered=(parts * part, row, pixel, of_part),
        unit=(row, pixel),
        top=(1, 0),
        left=(1, 0),
        extent=(p.rows, p.columns),
        steps=(p.D1 * of_part, *p.steps[1:]),
    )
    steps = part, product.channel_steps[1]
    return replace(
        _of_one_tap(product), pixels=pixels, channels=parts, D=of_part, channel_steps=steps
    )


def in_rows(product):
    """The product whose kernel is packed for that: each tap of a channel is a channel of its own."""
    steps = product.channel_steps[0], _tap_step(product)
    flat = replace(
        _of_one_tap(product), channels=product.channels * product.taps, channel_steps=steps
    )
    return replace(flat, kernel_rows=np.full(1, product.kernel_steps.first))


def _tap_step(product):
    """Elements of the kernel from one tap of a channel to the next; of a window of one pixel, from one channel."""
    steps = product.kernel_steps
    if product.taps == 1:
        return steps.channel
    return steps.column if len(product.tap_columns) > 1 else steps.row


def _of_one_tap(product):
    taps = {"tap_rows": _ONE, "tap_columns": _ONE, "kernel_rows": _ONE, "kernel_columns": _ONE}
    return replace(product, **taps)


def why_not_im2col(product, images, G, dtype):
    """Why the matrix of a product is not written; None where it is."""
    p, steps, step = product.pixels, product.kernel_steps, _tap_step(product)
    down, across = len(product.tap_rows), len(product.tap_columns)
    follow = down == 1 or steps.row == across * step
    follow = follow and (product.channels == 1 or steps.channel == product.taps * step)
    if not follow:
        return "a channel's taps do not follow those of the one before it in the kernel"
    reached = (
        *p.extent,
        p.rows * p.top[0],
        p.columns * p.left[0],
        *map(abs, (p.top[1], p.left[1])),
    )
    if max(*reached, product.tap_rows.max(), product.tap_columns.max()) >= _FAR:
        return f"{_FAR} rows or columns, or more"
    if images * p.gathered[0] >= 2**31:
        return "2^31 elements of the array, or more"
    if elements(product, images, G, dtype) * dtype.itemsize > MOST_BYTES:
        return f"a matrix of more than {MOST_BYTES} bytes"
    return None


class Im2col:
    """The writing of the matrix of a product.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    run : int, optional
        Elements of a word; by default as many as come out even.

    Attributes
    ----------
    elements : int
        Of the matrix.
    """

    def __init__(self, product, images, G, dtype, run=None):
        self._of, self._run = (product, images, G, dtype), run or _run(product, dtype)
        self._word = self._run * dtype.itemsize
        self.elements = elements(product, images, G, dtype)
        parts, of_part = _parts(product, dtype)[0], PART // self._word
        read = product.in_runs(self._run)
        p, rows = read.pixels, images * _rows(product, G)
        blocks = ceil_div(rows, rows_of_block(self._word))
        of_block = min(_PARTS, ceil_div(blocks * parts, BLOCKS * multiprocessors()), parts)
        self._table = uploaded(_taps(read, parts, of_part))
        image, row, column, d1 = p.gathered
        places = image, row, column, p.steps[0], d1
        sizes = rows, _rows(product, G), p.columns, G, p.D1
        self._numbers = *sizes, *places, p.top[0], p.left[0], *p.extent, parts, of_block
        held = np.dtype(WORDS[self._word])
        made = Compiled(make_im2col(self._word), (held, held, np.int32), 17, early=True)
        self._launch = made.on(blocks * ceil_div(parts, of_block), THREADS)
        self._taps = as_argument(self._table)

    def __call__(self, source, matrix, first, stream):
        """Launch it on arrays as arguments; it writes from element ``first`` on, a whole word."""
        if not aligned(self._word, source):
            self._of_elements(source, matrix, first, stream)
            return
        held = np.dtype(WORDS[self._word])
        arrays = *seen_as(source, held), *seen_as(matrix, held), *self._taps
        self._launch(stream, (*arrays, *self._numbers, first // self._run))

    @made_once
    def _of_elements(self):
        """The same for an array that does not begin at a whole word."""
        return Im2col(*self._of, run=1)


def _taps(product, parts, of_part):
    """What the kernel reads of every k, part by part: where it lies from a pixel's place on, rows down, columns across."""
    p = product.pixels
    place, down, across = np.split(product.table, np.arange(1, 4) * product.K)[:3]
    down, across = down + p.top[1], across + p.left[1]
    table = np.zeros((3, parts * of_part), np.int64)
    table[1] = _OUTSIDE
    table[:, : product.K] = place, down, across
    return table.reshape(3, parts, of_part).swapaxes(0, 1).astype(np.int32).ravel()
