"""Between two passes of EM routing: the end of an M step, and what of its gradient needs no vote.

    cost = S (E beta_u + 1/2 sum of log variance)      z = lambda (beta_a - cost)      a = sigmoid(z)

A parent without any weight has mean 0 and variance 0, and takes part in no gradient: its log S counts as infinite, so
that every child's part of it, R a / S, is 0.

``lam`` is lambda of the iteration. Thread mapping: one thread a parent at a position of an image.
"""

import math
from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import let_next_start, local_array, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.dynamic import make_add
from numbacaps.routing.em import make_merge_moments, state_fields
from numbacaps.routing.ends import make_merged

SUM_THREADS = 32


@cache
def make_log_sigmoid(sums):
    """Device function ``log_sigmoid(z)``."""
    ZERO, ONE = sums.type(0), sums.type(1)

    @cuda.jit(device=True, forceinline=True)
    def log_sigmoid(z):
        low = z if z < ZERO else ZERO
        return low - sums.type(math.log(ONE + sums.type(math.exp(-abs(z)))))

    return log_sigmoid


@cache
def make_finish(shape):
    """Kernel behind a pass forward."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    SIZE, FIELDS = 2 * E + 2, state_fields(E)[0]
    ZERO, HALF, ONE = sums.type(0), sums.type(0.5), sums.type(1)
    CONSTANT = 0.5 * math.log(2 * math.pi)  # for each element
    NEVER = sums.type(math.inf)
    _, write = conversions(shape.dtype)
    merged = make_merged(shape, SIZE, make_merge_moments(E, sums))
    log_sigmoid = make_log_sigmoid(sums)
    L, P, E, SIZE, FIELDS = map(specialized, (L, P, E, SIZE, FIELDS))

    @kept_on_disk
    @cuda.jit
    def em_finish_kernel(
        partial,  # in   (blocks, N * L, SIZE, P)
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
        wait_for_last()  # the records are there
        let_next_start()
        thread = cuda.grid(1)
        places = N * L
        if thread >= places * P:
            return
        record = local_array(SIZE, sums)
        p, place = thread % P, thread // P
        merged(record, partial, place, p, places, blocks)
        new = ((t + 1) * places + place) * FIELDS
        where = (place // L * P + p) * L + place % L
        S, log_S, weight = ZERO, NEVER, record[2 * E + 1]
        if weight != ZERO:
            log_S = record[2 * E] + sums.type(math.log(weight))
            S = sums.type(math.exp(log_S))
        spread = ZERO  # 1/2 sum of log variance
        for e in range(E):
            variance = epsilon
            if weight != ZERO:
                variance += record[E + e] / weight
            spread += HALF * sums.type(math.log(variance))
            states[at((new + e) * P + p)] = record[e]
            states[at((new + E + e) * P + p)] = ONE / variance
            y[at(where * E + e)] = write(record[e])
        z = lam * (beta_a[at(p)] - S * (sums.type(E) * beta_u[at(p)] + spread))
        log_a = log_sigmoid(z)
        states[at((new + 2 * E) * P + p)] = log_a - spread - sums.type(CONSTANT * E)
        states[at((new + 2 * E + 1) * P + p)] = log_S
        states[at((new + 2 * E + 2) * P + p)] = z
        a_out[at(where)] = write(sums.type(math.exp(log_a)))

    return em_finish_kernel


@cache
def make_slope(shape):
    """Device function that writes the slope of iteration t, from dmu, dvar and dz."""
    P, E, sums = shape.geometry.P, shape.geometry.E3, shape.sums
    (FIELDS, SLOPES), ZERO, HALF = state_fields(E), sums.type(0), sums.type(0.5)
    ONE, NEVER = sums.type(1), sums.type(math.inf)
    P, E, FIELDS, SLOPES = map(specialized, (P, E, FIELDS, SLOPES))

    @cuda.jit(device=True, forceinline=True)
    def slope(dmu, dvar, dz, beta_u, epsilon, lam, states, slopes, t, place, p, places):
        old, new = ((t + 1) * places + place) * FIELDS, (t * places + place) * SLOPES
        log_S, S, spread = states[at((old + 2 * E + 1) * P + p)], ZERO, ZERO
        if log_S != NEVER:
            S = sums.type(math.exp(log_S))
        d_cost = -lam * dz
        gamma = ZERO
        for e in range(E):
            inverse = states[at((old + E + e) * P + p)]
            spread -= HALF * sums.type(math.log(inverse))
            of_variance = dvar[e] + d_cost * S * HALF * inverse
            gamma -= of_variance * (ONE / inverse - epsilon)
            slopes[at((new + e) * P + p)] = dmu[e]
            slopes[at((new + E + e) * P + p)] = of_variance
        gamma += S * d_cost * (sums.type(E) * beta_u[at(p)] + spread)
        slopes[at((new + 2 * E) * P + p)] = gamma
        slopes[at((new + 2 * E + 1) * P + p)] = d_cost * S * sums.type(E)
        slopes[at((new + 2 * E + 2) * P + p)] = -d_cost

    return slope


@cache
def make_begin_backward(shape):
    """Kernel before the passes backward: the slope of the last iteration."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    FIELDS, ZERO = state_fields(E)[0], sums.type(0)
    read, _ = conversions(shape.dtype)
    slope, log_sigmoid = make_slope(shape), make_log_sigmoid(sums)
    L, P, E, FIELDS = map(specialized, (L, P, E, FIELDS))

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
        thread = cuda.grid(1)
        places = N * L
        if thread >= places * P:
            return
        dmu, dvar = local_array(E, sums), local_array(E, sums)
        p, place = thread % P, thread // P
        where = (place // L * P + p) * L + place % L
        for e in range(E):
            dmu[e], dvar[e] = read(dy[at(where * E + e)]), ZERO
        z = states[at((((t + 1) * places + place) * FIELDS + 2 * E + 2) * P + p)]
        dz = read(d_out[at(where)]) * sums.type(math.exp(log_sigmoid(z) + log_sigmoid(-z)))
        slope(dmu, dvar, dz, beta_u, epsilon, lam, states, slopes, t, place, p, places)

    return em_begin_backward_kernel


@cache
def make_finish_backward(shape):
    """Kernel behind a pass backward over iteration t: the slope of iteration t - 1."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    SIZE, FIELDS, HALF = 2 * E + 1, state_fields(E)[0], sums.type(0.5)
    slope, log_sigmoid = make_slope(shape), make_log_sigmoid(sums)
    merged = make_merged(shape, SIZE, make_add(SIZE))
    L, P, E, SIZE, FIELDS = map(specialized, (L, P, E, SIZE, FIELDS))

    @kept_on_disk
    @cuda.jit
    def em_finish_backward_kernel(
        partial,  # in   (blocks, N * L, SIZE, P)
        beta_u,  # in   (P,)
        states,  # in   (iterations + 1, N * L, FIELDS, P)
        slopes,  # in and out  (iterations, N * L, SLOPES, P)
        N,
        blocks,
        t,
        epsilon,
        lam,  # of iteration t - 1
    ):
        thread = cuda.grid(1)
        places = N * L
        if thread >= places * P:
            return
        record = local_array(SIZE, sums)
        dmu, dvar = local_array(E, sums), local_array(E, sums)
        p, place = thread % P, thread // P
        merged(record, partial, place, p, places, blocks)
        d_log = record[2 * E]
        old = (t * places + place) * FIELDS
        for e in range(E):
            inverse = states[at((old + E + e) * P + p)]
            dmu[e] = record[e] * inverse
            dvar[e] = HALF * inverse * (record[E + e] * inverse - d_log)
        z = states[at((old + 2 * E + 2) * P + p)]
        dz = d_log * sums.type(math.exp(log_sigmoid(-z)))
        slope(dmu, dvar, dz, beta_u, epsilon, lam, states, slopes, t - 1, place, p, places)

    return em_finish_backward_kernel


@cache
def make_sum_betas(shape):
    """Kernel that adds what reaches beta_u and beta_a; a block a parent and beta, its threads meet in their order."""
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
