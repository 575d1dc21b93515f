"""The epilogue: a warpgroup's sums, behind an activation or its gradient where one is wanted, written to memory.

A lane holds two neighbouring columns of a row and of the eighth row below it. Memory is written in sectors of 32
bytes, so where a pixel's capsules are smaller, the pixels of two lanes are exchanged and stored together.
"""

from typing import NamedTuple

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import (
    HALVES,
    load_run,
    local_array,
    shuffle,
    store_pair,
    store_quad,
    store_words,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.epilogue import activate, make_differentiate
from numbacaps.fused.rung_5_warp_specialized.addressing import make_place_of_column


class Target(NamedTuple):
    """Where a lane's columns of a row of pixels go: the row's place in the result, n and its place from there on,
    the row's d1, the lane's pixel column, and whether the row and n are inside."""

    to_row: int
    n: int
    to_column: int
    d1: int
    w: int
    lane: int
    inside: bool


def make_store_tile(spec):
    """Device function ``store_tile(acc, results, place, thread)``; ``results`` are ``(c, activated, images)``."""
    pixels, tile, epilogue = spec.pixels, spec.tile, spec.epilogue
    sums = spec.pixel_sums
    PW, BN, SUMS = map(specialized, (tile.PW, tile.BN, sums))
    D1, FILLED, ROWS = map(specialized, (pixels.D1, spec.filled_rows, pixels.rows))
    ALL_SUMS, N = map(specialized, (sums * tile.PW, spec.n.N))
    N_FULL = specialized(spec.n.N % tile.BN == 0)
    C_IMAGE, C_ROW, _, _ = map(specialized, pixels.other)
    C_FIRST, C_G = map(specialized, (pixels.first, pixels.steps[2]))
    RESULT, RESULTS = epilogue.results.start, epilogue.results.stop
    # Known before functions are inlined, which takes long.
    ACTIVATES, DIFFERENTIATES = RESULTS > 1, epilogue.differentiates
    BLOCKS, LANES, MASK = epilogue.blocks, epilogue.lanes, epilogue.mask
    SLOPE = np.float32(epilogue.slope)
    differentiate_pixel = make_differentiate_pixel(spec) if DIFFERENTIATES else None
    place_of_column = make_place_of_column(spec.n)
    store_pixels, AT_ONCE = make_store_pixels(spec)
    BEFORE, PIXELS = specialized(sums), tile.PW if DIFFERENTIATES else 1

    @cuda.jit(device=True, forceinline=True)
    def store_tile(acc, results, place, thread):
        c, activated, images = results
        h, first_n = place.row + thread.row, place.n_tile * BN + thread.lane % 4 * 2
        if DIFFERENTIATES:
            before = local_array(BEFORE, np.float32)
            pair = cuda.local.array(2, np.float32)
            arrays = before, pair, activated, images
            differentiate_pixel(acc, 0, arrays, place, thread)
            if PIXELS > 1:  # a loop would have to be unrolled
                differentiate_pixel(acc, 1, arrays, place, thread)
            if PIXELS > 2:
                differentiate_pixel(acc, 2, arrays, place, thread)
            if PIXELS > 3:
                differentiate_pixel(acc, 3, arrays, place, thread)
        for which in range(RESULT, RESULTS):
            result = c
            if ACTIVATES and which == 1:
                activate(acc, ALL_SUMS, 2, 2, BLOCKS, LANES, MASK, SLOPE)
                result = activated
            for half in range(2):
                row = thread.warp % 4 * 16 + thread.lane // 4 + half * 8
                image = place.image + row // D1
                to_row = place.g * C_G + C_FIRST + image * C_IMAGE + h * C_ROW
                filled = row < FILLED and image < images and h < ROWS
                for block in range(BN // 8):
                    n = first_n + block * 8
                    to_column = to_row + place_of_column(n)
                    inside = filled and (N_FULL == 1 or n < N)
                    for j in range(
                        0, PW, AT_ONCE
                    ):  # neighbours one after the other: parts of sectors
                        w = place.column + thread.column + j
                        target = Target(to_row, n, to_column, row % D1, w, thread.lane, inside)
                        store_pixels(result, acc, j * SUMS + block * 4 + half * 2, target)

    return store_tile


def make_differentiate_pixel(spec):
    """Device function ``differentiate_pixel(acc, j, arrays, place, thread)``.

    The gradient of an activation in place, of the j-th of a warpgroup's pixels. ``arrays`` are room for its sums
    before the activation, room for two of them, the array that has them, and how many images there are.
    """
    pixels, n, sums = spec.pixels, spec.n.N, spec.pixel_sums
    D1, FILLED = map(specialized, (pixels.D1, spec.filled_rows))
    ROWS, COLUMNS, N = map(specialized, (pixels.rows, pixels.columns, n))
    BN, SUMS, N_FULL = map(specialized, (spec.tile.BN, sums, n % spec.tile.BN == 0))
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = map(specialized, pixels.other)
    C_FIRST, C_G = map(specialized, (pixels.first, pixels.steps[2]))
    ZERO = np.float32(0)
    differentiate = make_differentiate(sums, 2, 2, spec.epilogue, np.dtype(np.float32))
    place_of_column = make_place_of_column(spec.n)

    @cuda.jit(device=True, forceinline=True)
    def differentiate_pixel(acc, j, arrays, place, thread):
        before, pair, array, images = arrays
        h, w = place.row + thread.row, place.column + thread.column + j
        first_n = place.n_tile * BN + thread.lane % 4 * 2
        for half in range(2):
            row = thread.warp % 4 * 16 + thread.lane // 4 + half * 8
            image = place.image + row // D1
            to = place.g * C_G + C_FIRST + image * C_IMAGE + row % D1 * C_D1
            to += h * C_ROW + w * C_COLUMN
            filled = row < FILLED and image < images and h < ROWS and w < COLUMNS
            for block in range(BN // 8):
                n = first_n + block * 8
                pair[0] = ZERO
                pair[1] = ZERO
                if filled and (N_FULL == 1 or n < N):
                    load_run(2, pair, array, to + place_of_column(n))
                before[block * 4 + half * 2] = pair[0]
                before[block * 4 + half * 2 + 1] = pair[1]
        differentiate(acc, j * SUMS, before)

    return differentiate_pixel


def make_store_pixels(spec):
    """(device function ``store(result, acc, i, target)``, neighbouring pixels that it stores at once).

    ``acc[i]`` and ``acc[i + 1]`` are the lane's two columns of the first pixel.
    """
    p, tile, N = spec.pixels, spec.tile, spec.n.N
    image, row, column, d1 = p.other
    if p.D1 == 2 and d1 == 2 and N % 2 == 0:
        # A pixel's capsule is 16 bytes, half of a sector.
        if spec.dtype.itemsize == 4 and tile.PW % 2 == 0:
            return make_store_two(spec), 2
        # Of 2 bytes an element it is 8, and of four pixels two neighbours begin at a multiple of 16 bytes.
        apart = image, row, p.first, spec.n.other, p.steps[2] * (spec.groups - 1)
        adjacent = column == 4 and tile.TW % 4 == 0 and p.columns % 2 == 0
        aligned = adjacent and all(step % 8 == 0 for step in apart)
        if spec.dtype.itemsize == 2 and tile.PW % 4 == 0 and aligned:
            return make_store_four(spec), 4
    return make_store_one(spec), 1


def make_store_one(spec):
    """Store a pixel's two columns, at once where the second one always lies beside the first."""
    n, (_, _, column, d1) = spec.n.N, spec.pixels.other
    N, COLUMNS = map(specialized, (n, spec.pixels.columns))
    C_COLUMN, C_D1 = map(specialized, (column, d1))
    PAIRED = specialized(d1 % 2 == 0 and n % 2 == 0)
    N_FULL = specialized(n % spec.tile.BN == 0)
    _, write = conversions(spec.dtype)
    place_of_column = make_place_of_column(spec.n)

    @cuda.jit(device=True, forceinline=True)
    def store_one(result, acc, i, target):
        one, other = write(acc[i]), write(acc[i + 1])
        to = target.d1 * C_D1 + target.w * C_COLUMN
        where = target.to_column + to
        if target.inside and target.w < COLUMNS:
            if PAIRED == 1:
                store_pair(result, where, one, other)
            else:
                result[at(where)] = one
                if N_FULL == 1 or target.n + 1 < N:
                    where = target.to_row + place_of_column(target.n + 1) + to
                    result[at(where)] = other

    return store_one


def make_store_two(spec):
    """Of two pixels' rows d1 of 0 and 1, this lane has one and the lane beside it the other.

    Each gives the half that the other stores, so each stores a whole pixel.
    """
    SUMS, COLUMNS = map(specialized, (spec.pixel_sums, spec.pixels.columns))
    C_COLUMN = specialized(spec.pixels.other[2])
    _, write = conversions(spec.dtype)

    @cuda.jit(device=True, forceinline=True)
    def store_two(result, acc, i, target):
        one, other = write(acc[i]), write(acc[i + 1])
        beside, beyond = acc[i + SUMS], acc[i + SUMS + 1]
        d1 = target.lane // 4 % 2
        got = shuffle(one if d1 else beside, target.lane ^ 4)
        gotten = shuffle(other if d1 else beyond, target.lane ^ 4)
        w = target.w + d1
        to = target.to_column + w * C_COLUMN
        first = got if d1 else one
        second = gotten if d1 else other
        third = beside if d1 else got
        fourth = beyond if d1 else gotten
        if target.inside and w < COLUMNS:
            store_quad(result, to, first, second, third, fourth)

    return store_two


def make_store_four(spec):
    """The same of four pixels of 2 bytes an element: each lane stores two whole neighbours."""
    SUMS, COLUMNS = map(specialized, (spec.pixel_sums, spec.pixels.columns))
    C_COLUMN = specialized(spec.pixels.other[2])
    halves = HALVES[spec.dtype.name]

    @cuda.jit(device=True, forceinline=True)
    def store_four(result, acc, i, target):
        words = cuda.local.array(4, np.float32)
        for pixel in range(4):
            k = i + pixel * SUMS
            words[pixel] = halves(acc[k], acc[k + 1])
        d1 = target.lane // 4 % 2
        got = shuffle(words[0] if d1 else words[2], target.lane ^ 4)
        gotten = shuffle(words[1] if d1 else words[3], target.lane ^ 4)
        w = target.w + d1 * 2
        to = target.to_column + w * C_COLUMN
        first = got if d1 else words[0]
        second = words[2] if d1 else got
        third = gotten if d1 else words[1]
        fourth = words[3] if d1 else gotten
        if target.inside and w < COLUMNS:  # and so is the neighbour
            store_words(result, to, first, second, third, fourth)

    return store_four
