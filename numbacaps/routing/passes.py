"""The passes of a routing problem: which kernels run, in which order, on which memory.

Arrays are C-contiguous device arrays, in the layouts that the kernels name. Beside operands and results there are in device
memory:

    packed      the kernel as passes read it, (Q, E2, P)
    states      of every iteration, what the next one and the gradients read of the parents; before the first one zeros
    partial     records of the parents, one of each block that has some of their children, to be merged
    slopes      backward, of every iteration: the gradients of the parents (dynamic: s; EM: mean and variance), and what else
                of a parent the children's gradients take. Slope t is to iteration t what state t + 1 is forward
    columns     backward, the gradient of x from each window apart: (N, L, Q, E1), a capsule for each tap of each position,
                as im2col lays out the input; added up they are dx
    dw, d_prior backward, sums of w's gradient and of the prior's, one for each split of the images and positions

No vote is among them, but where clusters of blocks route few positions whole:

    votes       forward, written first, (N, L, I, P, E)
"""

from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from numbacaps.device.compiled import aligned, as_argument
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import MAX_GRID_Y, ceil_div
from numbacaps.device.scalars import CompiledWithScalars
from numbacaps.made_once import made_once
from numbacaps.routing import dynamic, dynamic_ends
from numbacaps.routing.children import make_of_children
from numbacaps.routing.clusters import make_cluster
from numbacaps.routing.couplings import DynamicCouplings
from numbacaps.routing.dynamic_backward import DynamicGradient, Earlier
from numbacaps.routing.ends import END_THREADS, blocks_of_place
from numbacaps.routing.gradient import (
    make_taps_gradient,
    make_votes_gradient,
    taps_bounds,
    taps_numbers,
)
from numbacaps.routing.mma_sync import em_gradient_launcher, gradient_launcher
from numbacaps.routing.mma_sync import launcher as warps
from numbacaps.routing.pack import make_clear, make_pack, make_unpack
from numbacaps.routing.reduce import make_reduce
from numbacaps.routing.shape import MULTIPROCESSORS, TEAM_THREADS, Shape, Split
from numbacaps.routing.team import scattered
from numbacaps.routing.votes import make_stored, make_votes, run_of
from numbacaps.routing.whole import (
    make_whole,
    make_whole_gradient,
    whole_gradient_numbers,
    whole_numbers,
)
from numbacaps.routing.whole_positions import choose_cluster
from numbacaps.routing.windows import make_windows_sum
from numbacaps.routing.written_votes import THREADS as WRITERS
from numbacaps.routing.written_votes import make_write_votes, make_written

LOCAL_BYTES = 512 * 1024  # of local memory that a thread has at the most; so on every GPU
_OWN_ELEMENTS = 64  # of the kernel's gradient that a lane adds up, about
_SPLITS_BYTES = 16 << 20  # that all splits of a gradient may take
_WHOLE_NUMBERS = (
    128  # of all iterations that a lane holds in a gradient at the most; so they are registers
)
_MOST_WAVES = 8  # of teams, one after another, that splits are worth
# Microseconds on an H100 that a resident team takes for an image at a position, and that an element takes to be written and
# added once more.
_GROUP_US, _SPLIT_US = 2, 4e-6


@cache
def _compiled(kernel, dtypes, integers, scalars, early):
    return CompiledWithScalars(kernel, dtypes, integers, scalars, early)


def run(kernel, grid, threads, arguments, stream, scalars=(), early=False, cluster=None):
    """Launch a kernel of arrays, then integers, then scalars of a floating-point dtype.

    One that waits for the last kernel itself may start ``early``. ``cluster`` blocks along y run at once, as a cluster.
    """
    arrays = [one.reshape(one.size) for one in arguments if hasattr(one, "dtype")]
    integers = [one for one in arguments if not hasattr(one, "dtype")]
    dtypes, behind = (tuple(one.dtype for one in some) for some in (arrays, scalars))
    compiled = _compiled(kernel, dtypes, len(integers), behind, early)
    compiled.launch(grid, (threads, 1, 1), stream, (*arrays, *integers), scalars, cluster)


def widen(array, wide, stream):
    """Write an array in the dtype of sums; returns the array that it is written to."""
    kernel, size = make_pack(1, np.dtype(array.dtype)), array.size
    run(kernel, ceil_div(size, TEAM_THREADS), TEAM_THREADS, (array, wide, size), stream)
    return wide


class Passes:
    """What both algorithms have in common.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    options : numbacaps.routing.options.Options
    stored : bool
        x is votes, (N, P, L, I, E); where they are summed over the window, I is C.
    splits : int, optional
        That add up the gradients of what all images share; those of a part of a batch are those of its first part.
    precision : str
        How the forward pass computes votes, where they are not stored.
    batch : int, optional
        Images of the whole batch, where these are a part of it.

    Attributes
    ----------
    cluster : numbacaps.routing.whole_positions.Cluster or None
        How clusters of blocks route few positions whole forward, if they do.
    warps : object or None
        The forward passes on tensor cores (:mod:`numbacaps.routing.mma_sync`), if they are.
    why_not : str or None
        Why they are not.
    gradient_warps : object or None
        The gradients on tensor cores, if they are; where logits are given they are not.
    why_not_gradient : str or None
        Why they are not.

    Raises
    ------
    ValueError
        The parents' capsules are longer than kernels take.
    """

    def __init__(
        self, geometry, dtype, options, stored=False, splits=None, precision="auto", batch=None
    ):
        if stored and options.is_summed:
            geometry = geometry.of_summed_votes
        self.geometry, self.options, self.stored = geometry, options, stored
        self.shape = Shape.of(geometry, dtype, options.is_summed)
        # A lane's part of a gradient takes more registers.
        self.backward_shape = replace(self.shape, images=min(self.shape.images, 2))
        self._check_length()
        self.places = geometry.N * geometry.L
        self.cluster = self._choose_cluster(batch or geometry.N, precision)
        self.why_not = self.why_not_gradient = "votes are stored"
        if self.cluster:
            self.why_not = "clusters route positions whole"
        elif not stored:
            self.why_not = warps.why_not(self.shape, geometry.N, options, precision)
        self.warps = None
        if self.why_not is None:
            make = warps.EMWarps if options.is_em else warps.DynamicWarps
            self.warps = make(self.shape, self.places, options, precision)
        self.gradient_warps = None
        of_gradient = em_gradient_launcher if options.is_em else gradient_launcher
        if not stored:
            how = self.shape, geometry.N, options, precision
            self.why_not_gradient = of_gradient.why_not(*how)
        if self.why_not_gradient is None:
            make = of_gradient.EMGradient if options.is_em else of_gradient.DynamicGradient
            self.gradient_warps = make(self.shape, self.places, options, precision)
        self.splits = splits or self._wanted_splits()

    def _choose_cluster(self, batch, precision):
        """How clusters route few positions whole forward, or None."""
        return None

    def _check_length(self):
        """Refuse capsules of which a lane's part, and what it holds besides, are more than a thread's local memory."""
        shape, form, rows = self.backward_shape, self.gradient_form(True), self._rows
        record = shape.own_fields(self.backward_form.record)
        holds = shape.elements + self.backward_form.held + (shape.scalars + 1) * record
        if not self.stored:
            g = shape.geometry
            room, _, _ = scattered(shape, g.G * g.D1 * rows)
            holds = max(holds, taps_numbers(shape, form, rows) + room)
        nbytes = holds * self.sums.itemsize
        if nbytes > LOCAL_BYTES:
            raise ValueError(
                f"w makes capsules of {self.geometry.E3} elements, of which a thread holds {nbytes} bytes; it takes at most "
                f"{LOCAL_BYTES} (algorithm 'numpy' takes more)"
            )

    @property
    def sums(self):
        """The dtype of states and of all else that is added."""
        return self.shape.sums

    @made_once
    def states_shape(self):
        """(iterations + 1, N * L, fields, P): what the forward pass leaves for the backward one."""
        g, fields = self.geometry, self.state_fields(self.geometry.E3)[0]
        return self.options.iterations + 1, self.places, fields, g.P

    @property
    def slopes_shape(self):
        """(iterations, N * L, fields, P): the gradients of the parents of every iteration."""
        g, fields = self.geometry, self.state_fields(self.geometry.E3)[1]
        return self.options.iterations, self.places, fields, g.P

    def split(self, shape, form):
        """How teams share the children in a pass."""
        return Split.of(shape, self.geometry.N, shape.own_fields(form.record))

    def _partial_shape(self, shape, form):
        fields = shape.fields(form.record)
        return self.split(shape, form).blocks, self.places, fields, self.geometry.P

    @property
    def _packed_shape(self):
        g = self.shape.geometry
        return (1,) if self.stored else (g.Q, g.E2, g.P)

    def forward_states_shape(self, keep):
        """That of the states, all of them or, where the passes are on tensor cores, those that are needed at a time."""
        iterations, *rest = self.states_shape
        return (self.warps.states if self.warps and not keep else iterations, *rest)

    @property
    def forward_nbytes(self):
        """Bytes that the forward pass takes for states and sums, on tensor cores."""
        shapes = self.forward_states_shape(False), *self.warps.shapes.values()
        return sum(map(prod, shapes)) * self.sums.itemsize

    def backward_nbytes(self, is_kept):
        """Bytes that the gradients take on tensor cores, and the states, which are computed again unless they are kept."""
        shapes = [*self.backward_shapes(has_logits=False).values()]
        shapes += [] if is_kept else [self.states_shape]
        return sum(map(prod, shapes)) * self.sums.itemsize

    def forward_shapes(self, has_logits=True, has_couplings=True, keep=True):
        """Workspace of the forward pass; on tensor cores, or where positions are routed whole, the less, the less is kept."""
        found = self._more_shapes(has_logits)
        if self.is_whole and not keep:
            return found | {"packed": self._packed_shape}
        if self.warps:
            found |= self.warps.shapes
            return found | ({"packed": self._packed_shape} if has_couplings else {})
        partial = self._partial_shape(self.shape, self.forward_form)
        return found | {"packed": self._packed_shape, "partial": partial}

    def backward_shapes(self, has_logits=True, has_dx=True, has_dw=True, has_more=True):
        """Workspace of the backward pass; ``has_more`` where it adds to what other parts of the batch have left in dw."""
        if self.is_on_warps(has_logits):
            columns = (1,) if has_dx and self.columns_are_dx else self.columns_shape
            found = self.gradient_warps.shapes(has_dw, has_more) | {"columns": columns}
            return found | self._more_shapes(has_logits, backward=True)
        if self.is_whole_backward(has_logits):
            return {}
        g, splits = self.shape.geometry, self.splits
        found = {"packed": self._packed_shape, "slopes": self.slopes_shape}
        found["partial"] = self._partial_shape(self.backward_shape, self.backward_form)
        found["d_prior"] = self.d_prior_shape
        if not self.stored:
            found["dw"] = splits, g.Q, g.E2, g.P
            found["columns"] = self.columns_shape
        return found | self._more_shapes(has_logits, backward=True)

    # The forward pass routes positions whole (:mod:`numbacaps.routing.whole`); unless clusters do, not where states are kept.
    is_whole = False

    def is_whole_backward(self, has_logits):
        """Whether so does the backward pass, which then reads no states."""
        return False

    def is_on_warps(self, has_logits):
        """Whether gradients are computed on tensor cores."""
        return self.gradient_warps is not None and not has_logits

    def _more_shapes(self, has_logits, backward=False):
        return {}

    @property
    def columns_are_dx(self):
        """Whether a capsule is under one window alone, at one position: what reaches it from there is its gradient."""
        g = self.shape.geometry
        return (g.H, g.W, g.KH, g.KW, g.L) == (1,) * 5

    @property
    def columns_shape(self):
        """(N, L, Q, E1); where votes are stored there are no columns."""
        g = self.shape.geometry
        return (1,) if self.stored else (self.geometry.N, g.L, g.Q, g.E1)

    @property
    def _rows(self):
        """Rows of a kernel capsule, of its D2, whose gradient a team owns."""
        g = self.geometry
        most = max(1, _OWN_ELEMENTS // (self.shape.parents * g.G * self.shape.columns))
        return ceil_div(g.D2, ceil_div(g.D2, min(g.D2, most)))

    @property
    def _owners(self):
        """Teams that own the kernel's gradient, or that of stored votes, if none share what they walk over."""
        g = self.shape.geometry
        return self.shape.children if self.stored else g.Q * ceil_div(g.D2, self._rows)

    @property
    def _size_of_split(self):
        """Elements that a split adds up: w's gradient; of stored votes, which have no w here, the prior's alone."""
        return self._prior_size if self.stored else prod(self.shape.geometry.kernel_shape)

    @property
    def times(self):
        """How often all votes are computed, forward and backward; where they are stored, their own gradients apart."""
        if self.stored:
            return 1, 1
        o, taps = self.options, self.shape.taps
        of_owners = taps * ceil_div(self.geometry.D2, self._rows)
        of_owners = 1 if self.gradient_warps else of_owners
        forward = 1 if self.cluster else o.iterations
        return forward, forward + o.iterations - 1 - o.first + of_owners

    def _wanted_splits(self):
        """Teams that share what an owner walks over, so that all of them together end early."""
        shape, size = self.backward_shape, self._size_of_split
        groups, best = max(1, shape.groups(self.geometry.N)), None
        _, blocks = taps_bounds(shape, self.gradient_form(True), self._rows)
        resident = MULTIPROCESSORS * blocks * shape.teams
        fit = _SPLITS_BYTES // (max(1, size) * self.sums.itemsize)
        of_use = ceil_div(_MOST_WAVES * resident, self._owners)
        for splits in range(1, max(1, min(groups, fit, of_use, MAX_GRID_Y)) + 1):
            walks = ceil_div(self._owners * splits, resident) * ceil_div(groups, splits)
            takes = walks * shape.images * _GROUP_US + splits * size * _SPLIT_US
            if best is None or takes < best[0]:
                best = takes, splits
        return ceil_div(groups, ceil_div(groups, best[1]))

    def _pack(self, w, room, stream):
        """The kernel as the passes read it; something else where votes are stored."""
        if self.stored:
            return room["packed"]
        g = self.shape.geometry
        size = g.Q * g.E2
        kernel, grid = make_pack(g.P, self.shape.dtype), ceil_div(size * g.P, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (w, room["packed"], size), stream)
        return room["packed"]

    def _clear(self, array, stream):
        kernel, grid = make_clear(array.dtype), ceil_div(array.size, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (array, array.size), stream)

    def _reduce(self, shape, form, arrays, partial, t, stream):
        """One pass over the children; returns the number of blocks whose records are to be merged."""
        split, N = self.split(shape, form), self.geometry.N
        kernel = make_reduce(shape, self.stored, form, split.parts)
        grid = ceil_div(shape.groups(N), split.places), split.blocks
        run(kernel, grid, TEAM_THREADS, (*arrays, partial, N, split.children, t), stream)
        return split.blocks

    def _end(self, kernel, arguments, stream, scalars=(), early=False):
        """What is done for each parent at each position."""
        grid = self.places * blocks_of_place(self.shape)
        run(kernel, grid, END_THREADS, arguments, stream, scalars, early)

    def _gradients(self, form, arrays, dx, room, more, stream):
        """The gradients of x, w and the prior from the slopes of all iterations; those of w and the prior in ``room``."""
        shape, g, N, o = self.backward_shape, self.shape.geometry, self.geometry.N, self.options
        splits = self.splits
        count = ceil_div(shape.groups(N), splits)
        if self.stored:
            kernel = make_votes_gradient(shape, form)
            grid = ceil_div(self._owners, shape.teams), splits
            arguments = (*arrays, dx, room["d_prior"], N, count, o.first, o.iterations, int(more))
            return run(kernel, grid, TEAM_THREADS, arguments, stream)
        kernel = make_taps_gradient(shape, form, self._rows)
        grid = ceil_div(self._owners, shape.teams), splits
        results = (room[name] for name in ("columns", "dw", "d_prior"))
        arguments = (*arrays, *results, N, count, o.first, o.iterations, int(more))
        run(kernel, grid, TEAM_THREADS, arguments, stream)
        if dx is not None:
            self._over_windows(room["columns"], dx, g.E1, stream)

    def _over_windows(self, found, total, each, stream):
        """Add up what windows have found, (N, L, Q, each), for each capsule."""
        kernel = make_windows_sum(self.shape, each, np.dtype(total.dtype))
        grid = ceil_div(total.size, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (found, total, self.geometry.N), stream)

    def _of_children(self, form, arrays, found, t, stream):
        """Write what a form finds of every child, from the parents before iteration t."""
        shape, N = form.shape, self.geometry.N
        split = Split.of(shape, N, 1)
        parts = split.parts * split.blocks
        grid = ceil_div(shape.groups(N), shape.teams), parts
        arguments = (*arrays, found, N, ceil_div(shape.children, parts), t)
        run(make_of_children(shape, self.stored, form), grid, TEAM_THREADS, arguments, stream)

    def launch_kernel_gradient(self, dw, room, stream, has_logits=True):
        """Write what the backward passes of all parts of a batch have added up of w's gradient.

        On tensor cores :meth:`backward` has written it.
        """
        g = self.shape.geometry
        if self.is_on_warps(has_logits):
            return
        self._unpack(room["dw"], dw, g.Q * g.E2, self.shape.dtype, stream)

    def _unpack(self, packed, w, size, dtype, stream):
        """Add splits of what has (splits, size, P), and write it as (P, size)."""
        P, splits = self.geometry.P, packed.shape[0]
        kernel, grid = make_unpack(P, dtype), ceil_div(size * P, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (packed, w, size, splits), stream)


class DynamicPasses(Passes):
    """Dynamic routing. The prior is the logits that routing begins with, (I, P)."""

    state_fields = staticmethod(dynamic.state_fields)

    @made_once
    def forward_form(self):
        return self._form_of(self.shape)

    def _form_of(self, shape, logits=None):
        """That of the passes forward, whose prior the logits are."""
        over_parents = self.options.softmax_over == "parents"
        form = dynamic.OverParents if over_parents else dynamic.OverChildren
        return form(shape, logits is not None)

    def _choose_cluster(self, batch, precision):
        split = Split.of(self.shape, batch, self.shape.own_fields(self.forward_form.record))
        if split.blocks == 1:
            return None
        return choose_cluster(self.shape, self._form_of, batch, self.stored, precision)

    @made_once
    def is_whole(self):
        if self.cluster:
            return True
        nbytes = whole_numbers(self.shape, self.forward_form) * self.sums.itemsize
        is_one = self.split(self.shape, self.forward_form).blocks == 1
        return not self.warps and is_one and nbytes <= LOCAL_BYTES

    def is_whole_backward(self, has_logits):
        if not self.stored or has_logits:
            return False
        numbers = whole_gradient_numbers(self.backward_shape, self.options.iterations)
        return self._backward_split.blocks == 1 and numbers <= _WHOLE_NUMBERS

    @made_once
    def _backward_split(self):
        """How teams share the children where positions are routed whole: their records are those of forward passes, too."""
        return self.split(self.backward_shape, self._form_of(self.backward_shape))

    @made_once
    def backward_form(self):
        return Earlier(self.backward_shape, self.options.softmax_over, True)

    def gradient_form(self, has_logits):
        """The form of the votes' gradients."""
        o = self.options
        return DynamicGradient(self.backward_shape, o.softmax_over, o.detach, has_logits)

    @property
    def d_prior_shape(self):
        """(splits, I, P): the logits' gradient, before it is added up."""
        return self.splits, self.shape.children, self.geometry.P

    @property
    def _prior_size(self):
        """Of the gradient of the prior that all images share."""
        return self.shape.children * self.geometry.P

    def forward_shapes(self, has_logits=True, has_couplings=True, keep=True):
        if not self.cluster:
            return super().forward_shapes(has_logits, has_couplings, keep)
        found = self._more_shapes(has_logits)
        if not self.stored:
            g = self.geometry
            found["votes"] = g.N, g.L, self.shape.children, g.P, g.E3
        return found | ({"packed": self._packed_shape} if has_couplings else {})

    def _more_shapes(self, has_logits, backward=False):
        return {"prior": (self.shape.children, self.geometry.P)} if has_logits else {}

    def _prior(self, logits, instead, room, stream):
        """The logits as kernels read them; where there are none, an array that they do not read."""
        if logits is None:
            return instead
        dtype, size = np.dtype(logits.dtype), self.shape.children
        grid = ceil_div(logits.size, TEAM_THREADS)
        kernel = make_pack(self.geometry.P, dtype)
        run(kernel, grid, TEAM_THREADS, (logits, room["prior"], size), stream)
        return room["prior"]

    def forward(self, x, w, logits, states, y, *, room, keep=True, couplings=None, stream=0):
        """Write v, the states, and the couplings (N, P, L, I) unless they are None.

        Parameters
        ----------
        x, w : device arrays, (N, C, H, W, E1) and (P, I, E2)
        logits : device array (P, I), or None for zeros
        states : device array of ``forward_states_shape(keep)``, written; or None, where none are
        y : device array (N, P, L, E), written
        room : dict of device arrays of ``forward_shapes``
        keep : bool
            The states of all iterations are wanted; so are they where couplings are.
        stream : Numba stream
        """
        how = x, w, logits, states, y, room, keep, couplings, stream
        if self.cluster:
            return self._forward_by_clusters(*how)
        if self.warps:
            return self._forward_on_warps(*how)
        packed = self._pack(w, room, stream)
        if self.is_whole and not keep:
            return self._forward_whole(x, packed, logits, y, room, stream)
        prior, form = self._prior(logits, states, room, stream), self._form_of(self.shape, logits)
        self._clear(states[0], stream)
        finish = dynamic_ends.make_finish(self.shape, self.options.softmax_over)
        arrays = (x, packed, prior, states, states, states, states)
        for t in range(self.options.iterations):
            of_pass = form if t else dynamic.first_of(form)
            blocks = self._reduce(self.shape, of_pass, arrays, room["partial"], t, stream)
            self._end(finish, (room["partial"], states, y, self.geometry.N, blocks, t), stream)
        self._couplings(arrays[:6], logits, couplings, stream)

    def _forward_whole(self, x, packed, logits, y, room, stream):
        """The same by one kernel."""
        o, N, split = self.options, self.geometry.N, self.split(self.shape, self.forward_form)
        prior = self._prior(logits, x, room, stream)
        how = self._source(self.shape, x), self._form_of(self.shape, logits), o.softmax_over
        how = self.shape, *how, split.parts
        grid = ceil_div(self.shape.groups(N), split.places)
        arguments = x, packed, prior, y, N, split.children, o.iterations
        run(make_whole(*how), grid, TEAM_THREADS, arguments, stream)

    def _forward_by_clusters(self, x, w, logits, states, y, room, keep, couplings, stream):
        """The same by clusters of blocks: a kernel that writes votes, unless they are stored, and one that routes them."""
        o, cluster, votes = self.options, self.cluster, x if self.stored else room["votes"]
        shape, prior = cluster.shape, self._prior(logits, votes, room, stream)
        source = self._source(shape, x) if self.stored else make_written(shape)
        if not self.stored:
            grid = ceil_div(votes.size, WRITERS)
            run(make_write_votes(shape), grid, WRITERS, (x, w, votes, votes.size), stream)
        how = source, self._form_of(shape, logits), o.softmax_over, cluster.blocks, keep
        grid = shape.groups(self.geometry.N), cluster.blocks
        arguments = votes, prior, states if keep else votes, y
        arguments += self.geometry.N, cluster.children, o.iterations
        kernel, on = make_cluster(shape, *how), (grid, shape.threads)
        run(kernel, *on, arguments, stream, early=not self.stored, cluster=cluster.blocks)
        self._couplings_behind(x, w, logits, states, room, couplings, stream)

    def _forward_on_warps(self, x, w, logits, states, y, room, keep, couplings, stream):
        """The same on tensor cores."""
        prior = self._prior(logits, None, room, stream)
        if keep:
            self._clear(states[0], stream)
        if prior is not None or self.warps.is_filled_up:
            self._clear(room["summed"], stream)
        self.warps.forward(x, w, prior, states, y, room, stream, keep)
        self._couplings_behind(x, w, logits, states, room, couplings, stream)

    def _couplings_behind(self, x, w, logits, states, room, couplings, stream):
        """Write couplings behind passes that do not take the packed kernel."""
        if couplings is not None:
            prior = self._prior(logits, states, room, stream)
            arrays = x, self._pack(w, room, stream), prior, states, states, states
            self._couplings(arrays, logits, couplings, stream)

    def _couplings(self, arrays, logits, couplings, stream):
        if couplings is not None:
            last, has_prior = self.options.iterations - 1, logits is not None
            how = self.options.softmax_over, has_prior, last == 0 and not has_prior
            self._of_children(DynamicCouplings(self.shape, *how), arrays, couplings, last, stream)

    def backward(self, x, w, logits, states, dy, dx, *, room, dw=None, more=False, stream=0):
        """Write the input's gradient, unless it is None, from the forward pass's states, if they are read.

        The gradients of w and of the logits are left in ``room``: added, with ``more``, to what
        other images left there. :meth:`launch_kernel_gradient` and :meth:`launch_logits_gradient` write them.
        Where gradients are computed on tensor cores, w's is written, or added, to ``dw`` at once, unless that is None.
        ``room`` has device arrays of ``backward_shapes``; the others are as in :meth:`forward`.
        """
        if self.is_on_warps(logits is not None):
            return self._backward_on_warps(x, w, states, dy, dx, dw, room, more, stream)
        if self.is_whole_backward(logits is not None):
            return self._backward_whole(x, dy, dx, stream)
        packed, prior = self._pack(w, room, stream), self._prior(logits, states, room, stream)
        slopes, N, last = room["slopes"], self.geometry.N, self.options.iterations - 1
        shape = self.backward_shape
        self._end(dynamic_ends.make_begin_backward(shape), (dy, states, slopes, N, last), stream)
        arrays = (x, packed, prior, states, states, states, slopes)
        finish = dynamic_ends.make_finish_backward(shape)
        form = Earlier(shape, self.options.softmax_over, logits is not None)
        for t in range(last, self.options.first, -1):
            how = shape, form, arrays, room["partial"], t, stream
            blocks = self._reduce(*how)
            self._end(finish, (room["partial"], states, slopes, N, blocks, t), stream)
        self._gradients(self.gradient_form(logits is not None), arrays, dx, room, more, stream)

    def _backward_whole(self, x, dy, dx, stream):
        """The same of stored votes by one kernel."""
        shape, N, split = self.backward_shape, self.geometry.N, self._backward_split
        forms = self._form_of(shape, None), Earlier(shape, self.options.softmax_over, False)
        at_once = run_of(shape) if aligned(CHUNK, as_argument(dx)) else 1
        how = self._source(shape, x), at_once, *forms, self.options, split.parts
        grid = ceil_div(shape.groups(N), split.places)
        arguments = x, dy, dx, N, split.children
        run(make_whole_gradient(shape, *how), grid, TEAM_THREADS, arguments, stream)

    def _source(self, shape, x):
        """Where a kernel that routes positions whole gets its votes from."""
        if not self.stored:
            return make_votes(shape, False)
        return make_stored(shape, run_of(shape) if aligned(CHUNK, as_argument(x)) else 1)

    def _backward_on_warps(self, x, w, states, dy, dx, dw, room, more, stream):
        """The same on tensor cores."""
        if self.gradient_warps.is_filled_up:
            self._clear(room["held"], stream)
        is_direct = dx is not None and self.columns_are_dx
        columns = dx if is_direct else room["columns"]
        self.gradient_warps.launch(x, w, states, dy, columns, dw, room, more, stream)
        if dx is not None and not is_direct:
            self._over_windows(columns, dx, self.shape.geometry.E1, stream)

    def launch_logits_gradient(self, d_logits, room, stream):
        """Write what the backward passes have added up of the logits' gradient, (P, I)."""
        dtype = np.dtype(d_logits.dtype)
        self._unpack(room["d_prior"], d_logits, self.shape.children, dtype, stream)
