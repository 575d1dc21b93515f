"""The rung whose votes are stored, and read again in every pass. It is what most code for routing does.

The votes are those of :func:`numbacaps.capsule_votes`, by one kernel; the passes are those of the fused rung, which read
where that one computes. Beside it stands what it moves: every vote once to memory, and once back where positions are routed
whole (:mod:`numbacaps.routing.whole`), or 2 r - 1 times at the worst. Backward, what reaches every vote is written once too,
and read by the votes' own gradients.

Votes that are summed over the window are a capsule convolution of a product for each channel,

    V[n,p,oh,ow,(c,g)] = sum over kh, kw of I[n,..,(c,g)] @ K[p,kh,kw,(c,g)]

of x and w that have their channels beside g. So are their gradients those of a convolution, whose precision is the routing's.
"""

from math import prod

import numpy as np

from numbacaps.algorithms import indexed
from numbacaps.arrays import describe
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.launch import ceil_div
from numbacaps.device.strided_copy import gather
from numbacaps.fused.precision import AUTO, precisions
from numbacaps.routing.pack import make_unpack
from numbacaps.routing.passes import run, widen
from numbacaps.routing.shape import TEAM_THREADS

CHANNELS_LAST = 0, 2, 3, 1, 4, 5, 6  # (N, C, H, W, G, D1, D2) as (N, H, W, C, G, D1, D2)
CHANNELS_FIRST = 0, 3, 1, 2, 4, 5, 6  # and back
PRODUCT = "gab,gbc->gac"  # of the convolution


def precision_of_sums(dtype, precision):
    """How the convolution multiplies, whose precisions are fewer where a dtype or a GPU has no choice."""
    return precision if precision in precisions(dtype) else AUTO


class Children:
    """Votes of every child of a window, and their gradients.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    x, w : device arrays (N, C, H, W, G, D1, D2) and (P, C, KH, KW, G, D2, D3)
    stream : Numba stream
    """

    def __init__(self, geometry, x, w, stream):
        self._operands = geometry, x, w
        self._how = {"stream": stream, "workspace": None}

    def votes_of(self, out):
        """Write the votes, (N, P, L, I, E)."""
        indexed.votes(*self._operands, out, **self._how)

    def gradients_of(self, d_votes, dx, dw):
        """Write the gradients of x and w from that of the votes; ``dx`` or ``dw`` is None where that one is not wanted."""
        indexed.votes_backward(*self._operands, d_votes, dx, dw, **self._how)


class Sums:
    """The same of votes that are summed over the window, (N, P, L, C, E).

    Parameters
    ----------
    geometry, x, w, stream
        As :class:`Children`.
    room : callable
        ``room(name, shape)``: a device array of x's dtype, which outlives what the stream does with it.
    plan : numbacaps.plan.Plan
        Of the convolution, :attr:`numbacaps.geometry.Geometry.of_channels`.
    """

    def __init__(self, geometry, x, w, stream, room, plan):
        self._stream, self._room, self._plan = stream, room, plan
        self._operands = [
            self._moved(array, CHANNELS_LAST, room(name, shape))
            for name, array, shape in self._layouts(x, w)
        ]

    def votes_of(self, out):
        """As :meth:`Children.votes_of`."""
        out = out.reshape(*self._plan.y_shape)
        self._plan.launch_forward(*self._operands, out, self._stream)

    def gradients_of(self, d_votes, dx, dw):
        """As :meth:`Children.gradients_of`."""
        layouts = list(self._layouts(dx, dw))
        found = [
            None if to is None else self._room(f"d{name}", shape) for name, to, shape in layouts
        ]
        d_votes = d_votes.reshape(*self._plan.y_shape)
        self._plan.launch_backward(*self._operands, d_votes, *found, self._stream)
        for gradient, (_, to, _) in zip(found, layouts):
            if to is not None:
                N, C, H, W, *capsule = to.shape
                self._moved(gradient.reshape(N, H, W, C, *capsule), CHANNELS_FIRST, to)

    def _layouts(self, x, w):
        """(name, array, shape with the channels beside g) of x and w, or of their gradients."""
        yield "x beside g", x, self._plan.x_shape
        yield "w beside g", w, self._plan.w_shape

    def _moved(self, array, order, out):
        """An array with its axes in an order, written to another one."""
        gather(describe("array", array), order, self._stream, describe("out", out))
        return out


def add_channels(dw, out, stream, room):
    """Write the gradient of a kernel that all channels share.

    Parameters
    ----------
    dw : device array (P, C, *rest)
        As if each channel had its own.
    out : device array (P, 1, *rest)
    stream : Numba stream
    room : callable
        ``room(name, shape, dtype)``: a device array, which outlives what the stream does with it.
    """
    P, C, *rest = dw.shape
    dtype, size = np.dtype(out.dtype), prod(rest)
    if dtype != sum_dtype(dtype):
        dw = widen(dw, room("wide dw", dw.shape, sum_dtype(dtype)), stream)
    last = room("dw by channels", (C, *rest, P), sum_dtype(dtype))
    gather(describe("dw", dw), (*range(1, dw.ndim), 0), stream, describe("out", last))
    kernel, grid = make_unpack(P, dtype), ceil_div(size * P, TEAM_THREADS)
    run(kernel, grid, TEAM_THREADS, (last, out, size, C), stream)
