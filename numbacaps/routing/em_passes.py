"""The passes of EM routing, as :mod:`numbacaps.routing.passes` has those of dynamic routing."""

import numpy as np

from numbacaps.device.launch import ceil_div
from numbacaps.made_once import made_once
from numbacaps.routing import em, em_ends
from numbacaps.routing.couplings import Assignments
from numbacaps.routing.em_backward import EarlierGaussians, EMGradient, Shares
from numbacaps.routing.overlap import make_norms_of_capsules
from numbacaps.routing.pack import make_unpack
from numbacaps.routing.passes import Passes, run
from numbacaps.routing.shape import TEAM_THREADS


class EMPasses(Passes):
    """EM routing. The prior is the children's activations, (N, C, H, W), in the dtype of sums."""

    state_fields = staticmethod(em.state_fields)

    _prior_size = 0  # of what images share: activations are each image's own

    @property
    def _overlaps(self):
        return self.options.normalise == "all"

    @made_once
    def forward_form(self):
        return em.MStep(self.shape, self.options.normalise)

    @made_once
    def backward_form(self):
        return EarlierGaussians(self.backward_shape, self.options.normalise)

    def gradient_form(self, has_logits=False):
        """The form of the votes' gradients; logits are dynamic routing's."""
        return EMGradient(self.backward_shape, self.options.normalise, self.options.detach)

    def _scalars(self, t):
        """Epsilon, and the inverse temperature of iteration t."""
        return self.sums.type(self.options.epsilon), self.sums.type(self.options.temperatures[t])

    def is_on_warps(self, has_logits=False):
        return self.gradient_warps is not None

    @property
    def norms_shape(self):
        """(iterations, N, C, H, W): the capsules' norms, which the backward pass reads."""
        g = self.shape.geometry
        if not self._overlaps:
            return (1,)
        return self.options.iterations, self.geometry.N, g.C, g.H, g.W

    @property
    def d_prior_shape(self):
        """(N, L, I): the gradient of the activations by each position's children."""
        return self.geometry.N, self.geometry.L, self.shape.children

    def _more_shapes(self, has_logits, backward=False):
        betas = {"d_betas": (2, self.geometry.P)} if backward else {}
        if backward and self.is_on_warps():
            return betas | {"slopes": self.slopes_shape}
        if not self._overlaps:
            return betas
        found = betas | {"found": (self.geometry.N, self.geometry.L, self.shape.children)}
        return found | ({"total": self.norms_shape} if backward else {})

    def forward(
        self, x, w, operands, states, norms, y, a_out, *, room, keep=True, couplings=None, stream=0
    ):
        """Write the means and activations of the parents, the states, and the norms of capsules.

        Parameters
        ----------
        x, w : device arrays, (N, C, H, W, E1) and (P, I, E2)
        operands : tuple of device arrays
            Activations (N, C, H, W); beta_u and beta_a (P,).
        states, norms : device arrays of ``forward_states_shape(keep)`` and ``norms_shape``, written
        y, a_out : device arrays (N, P, L, E) and (N, P, L), written
        room : dict of device arrays of ``forward_shapes``
        keep : bool
            The states of all iterations are wanted; so are they where couplings are.
        stream : Numba stream
        """
        activations, *betas = operands
        if self.warps:
            self._forward_on_warps(x, w, operands, states, y, a_out, room, keep, stream)
        else:
            arrays = x, self._pack(w, room, stream), activations, norms, states, states
            self._clear(states[0], stream)
            finish, N = em_ends.make_finish(self.shape), self.geometry.N
            for t in range(self.options.iterations):
                if self._overlaps:
                    self._norms(arrays, norms[t], room["found"], t, stream)
                how = (*arrays, states), room["partial"], t, stream
                blocks = self._reduce(self.shape, self.forward_form, *how)
                ends = (room["partial"], *betas, states, y, a_out, N, blocks, t)
                self._end(finish, ends, stream, self._scalars(t))
        if couplings is not None:
            arrays = x, self._pack(w, room, stream), activations, norms, states, states
            form = Assignments(self.shape, self.options.normalise)
            self._of_children(form, arrays, couplings, self.options.iterations - 1, stream)

    def _forward_on_warps(self, x, w, operands, states, y, a_out, room, keep, stream):
        """The same on tensor cores, but for the couplings."""
        activations, *betas = operands
        finish, N = em_ends.make_finish(self.shape), self.geometry.N
        if keep:
            self._clear(states[0], stream)
        for t in range(self.options.iterations):
            old, new = (t, t) if keep else (0, -1)  # without, one state is read, then written
            self.warps.launch(x, w, activations, states, room["partial"], old, t, stream)
            ends = (room["partial"], *betas, states, y, a_out, N, self.warps.parts, new)
            self._end(finish, ends, stream, self._scalars(t), early=True)

    def _norms(self, arrays, norms, found, t, stream):
        """Write the capsules' norms before iteration t."""
        self._of_children(em.Norms(self.backward_shape), arrays, found, t, stream)
        kernel, grid = make_norms_of_capsules(self.shape), ceil_div(norms.size, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (found, norms, self.geometry.N), stream)

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
        *,
        room,
        dw=None,
        more=False,
        stream=0,
    ):
        """Write the gradients of the input and the activations, unless ``dx`` is None.

        Those of w and of the betas are left in ``room``, as in :meth:`DynamicPasses.backward`; ``room["d_betas"]`` is (2, P).
        """
        N, last = self.geometry.N, self.options.iterations - 1
        slopes, shape, beta_u = room["slopes"], self.backward_shape, operands[1]
        ends = (dy, d_out, beta_u, states, slopes, N, last)
        self._end(em_ends.make_begin_backward(shape), ends, stream, self._scalars(last))
        if self.is_on_warps():
            self._iterations_on_warps(x, w, operands, states, dx, dw, room, more, stream)
        else:
            self._iterations(x, w, operands, states, norms, dx, room, more, stream)
        o, places = self.options, self.places
        ends = (slopes, room["d_betas"], o.first * places, o.iterations * places, int(more))
        grid = self.geometry.P, 2
        run(em_ends.make_sum_betas(shape), grid, em_ends.SUM_THREADS, ends, stream)
        if dx is not None:
            self._over_windows(room["d_prior"], d_activations, 1, stream)

    def _iterations(self, x, w, operands, states, norms, dx, room, more, stream):
        """Behind the slope of the last iteration: those of the others, and what children get."""
        packed, N = self._pack(w, room, stream), self.geometry.N
        slopes, last, shape = room["slopes"], self.options.iterations - 1, self.backward_shape
        activations, beta_u, _ = operands
        total = room["total"] if self._overlaps else norms
        arrays = (x, packed, activations, norms, total, states, slopes)
        finish = em_ends.make_finish_backward(shape)
        for t in range(last, self.options.first - 1, -1):
            if self._overlaps and not self.options.detach:
                some = (x, packed, activations, norms, states, slopes)
                self._of_children(Shares(shape), some, room["found"], t, stream)
                self._over_windows(room["found"], total[t], 1, stream)
            if t == self.options.first:
                break
            how = shape, self.backward_form, arrays, room["partial"], t, stream
            blocks = self._reduce(*how)
            ends = (room["partial"], beta_u, states, slopes, N, blocks, t)
            self._end(finish, ends, stream, self._scalars(t - 1))
        self._gradients(self.gradient_form(), arrays, dx, room, more, stream)

    def _iterations_on_warps(self, x, w, operands, states, dx, dw, room, more, stream):
        """The same on tensor cores, where each pass computes what children get of its iteration."""
        slopes, last, o = room["slopes"], self.options.iterations - 1, self.options
        activations, beta_u, _ = operands
        is_direct = dx is not None and self.columns_are_dx
        columns = dx if is_direct else room["columns"]
        finish = em_ends.make_finish_backward(self.backward_shape)
        warps, has_dw = self.gradient_warps, dw is not None
        for t in range(last, o.first - 1, -1):
            warps.launch(x, w, activations, states, slopes, columns, room, t, has_dw, stream)
            if t > o.first:
                ends = (room["partial"], beta_u, states, slopes, self.geometry.N, warps.parts, t)
                self._end(finish, ends, stream, self._scalars(t - 1))
        if has_dw:
            warps.add_parts(dw, room, more, stream)
        if dx is not None and not is_direct:
            self._over_windows(columns, dx, self.shape.geometry.E1, stream)

    def launch_betas_gradient(self, d_beta_u, d_beta_a, room, stream):
        """Write what the backward passes have added up of the gradients of both betas, (P,)."""
        for found, to in zip(room["d_betas"], (d_beta_u, d_beta_a)):
            self._copy(found, to, stream)

    def _copy(self, found, to, stream):
        """Numbers in the dtype of sums as those that they are the gradient of."""
        kernel, grid = make_unpack(1, np.dtype(to.dtype)), ceil_div(to.size, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (found, to, to.size, 1), stream)
