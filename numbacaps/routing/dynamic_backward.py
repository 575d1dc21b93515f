"""The gradient of dynamic routing, as forms of the passes.

With c the couplings of iteration t, ds the gradient of s and dc = <u, ds>:

    db = c (dc - sum of c dc)     over the parents of the child; over the children of the parent it is c (dc - <s, ds>)
    du = c ds + db A              summed over the iterations
    dA = sum over i of db u       which reaches every v before t

Where the logits are detached, du = c ds of the last iteration is all. In the first iteration A is 0, and without logits to
begin with all couplings are alike: du = ds / P.
"""

from dataclasses import dataclass
from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.made_once import made_once
from numbacaps.routing.constant import make_constant
from numbacaps.routing.dynamic import (
    make_add,
    make_logits,
    make_over_children,
    make_over_parents,
    make_read,
    make_zero,
    state_fields,
)
from numbacaps.routing.shape import Shape
from numbacaps.routing.team import make_columns_sum, make_parents_sum


def held_numbers(shape):
    """What is held of an iteration: A and ds, then lse and <s, ds>."""
    return 2 * shape.elements + 2 * shape.scalars


@cache
def make_hold(shape):
    """Device function ``hold(held, states, slopes, t, n, l, lane, N)``."""
    E, ELEMENTS, SCALARS = shape.geometry.E3, shape.elements, shape.scalars
    of_states, of_slopes = state_fields(E)
    read_state, read_of_state = make_read(shape, of_states)
    read_slope, read_of_slope = make_read(shape, of_slopes)
    E, ELEMENTS, SCALARS = map(specialized, (E, ELEMENTS, SCALARS))

    @cuda.jit(device=True, forceinline=True)
    def hold(held, states, slopes, t, n, l, lane, N):
        read_state(held, 0, states, 0, t, n, l, lane, N)
        read_slope(held, ELEMENTS, slopes, 0, t, n, l, lane, N)
        read_of_state(held, 2 * ELEMENTS, states, 2 * E, t + 1, n, l, lane, N)
        read_of_slope(held, 2 * ELEMENTS + SCALARS, slopes, 2 * E, t, n, l, lane, N)

    return hold


@cache
def make_slopes(shape, over, has_prior):
    """Device function ``slopes_of(B, D, V, held, prior, i, lane)``: couplings B[m, j] and D = db."""
    E, M, J = shape.own, shape.images, shape.parents
    ELEMENTS, SCALARS, sums = shape.elements, shape.scalars, shape.sums
    LSE, DOT = 2 * ELEMENTS, 2 * ELEMENTS + SCALARS
    OVER_PARENTS, ZERO = over == "parents", sums.type(0)
    logits, parents_sum = make_logits(shape, has_prior), make_parents_sum(shape)
    columns_sum = make_columns_sum(shape)
    couple = (make_over_parents if OVER_PARENTS else make_over_children)(shape)
    E, M, J, ELEMENTS, SCALARS = map(specialized, (E, M, J, ELEMENTS, SCALARS))
    LSE, DOT = map(specialized, (LSE, DOT))

    @cuda.jit(device=True, forceinline=True)
    def slopes_of(B, D, V, held, prior, i, lane):
        logits(B, V, held, prior, i, lane)
        couple(B, held, LSE)
        for s in range(SCALARS):
            D[s] = ZERO
            for e in range(E):
                D[s] += V[s * E + e] * held[ELEMENTS + s * E + e]
            D[s] = columns_sum(D[s])
        for m in range(M):
            inner = ZERO
            if OVER_PARENTS:
                for j in range(J):
                    inner += B[m * J + j] * D[m * J + j]
                inner = parents_sum(inner)
            for j in range(J):
                s = m * J + j
                away = inner if OVER_PARENTS else held[DOT + s]
                D[s] = B[s] * (D[s] - away)

    return slopes_of


@dataclass(frozen=True)
class Earlier:
    """dA = sum of db u: the gradient of the iterations before. A record is dA."""

    shape: Shape
    over: str
    has_prior: bool

    record = 1, 0

    @property
    def held(self):
        return held_numbers(self.shape)

    @made_once
    def functions(self):
        shape, E, sums = self.shape, self.shape.own, self.shape.sums
        SCALARS, ZERO = shape.scalars, sums.type(0)
        slopes_of = make_slopes(shape, self.over, self.has_prior)
        clear, merge = make_zero(SCALARS * E, sums), make_add(E)
        E, SCALARS = map(specialized, (E, SCALARS))

        @cuda.jit(device=True, forceinline=True)
        def absorb(record, V, held, prior, norm, total, t, n, l, i, lane, live, N):
            B, D = local_array(SCALARS, sums), local_array(SCALARS, sums)
            slopes_of(B, D, V, held, prior, i, lane)
            for s in range(SCALARS):
                db = D[s] if live else ZERO
                for e in range(E):
                    record[s * E + e] += db * V[s * E + e]

        return make_hold(shape), clear, absorb, merge


@cache
def make_add_slopes(shape, over, detach, has_logits):
    """Device function ``add(dV, dp, V, held, prior, i, lane)``: adds the gradient of the votes V, and their prior, in an iteration."""
    E, SCALARS, ELEMENTS, sums = shape.own, shape.scalars, shape.elements, shape.sums
    FULL, HAS_LOGITS = not detach, has_logits
    slopes_of = make_slopes(shape, over, has_logits)
    E, SCALARS, ELEMENTS = map(specialized, (E, SCALARS, ELEMENTS))

    @cuda.jit(device=True, forceinline=True)
    def add(dV, dp, V, held, prior, i, lane):
        B, D = local_array(SCALARS, sums), local_array(SCALARS, sums)
        slopes_of(B, D, V, held, prior, i, lane)
        for s in range(SCALARS):
            for e in range(E):
                dV[s * E + e] += B[s] * held[ELEMENTS + s * E + e]
                if FULL:
                    dV[s * E + e] += D[s] * held[s * E + e]
            if FULL and HAS_LOGITS:
                dp[s] += D[s]

    return add


@dataclass(frozen=True)
class DynamicGradient:
    """du of a child, and the gradient of its prior, which is the sum of db; without logits to begin with there is none."""

    shape: Shape
    over: str
    detach: bool
    has_logits: bool
    is_prior_of_capsules = False

    @property
    def held(self):
        return held_numbers(self.shape)

    @made_once
    def function(self):
        """Device function, as :mod:`numbacaps.routing.gradient` calls it."""
        shape, sums, HAS_LOGITS = self.shape, self.shape.sums, self.has_logits
        add = make_add_slopes(shape, self.over, self.detach, HAS_LOGITS)
        hold = make_hold(shape)
        read_slope, _ = make_read(shape, state_fields(shape.geometry.E3)[1])
        together = shape.geometry.P if self.over == "parents" else shape.children
        even = make_constant(1 / together, sums)
        ELEMENTS, HELD = map(specialized, (shape.elements, held_numbers(shape)))

        @cuda.jit(device=True, forceinline=True)
        def gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end):
            held = local_array(HELD, sums)
            if first == 0 and not HAS_LOGITS:
                read_slope(held, ELEMENTS, slopes, 0, 0, n, l, lane, N)
                for e in range(ELEMENTS):
                    dV[e] += even() * held[ELEMENTS + e]
                first = 1
            for t in range(first, end):
                hold(held, states, slopes, t, n, l, lane, N)
                add(dV, dp, V, held, prior, i, lane)

        return gradient
