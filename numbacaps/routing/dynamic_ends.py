"""Between two passes of dynamic routing: the records of the blocks are merged, and the parents squash.

    v = |s|^2 / (1 + |s|^2) * s / |s| = s f          f = 1 / (1 / |s| + |s|)
    ds = f dv + unit (unit . dv) (1 / |s| - |s|) f^2      unit = s / |s|

At s = 0 both are 0. Lengths are taken of s over its largest element, so that no square overflows or vanishes.

Thread mapping: that of :mod:`numbacaps.routing.ends`.
"""

import math
from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array, shared_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.dynamic import make_add, make_merge_shifted, state_fields
from numbacaps.routing.ends import END_THREADS, make_merged, make_own, parents_of_block


@cache
def make_length(E, sums):
    """Device function ``length(s)``."""
    E, ZERO = specialized(E), sums.type(0)

    @cuda.jit(device=True, forceinline=True)
    def length(s):
        largest, square = ZERO, ZERO
        for e in range(E):
            if abs(s[e]) > largest:
                largest = abs(s[e])
        if largest == ZERO:
            return largest
        for e in range(E):
            square += (s[e] / largest) * (s[e] / largest)
        return largest * sums.type(math.sqrt(square))

    return length


@cache
def make_shrunk(sums):
    """Device function ``shrunk(size)``: what squash multiplies by."""
    ZERO, ONE = sums.type(0), sums.type(1)

    @cuda.jit(device=True, forceinline=True)
    def shrunk(size):
        if size == ZERO:
            return ZERO
        return ONE / (ONE / size + size)

    return shrunk


@cache
def make_finish(shape, over):
    """Kernel behind a pass forward."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    OVER_CHILDREN = over == "children"
    record = (1, 2) if OVER_CHILDREN else (1, 0)
    merge = make_merge_shifted(1, sums) if OVER_CHILDREN else make_add(1)
    FIELDS, ZERO, PARENTS = state_fields(E)[0], sums.type(0), parents_of_block(shape)
    _, write = conversions(shape.dtype)
    length, shrunk = make_length(E, sums), make_shrunk(sums)
    merged, SIZE = make_merged(shape, record, merge), sum(record)
    place_of, parent_of, element_of = make_own(shape)
    L, P, E, SIZE, FIELDS, OWN = map(specialized, (L, P, E, SIZE, FIELDS, PARENTS * E))
    PARENTS, THREADS = map(specialized, (PARENTS, END_THREADS))

    @kept_on_disk
    @cuda.jit
    def routing_finish_kernel(
        partial,  # in   (blocks, N * L, fields, P)
        states,  # in and out  (iterations + 1, N * L, FIELDS, P)
        y,  # out  (N, P, L, E)
        N,
        blocks,
        t,
    ):
        gathered = shared_array(OWN, sums)
        factors = shared_array(PARENTS, sums)
        found = local_array(SIZE, sums)
        s = local_array(E, sums)
        places, place = N * L, place_of(cuda.blockIdx.x)
        old, new = (t * places + place) * FIELDS, ((t + 1) * places + place) * FIELDS
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                merged(found, partial, place, p, e, places, blocks)
                lse = ZERO
                if OVER_CHILDREN:
                    total = found[2]
                    lse = found[1] + sums.type(math.log(total))
                    found[0] /= total
                gathered[at(i)] = found[0]
                if e == 0:
                    states[at((new + 2 * E) * P + p)] = lse
        cuda.syncthreads()  # every element of s is there
        for i in range(cuda.threadIdx.x, PARENTS, THREADS):
            for e in range(E):
                s[e] = gathered[at(e * PARENTS + i)]
            factors[at(i)] = shrunk(length(s))
        cuda.syncthreads()  # and what it is multiplied by
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                v = gathered[at(i)] * factors[at(i % PARENTS)]
                states[at((new + e) * P + p)] = states[at((old + e) * P + p)] + v
                states[at((new + E + e) * P + p)] = gathered[at(i)]
                y[at(((place // L * P + p) * L + place % L) * E + e)] = write(v)

    return routing_finish_kernel


@cache
def make_squash_slope(shape):
    """Device function that writes the slope of iteration t, from dv of a block's parents and s of that iteration.

    ``dv`` and ``s`` are in shared memory, and so is ``factors``, four numbers of each parent.
    """
    P, E, sums = shape.geometry.P, shape.geometry.E3, shape.sums
    SLOPES, ZERO, ONE = state_fields(E)[1], sums.type(0), sums.type(1)
    length, shrunk = make_length(E, sums), make_shrunk(sums)
    _, parent_of, element_of = make_own(shape)
    PARENTS = parents_of_block(shape)
    P, E, SLOPES, OWN = map(specialized, (P, E, SLOPES, PARENTS * E))
    PARENTS, THREADS = map(specialized, (PARENTS, END_THREADS))

    @cuda.jit(device=True, forceinline=True)
    def slope_of(dv, s, f, size, along):
        return f * dv + (s / size * along if size != ZERO else ZERO)

    @cuda.jit(device=True, forceinline=True)
    def squash_slope(dv, s, factors, slopes, t, place, places):
        own = local_array(E, sums)
        first = (t * places + place) * SLOPES
        cuda.syncthreads()  # every element of dv and s is there
        for i in range(cuda.threadIdx.x, PARENTS, THREADS):
            p = parent_of(cuda.blockIdx.x, i)
            for e in range(E):
                own[e] = s[at(e * PARENTS + i)]
            size = length(own)
            f, along, dot = shrunk(size), ZERO, ZERO
            if size != ZERO:
                for e in range(E):
                    along += own[e] / size * dv[at(e * PARENTS + i)]
                along *= (ONE / size - size) * f * f
            for e in range(E):
                dot += own[e] * slope_of(dv[at(e * PARENTS + i)], own[e], f, size, along)
            factors[at(3 * i)], factors[at(3 * i + 1)], factors[at(3 * i + 2)] = f, size, along
            if p < P:
                slopes[at((first + 2 * E) * P + p)] = dot
        cuda.syncthreads()  # and what takes all of them
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                k = 3 * (i % PARENTS)
                ds = slope_of(
                    dv[at(i)], s[at(i)], factors[at(k)], factors[at(k + 1)], factors[at(k + 2)]
                )
                slopes[at((first + e) * P + p)] = ds

    return squash_slope


@cache
def make_begin_backward(shape):
    """Kernel before the passes backward: the slope of the last iteration."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    (FIELDS, SLOPES), ZERO, PARENTS = state_fields(E), sums.type(0), parents_of_block(shape)
    read, _ = conversions(shape.dtype)
    squash_slope = make_squash_slope(shape)
    place_of, parent_of, element_of = make_own(shape)
    L, P, E, FIELDS, SLOPES = map(specialized, (L, P, E, FIELDS, SLOPES))
    OWN, NUMBERS, THREADS = map(
        specialized, (PARENTS * shape.geometry.E3, 3 * PARENTS, END_THREADS)
    )

    @kept_on_disk
    @cuda.jit
    def routing_begin_backward_kernel(
        dy,  # in   (N, P, L, E)
        states,  # in   (iterations + 1, N * L, FIELDS, P)
        slopes,  # out  (iterations, N * L, SLOPES, P)
        N,
        t,
    ):
        dv = shared_array(OWN, sums)
        s = shared_array(OWN, sums)
        factors = shared_array(NUMBERS, sums)
        places, place = N * L, place_of(cuda.blockIdx.x)
        now, state = (t * places + place) * SLOPES, ((t + 1) * places + place) * FIELDS
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                dv[at(i)] = read(dy[at(((place // L * P + p) * L + place % L) * E + e)])
                s[at(i)] = states[at((state + E + e) * P + p)]
                slopes[at((now + E + e) * P + p)] = ZERO
        squash_slope(dv, s, factors, slopes, t, place, places)

    return routing_begin_backward_kernel


@cache
def make_finish_backward(shape):
    """Kernel behind a pass backward over iteration t: the slope of iteration t - 1."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    (FIELDS, SLOPES), PARENTS = state_fields(E), parents_of_block(shape)
    squash_slope, merged = make_squash_slope(shape), make_merged(shape, (1, 0), make_add(1))
    place_of, parent_of, element_of = make_own(shape)
    L, P, E, FIELDS, SLOPES = map(specialized, (L, P, E, FIELDS, SLOPES))
    OWN, NUMBERS, THREADS = map(
        specialized, (PARENTS * shape.geometry.E3, 3 * PARENTS, END_THREADS)
    )

    @kept_on_disk
    @cuda.jit
    def routing_finish_backward_kernel(
        partial,  # in   (blocks, N * L, E, P)
        states,  # in   (iterations + 1, N * L, FIELDS, P)
        slopes,  # in and out  (iterations, N * L, SLOPES, P)
        N,
        blocks,
        t,
    ):
        dv = shared_array(OWN, sums)
        s = shared_array(OWN, sums)
        factors = shared_array(NUMBERS, sums)
        found = local_array(1, sums)
        places, place = N * L, place_of(cuda.blockIdx.x)
        now, before = (t * places + place) * SLOPES, ((t - 1) * places + place) * SLOPES
        state = (t * places + place) * FIELDS
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                merged(found, partial, place, p, e, places, blocks)
                reached = found[0] + slopes[at((now + E + e) * P + p)]
                slopes[at((before + E + e) * P + p)] = reached
                dv[at(i)], s[at(i)] = reached, states[at((state + E + e) * P + p)]
        squash_slope(dv, s, factors, slopes, t - 1, place, places)

    return routing_finish_backward_kernel
