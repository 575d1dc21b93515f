"""The gradient of EM routing, as forms of the passes.

With omega = R a / S, the part of a parent that a child is, and dmu, dvar the gradients of the mean and the variance:

    D[i,j] = gamma + sum of dmu (V - mu) + dvar (V - mu)^2     S times the gradient of a weight; gamma = S dS - sum of dvar var
    dV = omega (dmu + 2 dvar (V - mu)) - dlog (V - mu') / variance'
    dlog = omega D - R q       q = sum of omega D over the parents (of the position, or all of the capsule)
    da = sum of R / S D

where mu' and variance' are those of the iteration before, which the E step read. To that one go the sums over i of
dlog, dlog (V - mu') and dlog (V - mu')^2. A slope is (dmu: E, dvar: E, gamma, dbeta_u, dbeta_a), of the same iteration.

Where assignments are detached, the last iteration without dlog is all. In the first iteration, normalised over the window, R
is 1 / P whatever the votes are, and there is no dlog.
"""

import math
from dataclasses import dataclass
from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.made_once import made_once
from numbacaps.routing.children import make_write_of_images
from numbacaps.routing.dynamic import make_add, make_read, make_zero
from numbacaps.routing.em import (
    make_activations,
    make_even,
    make_hold_gaussians,
    make_log,
    make_log_p,
    make_norms,
    state_fields,
)
from numbacaps.routing.shape import Shape
from numbacaps.routing.team import make_columns_sum, make_parents_sum
from numbacaps.routing.votes import make_capsule


def held_numbers(shape):
    """What is held of an iteration: mu', 1 / variance', bias'; mu, log S; dmu, dvar, gamma."""
    return 5 * shape.elements + 3 * shape.scalars


@cache
def make_hold(shape):
    """Device functions ``(hold, hold_after)``, both ``(held, states, slopes, t, n, l, lane, N)``.

    The second leaves out what the E step reads.
    """
    E, ELEMENTS, SCALARS = shape.geometry.E3, shape.elements, shape.scalars
    of_states, of_slopes = state_fields(E)
    read_state, read_of_state = make_read(shape, of_states)
    read_slope, read_of_slope = make_read(shape, of_slopes)
    before = make_hold_gaussians(shape)
    MU = 2 * ELEMENTS + SCALARS
    E, ELEMENTS, SCALARS, MU = map(specialized, (E, ELEMENTS, SCALARS, MU))

    @cuda.jit(device=True, forceinline=True)
    def hold_after(held, states, slopes, t, n, l, lane, N):
        read_state(held, MU, states, 0, t + 1, n, l, lane, N)
        read_of_state(held, MU + ELEMENTS, states, 2 * E + 1, t + 1, n, l, lane, N)
        read_slope(held, MU + ELEMENTS + SCALARS, slopes, 0, t, n, l, lane, N)
        read_slope(held, MU + 2 * ELEMENTS + SCALARS, slopes, E, t, n, l, lane, N)
        read_of_slope(held, MU + 3 * ELEMENTS + SCALARS, slopes, 2 * E, t, n, l, lane, N)

    @cuda.jit(device=True, forceinline=True)
    def hold(held, states, slopes, t, n, l, lane, N):
        before(held, states, slopes, t, n, l, lane, N)
        hold_after(held, states, slopes, t, n, l, lane, N)

    return hold, hold_after


@cache
def make_logarithms(shape, normalise):
    """Device function ``logarithms(R, steep, V, held, given, t, n, l, i, lane, N)``: log R, and (V - mu') / variance'."""
    M, J, sums = shape.images, shape.parents, shape.sums
    log_p, norms = make_log_p(shape), make_norms(shape, normalise)
    M, J = map(specialized, (M, J))

    @cuda.jit(device=True, forceinline=True)
    def logarithms(R, steep, V, held, given, t, n, l, i, lane, N):
        norm = local_array(M, sums)
        log_p(R, steep, V, held, lane)
        norms(norm, R, given, t, n, l, i, N)
        for m in range(M):
            for j in range(J):
                R[m * J + j] -= norm[m]

    return logarithms


@cache
def make_shares(shape):
    """Device function ``shares(R, omega, D, part, pull, V, held, prior, n, l, i, N)``: what of a child each parent gets.

    ``R`` comes as its logarithm, and becomes R. It writes ``omega``, and omega D to ``D``; R / S D, which reaches the child's
    activation, to ``part``; and dmu + 2 dvar (V - mu) to ``pull``.
    """
    E, M, J = shape.own, shape.images, shape.parents
    ELEMENTS, SCALARS = shape.elements, shape.scalars
    MU = 2 * ELEMENTS + SCALARS
    LOG_S, DMU = MU + ELEMENTS, MU + ELEMENTS + SCALARS
    DVAR, GAMMA, sums = DMU + ELEMENTS, DMU + 2 * ELEMENTS, shape.sums
    LOWEST, ZERO = sums.type(-math.inf), sums.type(0)
    log = make_log(sums)
    activation, columns_sum = make_activations(shape), make_columns_sum(shape)
    E, M, J, MU, LOG_S = map(specialized, (E, M, J, MU, LOG_S))
    DMU, DVAR, GAMMA = map(specialized, (DMU, DVAR, GAMMA))

    @cuda.jit(device=True, forceinline=True)
    def shares(R, omega, D, part, pull, V, held, prior, n, l, i, N):
        for m in range(M):
            weight = log(activation(prior, n + m, l, i, N))
            for j in range(J):
                s = m * J + j
                b, inner = R[s], ZERO
                for e in range(E):
                    away = V[s * E + e] - held[MU + s * E + e]
                    half = held[DMU + s * E + e] + away * held[DVAR + s * E + e]
                    inner += away * half
                    pull[s * E + e] = half + away * held[DVAR + s * E + e]
                inner = held[GAMMA + s] + columns_sum(inner)
                R[s] = sums.type(math.exp(b))
                omega[s], part[s] = ZERO, ZERO
                if b != LOWEST:
                    part[s] = sums.type(math.exp(b - held[LOG_S + s])) * inner
                    if weight != LOWEST:
                        omega[s] = sums.type(math.exp(b - held[LOG_S + s] + weight))
                D[s] = omega[s] * inner

    return shares


@cache
def make_total(shape):
    """Device function ``total(D, m)`` of a number of each parent of a lane: the sum over all parents, of the m-th image."""
    J, ZERO = specialized(shape.parents), shape.sums.type(0)
    parents_sum = make_parents_sum(shape)

    @cuda.jit(device=True, forceinline=True)
    def total(D, m):
        q = ZERO
        for j in range(J):
            q += D[m * J + j]
        return parents_sum(q)

    return total


@cache
def make_of_logs(shape, normalise):
    """Device function ``of_logs(D, R, total, t, n, l, i, N)``: of ``D``, omega D becomes dlog."""
    M, J, sums = shape.images, shape.parents, shape.sums
    OF_CAPSULES, ZERO = normalise == "all", sums.type(0)
    capsule, CAPSULES = make_capsule(shape), shape.capsules
    of_parents = make_total(shape)
    M, J, CAPSULES = map(specialized, (M, J, CAPSULES))

    @cuda.jit(device=True, forceinline=True)
    def of_logs(D, R, total, t, n, l, i, N):
        for m in range(M):
            q = ZERO
            if OF_CAPSULES:
                place = capsule(l, i)
                if place >= 0:
                    q = total[at((t * N + min(n + m, N - 1)) * CAPSULES + place)]
            else:
                q = of_parents(D, m)
            for j in range(J):
                D[m * J + j] -= R[m * J + j] * q

    return of_logs


@dataclass(frozen=True)
class EarlierGaussians:
    """Sums of dlog (V - mu'), dlog (V - mu')^2 and dlog. A record is those, (E, E, 1)."""

    shape: Shape
    normalise: str

    record = 2, 1

    @property
    def held(self):
        return held_numbers(self.shape)

    @made_once
    def functions(self):
        shape, E, sums = self.shape, self.shape.own, self.shape.sums
        SCALARS, SIZE, ZERO = shape.scalars, 2 * E + 1, sums.type(0)
        how = shape, self.normalise
        logarithms, shares, of_logs = make_logarithms(*how), make_shares(shape), make_of_logs(*how)
        hold, _ = make_hold(shape)
        clear, merge = make_zero(SCALARS * SIZE, sums), make_add(SIZE)
        E, SCALARS, SIZE = map(specialized, (E, SCALARS, SIZE))
        ELEMENTS = specialized(shape.elements)

        @cuda.jit(device=True, forceinline=True)
        def absorb(record, V, held, prior, norm, total, t, n, l, i, lane, live, N):
            R, D = local_array(SCALARS, sums), local_array(SCALARS, sums)
            omega, part = local_array(SCALARS, sums), local_array(SCALARS, sums)
            steep, pull = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
            logarithms(R, steep, V, held, norm, t, n, l, i, lane, N)
            shares(R, omega, D, part, pull, V, held, prior, n, l, i, N)
            of_logs(D, R, total, t, n, l, i, N)
            for s in range(SCALARS):
                d_log = D[s] if live else ZERO
                for e in range(E):
                    away = V[s * E + e] - held[s * E + e]
                    weighted = d_log * away
                    record[s * SIZE + e] += weighted
                    record[s * SIZE + E + e] += weighted * away
                record[s * SIZE + 2 * E] += d_log

        return hold, clear, absorb, merge


@dataclass(frozen=True)
class EMGradient:
    """dV of a child, and the gradient of its activation."""

    shape: Shape
    normalise: str
    detach: bool
    is_prior_of_capsules = True

    @property
    def held(self):
        return held_numbers(self.shape)

    @made_once
    def function(self):
        """Device function, as :mod:`numbacaps.routing.gradient` calls it."""
        shape, E, sums = self.shape, self.shape.own, self.shape.sums
        SCALARS, ELEMENTS = shape.scalars, shape.elements
        HELD, FULL = held_numbers(shape), not self.detach
        IS_EVEN, how = self.normalise == "window", (shape, self.normalise)
        logarithms, shares, of_logs = make_logarithms(*how), make_shares(shape), make_of_logs(*how)
        (hold, hold_after), even = make_hold(shape), make_even(shape)
        E, SCALARS, ELEMENTS, HELD = map(specialized, (E, SCALARS, ELEMENTS, HELD))

        @cuda.jit(device=True, forceinline=True)
        def gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end):
            held = local_array(HELD, sums)
            R, D = local_array(SCALARS, sums), local_array(SCALARS, sums)
            omega, part = local_array(SCALARS, sums), local_array(SCALARS, sums)
            steep, pull = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
            for t in range(first, end):
                is_even = IS_EVEN and t == 0
                if is_even:
                    hold_after(held, states, slopes, t, n, l, lane, N)
                    even(R, lane)
                else:
                    hold(held, states, slopes, t, n, l, lane, N)
                    logarithms(R, steep, V, held, norm, t, n, l, i, lane, N)
                shares(R, omega, D, part, pull, V, held, prior, n, l, i, N)
                if FULL and not is_even:
                    of_logs(D, R, total, t, n, l, i, N)
                for s in range(SCALARS):
                    dp[s] += part[s]
                    for e in range(E):
                        dV[s * E + e] += omega[s] * pull[s * E + e]
                        if FULL and not is_even:
                            dV[s * E + e] -= D[s] * steep[s * E + e]

        return gradient


@dataclass(frozen=True)
class Shares:
    """q of each child over the parents of one position, (N, L, I), for :mod:`numbacaps.routing.overlap`."""

    shape: Shape

    @property
    def held(self):
        return held_numbers(self.shape)

    @made_once
    def functions(self):
        shape, sums = self.shape, self.shape.sums
        logarithms, shares = make_logarithms(shape, "all"), make_shares(shape)
        (hold, _), total = make_hold(shape), make_total(shape)
        write = make_write_of_images(shape)
        M, SCALARS, ELEMENTS = map(specialized, (shape.images, shape.scalars, shape.elements))

        @cuda.jit(device=True, forceinline=True)
        def of_child(found, V, held, prior, given, t, n, l, i, lane, N, inside):
            R, D = local_array(SCALARS, sums), local_array(SCALARS, sums)
            omega, part = local_array(SCALARS, sums), local_array(SCALARS, sums)
            steep, pull = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
            q = local_array(M, sums)
            logarithms(R, steep, V, held, given, t, n, l, i, lane, N)
            shares(R, omega, D, part, pull, V, held, prior, n, l, i, N)
            for m in range(M):
                q[m] = total(D, m)
            write(found, q, n, l, i, lane, N, inside)

        return hold, of_child
