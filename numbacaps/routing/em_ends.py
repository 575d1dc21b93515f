"""Between two passes of EM routing: the end of an M step, and what of its gradient needs no vote.

    cost = S (E beta_u + 1/2 sum of log variance)      z = lambda (beta_a - cost)      a = sigmoid(z)

A parent without any weight has mean 0 and variance 0, and takes part in no gradient: its log S counts as infinite, so
that every child's part of it, R a / S, is 0.

``lam`` is lambda of the iteration. Thread mapping: that of :mod:`numbacaps.routing.ends`. What is added up over a capsule
each thread adds up over its own elements, then one thread a parent over the threads, in shared memory. So it does not
limit how long a capsule is.
"""

import math
from functools import cache

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import (
    let_next_start,
    local_array,
    shared_array,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.powers import exp2, reciprocal
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.dynamic import make_add
from numbacaps.routing.em import make_merge_moments, state_fields
from numbacaps.routing.ends import (
    END_THREADS,
    make_merged,
    make_own,
    parents_of_block,
    threads_of_parent,
)

SUM_THREADS = 32
_LOG2_E = np.float32(math.log2(math.e))


@cache
def make_log_sigmoid(sums):
    """Device function ``log_sigmoid(z)``."""
    ZERO, ONE = sums.type(0), sums.type(1)

    @cuda.jit(device=True, forceinline=True)
    def log_sigmoid(z):
        low = z if z < ZERO else ZERO
        return low - sums.type(math.log(ONE + sums.type(math.exp(-abs(z)))))

    return log_sigmoid


@cuda.jit(device=True, forceinline=True)
def _merge_in_float32(record, other, first):
    """As :func:`numbacaps.routing.em.make_merge_moments` of one element, by the GPU's function units."""
    if other[3] == np.float32(0):  # nothing; NaN is something
        return
    top = other[2] if other[2] > record[first + 2] else record[first + 2]
    mine = exp2((record[first + 2] - top) * _LOG2_E)
    theirs = exp2((other[2] - top) * _LOG2_E)
    before = mine * record[first + 3]
    total = before + theirs * other[3]
    # Of what is nothing so far the mean becomes the other's, bit by bit.
    part = theirs * other[3] * reciprocal(total) if before != np.float32(0) else np.float32(1)
    away = other[0] - record[first]
    record[first + 1] = mine * record[first + 1] + theirs * other[1] + before * part * away * away
    record[first] += part * away
    record[first + 2], record[first + 3] = top, total


@cache
def make_finish(shape):
    """Kernel behind a pass forward."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    FIELDS, PARENTS = state_fields(E)[0], parents_of_block(shape)
    ZERO, HALF, ONE = sums.type(0), sums.type(0.5), sums.type(1)
    CONSTANT = 0.5 * math.log(2 * math.pi)  # for each element
    NEVER = sums.type(math.inf)
    _, write = conversions(shape.dtype)
    merge = _merge_in_float32 if sums == np.float32 else make_merge_moments(1, sums)
    merged = make_merged(shape, (2, 2), merge)
    log_sigmoid = make_log_sigmoid(sums)
    place_of, parent_of, element_of = make_own(shape)
    L, P, E, FIELDS, OWN = map(specialized, (L, P, E, FIELDS, PARENTS * E))
    NUMBERS, PARENTS, THREADS = map(specialized, (2 * PARENTS, PARENTS, END_THREADS))
    TOGETHER = specialized(threads_of_parent(shape))

    @kept_on_disk
    @cuda.jit
    def em_finish_kernel(
        partial,  # in   (blocks, N * L, 2 E + 2, P)
        beta_u,  # in   (P,)
        beta_a,  # in   (P,)
        states,  # out  (iterations + 1, N * L, FIELDS, P)
        y,  # out  (N, P, L, E)
        a_out,  # out  (N, P, L)
        N,
        blocks,
        t,
        epsilon,
        lam,
    ):
        spreads = shared_array(THREADS, sums)
        numbers = shared_array(NUMBERS, sums)
        found = local_array(4, sums)
        spread = ZERO  # 1/2 sum of log variance
        wait_for_last()  # the records are there
        let_next_start()
        places, place = N * L, place_of(cuda.blockIdx.x)
        new = ((t + 1) * places + place) * FIELDS
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                merged(found, partial, place, p, e, places, blocks)
                variance, weight = epsilon, found[3]
                if weight != ZERO:
                    variance += found[1] / weight
                spread += HALF * sums.type(math.log(variance))
                states[at((new + e) * P + p)] = found[0]
                states[at((new + E + e) * P + p)] = ONE / variance
                y[at(((place // L * P + p) * L + place % L) * E + e)] = write(found[0])
                if e == 0:
                    numbers[at(2 * i)], numbers[at(2 * i + 1)] = found[2], weight
        spreads[at(cuda.threadIdx.x)] = spread
        cuda.syncthreads()  # every thread's part is there
        for i in range(cuda.threadIdx.x, PARENTS, THREADS):
            p = parent_of(cuda.blockIdx.x, i)
            if p < P:
                S, log_S, weight = ZERO, NEVER, numbers[at(2 * i + 1)]
                if weight != ZERO:
                    log_S = numbers[at(2 * i)] + sums.type(math.log(weight))
                    S = sums.type(math.exp(log_S))
                spread = ZERO
                for part in range(TOGETHER):
                    spread += spreads[at(part * PARENTS + i)]
                z = lam * (beta_a[at(p)] - S * (sums.type(E) * beta_u[at(p)] + spread))
                log_a = log_sigmoid(z)
                states[at((new + 2 * E) * P + p)] = log_a - spread - sums.type(CONSTANT * E)
                states[at((new + 2 * E + 1) * P + p)] = log_S
                states[at((new + 2 * E + 2) * P + p)] = z
                a_out[at((place // L * P + p) * L + place % L)] = write(sums.type(math.exp(log_a)))

    return em_finish_kernel


@cache
def make_slope(shape):
    """Device functions that write the slope of iteration t: ``of_element``, and behind all of them ``of_parents``.

    The first returns what the second takes of an element, added up over those of a thread: its part of gamma and of
    1/2 sum of log variance. ``gammas`` and ``spreads``, a number a thread, and ``d_zs``, one a parent, are in shared memory.
    """
    P, E, sums = shape.geometry.P, shape.geometry.E3, shape.sums
    (FIELDS, SLOPES), ZERO, HALF = state_fields(E), sums.type(0), sums.type(0.5)
    ONE, NEVER, PARENTS = sums.type(1), sums.type(math.inf), parents_of_block(shape)
    _, parent_of, _ = make_own(shape)
    P, E, FIELDS, SLOPES = map(specialized, (P, E, FIELDS, SLOPES))
    PARENTS, THREADS = map(specialized, (PARENTS, END_THREADS))
    TOGETHER = specialized(threads_of_parent(shape))

    @cuda.jit(device=True, forceinline=True)
    def weight_of(states, old, p):
        log_S = states[at((old + 2 * E + 1) * P + p)]
        return sums.type(math.exp(log_S)) if log_S != NEVER else ZERO

    @cuda.jit(device=True, forceinline=True)
    def of_element(dmu, dvar, dz, epsilon, lam, states, slopes, t, place, p, e, places):
        old, new = ((t + 1) * places + place) * FIELDS, (t * places + place) * SLOPES
        inverse = states[at((old + E + e) * P + p)]
        of_variance = dvar - lam * dz * weight_of(states, old, p) * HALF * inverse
        slopes[at((new + e) * P + p)] = dmu
        slopes[at((new + E + e) * P + p)] = of_variance
        gamma = -of_variance * (ONE / inverse - epsilon)
        return gamma, -HALF * sums.type(math.log(inverse))

    @cuda.jit(device=True, forceinline=True)
    def of_parents(
        gamma, spread, beta_u, lam, states, slopes, gammas, spreads, d_zs, t, place, places
    ):
        gammas[at(cuda.threadIdx.x)], spreads[at(cuda.threadIdx.x)] = gamma, spread
        cuda.syncthreads()  # every thread's part is there
        old, new = ((t + 1) * places + place) * FIELDS, (t * places + place) * SLOPES
        for i in range(cuda.threadIdx.x, PARENTS, THREADS):
            p = parent_of(cuda.blockIdx.x, i)
            if p < P:
                S, d_cost = weight_of(states, old, p), -lam * d_zs[at(i)]
                gamma, spread = ZERO, ZERO
                for part in range(TOGETHER):
                    gamma += gammas[at(part * PARENTS + i)]
                    spread += spreads[at(part * PARENTS + i)]
                gamma += S * d_cost * (sums.type(E) * beta_u[at(p)] + spread)
                slopes[at((new + 2 * E) * P + p)] = gamma
                slopes[at((new + 2 * E + 1) * P + p)] = d_cost * S * sums.type(E)
                slopes[at((new + 2 * E + 2) * P + p)] = -d_cost

    return of_element, of_parents


@cache
def make_begin_backward(shape):
    """Kernel before the passes backward: the slope of the last iteration."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    FIELDS, ZERO, PARENTS = state_fields(E)[0], sums.type(0), parents_of_block(shape)
    read, _ = conversions(shape.dtype)
    (of_element, of_parents), log_sigmoid = make_slope(shape), make_log_sigmoid(sums)
    place_of, parent_of, element_of = make_own(shape)
    L, P, E, FIELDS, OWN = map(specialized, (L, P, E, FIELDS, PARENTS * E))
    PARENTS, THREADS = map(specialized, (PARENTS, END_THREADS))

    @kept_on_disk
    @cuda.jit
    def em_begin_backward_kernel(
        dy,  # in   (N, P, L, E)
        d_out,  # in   (N, P, L)
        beta_u,  # in   (P,)
        states,  # in   (iterations + 1, N * L, FIELDS, P)
        slopes,  # out  (iterations, N * L, SLOPES, P)
        N,
        t,
        epsilon,
        lam,
    ):
        gammas = shared_array(THREADS, sums)
        spreads = shared_array(THREADS, sums)
        d_zs = shared_array(PARENTS, sums)
        gamma, spread = ZERO, ZERO
        places, place = N * L, place_of(cuda.blockIdx.x)
        state = ((t + 1) * places + place) * FIELDS
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                where = (place // L * P + p) * L + place % L
                z = states[at((state + 2 * E + 2) * P + p)]
                dz = sums.type(math.exp(log_sigmoid(z) + log_sigmoid(-z))) * read(d_out[at(where)])
                if e == 0:
                    d_zs[at(i)] = dz
                dmu = read(dy[at(where * E + e)])
                parts = of_element(
                    dmu, ZERO, dz, epsilon, lam, states, slopes, t, place, p, e, places
                )
                gamma, spread = gamma + parts[0], spread + parts[1]
        of_parents(
            gamma, spread, beta_u, lam, states, slopes, gammas, spreads, d_zs, t, place, places
        )

    return em_begin_backward_kernel


@cache
def make_finish_backward(shape):
    """Kernel behind a pass backward over iteration t: the slope of iteration t - 1."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    FIELDS, ZERO, PARENTS = state_fields(E)[0], sums.type(0), parents_of_block(shape)
    HALF = sums.type(0.5)
    (of_element, of_parents), log_sigmoid = make_slope(shape), make_log_sigmoid(sums)
    merged = make_merged(shape, (2, 1), make_add(3))
    place_of, parent_of, element_of = make_own(shape)
    L, P, E, FIELDS, OWN = map(specialized, (L, P, E, FIELDS, PARENTS * E))
    PARENTS, THREADS = map(specialized, (PARENTS, END_THREADS))

    @kept_on_disk
    @cuda.jit
    def em_finish_backward_kernel(
        partial,  # in   (blocks, N * L, 2 E + 1, P)
        beta_u,  # in   (P,)
        states,  # in   (iterations + 1, N * L, FIELDS, P)
        slopes,  # in and out  (iterations, N * L, SLOPES, P)
        N,
        blocks,
        t,
        epsilon,
        lam,  # of iteration t - 1
    ):
        gammas = shared_array(THREADS, sums)
        spreads = shared_array(THREADS, sums)
        d_zs = shared_array(PARENTS, sums)
        gamma, spread = ZERO, ZERO
        found = local_array(3, sums)
        places, place = N * L, place_of(cuda.blockIdx.x)
        state, before = (t * places + place) * FIELDS, t - 1
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                merged(found, partial, place, p, e, places, blocks)
                d_log, inverse = found[2], states[at((state + E + e) * P + p)]
                dmu = found[0] * inverse
                dvar = HALF * inverse * (found[1] * inverse - d_log)
                z = states[at((state + 2 * E + 2) * P + p)]
                dz = d_log * sums.type(math.exp(log_sigmoid(-z)))
                if e == 0:
                    d_zs[at(i)] = dz
                parts = of_element(
                    dmu, dvar, dz, epsilon, lam, states, slopes, before, place, p, e, places
                )
                gamma, spread = gamma + parts[0], spread + parts[1]
        of_parents(
            gamma, spread, beta_u, lam, states, slopes, gammas, spreads, d_zs, before, place, places
        )

    return em_finish_backward_kernel


@cache
def make_sum_betas(shape):
    """Kernel that adds the gradients of beta_u and beta_a; a block a parent and beta, its threads meet in their order."""
    P, E, sums = shape.geometry.P, shape.geometry.E3, shape.sums
    SLOPES, ZERO, THREADS = state_fields(E)[1], sums.type(0), SUM_THREADS
    P, E, SLOPES = map(specialized, (P, E, SLOPES))

    @kept_on_disk
    @cuda.jit
    def em_sum_betas_kernel(
        slopes,  # in   (iterations, N * L, SLOPES, P)
        d_betas,  # out  (2, P)
        first,  # of iterations * N * L
        end,
        more,  # sums go on from what lies there
    ):
        shared = cuda.shared.array(THREADS, sums)
        p, which, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        total = ZERO
        for place in range(first + thread, end, THREADS):
            total += slopes[at((place * SLOPES + 2 * E + 1 + which) * P + p)]
        shared[thread] = total
        cuda.syncthreads()  # every thread's sum is there before the first one adds them
        if thread == 0:
            for other in range(1, THREADS):
                total += shared[other]
            if more:
                total += d_betas[at(which * P + p)]
            d_betas[at(which * P + p)] = total

    return em_sum_betas_kernel
