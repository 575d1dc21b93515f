"""From the gradient dV of a child's votes, as lanes hold it, to those of its kernel and of its capsules, on tensor cores.

    dw = x^T dV, summed over the places
    columns = dV w^T, summed over the parents: the gradient of the capsule under the tap at a place

A tensor core hands out votes, and so dV, by rows of places. That is the left factor of dV w^T as it lies: a lane has two columns
side by side where a factor's are four apart, but a sum may take its terms in any order. For dw the places have to lie along the
sum: lanes exchange 8 x 8 elements.
"""

from functools import cache
from math import gcd

import numpy as np

from numbacaps.device.instructions import (
    cut_tf32,
    load_run,
    local_array,
    meet_at,
    mma,
    short,
    shuffle,
    store_run,
    unroll_loops,
)
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.device.tf32 import nearer
from numbacaps.routing.mma_sync.stage import make_swizzle


@cuda.jit(device=True, forceinline=True)
def _transposed(rows, first, second):
    """Transpose 8 x 8 elements of a warp.

    A lane gives columns ``2 (lane % 4)`` and the next of row ``lane // 4``; it gets rows ``2 (lane % 4)`` and the next of
    column ``lane // 4``.
    """
    lane = cuda.threadIdx.x % 32
    is_odd = lane // 4 % 2 == 1
    # Lanes of neighbouring rows exchange an element: each then has one column of both rows.
    other = shuffle(first if is_odd else second, lane ^ 4)
    upper = other if is_odd else first
    lower = second if is_odd else other
    source = (lane % 4 * 2 + lane // 4 % 2) * 4 + lane // 8
    rows[0], rows[1] = shuffle(upper, source), shuffle(lower, source)


@cache
def make_multiply(fragments):
    """Device function ``multiply(sums, to, a, b)``: one product more; ``a`` has four numbers, ``b`` two, in float32."""
    THREE = fragments.terms == 3

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, to, a, b):
        a_high, a_low = local_array(4, np.float32), local_array(4, np.float32)
        b_high, b_low = local_array(2, np.float32), local_array(2, np.float32)
        for k in range(4):
            a_high[k] = a[k] if THREE else nearer(a[k])
            a_low[k] = a[k] - cut_tf32(a[k])
        for k in range(2):
            b_high[k] = b[k] if THREE else nearer(b[k])
            b_low[k] = b[k] - cut_tf32(b[k])
        if THREE:
            mma(sums, to, a_low, 0, b_high, 0)
            mma(sums, to, a_high, 0, b_low, 0)
        mma(sums, to, a_high, 0, b_high, 0)

    return multiply


@cache
def make_columns(fragments):
    """Device function ``columns_of(R, dV, shared, child, warp)``: R = dV w^T, of the kernel at word ``child``."""
    f = fragments
    DOWN, TILES, GROUPS, BESIDE = map(specialized, (f.down, f.tiles, f.groups, f.beside))
    DEPTH, WIDTH, SPLIT, COLUMNS = map(specialized, (f.depth, f.width, f.split, f.columns))
    TOGETHER, OF_GROUP = map(specialized, (f.together, f.together * f.depth * f.width))
    STEPS, NUMBERS = map(specialized, (f.steps, 4 * f.down * f.steps))
    OF_STEP, HALF = map(specialized, (2 * f.beside, f.is_half))
    RUN = specialized(gcd(f.beside, 4))  # words of one load
    ZERO = np.float32(0)
    swizzle, multiply = make_swizzle(f), make_multiply(f)

    @cuda.jit(device=True, forceinline=True)
    def columns_of(R, dV, shared, child, warp):
        a, b = local_array(4, np.float32), local_array(2, np.float32)
        words, some = local_array(OF_STEP, np.float32), local_array(RUN, np.float32)
        lane = short(cuda.threadIdx.x % 32)
        for k in range(NUMBERS):
            R[k] = ZERO
        for step in range(STEPS):
            d2 = short(step * 8 + lane // 4)
            is_there = HALF == 0 or d2 < DEPTH
            d2 = short(d2 % DEPTH)
            first = short(warp * GROUPS * TOGETHER + lane % 4 // SPLIT)
            first = short(child + (first * DEPTH + d2) * WIDTH)
            for group in range(GROUPS):
                for side in range(2):
                    d3 = short(lane % 4 % SPLIT * COLUMNS + side * BESIDE)
                    word = short(first + group * OF_GROUP + (d3 // 4 ^ swizzle(d2)) * 4 + d3 % 4)
                    for run in range(BESIDE // RUN):
                        load_run(RUN, some, shared, word + run * RUN)
                        for i in range(RUN):
                            words[side * BESIDE + run * RUN + i] = some[i] if is_there else ZERO
                for beside in range(BESIDE):
                    tile = group * BESIDE + beside
                    b[0], b[1] = words[beside], words[BESIDE + beside]
                    for i in range(DOWN):
                        e = (i * TILES + tile) * 4
                        a[0], a[1], a[2], a[3] = dV[e], dV[e + 2], dV[e + 1], dV[e + 3]
                        multiply(R, (i * STEPS + step) * 4, a, b)

    return columns_of


def columns_of_thread(geometry, fragments):
    """Numbers of a row's columns that a thread of a group writes."""
    return ceil_div(fragments.places * geometry.E1, 32 * fragments.across)


@cache
def make_write_columns(geometry, fragments):
    """Device functions ``(begin, add, end)`` that write columns of child ``q`` at the row of places that begins at ``block``.

    ``begin(before, columns, q, block, places, more)``: what the sums go on from, where there is ``more``, else 0.
    ``add(R, shared, back, group, warp)`` leaves a warp's part in shared memory, where those of a group, which share the parents,
    begin at word ``back``; all of them meet. ``end(columns, before, shared, back, q, block, places)`` adds up, and writes.
    """
    g, f = geometry, fragments
    Q, E1, D2, ROWS = map(specialized, (g.Q, g.E1, g.D2, f.rows))
    ACROSS, PLACES, DOWN = map(specialized, (f.across, f.places, f.down))
    STEPS, OF_ROW, BACK = map(specialized, (f.steps, 8 * f.steps, f.reached))
    TOGETHER, ZERO = specialized(32 * f.across), np.float32(0)
    TURNS = specialized(columns_of_thread(g, f))

    @cuda.jit(device=True, forceinline=True)
    def begin(before, columns, q, block, places, more):
        within = short((cuda.threadIdx.x & 1023) % TOGETHER)
        for turn in range(TURNS):
            k = short(within + turn * TOGETHER)
            place, e = k // E1, k % E1
            before[turn] = ZERO
            if more and place < PLACES and block + place < places and q < Q:
                before[turn] = columns[at(((block + place) * Q + q) * E1 + e)]

    @cuda.jit(device=True, forceinline=True)
    def add(R, shared, back, group, warp):
        lane, two = short(cuda.threadIdx.x % 32), local_array(2, np.float32)
        for i in range(DOWN):
            for side in range(2):
                place = lane // 4 + (8 * side if ROWS == 1 else 0)
                d1 = (2 * i + side) % ROWS
                to = back + warp * BACK + (place * ROWS + d1) * OF_ROW + 2 * (lane % 4)
                for n in range(STEPS):
                    for k in range(2):
                        two[k] = R[(i * STEPS + n) * 4 + 2 * side + k]
                    store_run(2, shared, short(to + n * 8), two)
        meet_at(2 + group, TOGETHER)

    @cuda.jit(device=True, forceinline=True)
    def end(columns, before, shared, back, q, block, places):
        within = short((cuda.threadIdx.x & 1023) % TOGETHER)
        for turn in range(TURNS):
            k = short(within + turn * TOGETHER)
            place, e = k // E1, k % E1
            if place < PLACES and block + place < places and q < Q:
                word = back + (place * ROWS + e // D2) * OF_ROW + e % D2
                added = before[turn]
                for one in range(ACROSS):
                    added += shared[at(word + one * BACK)]
                columns[at(((block + place) * Q + q) * E1 + e)] = added

    return begin, add, end


@cache
def make_kernel_gradient(fragments):
    """Device function ``add(own, dV, shared, input)``: own += x^T dV, of the capsules at word ``input``."""
    f = fragments
    DOWN, TILES, STEPS = map(specialized, (f.down, f.tiles, f.steps))
    ROWS, PITCH, DEPTH = map(specialized, (f.rows, f.pitch, f.depth))
    OF_X, HALF, PAIRS = map(specialized, (2 * f.steps, f.is_half, f.pairs))
    ZERO = np.float32(0)
    multiply = make_multiply(f)

    @cuda.jit(device=True, forceinline=True)
    def add_pairs(own, dV, x, i, side):
        unroll_loops()
        a, b = local_array(4, np.float32), local_array(2, np.float32)
        rows = local_array(2, np.float32)
        for pair in range(PAIRS):
            for half in range(2):
                tile = 2 * pair + half
                if tile < TILES:
                    e = (i * TILES + tile) * 4 + 2 * side
                    _transposed(rows, dV[e], dV[e + 1])
                    a[half], a[half + 2] = rows[0], rows[1]
                else:
                    a[half], a[half + 2] = ZERO, ZERO
            for step in range(STEPS):
                b[0], b[1] = x[2 * step], x[2 * step + 1]
                multiply(own, (pair * STEPS + step) * 4, a, b)

    @cuda.jit(device=True, forceinline=True)
    def add(own, dV, shared, input):
        x = local_array(OF_X, np.float32)
        lane = short(cuda.threadIdx.x % 32)
        for i in range(DOWN):
            for side in range(2):
                for step in range(STEPS):
                    d2 = short(step * 8 + lane // 4)
                    for k in range(2):
                        place = short(2 * (lane % 4) + k + (8 * side if ROWS == 1 else 0))
                        row = short((2 * i + side) % ROWS)
                        word = short(input + place * PITCH + row * DEPTH + d2 % DEPTH)
                        is_there = HALF == 0 or d2 < DEPTH
                        x[2 * step + k] = shared[at(word)] if is_there else ZERO
                add_pairs(own, dV, x, i, side)

    return add


@cache
def make_column_of_w(fragments):
    """Device function ``column_of(lane, warp, tile)``: (parent, d3) of a lane's elements of dw; both may be past the last.

    Elements are counted as :func:`make_kernel_gradient` adds them, ``((pair, n), (half, k))``: of tile ``2 pair + half``, which may be
    past the last, and d2 ``8 n + 2 (lane % 4) + k``.
    """
    f = fragments
    BESIDE, SPLIT = map(specialized, (f.beside, f.split))
    COLUMNS, GROUPS, PARENTS = map(specialized, (f.columns, f.groups, f.together))

    @cuda.jit(device=True, forceinline=True)
    def column_of(lane, warp, tile):
        column = lane // 4
        p = (warp * GROUPS + tile // BESIDE) * PARENTS + column // 2 // SPLIT
        d3 = column // 2 % SPLIT * COLUMNS + column % 2 * BESIDE + tile % BESIDE
        return p, d3

    return column_of
