"""Results of three terms looked through, and computed again where three terms cannot tell them.

In three terms of TF32 a float32 is the sum of a high and a low part. Of an infinity and of a NaN the low part is none:
where ordinary arithmetic gives an infinity, three terms give NaN. Numbers near float32's largest overflow as they are
split; of very small ones the low part is lost. All of that shows in the result: it is not finite, or smaller than
:data:`SMALLEST`. So a kernel behind the product reads every result once, and sums those anew, in float64, each by one
thread. That is slow, and not needed by numbers of everyday sizes.

One kernel a pass serves all geometries: what it has to know of one stands in an array.
"""

from functools import cache

import numpy as np

from numbacaps.device.compiled import Compiled, as_argument
from numbacaps.device.instructions import let_next_start, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import BLOCKS, THREADS, ceil_div
from numbacaps.device.target import at, cuda

SMALLEST = np.float32(
    2.0**-100
)  # a low part has 2^-136's multiples; a result keeps 24 bits above it
_LARGEST = np.finfo(np.float32).max
_EACH = 8  # results that a thread reads at once
_FLOAT32 = np.dtype(np.float32)
# Where the numbers of a geometry stand in their array.
C, P, H, W, KH, KW, OH, OW, SH, SW, PH, PW, DH, DW, G, D1, D2, D3, N = range(19)


def numbers_of(geometry):
    """What the kernels read of a geometry: an int64 array."""
    g = geometry
    sizes = g.C, g.P, g.H, g.W, g.KH, g.KW, g.OH, g.OW
    return np.array(
        [*sizes, *g.stride, *g.padding, *g.dilation, g.G, g.D1, g.D2, g.D3, g.N], np.int64
    )


@cuda.jit(device=True)
def _forward_at(i, x, w, of):
    """Result ``i`` of the forward pass, the sum over c, kh, kw and d2."""
    d3, i = i % of[D3], i // of[D3]
    d1, i = i % of[D1], i // of[D1]
    g, i = i % of[G], i // of[G]
    ow, i = i % of[OW], i // of[OW]
    oh, i = i % of[OH], i // of[OH]
    p, n = i % of[P], i // of[P]
    total = 0.0
    for c in range(of[C]):
        for kh in range(of[KH]):
            for kw in range(of[KW]):
                h = oh * of[SH] - of[PH] + kh * of[DH]
                column = ow * of[SW] - of[PW] + kw * of[DW]
                inside = 0 <= h < of[H] and 0 <= column < of[W]
                x_at = (((n * of[C] + c) * of[H] + h) * of[W] + column) * of[G] + g
                w_at = (((p * of[C] + c) * of[KH] + kh) * of[KW] + kw) * of[G] + g
                for d2 in range(of[D2]):
                    value = 0.0  # over the edge lie zeros, and they multiply
                    if inside:
                        value = float(x[at((x_at * of[D1] + d1) * of[D2] + d2)])
                    total += value * float(w[at((w_at * of[D2] + d2) * of[D3] + d3)])
    return total


@cuda.jit(device=True)
def _input_at(i, dy, w, of):
    """Result ``i`` of the input's gradient, the sum over p, kh, kw and d3."""
    d2, i = i % of[D2], i // of[D2]
    d1, i = i % of[D1], i // of[D1]
    g, i = i % of[G], i // of[G]
    column, i = i % of[W], i // of[W]
    h, i = i % of[H], i // of[H]
    c, n = i % of[C], i // of[C]
    total = 0.0
    for p in range(of[P]):
        for kh in range(of[KH]):
            for kw in range(of[KW]):
                down = h + of[PH] - kh * of[DH]
                across = column + of[PW] - kw * of[DW]
                if down % of[SH] == 0 and across % of[SW] == 0:
                    oh, ow = down // of[SH], across // of[SW]
                    inside = 0 <= oh < of[OH] and 0 <= ow < of[OW]
                    dy_at = (((n * of[P] + p) * of[OH] + oh) * of[OW] + ow) * of[G] + g
                    w_at = (((p * of[C] + c) * of[KH] + kh) * of[KW] + kw) * of[G] + g
                    for d3 in range(of[D3]):
                        value = 0.0
                        if inside:
                            value = float(dy[at((dy_at * of[D1] + d1) * of[D3] + d3)])
                        total += value * float(w[at((w_at * of[D2] + d2) * of[D3] + d3)])
    return total


@cuda.jit(device=True)
def _kernel_at(i, x, dy, of):
    """Result ``i`` of the kernel's gradient, the sum over n, oh, ow and d1."""
    d3, i = i % of[D3], i // of[D3]
    d2, i = i % of[D2], i // of[D2]
    g, i = i % of[G], i // of[G]
    kw, i = i % of[KW], i // of[KW]
    kh, i = i % of[KH], i // of[KH]
    c, p = i % of[C], i // of[C]
    total = 0.0
    for n in range(of[N]):
        for oh in range(of[OH]):
            for ow in range(of[OW]):
                h = oh * of[SH] - of[PH] + kh * of[DH]
                column = ow * of[SW] - of[PW] + kw * of[DW]
                inside = 0 <= h < of[H] and 0 <= column < of[W]
                x_at = (((n * of[C] + c) * of[H] + h) * of[W] + column) * of[G] + g
                dy_at = (((n * of[P] + p) * of[OH] + oh) * of[OW] + ow) * of[G] + g
                for d1 in range(of[D1]):
                    value = 0.0
                    if inside:
                        value = float(x[at((x_at * of[D1] + d1) * of[D2] + d2)])
                    total += value * float(dy[at((dy_at * of[D1] + d1) * of[D3] + d3)])
    return total


# Pass to the device function that sums one of its results anew.
_SUMS = {"forward": _forward_at, "backward_input": _input_at, "backward_kernel": _kernel_at}


@cache
def make_guard(wanted):
    """Kernel that looks through the results of a pass; ``wanted`` is a key of ``_SUMS``."""
    sum_at = _SUMS[wanted]
    EACH, LEAST, MOST, ZERO = _EACH, SMALLEST, _LARGEST, np.float32(0)

    @cuda.jit(device=True, inline="always")
    def is_told(value):
        magnitude = abs(value)
        return magnitude <= MOST and (magnitude >= LEAST or magnitude == ZERO)

    @kept_on_disk
    @cuda.jit
    def guard_kernel(
        a,  # in   x, or dy for the input's gradient
        b,  # in   w, or dy for the kernel's
        result,  # in/out
        of,  # in   numbers_of(geometry)
        size,  # of the result
    ):
        let_next_start()
        block = np.int64(cuda.blockDim.x)
        first = np.int64(cuda.blockIdx.x) * block * EACH + cuda.threadIdx.x
        wait_for_last()  # the results are there
        while first < size:
            told = True
            for each in range(EACH):
                i = first + each * block
                told = is_told(result[at(i)] if i < size else ZERO) and told
            if not told:
                for i in range(first, min(size, first + EACH * block), block):
                    if not is_told(result[at(i)]):
                        result[at(i)] = np.float32(sum_at(i, a, b, of))
            first += np.int64(cuda.gridDim.x) * block * EACH

    return guard_kernel


class Guard:
    """The launch that looks through the results of a pass of a geometry.

    Parameters
    ----------
    wanted : str
        "forward", "backward_input" or "backward_kernel".
    geometry : numbacaps.geometry.Geometry
    size : int
        Elements of the result.
    """

    def __init__(self, wanted, geometry, size):
        self._numbers = cuda.to_device(numbers_of(geometry))
        types = (_FLOAT32, _FLOAT32, _FLOAT32, np.int64)
        blocks = min(BLOCKS, ceil_div(size, THREADS * _EACH))
        self._launch = Compiled(make_guard(wanted), types, 1, early=True).on(blocks, THREADS)
        self._always = *as_argument(self._numbers), size

    def __call__(self, a, b, result, stream):
        """Launch it on arrays as arguments, behind what wrote the result on the stream."""
        self._launch(stream, (*a, *b, *result, *self._always))
