"""Between two passes: the records that blocks have left of a parent are merged, in their order.

Thread mapping: a block has some parents at a position of an image. Its threads walk over the elements of their capsules
(:func:`make_own`), and then over the parents, for what takes all elements of one.
"""

from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import SIMULATED, at, cuda

END_THREADS = 32 if SIMULATED else 256
_TOGETHER = 4  # records that a thread loads at once


def parents_of_block(shape):
    """Parents that a block has."""
    return max(1, min(shape.geometry.P, END_THREADS // shape.geometry.E3))


def threads_of_parent(shape):
    """Threads that share a parent's elements: thread i has some of the block's parent ``i % parents``."""
    return min(shape.geometry.E3, END_THREADS)


def blocks_of_place(shape):
    """Blocks that a position takes."""
    return ceil_div(shape.geometry.P, parents_of_block(shape))


@cache
def make_own(shape):
    """Device functions ``place_of(block)``, ``parent_of(block, i)`` and ``element_of(i)``, of a block's i-th element.

    They are counted with parents side by side: element 0 of every parent, then element 1, and so on. So the block's i-th
    parent is that of its i-th element.
    """
    PARENTS, ACROSS = map(specialized, (parents_of_block(shape), blocks_of_place(shape)))

    @cuda.jit(device=True, forceinline=True)
    def place_of(block):
        return block // ACROSS

    @cuda.jit(device=True, forceinline=True)
    def parent_of(block, i):
        return block % ACROSS * PARENTS + i % PARENTS

    @cuda.jit(device=True, forceinline=True)
    def element_of(i):
        return i // PARENTS

    return place_of, parent_of, element_of


@cache
def make_merged(shape, record, merge):
    """Device function ``merged(found, partial, place, p, e, places, blocks)``: what all blocks have left of a parent, merged.

    ``found`` is a record of its own: element e of each capsule, then the numbers. So ``merge`` is of records whose capsules
    have one element. ``partial`` is (blocks, N * L, fields, P).
    """
    capsules, numbers = record
    P, E, FIELDS = map(specialized, (shape.geometry.P, shape.geometry.E3, shape.fields(record)))
    CAPSULES, SIZE, sums = specialized(capsules), capsules + numbers, shape.sums
    TOGETHER, AHEAD = map(specialized, (_TOGETHER, _TOGETHER * SIZE))
    SIZE = specialized(SIZE)

    @cuda.jit(device=True, forceinline=True)
    def field(r, e):
        return r * E + e if r < CAPSULES else CAPSULES * E + r - CAPSULES

    @cuda.jit(device=True, forceinline=True)
    def merged(found, partial, place, p, e, places, blocks):
        ahead, other = local_array(AHEAD, sums), local_array(SIZE, sums)
        for r in range(SIZE):
            found[r] = partial[at((place * FIELDS + field(r, e)) * P + p)]
        block = 1
        while block + TOGETHER <= blocks:  # their loads are under way together
            for i in range(TOGETHER):
                first = ((block + i) * places + place) * FIELDS
                for r in range(SIZE):
                    ahead[i * SIZE + r] = partial[at((first + field(r, e)) * P + p)]
            for i in range(TOGETHER):
                for r in range(SIZE):
                    other[r] = ahead[i * SIZE + r]
                merge(found, other, 0)
            block += TOGETHER
        while block < blocks:
            first = (block * places + place) * FIELDS
            for r in range(SIZE):
                other[r] = partial[at((first + field(r, e)) * P + p)]
            merge(found, other, 0)
            block += 1

    return merged
