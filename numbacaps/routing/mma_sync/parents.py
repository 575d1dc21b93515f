"""What passes of EM routing read of the parents, a lane's at a time, and what they leave of them.

Arrays are (records, fields, P): a record is a place of an iteration, its fields some capsules' elements, then single numbers. A lane
holds few parents of a place beside each other (:mod:`numbacaps.routing.mma_sync.fragments`), so what a block leaves is laid out in shared
memory and copied from there in whole rows.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import load_run, local_array, short, store_run
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.em import state_fields
from numbacaps.routing.mma_sync.fragments import make_where, round_up


@cache
def make_read(tile):
    """Device functions ``(elements, number)`` that read a lane's parents, of the states or the slopes.

    ``elements(found, array, which, field, first, places, warp)``: the elements from ``field`` on of records ``which * places`` and on,
    for the row of places that begins at ``first``; 0 where there is no place, parent or element.
    ``number(found, array, which, field, first, places, warp, no_parent, no_place)``: a number of each parent, and what it is where
    there is none.
    """
    g, f = tile.geometry, tile.fragments
    P, FIELDS = map(specialized, (g.P, state_fields(g.E3)[0]))
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    IMAGES, SCALARS, ZERO = *map(specialized, (f.images, f.scalars)), np.float32(0)
    place_of, parent_of, element_of = make_where(f)

    @cuda.jit(device=True, forceinline=True)
    def elements(found, array, which, field, first, places, warp):
        lane = cuda.threadIdx.x % 32
        for i in range(DOWN):
            for tile in range(TILES):
                p = parent_of(lane, warp, tile)
                for quarter in range(4):
                    m, e = first + place_of(lane, quarter), element_of(lane, i, tile, quarter)
                    # Without a branch, so that all loads are under way together.
                    record = (which * places + min(m, places - 1)) * FIELDS + field + max(e, 0)
                    value = array[at(record * P + min(p, P - 1))]
                    is_there = m < places and p < P and e >= 0
                    found[(i * TILES + tile) * 4 + quarter] = value if is_there else ZERO

    @cuda.jit(device=True, forceinline=True)
    def number(found, array, which, field, first, places, warp, no_parent, no_place):
        lane = cuda.threadIdx.x % 32
        for s in range(SCALARS):
            p, m = parent_of(lane, warp, s // IMAGES * BESIDE), first + lane // 4 + s % IMAGES * 8
            record = (which * places + min(m, places - 1)) * FIELDS + field
            value = array[at(record * P + min(p, P - 1))]
            found[s] = value if m < places else no_place
            if p >= P:
                found[s] = no_parent

    return elements, number


@cache
def make_hold(tile):
    """Device function ``hold(shared, to, found)``: a lane's elements, as lanes hold them; ``to`` is the lane's first word."""
    ELEMENTS = specialized(tile.fragments.elements)

    @cuda.jit(device=True, forceinline=True)
    def hold(shared, to, found):
        for e in range(ELEMENTS):
            shared[at(to + e // 4 * 128 + e % 4)] = found[e]

    return hold


def _pitch(tile, size):
    """Words from one place to the next, which are four banks apart."""
    return round_up(size * tile.geometry.P, 32) + 4


def words_of_records(tile, size):
    """Words of shared memory that the records of a block's places take, of ``size`` fields."""
    return tile.places * _pitch(tile, size)


@cache
def make_leave(tile, size):
    """Device functions ``(elements, numbers, copy)`` that leave records of ``size`` fields.

    ``elements(shared, to, field, found, row, warp)`` and ``numbers(shared, to, field, found, row, warp)`` put a lane's elements, from
    ``field`` on, and a number of each of its parents into the records that begin at word ``to``. All threads meet, then
    ``copy(partial, shared, to, part, block, places)`` writes those of the places from ``block`` on, as a part's.
    """
    g, f = tile.geometry, tile.fragments
    P, PITCH, OF_PLACE = map(specialized, (g.P, _pitch(tile, size), size * g.P))
    run = 4 if size * g.P % 4 == 0 else 1  # numbers that a thread stores at once
    RUN, RUNS = map(specialized, (run, size * g.P // run))
    PLACES, THREADS, OF_ROW = map(specialized, (tile.places, tile.threads, f.places))
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    IMAGES, SCALARS, SPLIT = map(specialized, (f.images, f.scalars, f.split))
    place_of, parent_of, element_of = make_where(f)

    @cuda.jit(device=True, forceinline=True)
    def elements(shared, to, field, found, row, warp):
        lane = short(cuda.threadIdx.x % 32)
        for i in range(DOWN):
            for tile in range(TILES):
                p = parent_of(lane, warp, tile)
                for quarter in range(4):
                    m, e = (
                        row * OF_ROW + place_of(lane, quarter),
                        element_of(lane, i, tile, quarter),
                    )
                    if p < P and e >= 0:
                        where = to + m * PITCH + (field + e) * P + p
                        shared[at(where)] = found[(i * TILES + tile) * 4 + quarter]

    @cuda.jit(device=True, forceinline=True)
    def numbers(shared, to, field, found, row, warp):
        lane = short(cuda.threadIdx.x % 32)
        for s in range(SCALARS):
            p, m = parent_of(lane, warp, s // IMAGES * BESIDE), lane // 4 + s % IMAGES * 8
            if p < P and lane % 4 % SPLIT == 0:
                shared[at(to + (row * OF_ROW + m) * PITCH + field * P + p)] = found[s]

    @cuda.jit(device=True, forceinline=True)
    def copy(partial, shared, to, part, block, places):
        some = local_array(RUN, np.float32)
        for piece in range(cuda.threadIdx.x, PLACES * RUNS, THREADS):
            number = short(piece & 0xFFFFFF)
            m, column = short(number // RUNS), short(number % RUNS * RUN)
            if block + m < places:
                load_run(RUN, some, shared, short(to + m * PITCH + column))
                store_run(RUN, partial, (part * places + block + m) * OF_PLACE + column, some)

    return elements, numbers, copy
