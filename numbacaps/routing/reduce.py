"""A pass over the children: what each parent gathers from their votes, which are computed and forgotten one by one.

A *form* of routing says what is gathered, by device functions:

    hold(held, states, slopes, t, n, l, lane, N)               read what the iteration needs of the parents
    clear(record)                                              nothing gathered yet
    record                                                     (capsules, numbers) that are gathered for a parent
    absorb(record, V, held, prior, norm, total, t, n, l, i, lane, live, N)   one child more; not if it is not ``live``
    merge(record, other, first)                                what two teams have gathered, the earlier one first

Thread mapping: a team has some images at a position and walks over its part of the children. The teams of a block
that share the images meet in shared memory, blocks in ``partial``; both are merged in the order of the children.
"""

from functools import cache

from numbacaps.device.instructions import local_array, shared_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.shape import bounds
from numbacaps.routing.votes import make_element, make_parent, make_votes


@cache
def make_field(shape, record):
    """Device function ``field(lane, r)``: which number of a parent's record a lane's r-th is."""
    element, (capsules, _) = make_element(shape), record
    OWN, E3, CAPSULES = map(specialized, (shape.own, shape.geometry.E3, capsules))

    @cuda.jit(device=True, forceinline=True)
    def field(lane, r):
        if r < CAPSULES * OWN:
            return r // OWN * E3 + element(lane, r % OWN)
        return r - CAPSULES * OWN + CAPSULES * E3

    return field


@cache
def make_walk(shape, votes, form):
    """Device function ``walk(record, held, x, w, prior, norm, total, t, n, l, first, count, lane, N)``: what a team gathers.

    Of the ``count`` children from ``first`` on, whose ``votes`` are a source's (:mod:`numbacaps.routing.votes`).
    """
    sums = shape.sums
    _, clear, absorb, _ = form.functions
    CHILDREN, ELEMENTS = map(specialized, (shape.children, shape.elements))

    @cuda.jit(device=True, forceinline=True)
    def walk(record, held, x, w, prior, norm, total, t, n, l, first, count, lane, N):
        V = local_array(ELEMENTS, sums)
        clear(record)
        for step in range(count):
            live = first + step < CHILDREN
            i = min(first + step, CHILDREN - 1)
            votes(V, x, w, n, l, i, lane, N)
            absorb(record, V, held, prior, norm, total, t, n, l, i, lane, live, N)

    return walk


@cache
def make_mine(shape, joined):
    """Device function ``mine(count, N)`` of a thread: (its place is one, its team is the first there, n, l, first child, lane)."""
    L, M, TEAM, PLACES, JOINED = map(
        specialized,
        (shape.geometry.L, shape.images, shape.team, shape.teams // joined, joined),
    )

    @cuda.jit(device=True, forceinline=True)
    def mine(count, N):
        lane, team = cuda.threadIdx.x % TEAM, cuda.threadIdx.x // TEAM
        place, groups = cuda.blockIdx.x * PLACES + team % PLACES, (N + M - 1) // M * L
        inside, leads = place < groups, team < PLACES
        place = min(place, groups - 1)
        first = (cuda.blockIdx.y * JOINED + team // PLACES) * count
        return inside, leads, place // L * M, place % L, first, lane

    return mine


def shared_numbers(shape, fields, joined):
    """Numbers in shared memory that :func:`make_gather` takes; lanes have ``fields`` of a parent's record."""
    return shape.threads * shape.scalars * fields if joined > 1 else 1


@cache
def make_gather(shape, form, joined):
    """Device function ``gather(record, shared)``: the first of a place's ``joined`` teams gets what all have, in their order."""
    _, _, _, merge = form.functions
    size, sums = shape.own_fields(form.record), shape.sums
    ACROSS, JOINED = map(specialized, (shape.teams // joined * shape.team, joined))
    SCALARS, SIZE, RECORD = map(specialized, (shape.scalars, size, shape.scalars * size))
    THREADS = specialized(shape.threads)

    @cuda.jit(device=True, forceinline=True)
    def gather(record, shared):
        if JOINED > 1:
            other, own = local_array(SIZE, sums), cuda.threadIdx.x
            for r in range(RECORD):
                shared[at(r * THREADS + own)] = record[r]
            cuda.syncthreads()  # every team's record is there before the first one merges
            if own < ACROSS:
                for late in range(1, JOINED):
                    thread = own + late * ACROSS
                    for s in range(SCALARS):
                        for r in range(SIZE):
                            other[r] = shared[at((s * SIZE + r) * THREADS + thread)]
                        merge(record, other, s * SIZE)

    return gather


@cache
def make_reduce(shape, stored, form, joined):
    """Kernel of a pass; ``joined`` teams of a block share the images."""
    L, P, M, J = shape.geometry.L, shape.geometry.P, shape.images, shape.parents
    FIELDS, SIZE, sums = shape.fields(form.record), shape.own_fields(form.record), shape.sums
    HELD, RECORD, SHARED = form.held, shape.scalars * SIZE, shared_numbers(shape, SIZE, joined)
    BOUNDS = tuple(map(specialized, bounds(shape, shape.elements + HELD + RECORD)))
    walk, (hold, *_) = make_walk(shape, make_votes(shape, stored), form), form.functions
    mine, gather = make_mine(shape, joined), make_gather(shape, form, joined)
    (parent, has_parent), field = make_parent(shape), make_field(shape, form.record)
    L, P, M, J, FIELDS = map(specialized, (L, P, M, J, FIELDS))
    SIZE, HELD, RECORD, SHARED = map(specialized, (SIZE, HELD, RECORD, SHARED))

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_reduce_kernel(
        x,  # in   (N, C, H, W, E1), or votes (N, P, L, I, E)
        w,  # in   (Q, E2, P)
        prior,  # in   what the form takes of the children
        norm,  # in   what the form takes of the capsules, of every iteration
        total,  # in   the same
        states,  # in   (iterations + 1, N * L, fields, P)
        slopes,  # in   (iterations, N * L, fields, P)
        partial,  # out  (blocks, N * L, fields, P)
        N,
        count,  # children of a team
        t,
    ):
        held, record = local_array(HELD, sums), local_array(RECORD, sums)
        shared = shared_array(SHARED, sums)
        inside, leads, n, l, first, lane = mine(count, N)
        hold(held, states, slopes, t, n, l, lane, N)
        walk(record, held, x, w, prior, norm, total, t, n, l, first, count, lane, N)
        gather(record, shared)
        if inside and leads:
            for m in range(M):
                for j in range(J):
                    if n + m < N and has_parent(lane, j):
                        first = (cuda.blockIdx.y * N * L + (n + m) * L + l) * FIELDS
                        for r in range(SIZE):
                            to = (first + field(lane, r)) * P + parent(lane, j)
                            partial[at(to)] = record[(m * J + j) * SIZE + r]

    return routing_reduce_kernel
