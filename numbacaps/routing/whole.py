"""A position routed whole: one kernel does all iterations, and what its parents are in between never leaves the threads.

It is for positions that one block can take, because there are many of them, or few children. Iterations are then no kernels
of their own, and no state of the parents is in device memory. Where votes are stored, a position's lie in a cache after the
first walk over them.

    forward     walk, s, v = squash(s), A = A + v; again
    backward    the same, with A, s and lse of every iteration held; then from the last iteration to the first ds, and a
                walk for dA; then one walk more, which writes the gradient of each vote

Thread mapping: that of :mod:`numbacaps.routing.reduce`, where one of the teams that share a position merges what all have
gathered. Here the others get that from shared memory, so that all go on with the same numbers.

Backward, iterations are functions one after another, not turns of a loop: numbers of an iteration are then at places that
the compiler knows, in registers.
"""

import math
from functools import cache

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array, shared_array, store_run
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.constant import make_constant
from numbacaps.routing.dynamic import first_of
from numbacaps.routing.dynamic_backward import held_numbers, make_add_slopes
from numbacaps.routing.dynamic_ends import make_ds, make_shrunk
from numbacaps.routing.reduce import make_gather, make_mine, make_walk, shared_numbers
from numbacaps.routing.shape import bounds
from numbacaps.routing.team import make_columns_max, make_columns_sum
from numbacaps.routing.votes import make_element, make_parent


@cache
def make_join(shape, form, joined):
    """Device function ``join(record, shared)``: every one of a place's teams gets what all have gathered."""
    gather = make_gather(shape, form, joined)
    ACROSS, JOINED, RECORD = map(
        specialized,
        (shape.teams // joined * shape.team, joined, shape.scalars * shape.own_fields(form.record)),
    )
    THREADS = specialized(shape.threads)

    @cuda.jit(device=True, forceinline=True)
    def join(record, shared):
        gather(record, shared)
        if JOINED > 1:
            own = cuda.threadIdx.x
            if own < ACROSS:  # where no other thread reads
                for r in range(RECORD):
                    shared[at(r * THREADS + own)] = record[r]
            cuda.syncthreads()  # what all have gathered is there
            for r in range(RECORD):
                record[r] = shared[at(r * THREADS + own % ACROSS)]
            cuda.syncthreads()  # and has been read before the next records come

    return join


@cache
def make_settle(shape, over):
    """Device function ``settle(held, s, lse, record, lane)``: writes the parents' s, from ``held[s]`` on, and their lse."""
    OVER_CHILDREN, sums = over == "children", shape.sums
    E, J, SCALARS = map(specialized, (shape.own, shape.parents, shape.scalars))
    SIZE = specialized(shape.own_fields((1, 2 if OVER_CHILDREN else 0)))
    ZERO, ONE, (_, has_parent) = sums.type(0), sums.type(1), make_parent(shape)

    @cuda.jit(device=True, forceinline=True)
    def settle(held, s, lse, record, lane):
        for k in range(SCALARS):
            top, total = ZERO, ONE
            if OVER_CHILDREN and has_parent(lane, k % J):
                top, total = record[k * SIZE + E], record[k * SIZE + E + 1]
            held[lse + k] = top + sums.type(math.log(total))
            for e in range(E):
                held[s + k * E + e] = record[k * SIZE + e] / total

    return settle


@cache
def make_length(shape):
    """Device function ``length(held, first)`` of a parent's capsule, of which each of its lanes has some elements.

    As :func:`numbacaps.routing.dynamic_ends.make_length`. All lanes of the warp take part.
    """
    E, sums = specialized(shape.own), shape.sums
    ZERO, ONE = sums.type(0), sums.type(1)
    columns_max, columns_sum = make_columns_max(shape), make_columns_sum(shape)

    @cuda.jit(device=True, forceinline=True)
    def length(held, first):
        largest, square = ZERO, ZERO
        for e in range(E):
            size = abs(held[first + e])
            if size > largest:
                largest = size
        largest = columns_max(largest)
        unit = ONE if largest == ZERO else largest
        for e in range(E):
            part = held[first + e] / unit
            square += part * part
        return largest * sums.type(math.sqrt(columns_sum(square)))

    return length


@cache
def make_squash(shape):
    """Device function ``squash(v, held, s)``: the parents' v, for their s from ``held[s]`` on."""
    E, SCALARS = map(specialized, (shape.own, shape.scalars))
    length, shrunk = make_length(shape), make_shrunk(shape.sums)

    @cuda.jit(device=True, forceinline=True)
    def squash(v, held, s):
        for k in range(SCALARS):
            f = shrunk(length(held, s + k * E))
            for e in range(E):
                v[k * E + e] = f * held[s + k * E + e]

    return squash


@cache
def make_walk_of_iteration(shape, votes, form):
    """Device function ``walk(record, held, x, w, prior, t, n, l, first, count, lane, N)``: what a team gathers in iteration t."""
    later, earliest = make_walk(shape, votes, form), make_walk(shape, votes, first_of(form))
    IS_EVEN = not form.has_prior

    @cuda.jit(device=True, forceinline=True)
    def walk(record, held, x, w, prior, t, n, l, first, count, lane, N):
        if IS_EVEN and t == 0:
            earliest(record, held, x, w, prior, prior, prior, t, n, l, first, count, lane, N)
        else:
            later(record, held, x, w, prior, prior, prior, t, n, l, first, count, lane, N)

    return walk


@cache
def make_write_capsules(shape):
    """Device function ``write(y, v, n, l, lane, N)`` of the parents' capsules, to (N, P, L, E)."""
    (parent, has_parent), element = make_parent(shape), make_element(shape)
    _, rounded = conversions(shape.dtype)
    L, P, E3 = map(specialized, (shape.geometry.L, shape.geometry.P, shape.geometry.E3))
    M, J, OWN = map(specialized, (shape.images, shape.parents, shape.own))

    @cuda.jit(device=True, forceinline=True)
    def write(y, v, n, l, lane, N):
        for m in range(M):
            for j in range(J):
                if n + m < N and has_parent(lane, j):
                    to = (((n + m) * P + parent(lane, j)) * L + l) * E3
                    for e in range(OWN):
                        y[at(to + element(lane, e))] = rounded(v[(m * J + j) * OWN + e])

    return write


def whole_numbers(shape, form):
    """Numbers that a lane holds in :func:`make_whole`: A, s, lse, v and votes; a record, and another one."""
    record = shape.own_fields(form.record)
    return 4 * shape.elements + shape.scalars * (1 + record) + record


@cache
def make_whole(shape, votes, form, over, joined):
    """Kernel of the whole forward pass, of a source of votes; ``joined`` teams of a block share a position's children."""
    ELEMENTS, SCALARS, sums = shape.elements, shape.scalars, shape.sums
    RECORD = SCALARS * shape.own_fields(form.record)
    SHARED, ZERO = shared_numbers(shape, shape.own_fields(form.record), joined), sums.type(0)
    walk, join = make_walk_of_iteration(shape, votes, form), make_join(shape, form, joined)
    settle, squash, mine = make_settle(shape, over), make_squash(shape), make_mine(shape, joined)
    write, HELD = make_write_capsules(shape), 2 * ELEMENTS + SCALARS
    BOUNDS = tuple(map(specialized, bounds(shape, whole_numbers(shape, form))))
    ELEMENTS, RECORD, SHARED, HELD = map(specialized, (ELEMENTS, RECORD, SHARED, HELD))

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_whole_kernel(
        x,  # in   (N, C, H, W, E1), or votes (N, P, L, I, E)
        w,  # in   (Q, E2, P)
        prior,  # in   (I, P), if the form has one
        y,  # out  (N, P, L, E)
        N,
        count,  # children of a team
        iterations,
    ):
        held, v = local_array(HELD, sums), local_array(ELEMENTS, sums)  # A, s, lse; v
        record = local_array(RECORD, sums)
        shared = shared_array(SHARED, sums)
        inside, leads, n, l, first, lane = mine(count, N)
        for e in range(ELEMENTS):
            held[e] = ZERO
        for t in range(iterations):
            walk(record, held, x, w, prior, t, n, l, first, count, lane, N)
            join(record, shared)
            settle(held, ELEMENTS, 2 * ELEMENTS, record, lane)
            squash(v, held, ELEMENTS)
            for e in range(ELEMENTS):
                held[e] += v[e]
        if inside and leads:
            write(y, v, n, l, lane, N)

    return routing_whole_kernel


def whole_gradient_numbers(shape, iterations):
    """Numbers that a lane holds of all iterations in :func:`make_whole_gradient`."""
    return iterations * held_numbers(shape)


@cache
def make_whole_gradient(shape, votes, run, forward, earlier, options, joined):
    """Kernel of the gradient of stored votes, without logits to begin with.

    Parameters
    ----------
    shape : Shape
    votes : device function
        Of a source that reads them.
    run : int
        Elements of a vote's gradient that one store takes.
    forward, earlier
        Forms of the passes forward and backward, without a prior.
    options : numbacaps.routing.options.Options
    joined : int
        Teams of a block that share a position's children.
    """
    g, sums = shape.geometry, shape.sums
    L, P, E3, CHILDREN, M, J = g.L, g.P, g.E3, shape.children, shape.images, shape.parents
    ELEMENTS, OWN, ALL = (
        shape.elements,
        shape.own,
        whole_gradient_numbers(shape, options.iterations),
    )
    fields = max(shape.own_fields(form.record) for form in (forward, earlier))
    SHARED, ZERO = shared_numbers(shape, fields, joined), sums.type(0)
    read, write = conversions(shape.dtype)
    mine = make_mine(shape, joined)
    (parent, has_parent), element = make_parent(shape), make_element(shape)
    T, first_t = options.iterations, options.first
    over, how = options.softmax_over, (shape, votes, joined)
    forms = (forward if t else first_of(forward) for t in range(T))
    ahead = _one_after_another(
        [_make_ahead(*how, form, over, t, t + 1 < T) for t, form in enumerate(forms)]
    )
    back = _one_after_another(
        [
            _make_back(*how, earlier, t, t + 1 == T, t > first_t)
            for t in range(T - 1, first_t - 1, -1)
        ]
    )
    reach = _one_after_another([_make_reach(shape, options, t) for t in range(first_t, T)])
    BOUNDS = tuple(map(specialized, bounds(shape, ALL + 3 * ELEMENTS)))
    held_dtype = np.dtype(stored(shape.dtype))
    L, P, E3, CHILDREN, M, J = map(specialized, (L, P, E3, CHILDREN, M, J))
    ELEMENTS, OWN, ALL, SHARED = map(specialized, (ELEMENTS, OWN, ALL, SHARED))
    RUN, RUNS = map(specialized, (run, shape.own // run))

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_whole_gradient_kernel(
        x,  # in   votes (N, P, L, I, E)
        dy,  # in   (N, P, L, E)
        dx,  # out  (N, P, L, I, E)
        N,
        count,  # children of a team
    ):
        held, dv = local_array(ALL, sums), local_array(ELEMENTS, sums)
        V, dV = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
        some = local_array(RUN, held_dtype)
        shared = shared_array(SHARED, sums)
        inside, _, n, l, first, lane = mine(count, N)
        for m in range(M):
            for j in range(J):
                of = ((min(n + m, N - 1) * P + parent(lane, j)) * L + l) * E3
                for e in range(OWN):
                    is_there = has_parent(lane, j)
                    value = read(dy[at(of + element(lane, e))]) if is_there else ZERO
                    dv[(m * J + j) * OWN + e] = value
        ahead(held, shared, x, n, l, first, count, lane, N)
        back(held, dv, shared, x, n, l, first, count, lane, N)
        for step in range(count):
            live = inside and first + step < CHILDREN
            i = min(first + step, CHILDREN - 1)
            votes(V, x, x, n, l, i, lane, N)
            for e in range(ELEMENTS):
                dV[e] = ZERO
            reach(dV, V, held, x, i, lane)
            for m in range(M):
                for j in range(J):
                    if live and n + m < N and has_parent(lane, j):
                        vote = ((n + m) * P + parent(lane, j)) * L + l
                        for k in range(RUNS):
                            for e in range(RUN):
                                some[e] = write(dV[(m * J + j) * OWN + k * RUN + e])
                            to = (vote * CHILDREN + i) * E3 + element(lane, k * RUN)
                            store_run(RUN, dx, at(to), some)

    return routing_whole_gradient_kernel


def _one_after_another(functions):
    """Device function that calls device functions of the same arguments in turn."""
    if not functions:
        return _nothing
    one, others = functions[0], _one_after_another(functions[1:])

    @cuda.jit(device=True, forceinline=True)
    def in_turn(*given):
        one(*given)
        others(*given)

    return in_turn


@cuda.jit(device=True, forceinline=True)
def _nothing(*given):
    pass


def _make_ahead(shape, votes, joined, form, over, t, goes_on):
    """Device function of iteration t forward: its s and lse, and A of the next one."""
    HELD, first = held_numbers(shape), t * held_numbers(shape)
    ELEMENTS, RECORD, sums = (
        shape.elements,
        shape.scalars * shape.own_fields(form.record),
        shape.sums,
    )
    walk, join = make_walk(shape, votes, form), make_join(shape, form, joined)
    settle, squash = make_settle(shape, over), make_squash(shape)
    BEGINS, ZERO, A, S, LSE = t == 0, sums.type(0), first, first + ELEMENTS, first + 2 * ELEMENTS
    NEXT, GOES_ON = first + HELD, goes_on
    ELEMENTS, RECORD, A, S, LSE, NEXT = map(specialized, (ELEMENTS, RECORD, A, S, LSE, NEXT))

    @cuda.jit(device=True, forceinline=True)
    def ahead(held, shared, x, n, l, first, count, lane, N):
        record, v = local_array(RECORD, sums), local_array(ELEMENTS, sums)
        if BEGINS:
            for e in range(ELEMENTS):
                held[e] = ZERO
        walk(record, held[A:], x, x, x, x, x, 0, n, l, first, count, lane, N)
        join(record, shared)
        settle(held, S, LSE, record, lane)
        if GOES_ON:
            squash(v, held, S)
            for e in range(ELEMENTS):
                held[NEXT + e] = held[A + e] + v[e]

    return ahead


def _make_back(shape, votes, joined, form, t, is_last, goes_on):
    """Device function of iteration t backward: its ds and <s, ds> from dv, and the gradient of v of the one before."""
    first, ELEMENTS, E, SCALARS, sums = (
        t * held_numbers(shape),
        shape.elements,
        shape.own,
        shape.scalars,
        shape.sums,
    )
    RECORD, DOT = shape.scalars * shape.own_fields(form.record), first + 2 * ELEMENTS + SCALARS
    walk, join = make_walk(shape, votes, form), make_join(shape, form, joined)
    length, shrunk, ds_of = make_length(shape), make_shrunk(sums), make_ds(sums)
    columns_sum, ZERO, ONE = make_columns_sum(shape), sums.type(0), sums.type(1)
    IS_LAST, GOES_ON, A, S = is_last, goes_on, first, first + ELEMENTS
    E, SCALARS, ELEMENTS, RECORD = map(specialized, (E, SCALARS, ELEMENTS, RECORD))
    A, S, DOT = map(specialized, (A, S, DOT))

    @cuda.jit(device=True, forceinline=True)
    def back(held, dv, shared, x, n, l, first, count, lane, N):
        record = local_array(RECORD, sums)
        for k in range(SCALARS):
            size = length(held, S + k * E)
            f, along, dot = shrunk(size), ZERO, ZERO
            unit = ONE if size == ZERO else size
            for e in range(E):
                along += held[S + k * E + e] / unit * dv[k * E + e]
            along = columns_sum(along)
            along = (ONE / unit - size) * f * f * along if size != ZERO else ZERO
            for e in range(E):
                s = held[S + k * E + e]
                ds = ds_of(dv[k * E + e], s, f, size, along)
                dot += s * ds
                held[S + k * E + e] = ds
            held[DOT + k] = columns_sum(dot)
        if GOES_ON:
            walk(record, held[A:], x, x, x, x, x, 0, n, l, first, count, lane, N)
            join(record, shared)
            for e in range(ELEMENTS):
                dv[e] = record[e] if IS_LAST else dv[e] + record[e]

    return back


def _make_reach(shape, options, t):
    """Device function that adds to dV the gradient of the votes V of child i in iteration t."""
    add, FIRST = (
        make_add_slopes(shape, options.softmax_over, options.detach, False),
        specialized(t * held_numbers(shape)),
    )
    BEGINS, ELEMENTS, SCALARS, sums = t == 0, shape.elements, shape.scalars, shape.sums
    together = shape.geometry.P if options.softmax_over == "parents" else shape.children
    even = make_constant(1 / together, sums)
    ELEMENTS, SCALARS = map(specialized, (ELEMENTS, SCALARS))

    @cuda.jit(device=True, forceinline=True)
    def reach(dV, V, held, x, i, lane):
        if BEGINS:  # all couplings are alike
            for e in range(ELEMENTS):
                dV[e] += even() * held[ELEMENTS + e]
        else:
            dp = local_array(SCALARS, sums)
            add(dV, dp, V, held[FIRST:], x, i, lane)  # there is no prior

    return reach
