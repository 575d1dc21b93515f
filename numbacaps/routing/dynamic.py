"""Dynamic routing, as forms of the passes.

The logits are b[i,j] = prior + <u, v_1> + <u, v_2> + ... = prior + <u, A>, where A is the sum of v so far: no logit is
stored. A state of the parents is (A: E, s: E, lse): iteration t reads A of state t, and writes s and lse to state t + 1,
where A is A + v. A slope is (ds: E, later: E, dot), of the same iteration; ``later`` is the gradient of A from the
iterations behind.

Softmax over parents is a sum over the lanes of a team. Softmax over children needs lse, the logarithm of a parent's
sum over its children, which the pass keeps shifted by the largest logit so far.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.made_once import made_once
from numbacaps.routing.constant import make_constant
from numbacaps.routing.shape import Shape
from numbacaps.routing.team import make_columns_sum, make_parents_max, make_parents_sum
from numbacaps.routing.votes import make_element, make_parent


def state_fields(E):
    """Numbers of a parent's state, and of its slope."""
    return 2 * E + 1, 2 * E + 1


@cache
def make_logits(shape, has_prior):
    """Device function ``logits(B, V, A, prior, i, lane)``: B[m, j] = prior + <V, A>; minus infinity where no parent is.

    Where it has no prior, that is 0, and is not read.
    """
    HAS_PRIOR = has_prior
    P, OWN, M, J = shape.geometry.P, shape.own, shape.images, shape.parents
    ABSENT, ZERO = shape.sums.type(-math.inf), shape.sums.type(0)
    (parent, has_parent), columns_sum = make_parent(shape), make_columns_sum(shape)
    P, OWN, M, J = map(specialized, (P, OWN, M, J))

    @cuda.jit(device=True, forceinline=True)
    def logits(B, V, A, prior, i, lane):
        for m in range(M):
            for j in range(J):
                b = ZERO
                for e in range(OWN):
                    b += V[(m * J + j) * OWN + e] * A[(m * J + j) * OWN + e]
                before = prior[at(i * P + parent(lane, j))] if HAS_PRIOR else ZERO
                b = before + columns_sum(b)
                B[m * J + j] = b if has_parent(lane, j) else ABSENT

    return logits


@cache
def make_over_parents(shape):
    """Device function ``couple(B, held, lse)``: logits become couplings, which add up to 1 over the parents."""
    M, J, sums = shape.images, shape.parents, shape.sums
    LOWEST, ZERO = sums.type(-math.inf), sums.type(0)
    parents_sum, parents_max = make_parents_sum(shape), make_parents_max(shape)
    M, J = map(specialized, (M, J))

    @cuda.jit(device=True, forceinline=True)
    def couple(B, held, lse):
        for m in range(M):
            top, total = LOWEST, ZERO
            for j in range(J):
                if B[m * J + j] > top:
                    top = B[m * J + j]
            top = parents_max(top)
            for j in range(J):
                B[m * J + j] = sums.type(math.exp(B[m * J + j] - top))
                total += B[m * J + j]
            total = parents_sum(total)
            for j in range(J):
                B[m * J + j] /= total

    return couple


@cache
def make_over_children(shape):
    """Device function ``couple(B, held, lse)``: the same over the children; lse begins at an index of ``held``."""
    SCALARS, sums = shape.scalars, shape.sums
    SCALARS = specialized(SCALARS)

    @cuda.jit(device=True, forceinline=True)
    def couple(B, held, lse):
        for s in range(SCALARS):
            B[s] = sums.type(math.exp(B[s] - held[lse + s]))

    return couple


@cache
def make_read(shape, fields):
    """Device functions ``(read_capsule, read_number)`` of what the parents of a lane have in an array of ``fields``.

    Both take ``(to, first, array, field, t, n, l, lane, N)``; a capsule's elements are those of the lane.
    """
    L, P, M, J = shape.geometry.L, shape.geometry.P, shape.images, shape.parents
    FIELDS, OWN = fields, shape.own
    (parent, _), element = make_parent(shape), make_element(shape)
    L, P, M, J, FIELDS, OWN = map(specialized, (L, P, M, J, FIELDS, OWN))

    @cuda.jit(device=True, forceinline=True)
    def read_capsule(to, first, array, field, t, n, l, lane, N):
        for m in range(M):
            place = t * N * L + min(n + m, N - 1) * L + l
            for j in range(J):
                for e in range(OWN):
                    where = (place * FIELDS + field + element(lane, e)) * P + parent(lane, j)
                    to[first + (m * J + j) * OWN + e] = array[at(where)]

    @cuda.jit(device=True, forceinline=True)
    def read_number(to, first, array, field, t, n, l, lane, N):
        for m in range(M):
            place = t * N * L + min(n + m, N - 1) * L + l
            for j in range(J):
                to[first + m * J + j] = array[at((place * FIELDS + field) * P + parent(lane, j))]

    return read_capsule, read_number


@cache
def make_add(fields):
    """Device function ``merge`` of records that are sums."""
    FIELDS = specialized(fields)

    @cuda.jit(device=True, forceinline=True)
    def merge(record, other, first):
        for r in range(FIELDS):
            record[first + r] += other[r]

    return merge


def first_of(form):
    """The form of the first iteration, where A is 0: without a prior all couplings are alike."""
    return form if form.has_prior else replace(form, is_even=True)


def make_merge_of_elements(over, sums):
    """Device function ``merge`` of the records of a pass forward, whose capsules have one element here."""
    return make_merge_shifted(1, sums) if over == "children" else make_add(1)


@cache
def make_zero(count, sums):
    """Device function that sets ``count`` numbers to zero."""
    COUNT, ZERO = specialized(count), sums.type(0)

    @cuda.jit(device=True, forceinline=True)
    def clear(record):
        for r in range(COUNT):
            record[r] = ZERO

    return clear


@cache
def make_hold_summed(shape):
    """Device function ``hold(held, states, slopes, t, n, l, lane, N)``: A of the parents, before iteration t."""
    read, _ = make_read(shape, state_fields(shape.geometry.E3)[0])

    @cuda.jit(device=True, forceinline=True)
    def hold(held, states, slopes, t, n, l, lane, N):
        read(held, 0, states, 0, t, n, l, lane, N)

    return hold


@dataclass(frozen=True)
class OverParents:
    """s = sum of c u, where every child's couplings add up to 1. A record is s.

    Attributes
    ----------
    shape : numbacaps.routing.shape.Shape
    has_prior : bool
        The prior is read; else it is 0.
    is_even : bool
        All logits are 0, so all couplings are alike.
    """

    shape: Shape
    has_prior: bool = True
    is_even: bool = False

    record = 1, 0

    @property
    def held(self):
        return self.shape.elements

    @made_once
    def functions(self):
        shape, E, sums = self.shape, self.shape.own, self.shape.sums
        SCALARS, ZERO = shape.scalars, sums.type(0)
        logits, couple = make_logits(shape, self.has_prior), make_over_parents(shape)
        clear, merge = make_zero(SCALARS * E, sums), make_add(E)
        IS_EVEN, even = self.is_even, make_constant(1 / shape.geometry.P, sums)
        E, SCALARS = map(specialized, (E, SCALARS))

        @cuda.jit(device=True, forceinline=True)
        def absorb(record, V, held, prior, norm, total, t, n, l, i, lane, live, N):
            B = local_array(SCALARS, sums)
            if IS_EVEN:
                for s in range(SCALARS):
                    B[s] = even()
            else:
                logits(B, V, held, prior, i, lane)
                couple(B, held, 0)
            for s in range(SCALARS):
                c = B[s] if live else ZERO
                for e in range(E):
                    record[s * E + e] += c * V[s * E + e]

        return make_hold_summed(shape), clear, absorb, merge


@dataclass(frozen=True)
class OverChildren:
    """The same where every parent's couplings add up to 1. A record is (s, top, total), both sums over exp(b - top)."""

    shape: Shape
    has_prior: bool = True
    is_even: bool = False

    record = 1, 2

    @property
    def held(self):
        return self.shape.elements

    @made_once
    def functions(self):
        shape, E, sums = self.shape, self.shape.own, self.shape.sums
        SCALARS, SIZE, ZERO = shape.scalars, E + 2, sums.type(0)
        LOWEST = sums.type(-math.inf)
        logits, merge = make_logits(shape, self.has_prior), make_merge_shifted(E, sums)
        IS_EVEN = self.is_even
        E, SCALARS, SIZE = map(specialized, (E, SCALARS, SIZE))

        @cuda.jit(device=True, forceinline=True)
        def clear(record):
            for s in range(SCALARS):
                for e in range(E):
                    record[s * SIZE + e] = ZERO
                record[s * SIZE + E] = LOWEST
                record[s * SIZE + E + 1] = ZERO

        @cuda.jit(device=True, forceinline=True)
        def absorb(record, V, held, prior, norm, total, t, n, l, i, lane, live, N):
            B = local_array(SCALARS, sums)
            if IS_EVEN:
                for s in range(SCALARS):
                    B[s] = ZERO
            else:
                logits(B, V, held, prior, i, lane)
            for s in range(SCALARS):
                first = s * SIZE
                if not live or B[s] == LOWEST:
                    continue
                if B[s] > record[first + E]:
                    kept = sums.type(math.exp(record[first + E] - B[s]))
                    for e in range(E):
                        record[first + e] *= kept
                    record[first + E + 1] *= kept
                    record[first + E] = B[s]
                share = sums.type(math.exp(B[s] - record[first + E]))
                for e in range(E):
                    record[first + e] += share * V[s * E + e]
                record[first + E + 1] += share

        return make_hold_summed(shape), clear, absorb, merge


@cache
def make_merge_shifted(E, sums):
    """Device function ``merge`` of records (s, top, total)."""
    E, ZERO = specialized(E), sums.type(0)

    @cuda.jit(device=True, forceinline=True)
    def merge(record, other, first):
        if other[E + 1] == ZERO:  # nothing; NaN is something
            return
        top = record[first + E]
        if other[E] > top:
            top = other[E]
        mine = sums.type(math.exp(record[first + E] - top))
        theirs = sums.type(math.exp(other[E] - top))
        for e in range(E):
            record[first + e] = mine * record[first + e] + theirs * other[e]
        record[first + E + 1] = mine * record[first + E + 1] + theirs * other[E + 1]
        record[first + E] = top

    return merge
