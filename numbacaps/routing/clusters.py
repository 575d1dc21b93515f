"""A position routed whole by a cluster: up to 8 blocks, which share their shared memory, do all iterations in one kernel.

It is for few positions, where a kernel for each iteration would take longer to start than to run. Iterations are those of
:mod:`numbacaps.routing.whole`. What a block's teams have gathered is merged in its shared memory, and handed to all blocks
of the cluster; each merges what it has got, in the order of the blocks. So all go on with the same numbers, and there is no
atomic addition.

Thread mapping: a cluster a position of an image, whose blocks lie along the grid's y. Each team has a part of the children. A
thread merges an element of the parents' capsules, the first warp of a block squashes them, and hands the others A.

A block has two buffers for the records that arrive from the others. Iterations use them in turn, and each has an mbarrier that
counts the bytes that arrive. A block sends its record of iteration t + 1 after it has read all records of iteration t. So once
all records of t + 1 have arrived, the buffer of t may be written again, and iterations need no cluster barrier. The cluster
meets twice: before the first copy, because every mbarrier must exist, and at the end, because a block's shared memory must not
go while a copy still reads it.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    cluster_leave,
    cluster_meet,
    copy_to_block,
    fence_barriers,
    fence_proxy_async,
    local_array,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    shared_address,
    shared_array,
    short,
    unforeseen,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.dynamic import make_merge_of_elements, state_fields
from numbacaps.routing.reduce import make_mine
from numbacaps.routing.shape import WARP
from numbacaps.routing.votes import make_element, make_parent
from numbacaps.routing.whole import (
    make_settle,
    make_squash,
    make_walk_of_iteration,
    make_write_capsules,
)


def cluster_bytes(shape, form, blocks):
    """Bytes of a block's shared memory: arrays begin at multiples of 16 bytes, and behind them are the barriers."""
    sizes = (count * shape.sums.itemsize for count in cluster_numbers(shape, form, blocks))
    return sum(ceil_div(size, CHUNK) * CHUNK for size in sizes) + CHUNK


def cluster_numbers(shape, form, blocks):
    """Numbers in a block's shared memory: (of half its teams' records, of those that blocks hand it, of one, of A)."""
    record = _record(shape, form)
    handed = 2 * blocks * _handed(shape, form)
    return shape.teams // 2 * record, handed, record, shape.team * shape.elements


def _record(shape, form):
    """Numbers of a team's record."""
    return shape.team * shape.scalars * shape.own_fields(form.record)


def _handed(shape, form):
    """The same with those that fill up 16 bytes, as a block hands it on."""
    each = CHUNK // shape.sums.itemsize
    return ceil_div(_record(shape, form), each) * each


@cache
def make_merged(shape, form, over, apart, step, count):
    """Device function ``merged(found, array, first, s, e)``: what ``count`` records in shared memory are for one element.

    It is element e of the lane's s-th capsule, then the record's single numbers. ``first`` is where the lane's first record
    begins; a record's numbers are ``apart``, records a ``step``.
    """
    (_, numbers), sums, merge = form.record, shape.sums, make_merge_of_elements(over, shape.sums)
    SIZE, OWN, FOUND = map(specialized, (shape.own + numbers, shape.own, 1 + numbers))
    APART, STEP, COUNT = map(specialized, (apart, step, count))

    @cuda.jit(device=True, forceinline=True)
    def read(to, array, first, s, e):
        to[0] = array[at(first + (s * SIZE + e) * APART)]
        for r in range(1, FOUND):
            to[r] = array[at(first + (s * SIZE + OWN + r - 1) * APART)]

    @cuda.jit(device=True, forceinline=True)
    def merged(found, array, first, s, e):
        other = local_array(FOUND, sums)
        read(found, array, first, s, e)
        for late in range(1, COUNT):
            read(other, array, first + late * STEP, s, e)
            merge(found, other, 0)

    return merged


@cache
def make_cluster_join(shape, form, over, blocks):
    """Device function ``join(record, gathered, handed, whole, barriers, t)``: what all teams of a cluster have gathered.

    The first warp of each block gets it. In shared memory ``gathered`` has the records of half a block's teams, which merge
    those of the others first, ``handed`` those of all blocks, twice, as ``barriers`` count them in, and ``whole`` what they are
    together.
    """
    (_, numbers), (*_, merge), sums = form.record, form.functions, shape.sums
    team, own, size, half = shape.team, shape.own, shape.own + numbers, shape.teams // 2
    of_teams = make_merged(shape, form, over, half * team, team, half)
    of_blocks = make_merged(shape, form, over, team, _handed(shape, form), blocks)
    TEAM, OWN, SIZE, SCALARS = map(specialized, (team, own, size, shape.scalars))
    HALF, THREADS, BLOCKS = map(specialized, (half * team, shape.threads, blocks))
    of_one = _handed(shape, form) * sums.itemsize
    ONE, OTHERS = map(specialized, (of_one, (blocks - 1) * of_one))  # bytes
    FOUND, RECORD, HANDED, ELEMENTS = map(
        specialized,
        (1 + numbers, shape.scalars * size, _handed(shape, form), team * shape.scalars * own),
    )

    @cuda.jit(device=True, forceinline=True)
    def element(i):
        return i % TEAM, i // TEAM // OWN, i // TEAM % OWN

    @cuda.jit(device=True, forceinline=True)
    def place(r, lane, s, e):
        return (s * SIZE + (e if r == 0 else OWN + r - 1)) * TEAM + lane

    @cuda.jit(device=True, forceinline=True)
    def join(record, gathered, handed, whole, barriers, t):
        found, other = local_array(FOUND, sums), local_array(SIZE, sums)
        own = unforeseen(short(cuda.threadIdx.x))  # its places take no registers during a walk
        first, barrier = t % 2 * BLOCKS * HANDED, shared_address(barriers) + 8 * (t % 2)
        mine = first + cuda.blockIdx.y * HANDED
        if own == 0:
            mbarrier_expect(barriers, barrier, OTHERS)
        if own >= HALF:
            for r in range(RECORD):
                gathered[at(r * HALF + own - HALF)] = record[r]
        cuda.syncthreads()  # the records of the second half are there
        if own < HALF:
            for s in range(SCALARS):
                for r in range(SIZE):
                    other[r] = gathered[at((s * SIZE + r) * HALF + own)]
                merge(record, other, s * SIZE)
            for r in range(RECORD):
                gathered[at(r * HALF + own)] = record[r]
        cuda.syncthreads()  # those of the first half are, and have the others' in them
        for i in range(own, ELEMENTS, THREADS):
            lane, s, e = element(i)
            of_teams(found, gathered, lane, s, e)
            for r in range(FOUND):
                if r == 0 or e == 0:
                    handed[at(mine + place(r, lane, s, e))] = found[r]
        fence_proxy_async()
        cuda.syncthreads()  # this block's record is there
        if own < BLOCKS and own != cuda.blockIdx.y:
            copy_to_block(own, handed, at(mine), ONE, barrier)
        mbarrier_wait(barriers, barrier, t // 2 % 2)  # those of all blocks are there
        for i in range(own, ELEMENTS, THREADS):
            lane, s, e = element(i)
            of_blocks(found, handed, first + lane, s, e)
            for r in range(FOUND):
                if r == 0 or e == 0:
                    whole[at(place(r, lane, s, e))] = found[r]
        cuda.syncthreads()  # what they are together is there
        if own < WARP:
            for r in range(RECORD):
                record[r] = whole[at(r * TEAM + own % TEAM)]

    return join


@cache
def make_write_state(shape):
    """Device function ``write(states, held, t, n, l, lane, N)`` of A, s and lse, as ``held`` has them, to state t."""
    L, P, E3, J = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.parents
    (parent, has_parent), element = make_parent(shape), make_element(shape)
    FIELDS, ELEMENTS, OWN = state_fields(E3)[0], shape.elements, shape.own
    L, P, E3, J, FIELDS = map(specialized, (L, P, E3, J, FIELDS))
    ELEMENTS, OWN = map(specialized, (ELEMENTS, OWN))

    @cuda.jit(device=True, forceinline=True)
    def write(states, held, t, n, l, lane, N):
        first = ((t * N + n) * L + l) * FIELDS
        for j in range(J):
            if has_parent(lane, j):
                p = parent(lane, j)
                for e in range(OWN):
                    k, field = j * OWN + e, first + element(lane, e)
                    states[at(field * P + p)] = held[k]
                    states[at((field + E3) * P + p)] = held[ELEMENTS + k]
                # Lanes that share a parent have the same lse.
                states[at((first + 2 * E3) * P + p)] = held[2 * ELEMENTS + j]

    return write


@cache
def make_cluster(shape, votes, form, over, blocks, keep):
    """Kernel of the whole forward pass.

    Parameters
    ----------
    shape : numbacaps.routing.shape.Shape
        Of one image a team.
    votes : device function
        Of a source (:mod:`numbacaps.routing.votes`).
    form
        Of the pass forward; it may have no prior.
    over : str
        What the softmax is over.
    blocks : int
        Of a cluster.
    keep : bool
        States of all iterations are written.
    """
    ELEMENTS, SCALARS, sums, KEEP = shape.elements, shape.scalars, shape.sums, keep
    ZERO = sums.type(0)
    GATHERED, HANDED, WHOLE, SUMMED = cluster_numbers(shape, form, blocks)
    walk = make_walk_of_iteration(shape, votes, form)
    join = make_cluster_join(shape, form, over, blocks)
    settle, squash = make_settle(shape, over), make_squash(shape)
    mine, write_state = make_mine(shape, shape.teams), make_write_state(shape)
    write_capsules = make_write_capsules(shape)
    BOUNDS = tuple(map(specialized, (shape.threads, 1)))
    HELD, RECORD = 2 * ELEMENTS + SCALARS, SCALARS * shape.own_fields(form.record)
    ELEMENTS, TEAM, WHOLE, SUMMED = map(specialized, (ELEMENTS, shape.team, WHOLE, SUMMED))
    HELD, RECORD, GATHERED, HANDED = map(specialized, (HELD, RECORD, GATHERED, HANDED))

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_cluster_kernel(
        x,  # in   votes, as the source has them
        prior,  # in   (I, P), if the form has one
        states,  # out  (iterations + 1, N * L, fields, P), if they are kept
        y,  # out  (N, P, L, E)
        N,
        count,  # children of a team
        iterations,
    ):
        held, v = local_array(HELD, sums), local_array(ELEMENTS, sums)  # A, s, lse; v
        record = local_array(RECORD, sums)
        gathered = shared_array(GATHERED, sums)
        handed = shared_array(HANDED, sums)
        whole = shared_array(WHOLE, sums)
        summed = shared_array(SUMMED, sums)
        barriers = shared_array(2, np.int64)
        _, leads, n, l, first, lane = mine(count, N)
        writes = leads and cuda.blockIdx.y == 0
        for k in range(HELD):
            held[k] = ZERO
        if cuda.threadIdx.x == 0:
            for turn in range(2):
                mbarrier_init(barriers, shared_address(barriers) + 8 * turn, 1)
            fence_barriers()
        cluster_meet()  # all blocks have begun, and their barriers are there
        wait_for_last()
        if KEEP and writes:
            write_state(states, held, 0, n, l, lane, N)
        own = cuda.threadIdx.x
        for t in range(iterations):
            walk(record, held, x, x, prior, t, n, l, first, count, lane, N)
            join(record, gathered, handed, whole, barriers, t)
            if own < WARP:
                settle(held, ELEMENTS, 2 * ELEMENTS, record, lane)
                squash(v, held, ELEMENTS)
                for e in range(ELEMENTS):
                    held[e] += v[e]
                    if leads:
                        summed[at(e * TEAM + own)] = held[e]
                if KEEP and writes:
                    write_state(states, held, t + 1, n, l, lane, N)
                if writes:
                    write_capsules(y, v, n, l, lane, N)
            cuda.syncthreads()  # A is there
            for e in range(ELEMENTS):
                held[e] = summed[at(e * TEAM + lane)]
        cluster_leave()  # all have got what this block hands on

    return routing_cluster_kernel
