"""The passes of a capsule convolution as matrix products whose operands are never laid out.

::

    forward          out[m, n] = sum over k of   x[m, k] * w[k, n]    m (n, oh, ow, d1)  n (p, d3)  k (c, kh, kw, d2)
    backward_input    dx[m, n] = sum over k of  dy[m, k] * w[k, n]    m (n, h, w, d1)    n (c, d2)  k (p, kh, kw, d3)
    backward_kernel   dw[k, n] = sum over m of   x[m, k] * dy[m, n]   m, k, n as in forward

This is the fold: M = N*OH*OW*D1, N = P*D3, K = Q*D2, once for each g. An element of the gathered
operand, ``x`` or ``dy``, lies at ``base(pixel) + offset(tap)``: m is the pixel's side and k the
tap's. That is Algorithm 5's idea, kept: index functions instead of copies, worked out once for a
geometry and kept in a table of 4*K + 2*N offsets, or, where its answer would be waited for, as the steps
that the table is made of. Where a tap reaches over the edge, a zero is multiplied.

``backward_input`` is one such product for each residue of the stride, because the windows that
cover an input pixel are those whose taps share its residue. Pixels of residues without taps are cleared at once,
however many residues there are.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from numbacaps.fused.residues import Residue, residues


@dataclass(frozen=True)
class Pixels:
    """The m side: images, rows, columns and D1, and how far apart their neighbours lie, in elements.

    Attributes
    ----------
    rows, columns, D1 : int
        m counts ((image * rows + row) * columns + column) * D1 + d1.
    gathered : tuple of int
        Elements from where one image, row, column and d1 reads in the gathered array to the next.
    unit : tuple of int
        Elements from one row and column of the gathered array to the next.
    other : tuple of int
        The same in the array on the other side: the result, or ``dy`` in backward_kernel.
    first : int
        Where that array's first pixel lies.
    top, left : tuple of int
        (step, start): the gathered array's row (column) that tap 0 of a pixel's row (column) reads.
    extent : tuple of int
        Rows and columns of the gathered array.
    steps : tuple of int
        Elements from one g to the next of the gathered array, the kernel and the other array.
    in_lines : bool
        Images and columns have changed places (:mod:`numbacaps.fused.rung_5_warp_specialized.lines`).
    """

    rows: int
    columns: int
    D1: int
    gathered: tuple
    unit: tuple
    other: tuple
    first: int
    top: tuple
    left: tuple
    extent: tuple
    steps: tuple
    in_lines: bool = False


@dataclass(frozen=True)
class Columns:
    """The n side: capsules and their elements, and how far apart they lie.

    Attributes
    ----------
    N, D : int
        Columns, and elements of each capsule's row: n counts capsule * D + d.
    kernel : tuple of int
        Elements of the kernel from one capsule, and from one d, to the next.
    other : int
        Elements of the other array from one capsule to the next; each one's lie side by side.
    """

    N: int
    D: int
    kernel: tuple
    other: int

    def offsets(self):
        """Where every column lies in the kernel, and in the other array."""
        n = np.arange(self.N)
        capsule, d = n // self.D, n % self.D
        return capsule * self.kernel[0] + d * self.kernel[1], capsule * self.other + d


@dataclass(frozen=True)
class ColumnsOfTaps(Columns):
    """The n side of columns that col2im adds: those of every tap, n counts (tap * capsules + capsule) * D + d.

    In the other array they lie one after the other.

    Attributes
    ----------
    taps, tap_step : int
        Window positions, and elements of the kernel from one to the next.
    """

    taps: int
    tap_step: int

    def offsets(self):
        n = np.arange(self.N)
        tap, column = np.divmod(n, self.N // self.taps)
        capsule, d = column // self.D, column % self.D
        return tap * self.tap_step + capsule * self.kernel[0] + d * self.kernel[1], n


@dataclass(frozen=True)
class KernelSteps:
    """Where in the kernel the first tap of channel 0 lies, and how far it is to the next of each, in elements.

    Attributes
    ----------
    first, channel, row, column, d : int
        ``row`` and ``column`` from one tap to the next.
    """

    first: int
    channel: int
    row: int
    column: int
    d: int


@dataclass(frozen=True)
class ProductShape:
    """What a kernel has to know of a :class:`Product` besides its pixels and its window; it can be compared.

    Attributes
    ----------
    channels, D, N, K : int
        As the product's.
    channel_step : int
        Elements from one channel to the next in the gathered array.
    inside : bool
        No tap of any pixel reaches over the edge.
    """

    channels: int
    D: int
    N: int
    K: int
    channel_step: int
    inside: bool


@dataclass(frozen=True, eq=False)
class Product:
    """One matrix product: its pixels, its columns, and the tables of its taps.

    k counts ((channel * rows of taps + tap row) * columns of taps + tap column) * D + d.

    Attributes
    ----------
    pixels : Pixels
    channels, D : int
        Channels of the gathered array, and elements of each that a pixel's d1 has: C and D2 forward,
        P and D3 for the input's gradient.
    channel_steps, element_steps : tuple of int
        (in the gathered array, in the kernel) from one channel, one of the D elements, to the next.
    tap_rows, tap_columns : int64 arrays
        How far down and across the taps read from tap 0 of a pixel.
    kernel_rows, kernel_columns : int64 arrays
        Where these taps lie in the kernel.
    n : Columns
    """

    pixels: Pixels
    channels: int
    D: int
    channel_steps: tuple
    element_steps: tuple
    tap_rows: np.ndarray
    tap_columns: np.ndarray
    kernel_rows: np.ndarray
    kernel_columns: np.ndarray
    n: Columns

    @property
    def taps(self):
        """Window positions."""
        return len(self.tap_rows) * len(self.tap_columns)

    @property
    def K(self):
        """Products summed into an element of the result."""
        return self.channels * self.taps * self.D

    @property
    def N(self):
        """Columns of the result."""
        return self.n.N

    @property
    def shape(self):
        """What kernels are compiled for."""
        step = self.channel_steps[0]
        return ProductShape(self.channels, self.D, self.N, self.K, step, self.inside)

    def M(self, images):
        """Rows of the result for this many images."""
        return images * self.pixels.rows * self.pixels.columns * self.pixels.D1

    @property
    def inside(self):
        """No tap of any pixel reaches over the edge."""
        p = self.pixels
        return self.taps == 0 or all(
            start + taps.min() >= 0 and start + step * (count - 1) + taps.max() < size
            for (step, start), count, taps, size in (
                (p.top, p.rows, self.tap_rows, p.extent[0]),
                (p.left, p.columns, self.tap_columns, p.extent[1]),
            )
        )

    def in_runs(self, count):
        """The same product with so many neighbouring elements of a capsule's row taken for one.

        What it says of the gathered array and of k counts in these; what it says of the kernel and of the
        other array, and ``table``, are the product's own. ``D`` and all steps are multiples of ``count``.
        """
        p = self.pixels
        gathered, unit = (tuple(step // count for step in steps) for steps in (p.gathered, p.unit))
        steps = p.steps[0] // count, *p.steps[1:]
        return replace(
            self,
            pixels=replace(p, gathered=gathered, unit=unit, steps=steps),
            D=self.D // count,
            channel_steps=(self.channel_steps[0] // count, self.channel_steps[1]),
        )

    @property
    def table(self):
        """Offsets in one int64 array: K, K, K and K of the taps, then N and N of the columns.

        Of tap k: from a pixel's base to what it reads in the gathered array, rows down, columns across,
        and where it lies in the kernel. Of column n: where it lies in the kernel, and in the other array.
        """
        channel, row, column, d = _axes(
            self.channels, len(self.tap_rows), len(self.tap_columns), self.D
        )
        down, across = self.tap_rows[row], self.tap_columns[column]
        p = self.pixels
        gathered = (
            channel * self.channel_steps[0]
            + (down + p.top[1]) * p.unit[0]
            + (across + p.left[1]) * p.unit[1]
            + d * self.element_steps[0]
        )
        kernel = (
            channel * self.channel_steps[1]
            + self.kernel_rows[row]
            + self.kernel_columns[column]
            + d * self.element_steps[1]
        )
        parts = (gathered, down, across, kernel, *self.n.offsets())
        return np.concatenate(parts).astype(np.int64)

    @property
    def table_by_taps(self):
        """``table``, but that the four offsets of a tap lie side by side."""
        of_taps, of_columns = np.split(self.table, [4 * self.K])
        return np.concatenate([of_taps.reshape(4, self.K).T.ravel(), of_columns])

    @property
    def kernel_steps(self):
        """The part of ``table`` that is the kernel's, as steps, of a product with taps."""
        rows, columns = self.kernel_rows, self.kernel_columns
        steps = (int(taps[1] - taps[0]) if len(taps) > 1 else 0 for taps in (rows, columns))
        first = int(rows[0] + columns[0])
        return KernelSteps(first, self.channel_steps[1], *steps, self.element_steps[1])


def _axes(*sizes):
    """The indices of every element of a C-contiguous array, axis by axis."""
    return [axis.ravel() for axis in np.indices(sizes)]


def forward(geometry):
    """The product of the forward pass (and, read the other way, of backward_kernel).

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry

    Returns
    -------
    Product
    """
    g = geometry
    (SH, SW), (PH, PW), (DH, DW) = g.stride, g.padding, g.dilation
    kh, kw = np.arange(g.KH), np.arange(g.KW)
    pixels = Pixels(
        rows=g.OH,
        columns=g.OW,
        D1=g.D1,
        gathered=(g.C * g.H * g.W * g.E1, SH * g.W * g.E1, SW * g.E1, g.D2),
        unit=(g.W * g.E1, g.E1),
        other=(g.P * g.L * g.E3, g.OW * g.E3, g.E3, g.D3),
        first=0,
        top=(SH, -PH),
        left=(SW, -PW),
        extent=(g.H, g.W),
        steps=(g.D1 * g.D2, g.D2 * g.D3, g.D1 * g.D3),
    )
    return Product(
        pixels,
        channels=g.C,
        D=g.D2,
        channel_steps=(g.H * g.W * g.E1, g.KH * g.KW * g.E2),
        element_steps=(1, g.D3),
        tap_rows=kh * DH,
        tap_columns=kw * DW,
        kernel_rows=kh * g.KW * g.E2,
        kernel_columns=kw * g.E2,
        n=Columns(g.P * g.D3, g.D3, (g.Q * g.E2, 1), g.L * g.E3),
    )


def backward_input(geometry):
    """The products of the gradient of the input, one for each residue of the stride that has pixels and taps.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry

    Returns
    -------
    list of Product
        One after the other they write all of dx. Where some pixels are reached by no window, the first
        product has no taps: it writes zeros everywhere, and the others write over them.
    """
    g = geometry
    rows, columns = (residues(g, axis) for axis in (0, 1))
    found = [_of_residue(g, row, column) for row, column in product(rows, columns)]
    reached = sum(one.pixels.rows * one.pixels.columns for one in found)
    return found if reached == g.H * g.W else [_zeros(g), *found]


def _of_residue(g, row, column):
    """The product of the pixels of two residues."""
    pixels = Pixels(
        rows=row.count,
        columns=column.count,
        D1=g.D1,
        gathered=(g.P * g.L * g.E3, g.OW * g.E3, g.E3, g.D3),
        unit=(g.OW * g.E3, g.E3),
        other=(g.C * g.H * g.W * g.E1, row.step * g.W * g.E1, column.step * g.E1, g.D2),
        first=(row.place * g.W + column.place) * g.E1,
        top=(1, row.first),
        left=(1, column.first),
        extent=(g.OH, g.OW),
        steps=(g.D1 * g.D3, g.D2 * g.D3, g.D1 * g.D2),
    )
    return Product(
        pixels,
        channels=g.P,
        D=g.D3,
        channel_steps=(g.L * g.E3, g.Q * g.E2),
        element_steps=(1, 1),
        tap_rows=row.shifts,
        tap_columns=column.shifts,
        kernel_rows=row.taps * g.KW * g.E2,
        kernel_columns=column.taps * g.E2,
        n=Columns(g.C * g.D2, g.D2, (g.KH * g.KW * g.E2, g.D3), g.H * g.W * g.E1),
    )


def _zeros(g):
    """The product without taps that writes zeros to every pixel of dx."""
    none = np.zeros(0, np.int64)
    return _of_residue(g, *(Residue(size, 1, 0, 0, none, none) for size in (g.H, g.W)))


def input_columns(geometry):
    """The product of the columns that col2im adds to dx (:mod:`numbacaps.fused.col2im`).

    Its other array is (G, N, OH, OW, D1, KH, KW, C, D2). It has a pixel for each of dy, and a window of one.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry

    Returns
    -------
    Product
    """
    g = geometry
    row = g.Q * g.D2
    pixels = Pixels(
        rows=g.OH,
        columns=g.OW,
        D1=g.D1,
        gathered=(g.P * g.L * g.E3, g.OW * g.E3, g.E3, g.D3),
        unit=(g.OW * g.E3, g.E3),
        other=(g.L * g.D1 * row, g.OW * g.D1 * row, g.D1 * row, row),
        first=0,
        top=(1, 0),
        left=(1, 0),
        extent=(g.OH, g.OW),
        steps=(g.D1 * g.D3, g.D2 * g.D3, g.N * g.L * g.D1 * row),
    )
    taps, one = g.KH * g.KW, np.zeros(1, np.int64)
    n = ColumnsOfTaps(row, g.D2, (taps * g.E2, g.D3), 0, taps, g.E2)
    return Product(
        *(pixels, g.P, g.D3),
        channel_steps=(g.L * g.E3, g.Q * g.E2),
        element_steps=(1, 1),
        tap_rows=one,
        tap_columns=one,
        kernel_rows=one,
        kernel_columns=one,
        n=n,
    )
