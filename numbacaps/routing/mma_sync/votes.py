"""The votes of a child on tensor cores: from shared memory into a lane's registers.

In three terms a factor is the sum of a high part, which the tensor cores cut from it by themselves, and a low one:

    x w = x_high w_low + x_low w_high + x_high w_high

A product has room for 8 numbers of d2. Where D2 is 4 or less, x_low takes the half that is left, so that two products
are enough: (x_high, x_low) with (w_low, 0), then with (w_high, w_high). Children are multiplied one by one, so no sum
in a tensor core, which cuts it, is longer than D2.
"""

from functools import cache
from math import gcd

import numpy as np

from numbacaps.device.instructions import cut_tf32, load_run, local_array, mma, short
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.device.tf32 import nearer
from numbacaps.routing.mma_sync.stage import make_swizzle


@cache
def make_load_input(fragments):
    """Device function ``load(a, shared, child)``: a lane's factors of x of a child's capsules at word ``child``.

    ``a`` has, for every row block and 8 numbers of d2, four words, and, in three terms of more than 4, four low parts.
    """
    f = fragments
    steps = max(1, f.depth // 8)
    DOWN, ROWS, PITCH, DEPTH = map(specialized, (f.down, f.rows, f.pitch, f.depth))
    HALF, STEPS, LOW = map(specialized, (f.is_half, steps, 4 * f.down * steps))
    THREE = f.terms == 3
    ZERO = np.float32(0)

    @cuda.jit(device=True, forceinline=True)
    def load(a, shared, child):
        lane = cuda.threadIdx.x % 32
        for i in range(DOWN):
            for side in range(2):
                place, row = lane // 4, (2 * i + side) % ROWS
                if ROWS == 1:
                    place += 8 * side
                first = child + place * PITCH + row * DEPTH + lane % 4
                for step in range(STEPS):
                    to = (i * STEPS + step) * 4 + side
                    one = shared[at(first + step * 8)]
                    if HALF == 1:
                        a[to] = one if THREE else nearer(one)
                        a[to + 2] = one - cut_tf32(one) if THREE else ZERO
                    else:
                        other = shared[at(first + step * 8 + 4)]
                        if THREE:
                            a[to], a[to + 2] = one, other
                            a[LOW + to] = one - cut_tf32(one)
                            a[LOW + to + 2] = other - cut_tf32(other)
                        else:
                            a[to], a[to + 2] = nearer(one), nearer(other)

    return load


def words_of_input(fragments):
    """Words that :func:`make_load_input` fills."""
    steps = max(1, fragments.depth // 8)
    low = 2 if fragments.terms == 3 and not fragments.is_half else 1
    return 4 * fragments.down * steps * low


@cache
def make_places(fragments):
    """Device function ``find(at_words, warp)``: where a lane's words of the kernel lie in a child's, of the first group.

    For each four of d2 the first of its words in the first group; the others follow, those of the next group behind them.
    """
    f = fragments
    FOURS, DEPTH, WIDTH, SPLIT = map(specialized, (f.depth // 4, f.depth, f.width, f.split))
    GROUPS, TOGETHER = map(specialized, (f.groups, f.together))
    BESIDE, COLUMNS = map(specialized, (f.beside, f.columns))
    swizzle = make_swizzle(f)

    @cuda.jit(device=True, forceinline=True)
    def find(at_words, warp):
        lane = short(cuda.threadIdx.x % 32)
        # The column of a tile that the lane reads. Of the tile's sums, lane column // 2 of four has it.
        column = short(lane // 4)
        p = warp * GROUPS * TOGETHER + column // 2 // SPLIT
        d3 = column // 2 % SPLIT * COLUMNS + column % 2 * BESIDE
        for four in range(FOURS):
            d2 = four * 4 + lane % 4
            at_words[four] = short((p * DEPTH + d2) * WIDTH + (d3 // 4 ^ swizzle(d2)) * 4 + d3 % 4)

    return find


@cache
def make_votes(fragments):
    """Device function ``votes(V, a, shared, child, at_words)``: a lane's elements, of the child whose kernel is at a word."""
    f = fragments
    steps, fours = max(1, f.depth // 8), f.depth // 4
    DOWN, TILES, HALF, STEPS = map(specialized, (f.down, f.tiles, f.is_half, steps))
    GROUPS, BESIDE, FOURS = map(specialized, (f.groups, f.beside, fours))
    OF_GROUP, LOW = map(specialized, (f.together * f.depth * f.width, 4 * f.down * steps))
    ELEMENTS, WORDS = map(specialized, (f.elements, f.beside * fours))
    SIDES, THREE = specialized(1 if f.is_half else 2), f.terms == 3
    RUN = specialized(gcd(f.beside, 4))  # words of one load
    ZERO = np.float32(0)

    @cuda.jit(device=True, forceinline=True)
    def votes(V, a, shared, child, at_words):
        words, some = local_array(WORDS, np.float32), local_array(RUN, np.float32)
        high, low = local_array(2, np.float32), local_array(2, np.float32)
        for e in range(ELEMENTS):
            V[e] = ZERO
        for group in range(GROUPS):
            for four in range(FOURS):
                first = short(child + group * OF_GROUP + at_words[four])
                for run in range(BESIDE // RUN):
                    load_run(RUN, some, shared, first + run * RUN)
                    for i in range(RUN):
                        words[(run * RUN + i) * FOURS + four] = some[i]
            for beside in range(BESIDE):
                tile = group * BESIDE + beside
                for step in range(STEPS):
                    for side in range(SIDES):
                        word = words[beside * FOURS + step * 2 + side]
                        high[side] = word if THREE else nearer(word)
                        low[side] = word - cut_tf32(word)
                    if HALF == 1:
                        high[1], low[1] = high[0] if THREE else ZERO, ZERO
                    for i in range(DOWN):
                        to, of_a = (i * TILES + tile) * 4, (i * STEPS + step) * 4
                        if THREE:
                            if HALF == 0:
                                mma(V, to, a, LOW + of_a, high, 0)
                            mma(V, to, a, of_a, low, 0)
                        mma(V, to, a, of_a, high, 0)

    return votes
