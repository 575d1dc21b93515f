"""EM routing, as forms of the passes.

The E step of a child, from the parents' state of the iteration before:

    log p[i,j] = bias[j] - 1/2 sum of (V - mu)^2 / variance     bias = log a - 1/2 sum of log(2 pi variance)
    R[i,j] = exp(log p - norm[i])       norm = log of the sum of exp(log p) over the parents

A state of the parents is (mu: E, 1 / variance: E, bias, log S, z) with a = sigmoid(z); the first state is zeros, so that
every parent gets an equal part. The M step keeps, for each parent, (mean: E, squares: E, top, total): the weighted mean,
the weighted sum of squares about it, and the sum of weights over exp(top), one child after another (West, 1979); two
records are merged as Chan, Golub and LeVeque do. So no variance is a difference of large numbers, and no weight too
small: what all children give a parent may be 1e-100.

Where R is normalised over all parents that a capsule votes for, ``norm`` is a number of the capsule
(:mod:`numbacaps.routing.overlap`).
"""

import math
from dataclasses import dataclass
from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.made_once import made_once
from numbacaps.routing.children import make_write_of_images
from numbacaps.routing.constant import make_constant
from numbacaps.routing.dynamic import make_read
from numbacaps.routing.shape import Shape
from numbacaps.routing.team import make_columns_sum, make_parents_max, make_parents_sum
from numbacaps.routing.votes import make_capsule, make_parent


def state_fields(E):
    """Numbers of a parent's state, and of its slope."""
    return 2 * E + 3, 2 * E + 3


@cache
def make_log_p(shape):
    """Device function ``log_p(B, steep, V, held, lane)``, ``held`` mu, 1 / variance, bias; minus infinity where no parent is.

    ``steep`` is (V - mu) / variance.
    """
    E, M, J = shape.own, shape.images, shape.parents
    ELEMENTS, sums = shape.elements, shape.sums
    (_, has_parent), columns_sum = make_parent(shape), make_columns_sum(shape)
    ABSENT, ZERO, HALF = sums.type(-math.inf), sums.type(0), sums.type(0.5)
    E, M, J, ELEMENTS = map(specialized, (E, M, J, ELEMENTS))

    @cuda.jit(device=True, forceinline=True)
    def log_p(B, steep, V, held, lane):
        for m in range(M):
            for j in range(J):
                s, away = m * J + j, ZERO
                for e in range(E):
                    d = V[s * E + e] - held[s * E + e]
                    steep[s * E + e] = d * held[ELEMENTS + s * E + e]
                    away += d * steep[s * E + e]
                b = held[2 * ELEMENTS + s] - HALF * columns_sum(away)
                B[s] = b if has_parent(lane, j) else ABSENT

    return log_p


@cache
def make_norms(shape, normalise):
    """Device function ``norms(norm, B, given, t, n, l, i, N)``: the norm of the child of each image."""
    M, J, sums = shape.images, shape.parents, shape.sums
    LOWEST, ZERO, NOWHERE = sums.type(-math.inf), sums.type(0), sums.type(math.inf)
    OF_CAPSULES, capsule, CAPSULES = normalise == "all", make_capsule(shape), shape.capsules
    parents_sum, parents_max = make_parents_sum(shape), make_parents_max(shape)
    M, J, CAPSULES = map(specialized, (M, J, CAPSULES))

    @cuda.jit(device=True, forceinline=True)
    def norms(norm, B, given, t, n, l, i, N):
        for m in range(M):
            if OF_CAPSULES:
                place, norm[m] = capsule(l, i), NOWHERE
                if place >= 0:
                    norm[m] = given[at((t * N + min(n + m, N - 1)) * CAPSULES + place)]
                continue
            top, total = LOWEST, ZERO
            for j in range(J):
                if B[m * J + j] > top:
                    top = B[m * J + j]
            top = parents_max(top)
            for j in range(J):
                total += sums.type(math.exp(B[m * J + j] - top))
            norm[m] = top + sums.type(math.log(parents_sum(total)))

    return norms


@cache
def make_activations(shape):
    """Device function ``activation(prior, n, l, i, N)``; 0 in the padding."""
    capsule, CAPSULES = make_capsule(shape), shape.capsules
    ZERO = shape.sums.type(0)
    CAPSULES = specialized(CAPSULES)

    @cuda.jit(device=True, forceinline=True)
    def activation(prior, n, l, i, N):
        place = capsule(l, i)
        if place < 0:
            return ZERO
        return prior[at(min(n, N - 1) * CAPSULES + place)]

    return activation


@cache
def make_log(sums):
    """Device function ``log(a)``, minus infinity of 0."""
    LOWEST, ZERO = sums.type(-math.inf), sums.type(0)

    @cuda.jit(device=True, forceinline=True)
    def log(a):
        if a == ZERO:
            return LOWEST
        return sums.type(math.log(a))

    return log


def gaussian_numbers(shape):
    """What is held of the parents before an E step: mu, 1 / variance and bias."""
    return 2 * shape.elements + shape.scalars


@cache
def make_even(shape):
    """Device function ``even(B, lane)``: log R of the first iteration, 1 / P of every parent, whatever the votes are."""
    SCALARS, J = map(specialized, (shape.scalars, shape.parents))
    alike, LOWEST = (
        make_constant(-math.log(shape.geometry.P), shape.sums),
        shape.sums.type(-math.inf),
    )
    _, has_parent = make_parent(shape)

    @cuda.jit(device=True, forceinline=True)
    def even(B, lane):
        for s in range(SCALARS):
            B[s] = alike() if has_parent(lane, s % J) else LOWEST

    return even


@cache
def make_hold_gaussians(shape):
    """Device function ``hold``: mu, 1 / variance and bias of the parents, before iteration t."""
    E, ELEMENTS = shape.geometry.E3, shape.elements
    read, read_number = make_read(shape, state_fields(E)[0])
    E, ELEMENTS = map(specialized, (E, ELEMENTS))

    @cuda.jit(device=True, forceinline=True)
    def hold(held, states, slopes, t, n, l, lane, N):
        read(held, 0, states, 0, t, n, l, lane, N)
        read(held, ELEMENTS, states, E, t, n, l, lane, N)
        read_number(held, 2 * ELEMENTS, states, 2 * E, t, n, l, lane, N)

    return hold


@dataclass(frozen=True)
class MStep:
    """Weighted mean and squares of the votes. A record is (mean: E, squares: E, top, total)."""

    shape: Shape
    normalise: str

    record = 2, 2

    @property
    def held(self):
        return gaussian_numbers(self.shape)

    @made_once
    def functions(self):
        shape, E, sums = self.shape, self.shape.own, self.shape.sums
        M, J, SCALARS, SIZE = shape.images, shape.parents, shape.scalars, 2 * E + 2
        ZERO, LOWEST = sums.type(0), sums.type(-math.inf)
        log_p, log = make_log_p(shape), make_log(sums)
        norms = make_norms(shape, self.normalise)
        activation, even = make_activations(shape), make_even(shape)
        merge, IS_EVEN = make_merge_moments(E, sums), self.normalise == "window"
        E, M, J, SCALARS, SIZE = map(specialized, (E, M, J, SCALARS, SIZE))
        ELEMENTS = specialized(shape.elements)

        @cuda.jit(device=True, forceinline=True)
        def clear(record):
            for s in range(SCALARS):
                for r in range(SIZE):
                    record[s * SIZE + r] = ZERO
                record[s * SIZE + 2 * E] = LOWEST

        @cuda.jit(device=True, forceinline=True)
        def absorb(record, V, held, prior, given, total, t, n, l, i, lane, live, N):
            B, norm = local_array(SCALARS, sums), local_array(M, sums)
            steep = local_array(ELEMENTS, sums)
            if IS_EVEN and t == 0:
                even(B, lane)
                for m in range(M):
                    norm[m] = ZERO
            else:
                log_p(B, steep, V, held, lane)
                norms(norm, B, given, t, n, l, i, N)
            for m in range(M):
                weight = log(activation(prior, n + m, l, i, N))
                for j in range(J):
                    s, first = m * J + j, (m * J + j) * SIZE
                    b = B[s] - norm[m] + weight
                    if not live or b == LOWEST:
                        continue
                    if b > record[first + 2 * E]:
                        kept = sums.type(math.exp(record[first + 2 * E] - b))
                        for e in range(E):
                            record[first + E + e] *= kept
                        record[first + 2 * E + 1] *= kept
                        record[first + 2 * E] = b
                    share = sums.type(math.exp(b - record[first + 2 * E]))
                    before = record[first + 2 * E + 1]
                    record[first + 2 * E + 1] = before + share
                    part = ZERO
                    if share != ZERO:
                        part = share / record[first + 2 * E + 1]
                    rest = part * before  # so squares are sums of what is not negative
                    for e in range(E):
                        away = V[s * E + e] - record[first + e]
                        record[first + e] += part * away
                        record[first + E + e] += rest * away * away

        return make_hold_gaussians(shape), clear, absorb, merge


@cache
def make_merge_moments(E, sums):
    """Device function ``merge`` of records (mean, squares, top, total)."""
    E, ZERO = specialized(E), sums.type(0)

    @cuda.jit(device=True, forceinline=True)
    def merge(record, other, first):
        if other[2 * E + 1] == ZERO:  # nothing; NaN is something
            return
        top = record[first + 2 * E]
        if other[2 * E] > top:
            top = other[2 * E]
        mine = sums.type(math.exp(record[first + 2 * E] - top))
        theirs = sums.type(math.exp(other[2 * E] - top))
        weight = theirs * other[2 * E + 1]
        total = mine * record[first + 2 * E + 1] + weight
        for e in range(E):
            away = other[e] - record[first + e]
            square = mine * record[first + 2 * E + 1] * (weight / total) * away * away
            record[first + E + e] = mine * record[first + E + e] + theirs * other[E + e] + square
            record[first + e] += weight / total * away
        record[first + 2 * E], record[first + 2 * E + 1] = top, total

    return merge


@dataclass(frozen=True)
class Norms:
    """The norm of each child over the parents of one position, (N, L, I), for :mod:`numbacaps.routing.overlap`."""

    shape: Shape

    @property
    def held(self):
        return gaussian_numbers(self.shape)

    @made_once
    def functions(self):
        shape, SCALARS = self.shape, self.shape.scalars
        sums = shape.sums
        log_p, norms = make_log_p(shape), make_norms(shape, "window")
        write = make_write_of_images(shape)
        M, SCALARS, ELEMENTS = map(specialized, (shape.images, SCALARS, shape.elements))

        @cuda.jit(device=True, forceinline=True)
        def of_child(found, V, held, prior, given, t, n, l, i, lane, N, inside):
            B, steep = local_array(SCALARS, sums), local_array(ELEMENTS, sums)
            norm = local_array(M, sums)
            log_p(B, steep, V, held, lane)
            norms(norm, B, given, t, n, l, i, N)
            write(found, norm, n, l, i, lane, N, inside)

        return make_hold_gaussians(shape), of_child
