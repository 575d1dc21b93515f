"""Between two passes of dynamic routing: the records of the blocks are merged, and the parents squash.

    v = |s|^2 / (1 + |s|^2) * s / |s| = s f          f = 1 / (1 / |s| + |s|)
    ds = f dv + unit (unit . dv) (1 / |s| - |s|) f^2      unit = s / |s|

At s = 0 both are 0. Lengths are taken of s over its largest element, so that no square overflows or vanishes.

Thread mapping: that of :mod:`numbacaps.routing.ends`. A parent's capsule lies in device memory, where the one thread that
takes all of it reads it: shared memory, which has a few numbers of each parent, does not limit how long it is.
"""

import math
from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array, shared_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.dynamic import make_add, make_merge_of_elements, state_fields
from numbacaps.routing.ends import END_THREADS, make_merged, make_own, parents_of_block


@cache
def make_length(E, sums):
    """Device function ``length(array, first, apart)`` of a capsule whose elements are ``apart``, from ``first`` on."""
    E, ZERO = specialized(E), sums.type(0)

    @cuda.jit(device=True, forceinline=True)
    def length(array, first, apart):
        largest, square = ZERO, ZERO
        for e in range(E):
            size = abs(array[at(first + e * apart)])
            if size > largest:
                largest = size
        if largest == ZERO:
            return largest
        for e in range(E):
            part = array[at(first + e * apart)] / largest
            square += part * part
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
    merge = make_merge_of_elements(over, sums)
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
        factors = shared_array(PARENTS, sums)
        found = local_array(SIZE, sums)
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
                states[at((new + E + e) * P + p)] = found[0]
                if e == 0:
                    states[at((new + 2 * E) * P + p)] = lse
        cuda.syncthreads()  # every element of s is there
        for i in range(cuda.threadIdx.x, PARENTS, THREADS):
            p = parent_of(cuda.blockIdx.x, i)
            if p < P:
                factors[at(i)] = shrunk(length(states, (new + E) * P + p, P))
        cuda.syncthreads()  # and what it is multiplied by
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                v = states[at((new + E + e) * P + p)] * factors[at(i % PARENTS)]
                states[at((new + e) * P + p)] = states[at((old + e) * P + p)] + v
                y[at(((place // L * P + p) * L + place % L) * E + e)] = write(v)

    return routing_finish_kernel


@cache
def make_ds(sums):
    """Device function ``ds_of(dv, s, f, size, along)``: an element of ds, of a capsule of that size."""
    ZERO = sums.type(0)

    @cuda.jit(device=True, forceinline=True)
    def ds_of(dv, s, f, size, along):
        return f * dv + (s / size * along if size != ZERO else ZERO)

    return ds_of


@cache
def make_squash_slope(shape):
    """Device function that writes the slope of iteration t: its ds, where a block's threads have put dv, and <s, ds>.

    ``factors`` is in shared memory, three numbers of each parent.
    """
    P, E, sums = shape.geometry.P, shape.geometry.E3, shape.sums
    (FIELDS, SLOPES), ZERO, ONE = state_fields(E), sums.type(0), sums.type(1)
    length, shrunk, ds_of = make_length(E, sums), make_shrunk(sums), make_ds(sums)
    _, parent_of, element_of = make_own(shape)
    PARENTS = parents_of_block(shape)
    P, E, FIELDS, SLOPES, OWN = map(specialized, (P, E, FIELDS, SLOPES, PARENTS * E))
    PARENTS, THREADS = map(specialized, (PARENTS, END_THREADS))

    @cuda.jit(device=True, forceinline=True)
    def squash_slope(states, slopes, factors, t, place, places):
        state, slope = ((t + 1) * places + place) * FIELDS + E, (t * places + place) * SLOPES
        cuda.syncthreads()  # every element of dv is there
        for i in range(cuda.threadIdx.x, PARENTS, THREADS):
            p = parent_of(cuda.blockIdx.x, i)
            if p < P:
                size = length(states, state * P + p, P)
                f, along, dot = shrunk(size), ZERO, ZERO
                if size != ZERO:
                    for e in range(E):
                        unit = states[at((state + e) * P + p)] / size
                        along += unit * slopes[at((slope + e) * P + p)]
                    along *= (ONE / size - size) * f * f
                for e in range(E):
                    s, dv = states[at((state + e) * P + p)], slopes[at((slope + e) * P + p)]
                    dot += s * ds_of(dv, s, f, size, along)
                slopes[at((slope + 2 * E) * P + p)] = dot
                factors[at(3 * i)], factors[at(3 * i + 1)], factors[at(3 * i + 2)] = f, size, along
        cuda.syncthreads()  # all threads have read dv
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                k, to = 3 * (i % PARENTS), (slope + e) * P + p
                s, dv = states[at((state + e) * P + p)], slopes[at(to)]
                f, size, along = factors[at(k)], factors[at(k + 1)], factors[at(k + 2)]
                slopes[at(to)] = ds_of(dv, s, f, size, along)

    return squash_slope


@cache
def make_begin_backward(shape):
    """Kernel before the passes backward: the slope of the last iteration."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    SLOPES, ZERO, PARENTS = state_fields(E)[1], sums.type(0), parents_of_block(shape)
    read, _ = conversions(shape.dtype)
    squash_slope = make_squash_slope(shape)
    place_of, parent_of, element_of = make_own(shape)
    L, P, E, SLOPES, OWN = map(specialized, (L, P, E, SLOPES, PARENTS * E))
    NUMBERS, THREADS = map(specialized, (3 * PARENTS, END_THREADS))

    @kept_on_disk
    @cuda.jit
    def routing_begin_backward_kernel(
        dy,  # in   (N, P, L, E)
        states,  # in   (iterations + 1, N * L, FIELDS, P)
        slopes,  # out  (iterations, N * L, SLOPES, P)
        N,
        t,
    ):
        factors = shared_array(NUMBERS, sums)
        places, place = N * L, place_of(cuda.blockIdx.x)
        now = (t * places + place) * SLOPES
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                dv = read(dy[at(((place // L * P + p) * L + place % L) * E + e)])
                slopes[at((now + e) * P + p)] = dv
                slopes[at((now + E + e) * P + p)] = ZERO
        squash_slope(states, slopes, factors, t, place, places)

    return routing_begin_backward_kernel


@cache
def make_finish_backward(shape):
    """Kernel behind a pass backward over iteration t: the slope of iteration t - 1."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    SLOPES, PARENTS = state_fields(E)[1], parents_of_block(shape)
    squash_slope, merged = make_squash_slope(shape), make_merged(shape, (1, 0), make_add(1))
    place_of, parent_of, element_of = make_own(shape)
    L, P, E, SLOPES, OWN = map(specialized, (L, P, E, SLOPES, PARENTS * E))
    NUMBERS, THREADS = map(specialized, (3 * PARENTS, END_THREADS))

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
        factors = shared_array(NUMBERS, sums)
        found = local_array(1, sums)
        places, place = N * L, place_of(cuda.blockIdx.x)
        now, before = (t * places + place) * SLOPES, ((t - 1) * places + place) * SLOPES
        for i in range(cuda.threadIdx.x, OWN, THREADS):
            p, e = parent_of(cuda.blockIdx.x, i), element_of(i)
            if p < P:
                merged(found, partial, place, p, e, places, blocks)
                dv = found[0] + slopes[at((now + E + e) * P + p)]
                slopes[at((before + e) * P + p)] = dv
                slopes[at((before + E + e) * P + p)] = dv
        squash_slope(states, slopes, factors, t - 1, place, places)

    return routing_finish_backward_kernel
