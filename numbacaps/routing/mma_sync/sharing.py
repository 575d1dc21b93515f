"""A softmax over the parents of a place, which lanes of a warp share, and perhaps warps.

Each lane has its largest logit and the sum of 2 ** (logit - largest); lanes meet by shuffles, warps in shared memory.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import load_run, meet, meet_at, short, shuffle
from numbacaps.device.powers import exp2
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda

LOWEST = np.float32(np.finfo(np.float32).min)  # of which minus infinity can be taken away


def words_of_sharing(fragments, rows, sets):
    """Words of shared memory that warps meet in."""
    f = fragments
    return 4 * rows * sets * f.across * f.places if f.across > 1 else 0


@cache
def make_over_lanes(split):
    """Device functions ``(sum_over, largest_over)`` of the lanes of a row that have different parents."""
    SPLIT = specialized(split)

    @cuda.jit(device=True, forceinline=True)
    def sum_over(value):
        lane = cuda.threadIdx.x % 32
        if SPLIT < 2:
            value += shuffle(value, lane ^ 1)
        if SPLIT < 4:
            value += shuffle(value, lane ^ 2)
        return value

    @cuda.jit(device=True, forceinline=True)
    def largest_over(value):
        lane = cuda.threadIdx.x % 32
        if SPLIT < 2:
            other = shuffle(value, lane ^ 1)
            value = other if other > value else value
        if SPLIT < 4:
            other = shuffle(value, lane ^ 2)
            value = other if other > value else value
        return value

    return sum_over, largest_over


@cache
def make_sum_of_parent(split):
    """Device function ``whole(value)``: the sum over the lanes that share a parent."""
    SPLIT = specialized(split)

    @cuda.jit(device=True, forceinline=True)
    def whole(value):
        lane = cuda.threadIdx.x % 32
        if SPLIT > 1:
            value += shuffle(value, lane ^ 1)
        if SPLIT > 2:
            value += shuffle(value, lane ^ 2)
        return value

    return whole


def words_of_totals(fragments, groups, numbers=1):
    """Words of shared memory in which :func:`make_total` meets."""
    f = fragments
    return 2 * groups * numbers * f.across * f.places if f.across > 1 else 0


@cache
def make_total(fragments, groups, words, numbers=1):
    """Device function ``total(B, found, shared, group, warp, turn)``: ``found``, for each image of a lane, of B over all parents.

    ``B`` has one number after the other of all scalars, and so has ``found`` of all images. Other arguments are as in
    :func:`make_softmax`, and warps meet as there.
    """
    f = fragments
    IMAGES, SCALARS, PLACES = map(specialized, (f.images, f.scalars, f.places))
    ACROSS, GROUPS = map(specialized, (f.across, groups))
    WORDS, THREADS = map(specialized, (words, 32 * f.across))
    ALL, SUMS = map(specialized, (numbers * f.scalars, numbers * f.images))
    APART = specialized(numbers * f.places)
    ZERO = np.float32(0)
    sum_over, _ = make_over_lanes(f.split)

    @cuda.jit(device=True, forceinline=True)
    def total(B, found, shared, group, warp, turn):
        lane = cuda.threadIdx.x % 32
        for k in range(SUMS):
            found[k] = ZERO
        for s in range(ALL):
            found[s // SCALARS * IMAGES + s % IMAGES] += B[s]
        for k in range(SUMS):
            found[k] = sum_over(found[k])
        if ACROSS > 1:
            here = WORDS + (turn % 2 * GROUPS + group) * (ACROSS * APART)
            for k in range(SUMS):
                place = k // IMAGES * PLACES + lane // 4 + 8 * (k % IMAGES)
                if lane % 4 == 0:
                    shared[at(here + warp * APART + place)] = found[k]
            if GROUPS == 1:
                meet(THREADS)
            else:
                meet_at(2 + group, THREADS)
            for k in range(SUMS):
                place = k // IMAGES * PLACES + lane // 4 + 8 * (k % IMAGES)
                found[k] = ZERO
                for other in range(ACROSS):
                    found[k] += shared[at(here + other * APART + place)]

    return total


@cache
def make_softmax(fragments, rows, sets, words):
    """Device function ``softmax(B, top, total, shared, group, warp, turn)``.

    ``B``, a number for each scalar, are logits to the base 2; they become 2 ** (B - top), and ``top`` and ``total``, a
    number for each image of a lane, the largest and the sum over all parents. ``group`` counts the warps that share no
    parents, ``turn`` the calls. Warps meet from word ``words`` of shared memory on.
    """
    f = fragments
    IMAGES, SCALARS, PLACES = map(specialized, (f.images, f.scalars, f.places))
    ACROSS, GROUPS = map(specialized, (f.across, rows * sets))
    WORDS, THREADS = map(specialized, (words, 32 * f.across))
    ZERO = np.float32(0)
    sum_over, largest_over = make_over_lanes(f.split)

    @cuda.jit(device=True, forceinline=True)
    def softmax(B, top, total, shared, group, warp, turn):
        two = cuda.local.array(2, np.float32)
        lane = cuda.threadIdx.x % 32
        for image in range(IMAGES):
            top[image], total[image] = LOWEST, ZERO
        for s in range(SCALARS):
            top[s % IMAGES] = B[s] if B[s] > top[s % IMAGES] else top[s % IMAGES]
        for image in range(IMAGES):
            top[image] = largest_over(top[image])
        for s in range(SCALARS):
            B[s] = exp2(B[s] - top[s % IMAGES])
            total[s % IMAGES] += B[s]
        for image in range(IMAGES):
            total[image] = sum_over(total[image])
        if ACROSS > 1:
            here = WORDS + (turn % 2 * GROUPS + group) * (ACROSS * PLACES * 2)
            for image in range(IMAGES):
                place = lane // 4 + 8 * image
                if lane % 4 == 0:
                    to = here + (warp * PLACES + place) * 2
                    shared[at(to)], shared[at(to + 1)] = top[image], total[image]
            if GROUPS == 1:
                meet(THREADS)
            else:
                meet_at(2 + group, THREADS)
            for image in range(IMAGES):
                place, highest, added = lane // 4 + 8 * image, LOWEST, ZERO
                for other in range(ACROSS):
                    load_run(2, two, shared, short(here + (other * PLACES + place) * 2))
                    highest = two[0] if two[0] > highest else highest
                for other in range(ACROSS):
                    load_run(2, two, shared, short(here + (other * PLACES + place) * 2))
                    added += two[1] * exp2(two[0] - highest)
                kept = exp2(top[image] - highest)
                for s in range(SCALARS):
                    if s % IMAGES == image:
                        B[s] *= kept
                top[image], total[image] = highest, added

    return softmax
