"""The couplings of the last iteration, for who asks for them: how much of each child each parent gets.

    c[n, p, l, i]    of dynamic routing; of EM routing the assignments R

They are computed again from the parents' states. Thread mapping: a team a part of the children of some images at a position.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing import dynamic
from numbacaps.routing.em import make_hold_gaussians, make_log_p, make_norms
from numbacaps.routing.shape import Shape
from numbacaps.routing.votes import make_parent, make_votes


@cache
def make_couplings(shape, stored, form):
    """Kernel that writes the couplings of a form."""
    g = shape.geometry
    L, P, CHILDREN, M, J, TEAM, TEAMS = (
        *(g.L, g.P, shape.children, shape.images),
        *(shape.parents, shape.team, shape.teams),
    )
    ELEMENTS, SCALARS, HELD, sums = shape.elements, shape.scalars, form.held, shape.sums
    _, write = conversions(shape.dtype)
    votes, (parent, has_parent) = make_votes(shape, stored), make_parent(shape)
    hold, of_child = form.functions
    L, P, CHILDREN, M, J = map(specialized, (L, P, CHILDREN, M, J))
    TEAM, TEAMS, ELEMENTS, SCALARS, HELD = map(specialized, (TEAM, TEAMS, ELEMENTS, SCALARS, HELD))

    @kept_on_disk
    @cuda.jit
    def routing_couplings_kernel(
        x,  # in   (N, C, H, W, E1), or votes (N, P, L, I, E)
        w,  # in   (Q, E2, P)
        prior,  # in
        norm,  # in
        states,  # in
        couplings,  # out  (N, P, L, I)
        N,
        count,  # children of a team
        t,
    ):
        V, held = local_array(ELEMENTS, sums), local_array(HELD, sums)
        B = local_array(SCALARS, sums)
        lane = cuda.threadIdx.x % TEAM
        place = cuda.blockIdx.x * TEAMS + cuda.threadIdx.x // TEAM
        inside = place < (N + M - 1) // M * L
        place = place if inside else 0
        l, n = place % L, place // L * M
        hold(held, states, t, n, l, lane, N)
        for step in range(count):
            i = cuda.blockIdx.y * count + step
            if i >= CHILDREN:
                break
            votes(V, x, w, n, l, i, lane, N)
            of_child(B, V, held, prior, norm, t, n, l, i, lane, N)
            for m in range(M):
                for j in range(J):
                    if inside and n + m < N and has_parent(lane, j):
                        to = ((n + m) * P + parent(lane, j)) * L + l
                        couplings[at(to * CHILDREN + i)] = write(B[m * J + j])

    return routing_couplings_kernel


@dataclass(frozen=True)
class DynamicCouplings:
    """softmax of the last logits."""

    shape: Shape
    over: str

    @property
    def held(self):
        return self.shape.elements + self.shape.scalars

    @cached_property
    def functions(self):
        shape, E, ELEMENTS = self.shape, self.shape.geometry.E3, self.shape.elements
        read, read_number = dynamic.make_read(shape, dynamic.state_fields(E)[0])
        logits = dynamic.make_logits(shape)
        over_parents = self.over == "parents"
        couple = (dynamic.make_over_parents if over_parents else dynamic.make_over_children)(shape)
        E, ELEMENTS = map(specialized, (E, ELEMENTS))

        @cuda.jit(device=True, forceinline=True)
        def hold(held, states, t, n, l, lane, N):
            read(held, 0, states, 0, t, n, l, lane, N)
            read_number(held, ELEMENTS, states, 2 * E, t + 1, n, l, lane, N)

        @cuda.jit(device=True, forceinline=True)
        def of_child(B, V, held, prior, norm, t, n, l, i, lane, N):
            logits(B, V, held, prior, i, lane)
            couple(B, held, ELEMENTS)

        return hold, of_child


@dataclass(frozen=True)
class Assignments:
    """R of the last E step."""

    shape: Shape
    normalise: str

    @property
    def held(self):
        return 2 * self.shape.elements + self.shape.scalars

    @cached_property
    def functions(self):
        shape, sums = self.shape, self.shape.sums
        M, J = shape.images, shape.parents
        gaussians, log_p = make_hold_gaussians(shape), make_log_p(shape)
        norms = make_norms(shape, self.normalise)
        M, J, ELEMENTS = map(specialized, (M, J, shape.elements))

        @cuda.jit(device=True, forceinline=True)
        def hold(held, states, t, n, l, lane, N):
            gaussians(held, states, states, t, n, l, lane, N)

        @cuda.jit(device=True, forceinline=True)
        def of_child(B, V, held, prior, norm, t, n, l, i, lane, N):
            of_images, steep = local_array(M, sums), local_array(ELEMENTS, sums)
            log_p(B, steep, V, held, lane)
            norms(of_images, B, norm, t, n, l, i, N)
            for m in range(M):
                for j in range(J):
                    B[m * J + j] = sums.type(math.exp(B[m * J + j] - of_images[m]))

        return hold, of_child
