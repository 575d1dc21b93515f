"""Routing of votes that are summed over the window and stored, band by band (:mod:`numbacaps.routing.bands`).

The votes are a capsule convolution of a product for each channel,

    V[n,p,oh,ow,(c,g)] = sum over kh, kw of I[n,..,(c,g)] @ K[p,kh,kw,(c,g)]

of x and w that have their channels beside g. So are their gradients those of a convolution, whose precision is the routing's.
A band's input is copied with its rows of padding, and routed. Backward its rows of dx are added to what the bands
above have given those that they share, and its gradient of w to theirs, always in the order of the bands.
"""

from math import prod

import numpy as np

from numbacaps.arrays import describe
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.launch import ceil_div
from numbacaps.device.strided_copy import Part, gather
from numbacaps.fused.precision import AUTO, precisions
from numbacaps.routing.bands import bands_of
from numbacaps.routing.pack import make_clear, make_unpack
from numbacaps.routing.passes import run, widen
from numbacaps.routing.place import place
from numbacaps.routing.shape import TEAM_THREADS

CHANNELS_LAST = 0, 2, 3, 1, 4, 5, 6  # (N, C, H, W, G, D1, D2) as (N, H, W, C, G, D1, D2)
CHANNELS_FIRST = 0, 3, 1, 2, 4, 5, 6  # and back
PRODUCT = "gab,gbc->gac"  # of the convolution
_IN_ORDER = 0, 1, 2, 3
_OF_BOTH = "x beside g", "votes"  # memory that both passes have


def precision_of_sums(dtype, precision):
    """How the convolution multiplies, whose precisions are fewer where a dtype or a GPU has no choice."""
    return precision if precision in precisions(dtype) else AUTO


class Summed:
    """A routing problem.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    plan_of, runner_of : callable
        Of a band's geometry: the :class:`numbacaps.plan.Plan` of :attr:`numbacaps.geometry.Geometry.of_channels`, and the
        :class:`numbacaps.routing.runner.Runner` of its stored votes.
    stays : bool
        The caller's rooms stay from call to call, so they are as large as either pass wants: a graph of one may have their
        addresses when the other is called first.
    """

    def __init__(self, geometry, dtype, plan_of, runner_of, stays=False):
        self.geometry, self.dtype, self.stays = geometry, dtype, stays
        self.plan_of, self.runner_of = plan_of, runner_of

    def bands(self, gradients):
        """Those of a pass."""
        return bands_of(self.geometry, self.dtype.itemsize, gradients)

    def explain(self):
        """What is launched: in how many bands, and for the first one."""
        (first, *others), g = self.bands(False), self.geometry
        said = self.runner_of(first.geometry).explain()
        if not others and len(self.bands(True)) == 1:
            return said
        forward, backward = (_counted(self.bands(gradients)) for gradients in (False, True))
        nbytes = prod(g.summed_votes_shape) * self.dtype.itemsize
        return (
            f"votes are stored in bands: forward {forward}, backward {backward}; all together would take {nbytes} bytes\n"
            f"the first band: {said}"
        )

    def forward(self, x, w, operands, out, couplings, stream, room):
        """Write the capsules.

        Parameters
        ----------
        x : device array (N, C, H, W, G, D1, D2)
        w : array (P, C, KH, KW, G, D2, D3) on the device
            Of any strides.
        operands : tuple
            (logits (P, C) in the dtype of sums, or None,).
        out : device array (N, P, L, E)
        couplings : device array (N, P, L, C), or None
        stream : Numba stream
        room : callable
            ``room(name, shape, dtype)``: a device array, by default of x's dtype, which outlives what the stream does with it.
        """
        call = _Call(self, False, w, stream, room)
        for band in call.bands:
            votes = call.votes_of(x, band)
            results = [call.rows_of("out", out, band)]
            more = None if couplings is None else call.rows_of("couplings", couplings, band)
            how = votes, None, operands, results, more
            self.runner_of(band.geometry).repeated("forward", *how, stream=stream)
            call.write_rows(results[0], out, band)
            if more is not None:
                call.write_rows(more, couplings, band)

    def backward(self, x, w, operands, dy, dx, dw, d_logits, stream, room):
        """Write gradients.

        Parameters
        ----------
        x, w, operands, stream, room
            As :meth:`forward`.
        dy : device array (N, P, L, E)
        dx, dw : device arrays of x's and w's shapes, or None
        d_logits : device array (P, C), or None
        """
        call = _Call(self, True, w, stream, room)
        of_w = None if dw is None else _Sum(call, "dw", dw, CHANNELS_LAST)
        of_logits = None if d_logits is None else _Sum(call, "d_logits", d_logits, (0, 1))
        for band in call.bands:
            votes = call.votes_of(x, band)
            reached = call.rows_of("dy", dy, band)
            call.read_rows(dy, reached, band)
            d_votes = call.memory("d_votes", _votes_shape, band)
            how = votes, None, operands, [reached], d_votes, None, [of_logits and of_logits.part]
            self.runner_of(band.geometry).repeated("backward", *how, stream=stream)
            call.gradients_of(d_votes, band, dx, of_w and of_w.part)
            for total in filter(None, (of_w, of_logits)):
                total.add_part()
        for total in filter(None, (of_w, of_logits)):
            total.finish()


class _Call:
    """A call: its bands, the kernel beside g, and memory that the bands take in turns.

    Attributes
    ----------
    bands : tuple of numbacaps.routing.bands.Band
    dtype : numpy.dtype
    stream, room
    """

    def __init__(self, of, gradients, w, stream, room):
        self._of, self.bands, self.dtype = of, of.bands(gradients), of.dtype
        self.stream, self.room = stream, room
        self._held, self._again = {}, set()
        self._others = of.bands(not gradients) if of.stays else ()
        self._kernel = room("w beside g", of.geometry.of_channels.kernel_shape)
        self._gather(describe("w", w), CHANNELS_LAST, self._kernel)

    def memory(self, name, shape_of, band):
        """An array of a band, where the bands before had theirs; ``shape_of`` takes a geometry."""
        if name not in self._held:
            bands = (*self.bands, *self._others) if name in _OF_BOTH else self.bands
            most = max(prod(shape_of(one.geometry)) for one in bands)
            self._held[name] = self.room(name, (most,))
        shape = shape_of(band.geometry)
        return self._held[name][: prod(shape)].reshape(*shape)

    def votes_of(self, x, band):
        """The votes of a band."""
        self._read_input(x, band)
        votes = self.memory("votes", _votes_shape, band)
        plan, again = self._plan_of(band, "forward")
        operands = self._input(band), self._kernel, votes.reshape(*plan.y_shape)
        plan.launch_forward(*operands, self.stream, again=again)
        return votes

    def gradients_of(self, d_votes, band, dx, dw):
        """Write a band's rows of ``dx``, and to ``dw`` what it gives w beside g; each may be None."""
        plan, again = self._plan_of(band, "input")
        found = None if dx is None else self.memory("dx beside g", _input_shape, band)
        operands = self._input(band), self._kernel, d_votes.reshape(*plan.y_shape)
        plan.launch_backward(*operands, found, dw, self.stream, again=again)
        if dx is not None:
            self._write_input(found, dx, band)

    def rows_of(self, name, array, band):
        """A band's positions of an array (N, P, L, numbers), or memory for them where they do not lie side by side."""
        if band.is_whole:
            return array[band.images]
        *_, numbers = array.shape
        return self.memory(name, lambda g: (g.N, g.P, g.L, numbers), band)

    def read_rows(self, array, rows, band):
        """Copy a band's positions of an array to that memory."""
        if not band.is_whole:
            self._gather(_positions(array, band), _IN_ORDER, rows)

    def write_rows(self, rows, array, band):
        """And back."""
        if not band.is_whole:
            place(rows, _positions(array, band), _IN_ORDER, self.stream)

    def _plan_of(self, band, wanted):
        """A band's plan, and whether a band before it had the same, so that the kernel lies packed for it."""
        key = band.geometry, wanted
        again = key in self._again
        self._again.add(key)
        return self._of.plan_of(band.geometry), again

    def _input(self, band):
        return self.memory("x beside g", _input_shape, band)

    def _read_input(self, x, band):
        """Copy a band's rows of x, with their channels beside g, among its rows of zeros."""
        above, own, below = _in_rows(self._input(band), band)
        for zeros in above, below:
            self._clear(zeros)
        if band.height:
            self._gather(_rows(x, band), CHANNELS_LAST, own)

    def _write_input(self, found, dx, band):
        """Write a band's rows of dx, or add them where the bands above have written."""
        if band.height:
            _, own, _ = _in_rows(found, band)
            shared = own.size // band.height * band.shared
            place(own, _rows(dx, band), CHANNELS_LAST, self.stream, shared)

    def _clear(self, array):
        """Write zeros, which have the same bits in every dtype."""
        if array.size:
            word = np.dtype(f"u{self.dtype.itemsize}")
            kernel, grid = make_clear(word), ceil_div(array.size, TEAM_THREADS)
            run(kernel, grid, TEAM_THREADS, (array.view(word), array.size), self.stream)

    def _gather(self, array, order, out):
        gather(array, order, self.stream, describe("out", out))


class _Sum:
    """A gradient that all bands give to, added in their order, in the dtype of sums.

    Attributes
    ----------
    part : device array
        Where a band writes its own.
    """

    def __init__(self, call, name, into, order):
        self._call, self._into, self._order, self._added = call, into, order, 0
        self._shape = tuple(into.shape[axis] for axis in order)
        self.part = call.room(f"{name} of a band", self._shape, into.dtype)
        wide = sum_dtype(np.dtype(into.dtype))
        self._wide = None
        if len(call.bands) > 1 and wide != into.dtype:
            self._wide = call.room(f"sum of {name}", self._shape, wide)

    def add_part(self):
        """Add what a band has written."""
        stream = self._call.stream
        if self._wide is None:
            place(self.part, Part(self._into), self._order, stream, self._added)
        else:
            in_order = tuple(range(len(self._shape)))
            place(self.part, Part(self._wide), in_order, stream, self._added)
        self._added = self.part.size  # to what the first one wrote

    def finish(self):
        """Write the sum, where it was wide."""
        if self._wide is not None:
            place(self._wide, Part(self._into), self._order, self._call.stream)


def _counted(bands):
    """How many bands, of what."""
    g, rows = bands[0].geometry, bands[0].rows
    what = (
        f"{g.N} images"
        if bands[0].is_whole
        else f"{rows.stop - rows.start} output rows of an image"
    )
    return f"{len(bands)} of {what}"


def _in_rows(found, band):
    """A band's rows of padding above, its own rows, and its rows of padding below, flat, of its input beside g."""
    if not band.is_padded:  # of images it has all rows
        nothing = found.reshape(found.size)[:0]
        return nothing, found, nothing
    rows, of_row = found.reshape(found.size), found.size // band.geometry.H
    first, last = band.above * of_row, (band.above + band.height) * of_row
    return rows[:first], rows[first:last], rows[last:]


def _rows(array, band):
    """The rows of x or dx that a band reads."""
    return Part(array, band.images, slice(None), band.read)


def _positions(array, band):
    """A band's positions of an array (N, P, L, numbers)."""
    return Part(array, band.images, slice(None), band.positions)


def _input_shape(geometry):
    return geometry.of_channels.input_shape


def _votes_shape(geometry):
    g = geometry
    return g.N, g.P, g.L, g.C, g.E3


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
