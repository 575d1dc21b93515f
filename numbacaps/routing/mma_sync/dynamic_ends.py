"""Between two passes of dynamic routing: what the parts have gathered is added in their order, and the parents squash.

The state that is written, and the gradient of squash, are those of :mod:`numbacaps.routing.dynamic_ends`. Here a block has all
parents of a position, whose capsules fit shared memory, and writes once more, as lanes hold it, what the next pass reads.

Thread mapping: one block an image at a position; its threads walk over the elements of all parents, then over the parents, of
each of which neighbouring lanes share the elements. What a thread reads besides the parts is asked for before they are added,
so that it waits once.
"""

import math
from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    let_next_start,
    local_array,
    shared_array,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import SIMULATED, at, cuda
from numbacaps.routing.dynamic import state_fields
from numbacaps.routing.dynamic_ends import make_shrunk
from numbacaps.routing.mma_sync.fragments import make_slot
from numbacaps.routing.team import make_lanes_max, make_lanes_sum

_WARP = 32
END_THREADS = _WARP if SIMULATED else 256
_TOGETHER = 16  # sums that a thread loads at once


def turns_of(fragments):
    """Elements of all parents that a thread has."""
    return ceil_div(fragments.P * fragments.D1 * fragments.D3, END_THREADS)


@cache
def make_added(fragments):
    """Device function ``added(partial, place, column, places, parts)``: a sum over the parts."""
    COLUMNS, ZERO = specialized(fragments.P * fragments.D1 * fragments.D3), np.float32(0)
    add = _make_add(_TOGETHER)

    @cuda.jit(device=True, forceinline=True)
    def added(partial, place, column, places, parts):
        return add(ZERO, partial, place * COLUMNS + column, places * COLUMNS, parts)

    return added


def _make_add(together):
    """Device function ``add(total, partial, first, apart, parts)``: the total with ``parts`` numbers added to it.

    It loads ``together`` of them before it adds them, so that their loads overlap. The rest, fewer than that, is loaded in
    groups of a fourth of the size, and so on.
    """
    TOGETHER = specialized(together)
    add_the_rest = _make_add(together // 4) if together > 1 else _nothing_more

    @cuda.jit(device=True, forceinline=True)
    def add(total, partial, first, apart, parts):
        some = local_array(TOGETHER, np.float32)
        while parts >= TOGETHER:
            for ahead in range(TOGETHER):
                some[ahead] = partial[at(first + ahead * apart)]
            for ahead in range(TOGETHER):
                total += some[ahead]
            first += TOGETHER * apart
            parts -= TOGETHER
        return add_the_rest(total, partial, first, apart, parts)

    return add


@cuda.jit(device=True, forceinline=True)
def _nothing_more(total, partial, first, apart, parts):
    return total


def lanes_of(fragments):
    """Neighbouring lanes that share a parent's elements, a power of two."""
    lanes = 1
    while lanes < min(fragments.D1 * fragments.D3, _WARP):
        lanes *= 2
    return lanes


@cache
def make_lengths(fragments):
    """Device functions ``(length(array, first, lane), dot(a, b, first, over, lane))`` of a parent's capsules in shared memory.

    As :func:`numbacaps.routing.dynamic_ends.make_length`, and the sum of ``a / over * b``; each of the lanes that share the parent
    gets it.
    """
    elements, lanes = fragments.D1 * fragments.D3, lanes_of(fragments)
    E, LANES, TURNS = map(specialized, (elements, lanes, ceil_div(elements, lanes)))
    lanes_max, lanes_sum = make_lanes_max(lanes), make_lanes_sum(lanes)
    ZERO, ONE = np.float32(0), np.float32(1)

    @cuda.jit(device=True, forceinline=True)
    def length(array, first, lane):
        largest, square = ZERO, ZERO
        for turn in range(TURNS):
            e = lane + turn * LANES
            size = abs(array[at(first + e)]) if e < E else ZERO
            if size > largest:
                largest = size
        largest = lanes_max(largest)
        unit = ONE if largest == ZERO else largest
        for turn in range(TURNS):
            e = lane + turn * LANES
            part = array[at(first + e)] / unit if e < E else ZERO
            square += part * part
        return largest * np.float32(math.sqrt(lanes_sum(square)))

    @cuda.jit(device=True, forceinline=True)
    def dot(a, b, first, over, lane):
        found = ZERO
        for turn in range(TURNS):
            e = lane + turn * LANES
            if e < E:
                found += a[at(first + e)] / over * b[at(first + e)]
        return lanes_sum(found)

    return length, dot


@cache
def make_blank(fragments):
    """Device function ``blank(held, which, arrays, places, whole)``: zeros for places that are none, in an array that passes read.

    ``held`` is (rows of places, arrays, words), as lanes hold them; ``whole`` is how many places its rows have.
    """
    f = fragments
    OF_ARRAY, PLACES = map(specialized, (32 * f.across * f.elements, f.places))
    THREADS, ROWS, ZERO = END_THREADS, specialized(f.rows), np.float32(0)

    @cuda.jit(device=True, forceinline=True)
    def blank(held, which, arrays, places, whole):
        begin, end = places // PLACES * OF_ARRAY, whole // PLACES * OF_ARRAY
        for i in range(begin + cuda.threadIdx.x, end, THREADS):
            row, word = i // OF_ARRAY, i % OF_ARRAY
            place = row * PLACES + word % 128 // 16 + (word % 4 // 2 * 8 if ROWS == 1 else 0)
            if place >= places:
                held[at((row * arrays + which) * OF_ARRAY + word)] = ZERO

    return blank


def _of_parents(fragments):
    """Lanes of a parent, parents that a block has at once, and turns in which it has all."""
    lanes = lanes_of(fragments)
    groups = END_THREADS // lanes
    return tuple(map(specialized, (lanes, groups, ceil_div(fragments.P, groups))))


@cache
def make_dynamic_end(fragments, L, is_first):
    """Kernel between two passes, the first of which found A = 0 in no state."""
    elements = fragments.D1 * fragments.D3
    P, E, COLUMNS = map(specialized, (fragments.P, elements, fragments.P * elements))
    FIELDS, OF_IMAGE, FIRST = *map(specialized, (state_fields(elements)[0], L)), is_first
    BASE, slot = np.float32(math.log2(math.e)), make_slot(fragments)
    THREADS, ZERO, added = END_THREADS, np.float32(0), make_added(fragments)
    TURNS, blank = specialized(turns_of(fragments)), make_blank(fragments)
    (length, _), shrunk = make_lengths(fragments), make_shrunk(np.dtype(np.float32))
    LANES, GROUPS, ROUNDS = _of_parents(fragments)

    @kept_on_disk
    @cuda.jit
    def routing_dynamic_end_kernel(
        partial,  # in   (parts, N * L, P, E)
        states,  # in and out  (states, N * L, FIELDS, P)
        y,  # out  (N, P, L, E)
        summed,  # out  A times log2(e), as lanes hold it
        places,  # N * L
        whole,  # the same with those that fill the last block of a pass up, which are zeros
        parts,
        old,  # which state was read, and which is written
        new,
    ):
        sums = shared_array(COLUMNS, np.float32)
        factors = shared_array(P, np.float32)
        before, place = local_array(TURNS, np.float32), cuda.blockIdx.x
        from_, to = (old * places + place) * FIELDS, (new * places + place) * FIELDS
        wait_for_last()  # the parts have been summed
        let_next_start()
        for turn in range(TURNS):  # under way while the parts are added
            column = cuda.threadIdx.x + turn * THREADS
            before[turn] = ZERO
            if not FIRST and column < COLUMNS:
                before[turn] = states[at((from_ + column % E) * P + column // E)]
        for column in range(cuda.threadIdx.x, COLUMNS, THREADS):
            sums[at(column)] = added(partial, place, column, places, parts)
        cuda.syncthreads()  # every parent's s is there
        lane = cuda.threadIdx.x % LANES
        for turn in range(ROUNDS):
            p = cuda.threadIdx.x // LANES + turn * GROUPS
            f = shrunk(length(sums, min(p, P - 1) * E, lane))
            if lane == 0 and p < P:
                factors[at(p)] = f
        cuda.syncthreads()  # and what it is multiplied by
        for turn in range(TURNS):
            column = cuda.threadIdx.x + turn * THREADS
            if column < COLUMNS:
                p, e = column // E, column % E
                v = sums[at(column)] * factors[at(p)]
                states[at((to + e) * P + p)] = before[turn] + v
                summed[at(slot(place, p, e))] = (before[turn] + v) * BASE
                states[at((to + E + e) * P + p)] = sums[at(column)]
                y[at(((place // OF_IMAGE * P + p) * OF_IMAGE + place % OF_IMAGE) * E + e)] = v
                if e == 0:
                    states[at((to + 2 * E) * P + p)] = ZERO
        if FIRST and place == places - 1:  # they stay zeros
            blank(summed, 0, 1, places, whole)

    return routing_dynamic_end_kernel


@cache
def make_dynamic_slope(fragments, L, is_last):
    """Kernel that writes ds of iteration ``t``, and A beside it: of the last iteration, or behind the pass of the one after."""
    elements = fragments.D1 * fragments.D3
    P, E, COLUMNS = map(specialized, (fragments.P, elements, fragments.P * elements))
    FIELDS, OF_IMAGE, LAST = *map(specialized, (state_fields(elements)[0], L)), is_last
    PLACES, TURNS = map(specialized, (fragments.places, turns_of(fragments)))
    OF_ARRAY = specialized(32 * fragments.across * fragments.elements)
    BASE, slot = np.float32(math.log2(math.e)), make_slot(fragments)
    THREADS, ZERO, ONE = END_THREADS, np.float32(0), np.float32(1)
    (length, dot_of), shrunk = make_lengths(fragments), make_shrunk(np.dtype(np.float32))
    added, blank = make_added(fragments), make_blank(fragments)
    LANES, GROUPS, ROUNDS = _of_parents(fragments)

    @cuda.jit(device=True, forceinline=True)
    def where(m, arrays, first, p, e):
        return (m // PLACES * arrays + first) * OF_ARRAY + slot(m % PLACES, p, e)

    @kept_on_disk
    @cuda.jit
    def routing_dynamic_slope_kernel(
        partial,  # in   (parts, N * L, P, E): dA, what the pass of the iteration after has gathered
        states,  # in   (states, N * L, FIELDS, P)
        dy,  # in   (N, P, L, E)
        later,  # in and out  (N * L, P, E): the gradient of A from all iterations after
        held,  # out  (rows of places, arrays, words): A times log2(e), behind it ds, as lanes hold them
        places,  # N * L
        whole,  # the same with those that fill the last block of a pass up, which are zeros
        parts,
        t,
        arrays,
        first,  # where A is among them, or -1
    ):
        dv = shared_array(COLUMNS, np.float32)
        sums = shared_array(COLUMNS, np.float32)
        factors = shared_array(P, np.float32)
        along = shared_array(P, np.float32)
        A, s = local_array(TURNS, np.float32), local_array(TURNS, np.float32)
        reached, place = local_array(TURNS, np.float32), cuda.blockIdx.x
        state = (t * places + place) * FIELDS
        behind = ((t + 1) * places + place) * FIELDS + E
        wait_for_last()  # the parts have been summed
        let_next_start()
        for turn in range(TURNS):  # under way while the parts are added
            column = cuda.threadIdx.x + turn * THREADS
            if column < COLUMNS:
                p, e = column // E, column % E
                A[turn], s[turn] = states[at((state + e) * P + p)], states[at((behind + e) * P + p)]
                if LAST:
                    of_image = (place // OF_IMAGE * P + p) * OF_IMAGE + place % OF_IMAGE
                    reached[turn] = dy[at(of_image * E + e)]
                else:
                    reached[turn] = later[at(place * COLUMNS + column)]
        if not LAST:  # in a loop of its own: within those by turns it would keep their arrays out of registers
            for column in range(cuda.threadIdx.x, COLUMNS, THREADS):
                dv[at(column)] = added(partial, place, column, places, parts)
        for turn in range(TURNS):
            column = cuda.threadIdx.x + turn * THREADS
            if column < COLUMNS:
                sums[at(column)] = s[turn]
                if LAST:
                    later[at(place * COLUMNS + column)] = ZERO
                else:
                    reached[turn] += dv[at(column)]
                    later[at(place * COLUMNS + column)] = reached[turn]
                dv[at(column)] = reached[turn]
        cuda.syncthreads()  # every parent's s is there
        lane = cuda.threadIdx.x % LANES
        for turn in range(ROUNDS):
            p = cuda.threadIdx.x // LANES + turn * GROUPS
            capsule = min(p, P - 1) * E
            size = length(sums, capsule, lane)
            f, unit = shrunk(size), ONE if size == ZERO else size
            dot = dot_of(sums, dv, capsule, unit, lane)
            if lane == 0 and p < P:
                factors[at(p)] = f
                along[at(p)] = dot * ((ONE / unit - size) * f * f / unit) if size != ZERO else ZERO
        cuda.syncthreads()  # and what takes all of it
        for turn in range(TURNS):
            column = cuda.threadIdx.x + turn * THREADS
            if column < COLUMNS:
                p, e = column // E, column % E
                here = where(place, arrays, first, p, e)
                ds = factors[at(p)] * dv[at(column)] + s[turn] * along[at(p)]
                held[at(here + OF_ARRAY)] = ds
                if first >= 0:
                    held[at(here)] = A[turn] * BASE
        if place == places - 1:
            blank(held, first + 1, arrays, places, whole)
            if first >= 0:
                blank(held, first, arrays, places, whole)

    return routing_dynamic_slope_kernel
