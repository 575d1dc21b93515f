"""Between two passes of dynamic routing: the records of the blocks are merged, and the parents squash.

    v = |s|^2 / (1 + |s|^2) * s / |s| = s f          f = 1 / (1 / |s| + |s|)
    ds = f dv + unit (unit . dv) (1 / |s| - |s|) f^2      unit = s / |s|

At s = 0 both are 0. Lengths are taken of s over its largest element, so that no square overflows or vanishes.

Thread mapping: one thread a parent at a position of an image.
"""

import math
from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.dynamic import make_add, make_merge_shifted, state_fields
from numbacaps.routing.ends import make_merged


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
    SIZE, merge = (E + 2, make_merge_shifted(E, sums)) if OVER_CHILDREN else (E, make_add(E))
    FIELDS, ZERO = state_fields(E)[0], sums.type(0)
    _, write = conversions(shape.dtype)
    length, shrunk = make_length(E, sums), make_shrunk(sums)
    merged = make_merged(shape, SIZE, merge)
    L, P, E, SIZE, FIELDS = map(specialized, (L, P, E, SIZE, FIELDS))

    @kept_on_disk
    @cuda.jit
    def routing_finish_kernel(
        partial,  # in   (blocks, N * L, SIZE, P)
        states,  # in and out  (iterations + 1, N * L, FIELDS, P)
        y,  # out  (N, P, L, E)
        N,
        blocks,
        t,
    ):
        thread = cuda.grid(1)
        places = N * L
        if thread >= places * P:
            return
        record = local_array(SIZE, sums)
        p, place = thread % P, thread // P
        merged(record, partial, place, p, places, blocks)
        old, new = (t * places + place) * FIELDS, ((t + 1) * places + place) * FIELDS
        if OVER_CHILDREN:
            total = record[E + 1]
            states[at((new + 2 * E) * P + p)] = record[E] + sums.type(math.log(total))
            for e in range(E):
                record[e] /= total
        else:
            states[at((new + 2 * E) * P + p)] = ZERO
        f = shrunk(length(record))
        where = ((place // L * P + p) * L + place % L) * E
        for e in range(E):
            v = record[e] * f
            states[at((new + e) * P + p)] = states[at((old + e) * P + p)] + v
            states[at((new + E + e) * P + p)] = record[e]
            y[at(where + e)] = write(v)

    return routing_finish_kernel


@cache
def make_squash_slope(shape):
    """Device function that writes the slope of iteration t, from dv, what reaches A later, and s of that iteration."""
    P, E, sums = shape.geometry.P, shape.geometry.E3, shape.sums
    (FIELDS, SLOPES), ZERO, ONE = state_fields(E), sums.type(0), sums.type(1)
    length, shrunk = make_length(E, sums), make_shrunk(sums)
    P, E, FIELDS, SLOPES = map(specialized, (P, E, FIELDS, SLOPES))

    @cuda.jit(device=True, forceinline=True)
    def squash_slope(dv, states, slopes, t, place, p, places):
        s = local_array(E, sums)
        old, new = ((t + 1) * places + place) * FIELDS, (t * places + place) * SLOPES
        for e in range(E):
            s[e] = states[at((old + E + e) * P + p)]
        size = length(s)
        f = shrunk(size)
        along, dot = ZERO, ZERO
        if size != ZERO:
            for e in range(E):
                along += s[e] / size * dv[e]
            along *= (ONE / size - size) * f * f
        for e in range(E):
            ds = f * dv[e]
            if size != ZERO:
                ds += s[e] / size * along
            dot += s[e] * ds
            slopes[at((new + e) * P + p)] = ds
        slopes[at((new + 2 * E) * P + p)] = dot

    return squash_slope


@cache
def make_begin_backward(shape):
    """Kernel before the passes backward: the slope of the last iteration."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    SLOPES, ZERO = state_fields(E)[1], sums.type(0)
    read, _ = conversions(shape.dtype)
    squash_slope = make_squash_slope(shape)
    L, P, E, SLOPES = map(specialized, (L, P, E, SLOPES))

    @kept_on_disk
    @cuda.jit
    def routing_begin_backward_kernel(
        dy,  # in   (N, P, L, E)
        states,  # in   (iterations + 1, N * L, FIELDS, P)
        slopes,  # out  (iterations, N * L, SLOPES, P)
        N,
        t,
    ):
        thread = cuda.grid(1)
        places = N * L
        if thread >= places * P:
            return
        dv = local_array(E, sums)
        p, place = thread % P, thread // P
        where = ((place // L * P + p) * L + place % L) * E
        for e in range(E):
            dv[e] = read(dy[at(where + e)])
            slopes[at(((t * places + place) * SLOPES + E + e) * P + p)] = ZERO
        squash_slope(dv, states, slopes, t, place, p, places)

    return routing_begin_backward_kernel


@cache
def make_finish_backward(shape):
    """Kernel behind a pass backward over iteration t: the slope of iteration t - 1."""
    L, P, E, sums = shape.geometry.L, shape.geometry.P, shape.geometry.E3, shape.sums
    SLOPES = state_fields(E)[1]
    squash_slope, merged = make_squash_slope(shape), make_merged(shape, E, make_add(E))
    L, P, E, SLOPES = map(specialized, (L, P, E, SLOPES))

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
        thread = cuda.grid(1)
        places = N * L
        if thread >= places * P:
            return
        dv = local_array(E, sums)
        p, place = thread % P, thread // P
        merged(dv, partial, place, p, places, blocks)
        for e in range(E):
            dv[e] += slopes[at(((t * places + place) * SLOPES + E + e) * P + p)]
            slopes[at((((t - 1) * places + place) * SLOPES + E + e) * P + p)] = dv[e]
        squash_slope(dv, states, slopes, t - 1, place, p, places)

    return routing_finish_backward_kernel
