"""The passes of a routing problem: which kernels run, in which order, on which memory.

Arrays are C-contiguous device arrays, in the layouts that the kernels name. What is in device memory beside operands
and results: the packed kernel, the parents' states of every iteration, and the records that blocks leave to be merged.
No vote is among them.
"""

from dataclasses import replace
from functools import cache, cached_property

import numpy as np

from numbacaps.device.launch import ceil_div
from numbacaps.device.scalars import CompiledWithScalars
from numbacaps.routing import dynamic, dynamic_ends, em, em_ends
from numbacaps.routing.couplings import Assignments, DynamicCouplings, make_couplings
from numbacaps.routing.dynamic_backward import DynamicGradient, Earlier
from numbacaps.routing.em_backward import EarlierGaussians, EMGradient, Shares
from numbacaps.routing.gradient import (
    make_input_gradient,
    make_kernel_gradient,
    make_votes_gradient,
)
from numbacaps.routing.overlap import make_of_capsules, make_of_children
from numbacaps.routing.pack import make_clear, make_pack, make_unpack
from numbacaps.routing.reduce import make_reduce
from numbacaps.routing.shape import TEAM_THREADS, WARP, Shape, Split, teams_wanted

_OWN_ELEMENTS = 64  # of the kernel's gradient that a lane adds up, about


@cache
def _compiled(kernel, dtypes, integers, scalars):
    return CompiledWithScalars(kernel, dtypes, integers, scalars)


def run(kernel, grid, threads, arguments, stream, scalars=()):
    """Launch a kernel of arrays, then integers, then scalars of a floating-point dtype."""
    arrays = [one.reshape(one.size) for one in arguments if hasattr(one, "dtype")]
    integers = [one for one in arguments if not hasattr(one, "dtype")]
    dtypes, behind = (tuple(one.dtype for one in some) for some in (arrays, scalars))
    compiled = _compiled(kernel, dtypes, len(integers), behind)
    compiled.launch(grid, (threads, 1, 1), stream, (*arrays, *integers), scalars)


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
    """

    def __init__(self, geometry, dtype, options, stored=False, splits=None):
        if stored and options.is_summed:
            geometry = geometry.of_summed_votes
        self.geometry, self.options, self.stored = geometry, options, stored
        self.shape = Shape.of(geometry, dtype, options.is_summed)
        # A lane's part of a gradient takes more registers.
        self.backward_shape = replace(self.shape, images=min(self.shape.images, 2))
        self.places = geometry.N * geometry.L
        self.splits = splits or self._wanted_splits()

    @property
    def sums(self):
        """The dtype of states and of all else that is added."""
        return self.shape.sums

    @cached_property
    def states_shape(self):
        """(iterations + 1, N * L, fields, P): what the forward pass leaves for the backward one."""
        g, fields = self.geometry, self.state_fields(self.geometry.E3)[0]
        return self.options.iterations + 1, self.places, fields, g.P

    @property
    def slopes_shape(self):
        g, fields = self.geometry, self.state_fields(self.geometry.E3)[1]
        return self.options.iterations, self.places, fields, g.P

    def _split(self, shape, form):
        return Split.of(shape, self.geometry.N, form.fields)

    def _partial_shape(self, shape, form):
        return self._split(shape, form).blocks, self.places, form.fields, self.geometry.P

    @property
    def _packed_shape(self):
        g = self.shape.geometry
        return (1,) if self.stored else (g.Q, g.E2, g.P)

    def forward_shapes(self):
        """Workspace of the forward pass."""
        return {
            "packed": self._packed_shape,
            "partial": self._partial_shape(self.shape, self.forward_form),
            **self._more_shapes(),
        }

    def backward_shapes(self):
        """Workspace of the backward pass."""
        g, splits, children = self.shape.geometry, self.splits, self.shape.children
        found = {"packed": self._packed_shape, "slopes": self.slopes_shape}
        found["partial"] = self._partial_shape(self.backward_shape, self.backward_form)
        found["d_prior"] = splits, children, g.P
        found["d_capsules"] = self.geometry.N, self.shape.capsules
        if self.stored:
            found["d_children"] = self.geometry.N, self.geometry.L, children
        else:
            found["dw"] = splits, g.Q, g.E2, g.P
        return found | self._more_shapes(backward=True)

    def _more_shapes(self, backward=False):
        return {}

    @property
    def _rows(self):
        """Of D2 that a team has of the kernel's gradient."""
        g = self.geometry
        most = max(1, _OWN_ELEMENTS // (self.shape.parents * g.G * g.D3))
        return ceil_div(g.D2, ceil_div(g.D2, min(g.D2, most)))

    @property
    def _owners(self):
        """Teams that have the kernel's gradient, or that of stored votes, if nothing is shared."""
        g = self.shape.geometry
        return self.shape.children if self.stored else g.Q * ceil_div(g.D2, self._rows)

    @property
    def times(self):
        """How often all votes are computed, forward and backward; where they are stored, their own gradients apart."""
        if self.stored:
            return 1, 1
        o, taps = self.options, self.shape.taps
        of_owners = taps * (1 + ceil_div(self.geometry.D2, self._rows))
        return o.iterations, 2 * o.iterations - 1 - o.first + of_owners

    def _wanted_splits(self):
        """Teams that share what an owner walks over."""
        shape = self.backward_shape
        groups = shape.groups(self.geometry.N)
        wanted = max(1, teams_wanted(shape) // self._owners)
        return ceil_div(groups, ceil_div(groups, min(groups, wanted)))

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
        """One pass over the children."""
        split, N = self._split(shape, form), self.geometry.N
        kernel = make_reduce(shape, self.stored, form, split.parts)
        grid = ceil_div(shape.groups(N), split.places), split.blocks
        run(kernel, grid, TEAM_THREADS, (*arrays, partial, N, split.children, t), stream)
        return split.blocks

    def _end(self, kernel, arguments, stream, scalars=()):
        """What is done for each parent at each position."""
        grid = ceil_div(self.places * self.geometry.P, WARP)
        run(kernel, grid, WARP, arguments, stream, scalars)

    def _gradients(self, form, arrays, dx, wants_kernel, room, more, stream):
        """The gradients of x, w and the prior from the slopes of all iterations; those of w and the prior in ``room``."""
        shape, N, o = self.backward_shape, self.geometry.N, self.options
        g, splits = shape.geometry, self.splits
        count = ceil_div(shape.groups(N), splits)
        if self.stored:
            kernel = make_votes_gradient(shape, form)
            grid = ceil_div(self._owners, shape.teams), splits
            arguments = (*arrays, dx, room["d_children"], room["d_prior"])
            arguments = (*arguments, N, count, o.first, o.iterations, int(more))
            return run(kernel, grid, TEAM_THREADS, arguments, stream)
        if dx is not None:
            kernel = make_input_gradient(shape, form)
            across = ceil_div(ceil_div(N, shape.images) * g.C, shape.teams)
            arguments = (*arrays, dx, room["d_capsules"], N, o.first, o.iterations)
            run(kernel, across * g.H * g.W, TEAM_THREADS, arguments, stream)
        if wants_kernel:
            kernel = make_kernel_gradient(shape, form, self._rows)
            grid = ceil_div(self._owners, shape.teams), splits
            arguments = (*arrays, room["dw"], room["d_prior"])
            arguments = (*arguments, N, count, o.first, o.iterations, int(more))
            run(kernel, grid, TEAM_THREADS, arguments, stream)

    def launch_couplings(self, form, arrays, couplings, stream):
        """Write the last iteration's couplings, (N, P, L, I)."""
        shape, N = self.shape, self.geometry.N
        split = Split.of(shape, N, 1)
        count = ceil_div(shape.children, split.parts * split.blocks)
        grid = ceil_div(shape.groups(N), shape.teams), split.parts * split.blocks
        arguments = (*arrays, couplings, N, count, self.options.iterations - 1)
        run(make_couplings(shape, self.stored, form), grid, TEAM_THREADS, arguments, stream)

    def launch_kernel_gradient(self, dw, room, stream):
        """Write what the backward passes of all parts of a batch have added up of w's gradient."""
        g = self.shape.geometry
        self._unpack(room["dw"], dw, g.Q * g.E2, self.shape.dtype, stream)

    def _unpack(self, packed, w, size, dtype, stream):
        """Add splits of what has (splits, size, P), and write it as (P, size)."""
        P, splits = self.geometry.P, packed.shape[0]
        kernel, grid = make_unpack(P, dtype), ceil_div(size * P, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (packed, w, size, splits), stream)


class DynamicPasses(Passes):
    """Dynamic routing. The prior is the logits that routing begins with, (I, P)."""

    state_fields = staticmethod(dynamic.state_fields)

    @cached_property
    def forward_form(self):
        over_parents = self.options.softmax_over == "parents"
        return (dynamic.OverParents if over_parents else dynamic.OverChildren)(self.shape)

    @cached_property
    def backward_form(self):
        return Earlier(self.backward_shape, self.options.softmax_over)

    def _more_shapes(self, backward=False):
        return {"prior": (self.shape.children, self.geometry.P)}

    def _prior(self, logits, room, stream):
        if logits is not None:
            dtype, size = np.dtype(logits.dtype), self.shape.children
            grid = ceil_div(logits.size, TEAM_THREADS)
            kernel = make_pack(self.geometry.P, dtype)
            run(kernel, grid, TEAM_THREADS, (logits, room["prior"], size), stream)
        else:
            self._clear(room["prior"], stream)
        return room["prior"]

    def forward(self, x, w, logits, states, y, *, room, couplings=None, stream=0):
        """Write v, the states, and the couplings (N, P, L, I) unless they are None.

        Parameters
        ----------
        x, w : device arrays, (N, C, H, W, E1) and (P, I, E2)
        logits : device array (P, I), or None for zeros
        states : device array of ``states_shape``, written
        y : device array (N, P, L, E), written
        room : dict of device arrays of ``forward_shapes``
        stream : Numba stream
        """
        packed, prior = self._pack(w, room, stream), self._prior(logits, room, stream)
        self._clear(states[0], stream)
        finish = dynamic_ends.make_finish(self.shape, self.options.softmax_over)
        arrays = (x, packed, prior, states, states, states, states)
        for t in range(self.options.iterations):
            how = self.shape, self.forward_form, arrays, room["partial"], t, stream
            blocks = self._reduce(*how)
            self._end(finish, (room["partial"], states, y, self.geometry.N, blocks, t), stream)
        if couplings is not None:
            form = DynamicCouplings(self.shape, self.options.softmax_over)
            self.launch_couplings(form, arrays[:5], couplings, stream)

    def backward(self, x, w, logits, states, dy, dx, wants_kernel, *, room, more=False, stream=0):
        """Write the input's gradient, unless it is None, from the forward pass's states.

        The gradients of w and of the logits are left in ``room``, where they are asked for: added, with ``more``, to what
        other images left there. :meth:`launch_kernel_gradient` and :meth:`launch_logits_gradient` write them.
        ``room`` has device arrays of ``backward_shapes``; the others are as in :meth:`forward`.
        """
        packed, prior = self._pack(w, room, stream), self._prior(logits, room, stream)
        slopes, N, last = room["slopes"], self.geometry.N, self.options.iterations - 1
        shape = self.backward_shape
        self._end(dynamic_ends.make_begin_backward(shape), (dy, states, slopes, N, last), stream)
        arrays = (x, packed, prior, states, states, states, slopes)
        finish = dynamic_ends.make_finish_backward(shape)
        for t in range(last, self.options.first, -1):
            how = shape, self.backward_form, arrays, room["partial"], t, stream
            blocks = self._reduce(*how)
            self._end(finish, (room["partial"], states, slopes, N, blocks, t), stream)
        form = DynamicGradient(shape, self.options.softmax_over, self.options.detach)
        self._gradients(form, arrays, dx, wants_kernel, room, more, stream)

    def launch_logits_gradient(self, d_logits, room, stream):
        """Write what the backward passes have added up of the logits' gradient, (P, I)."""
        dtype = np.dtype(d_logits.dtype)
        self._unpack(room["d_prior"], d_logits, self.shape.children, dtype, stream)


class EMPasses(Passes):
    """EM routing. The prior is the children's activations, (N, C, H, W), in the dtype of sums."""

    state_fields = staticmethod(em.state_fields)

    @property
    def _overlaps(self):
        return self.options.normalise == "all"

    @cached_property
    def forward_form(self):
        return em.MStep(self.shape, self.options.normalise)

    @cached_property
    def backward_form(self):
        return EarlierGaussians(self.backward_shape, self.options.normalise)

    def _scalars(self, t):
        """Epsilon, and the inverse temperature of iteration t."""
        return self.sums.type(self.options.epsilon), self.sums.type(self.options.temperatures[t])

    @property
    def norms_shape(self):
        """(iterations, N, C, H, W): the capsules' norms, which the backward pass reads."""
        g = self.shape.geometry
        if not self._overlaps:
            return (1,)
        return self.options.iterations, self.geometry.N, g.C, g.H, g.W

    def _more_shapes(self, backward=False):
        betas = {"d_betas": (2, self.geometry.P)} if backward else {}
        if not self._overlaps:
            return betas
        found = betas | {"found": (self.geometry.N, self.geometry.L, self.shape.children)}
        return found | ({"total": self.norms_shape} if backward else {})

    def _of_capsules(self, form, arrays, room, total, t, stream):
        """A number of every child, put together for every capsule."""
        shape, N = self.backward_shape, self.geometry.N
        split = Split.of(shape, N, 1)
        parts = split.parts * split.blocks
        count = ceil_div(shape.children, parts)
        grid = ceil_div(shape.groups(N), shape.teams), parts
        arguments = (*arrays, room["found"], N, count, t)
        run(make_of_children(shape, self.stored, form), grid, TEAM_THREADS, arguments, stream)
        self._together(room["found"], total, isinstance(form, em.Norms), t, stream)

    def _together(self, found, total, logarithms, t, stream):
        """Put together what a capsule's children have found."""
        N, kernel = self.geometry.N, make_of_capsules(self.shape, logarithms)
        grid = ceil_div(N * self.shape.capsules, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (found, total, N, t), stream)

    def forward(self, x, w, operands, states, norms, y, a_out, *, room, couplings=None, stream=0):
        """Write the means and activations of the parents, the states, and the norms of capsules.

        Parameters
        ----------
        x, w : device arrays, (N, C, H, W, E1) and (P, I, E2)
        operands : tuple of device arrays
            Activations (N, C, H, W); beta_u and beta_a (P,).
        states, norms : device arrays of ``states_shape`` and ``norms_shape``, written
        y, a_out : device arrays (N, P, L, E) and (N, P, L), written
        room : dict of device arrays of ``forward_shapes``
        stream : Numba stream
        """
        packed, N = self._pack(w, room, stream), self.geometry.N
        self._clear(states[0], stream)
        activations, *betas = operands
        finish = em_ends.make_finish(self.shape)
        arrays = (x, packed, activations, norms, states, states, states)
        for t in range(self.options.iterations):
            if self._overlaps:
                form = em.Norms(self.backward_shape)
                some = (x, packed, activations, norms, states, states)
                self._of_capsules(form, some, room, norms, t, stream)
            how = self.shape, self.forward_form, arrays, room["partial"], t, stream
            blocks = self._reduce(*how)
            ends = (room["partial"], *betas, states, y, a_out, N, blocks, t)
            self._end(finish, ends, stream, self._scalars(t))
        if couplings is not None:
            form = Assignments(self.shape, self.options.normalise)
            self.launch_couplings(form, (*arrays[:4], states), couplings, stream)

    def backward(
        self,
        x,
        w,
        operands,
        states,
        norms,
        dy,
        d_out,
        dx,
        d_activations,
        wants_kernel,
        *,
        room,
        more=False,
        stream=0,
    ):
        """Write the gradients of the input and the activations, unless ``dx`` is None.

        Those of w and of the betas are left in ``room``, as in :meth:`DynamicPasses.backward`; ``room["d_betas"]`` is (2, P).
        """
        packed, N = self._pack(w, room, stream), self.geometry.N
        slopes, last = room["slopes"], self.options.iterations - 1
        shape, (activations, beta_u, _) = self.backward_shape, operands
        ends = (dy, d_out, beta_u, states, slopes, N, last)
        self._end(em_ends.make_begin_backward(shape), ends, stream, self._scalars(last))
        total = room["total"] if self._overlaps else norms
        arrays = (x, packed, activations, norms, total, states, slopes)
        finish = em_ends.make_finish_backward(shape)
        for t in range(last, self.options.first - 1, -1):
            if self._overlaps and not self.options.detach:
                some = (x, packed, activations, norms, states, slopes)
                self._of_capsules(Shares(shape), some, room, total, t, stream)
            if t == self.options.first:
                break
            how = shape, self.backward_form, arrays, room["partial"], t, stream
            blocks = self._reduce(*how)
            ends = (room["partial"], beta_u, states, slopes, N, blocks, t)
            self._end(finish, ends, stream, self._scalars(t - 1))
        form = EMGradient(shape, self.options.normalise, self.options.detach)
        self._gradients(form, arrays, dx, wants_kernel, room, more, stream)
        o, places = self.options, self.places
        ends = (slopes, room["d_betas"], o.first * places, o.iterations * places, int(more))
        grid = self.geometry.P, 2
        run(em_ends.make_sum_betas(shape), grid, em_ends.SUM_THREADS, ends, stream)
        if dx is not None:
            if self.stored:
                self._together(room["d_children"], room["d_capsules"], False, 0, stream)
            self._copy(room["d_capsules"], d_activations, stream)

    def launch_betas_gradient(self, d_beta_u, d_beta_a, room, stream):
        """Write what the backward passes have added up of the gradients of both betas, (P,)."""
        for found, to in zip(room["d_betas"], (d_beta_u, d_beta_a)):
            self._copy(found, to, stream)

    def _copy(self, found, to, stream):
        """Numbers in the dtype of sums as those that they are the gradient of."""
        kernel, grid = make_unpack(1, np.dtype(to.dtype)), ceil_div(to.size, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (found, to, to.size, 1), stream)
