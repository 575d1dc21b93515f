"""One result of a pass summed anew, in float64, from the arrays as they lie: for results that three terms cannot tell.

Which those are :mod:`numbacaps.fused.told` says. The kernels that have results last sum them: each by one thread, by the
functions here. One function a pass serves all geometries: what it has to know of one stands in an array. A sum that is NaN
stays NaN, so summing ends there: where training has diverged most results are NaN.
"""

import numpy as np

from numbacaps.device.target import at, cuda

# Where the numbers of a geometry stand in their array.
C, P, H, W, KH, KW, OH, OW, SH, SW, PH, PW, DH, DW, G, D1, D2, D3, N = range(19)


def numbers_of(geometry):
    """What the kernels read of a geometry: an int64 array."""
    g = geometry
    sizes = g.C, g.P, g.H, g.W, g.KH, g.KW, g.OH, g.OW
    return np.array(
        [*sizes, *g.stride, *g.padding, *g.dilation, g.G, g.D1, g.D2, g.D3, g.N], np.int64
    )


# The sizes of an array's axes behind the first, by where they stand.
_OF_X, _OF_W, _OF_Y = (C, H, W, G, D1, D2), (C, KH, KW, G, D2, D3), (P, OH, OW, G, D1, D3)


@cuda.jit(device=True, inline="always")
def _place(i, axes, of):
    """Indices of element ``i`` of an array: (image or output channel, channel, row, column, g, row, column)."""
    last, i = i % of[axes[5]], i // of[axes[5]]
    middle, i = i % of[axes[4]], i // of[axes[4]]
    g, i = i % of[axes[3]], i // of[axes[3]]
    column, i = i % of[axes[2]], i // of[axes[2]]
    row, i = i % of[axes[1]], i // of[axes[1]]
    channel, first = i % of[axes[0]], i // of[axes[0]]
    return first, channel, row, column, g, middle, last


@cuda.jit(device=True, inline="always")
def _matrix_at(first, channel, row, column, g, axes, of):
    """Which of an array's matrices, (D1, D2) or the like, is the one of a place."""
    capsule = (first * of[axes[0]] + channel) * of[axes[1]] + row
    return (capsule * of[axes[2]] + column) * of[axes[3]] + g


@cuda.jit(device=True, inline="always")
def _element(array, inside, matrix, middle, last, axes, of):
    """An element of a matrix in float64; over the edge lie zeros, and they multiply."""
    value = 0.0
    if inside:
        value = float(array[at((matrix * of[axes[4]] + middle) * of[axes[5]] + last)])
    return value


@cuda.jit(device=True, inline="always")
def _read_by(oh, ow, kh, kw, of):
    """What a tap of a position reads: (row of the input, column, whether they are inside)."""
    h = oh * of[SH] - of[PH] + kh * of[DH]
    column = ow * of[SW] - of[PW] + kw * of[DW]
    return h, column, 0 <= h < of[H] and 0 <= column < of[W]


@cuda.jit(device=True)
def _forward_at(i, x, w, of):
    """Result ``i`` of the forward pass, the sum over c, kh, kw and d2."""
    n, p, oh, ow, g, d1, d3 = _place(i, _OF_Y, of)
    total = 0.0
    for c in range(of[C]):
        for kh in range(of[KH]):
            for kw in range(of[KW]):
                h, column, inside = _read_by(oh, ow, kh, kw, of)
                of_x = _matrix_at(n, c, h, column, g, _OF_X, of)
                of_w = _matrix_at(p, c, kh, kw, g, _OF_W, of)
                for d2 in range(of[D2]):
                    value = _element(x, inside, of_x, d1, d2, _OF_X, of)
                    total += value * _element(w, True, of_w, d2, d3, _OF_W, of)
                if total != total:
                    return total
    return total


@cuda.jit(device=True)
def _input_at(i, dy, w, of):
    """Result ``i`` of the input's gradient, the sum over p, kh, kw and d3."""
    n, c, h, column, g, d1, d2 = _place(i, _OF_X, of)
    total = 0.0
    for p in range(of[P]):
        for kh in range(of[KH]):
            for kw in range(of[KW]):
                down = h + of[PH] - kh * of[DH]
                across = column + of[PW] - kw * of[DW]
                if down % of[SH] == 0 and across % of[SW] == 0:
                    oh, ow = down // of[SH], across // of[SW]
                    inside = 0 <= oh < of[OH] and 0 <= ow < of[OW]
                    of_dy = _matrix_at(n, p, oh, ow, g, _OF_Y, of)
                    of_w = _matrix_at(p, c, kh, kw, g, _OF_W, of)
                    for d3 in range(of[D3]):
                        value = _element(dy, inside, of_dy, d1, d3, _OF_Y, of)
                        total += value * _element(w, True, of_w, d2, d3, _OF_W, of)
                    if total != total:
                        return total
    return total


@cuda.jit(device=True)
def _kernel_at(i, x, dy, of):
    """Result ``i`` of the kernel's gradient, the sum over n, oh, ow and d1."""
    p, c, kh, kw, g, d2, d3 = _place(i, _OF_W, of)
    total = 0.0
    for n in range(of[N]):
        for oh in range(of[OH]):
            for ow in range(of[OW]):
                h, column, inside = _read_by(oh, ow, kh, kw, of)
                of_x = _matrix_at(n, c, h, column, g, _OF_X, of)
                of_dy = _matrix_at(n, p, oh, ow, g, _OF_Y, of)
                for d1 in range(of[D1]):
                    value = _element(x, inside, of_x, d1, d2, _OF_X, of)
                    total += value * _element(dy, True, of_dy, d1, d3, _OF_Y, of)
                if total != total:
                    return total
    return total


# Pass to the device function that sums one of its results anew.
SUMS = {"forward": _forward_at, "backward_input": _input_at, "backward_kernel": _kernel_at}
