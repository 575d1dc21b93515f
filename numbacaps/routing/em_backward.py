"""The gradient of EM routing, as forms of the passes.

With omega = R a / S, the part of a parent that a child is, and dmu, dvar what reaches the mean and the variance:

    D[i,j] = gamma + sum of dmu (V - mu) + dvar (V - mu)^2     S times what reaches a weight; gamma = S dS - sum of dvar var
    dV = omega (dmu + 2 dvar (V - mu)) - dlog (V - mu') / variance'
    dlog = omega D - R q       q = sum of omega D over the parents (of the position, or all of the capsule)
    da = sum of R / S D

where mu' and variance' are those of the iteration before, which the E step read. To that one go the sums over i of
dlog, dlog (V - mu') and dlog (V - mu')^2. A slope is (dmu: E, dvar: E, gamma, dbeta_u, dbeta_a), of the same iteration.

Where assignments are detached, the last iteration without dlog is all.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property

from numbacaps.device.instructions import local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.dynamic import make_add, make_read, make_zero
from numbacaps.routing.em import (
    make_activations,
    make_hold_gaussians,
    make_log,
    make_log_p,
    make_norms,
    state_fields,
)
from numbacaps.routing.shape import Shape
from numbacaps.routing.team import make_team_functions
from numbacaps.routing.votes import make_capsule


def held_numbers(shape):
    """What is held of an iteration: mu', 1 / variance', bias'; mu, log S; dmu, dvar, gamma."""
    return 5 * shape.elements + 3 * shape.scalars


@cache
def make_hold(shape):
    """Device function ``hold(held, states, slopes, t, n, l, lane, N)``."""
    E, ELEMENTS, SCALARS = shape.geometry.E3, shape.elements, shape.scalars
    of_states, of_slopes = state_fields(E)
    read_state, read_slope = make_read(shape, of_states), make_read(shape, of_slopes)
    before = make_hold_gaussians(shape)
    MU = 2 * ELEMENTS + SCALARS
    E, ELEMENTS, SCALARS, MU = map(specialized, (E, ELEMENTS, SCALARS, MU))

    @cuda.jit(device=True, forceinline=True)
    def hold(held, states, slopes, t, n, l, lane, N):
        before(held, states, slopes, t, n, l, lane, N)
        read_state(held, MU, states, 0, E, t + 1, n, l, lane, N)
        read_state(held, MU + ELEMENTS, states, 2 * E + 1, 1, t + 1, n, l, lane, N)
        read_slope(held, MU + ELEMENTS + SCALARS, slopes, 0, E, t, n, l, lane, N)
        read_slope(held, MU + 2 * ELEMENTS + SCALARS, slopes, E, E, t, n, l, lane, N)
        read_slope(held, MU + 3 * ELEMENTS + SCALARS, slopes, 2 * E, 1, t, n, l, lane, N)

    return hold


@cache
def make_shares(shape, normalise):
    """Device function ``shares(R, omega, D, V, held, prior, given, t, n, l, i, lane, N)``.

    It writes omega and omega D; and R, and R / S D, which an activation gets.
    """
    E, M, J, ELEMENTS, SCALARS = (
        *(shape.geometry.E3, shape.images, shape.parents),
        *(shape.elements, shape.scalars),
    )
    MU = 2 * ELEMENTS + SCALARS
    LOG_S, DMU = MU + ELEMENTS, MU + ELEMENTS + SCALARS
    DVAR, GAMMA, sums = DMU + ELEMENTS, DMU + 2 * ELEMENTS, shape.sums
    LOWEST, ZERO = sums.type(-math.inf), sums.type(0)
    log_p, log = make_log_p(shape), make_log(sums)
    norms = make_norms(shape, normalise)
    activation = make_activations(shape)
    E, M, J, MU, LOG_S = map(specialized, (E, M, J, MU, LOG_S))
    DMU, DVAR, GAMMA = map(specialized, (DMU, DVAR, GAMMA))

    @cuda.jit(device=True, forceinline=True)
    def shares(R, omega, D, part, V, held, prior, given, t, n, l, i, lane, N):
        norm = local_array(M, sums)
        log_p(R, V, held, lane)
        norms(norm, R, given, t, n, l, i, N)
        for m in range(M):
            weight = log(activation(prior, n + m, l, i, N))
            for j in range(J):
                s = m * J + j
                b = R[s] - norm[m]
                inner = held[GAMMA + s]
                for e in range(E):
                    away = V[s * E + e] - held[MU + s * E + e]
                    inner += away * (held[DMU + s * E + e] + away * held[DVAR + s * E + e])
                R[s] = sums.type(math.exp(b))
                omega[s], part[s] = ZERO, ZERO
                if b != LOWEST:
                    part[s] = sums.type(math.exp(b - held[LOG_S + s])) * inner
                    if weight != LOWEST:
                        omega[s] = sums.type(math.exp(b - held[LOG_S + s] + weight))
                D[s] = omega[s] * inner

    return shares


@cache
def make_of_logs(shape, normalise):
    """Device function ``of_logs(D, R, total, t, n, l, i, N)``: omega D becomes dlog."""
    M, J, sums = shape.images, shape.parents, shape.sums
    OF_CAPSULES, ZERO = normalise == "all", sums.type(0)
    capsule, CAPSULES = make_capsule(shape), shape.capsules
    team_sum, _ = make_team_functions(shape.team)
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
                for j in range(J):
                    q += D[m * J + j]
                q = team_sum(q)
            for j in range(J):
                D[m * J + j] -= R[m * J + j] * q

    return of_logs


@dataclass(frozen=True)
class EarlierGaussians:
    """Sums of dlog (V - mu'), dlog (V - mu')^2 and dlog. A record is those, (E, E, 1)."""

    shape: Shape
    normalise: str

    @property
    def fields(self):
        return 2 * self.shape.geometry.E3 + 1

    @property
    def held(self):
        return held_numbers(self.shape)

    @cached_property
    def functions(self):
        shape, E, sums = self.shape, self.shape.geometry.E3, self.shape.sums
        SCALARS, SIZE, ZERO = shape.scalars, self.fields, sums.type(0)
        how = shape, self.normalise
        shares, of_logs = make_shares(*how), make_of_logs(*how)
        clear, merge = make_zero(SCALARS * SIZE, sums), make_add(SIZE)
        E, SCALARS, SIZE = map(specialized, (E, SCALARS, SIZE))

        @cuda.jit(device=True, forceinline=True)
        def absorb(record, V, held, prior, norm, total, t, n, l, i, lane, live, N):
            R, D = local_array(SCALARS, sums), local_array(SCALARS, sums)
            omega, part = local_array(SCALARS, sums), local_array(SCALARS, sums)
            shares(R, omega, D, part, V, held, prior, norm, t, n, l, i, lane, N)
            of_logs(D, R, total, t, n, l, i, N)
            for s in range(SCALARS):
                d_log = D[s] if live else ZERO
                for e in range(E):
                    away = V[s * E + e] - held[s * E + e]
                    record[s * SIZE + e] += d_log * away
                    record[s * SIZE + E + e] += d_log * away * away
                record[s * SIZE + 2 * E] += d_log

        return make_hold(shape), clear, absorb, merge


@dataclass(frozen=True)
class EMGradient:
    """dV of a child, and what reaches its activation."""

    shape: Shape
    normalise: str
    detach: bool

    @cached_property
    def function(self):
        """Device function, as :mod:`numbacaps.routing.gradient` calls it."""
        shape, E, sums = self.shape, self.shape.geometry.E3, self.shape.sums
        SCALARS, ELEMENTS = shape.scalars, shape.elements
        HELD, FULL, TWO = held_numbers(shape), not self.detach, sums.type(2)
        MU = 2 * ELEMENTS + SCALARS
        DMU, DVAR = MU + ELEMENTS + SCALARS, MU + 2 * ELEMENTS + SCALARS
        how = shape, self.normalise
        shares, of_logs, hold = make_shares(*how), make_of_logs(*how), make_hold(shape)
        E, SCALARS, ELEMENTS, HELD, MU = map(specialized, (E, SCALARS, ELEMENTS, HELD, MU))
        DMU, DVAR = map(specialized, (DMU, DVAR))

        @cuda.jit(device=True, forceinline=True)
        def gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end):
            held = local_array(HELD, sums)
            R, D = local_array(SCALARS, sums), local_array(SCALARS, sums)
            omega, part = local_array(SCALARS, sums), local_array(SCALARS, sums)
            for t in range(first, end):
                hold(held, states, slopes, t, n, l, lane, N)
                shares(R, omega, D, part, V, held, prior, norm, t, n, l, i, lane, N)
                if FULL:
                    of_logs(D, R, total, t, n, l, i, N)
                for s in range(SCALARS):
                    dp[s] += part[s]
                    for e in range(E):
                        k = s * E + e
                        away = V[k] - held[MU + k]
                        dV[k] += omega[s] * (held[DMU + k] + TWO * held[DVAR + k] * away)
                        if FULL:
                            dV[k] -= D[s] * (V[k] - held[k]) * held[ELEMENTS + k]

        return gradient


@dataclass(frozen=True)
class Shares:
    """q of each child over the parents of one position; for :mod:`numbacaps.routing.overlap`."""

    shape: Shape

    @property
    def held(self):
        return held_numbers(self.shape)

    @cached_property
    def functions(self):
        shape, sums = self.shape, self.shape.sums
        M, J, SCALARS, ZERO = shape.images, shape.parents, shape.scalars, sums.type(0)
        shares = make_shares(shape, "all")
        team_sum, _ = make_team_functions(shape.team)
        M, J, SCALARS = map(specialized, (M, J, SCALARS))

        @cuda.jit(device=True, forceinline=True)
        def of_child(found, V, held, prior, given, t, n, l, i, lane, N):
            R, D = local_array(SCALARS, sums), local_array(SCALARS, sums)
            omega, part = local_array(SCALARS, sums), local_array(SCALARS, sums)
            shares(R, omega, D, part, V, held, prior, given, t, n, l, i, lane, N)
            for m in range(M):
                q = ZERO
                for j in range(J):
                    q += D[m * J + j]
                found[m] = team_sum(q)

        return make_hold(shape), of_child
