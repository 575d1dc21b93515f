"""Between two passes: the records that blocks have left of a parent are merged, in their order."""

from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cache
def make_merged(shape, size, merge):
    """Device function ``merged(record, partial, place, p, places, blocks)``; ``partial`` is (blocks, N * L, size, P)."""
    P, SIZE, sums = shape.geometry.P, size, shape.sums
    P, SIZE = map(specialized, (P, SIZE))

    @cuda.jit(device=True, forceinline=True)
    def merged(record, partial, place, p, places, blocks):
        other = local_array(SIZE, sums)
        for r in range(SIZE):
            record[r] = partial[at((place * SIZE + r) * P + p)]
        for block in range(1, blocks):
            for r in range(SIZE):
                other[r] = partial[at(((block * places + place) * SIZE + r) * P + p)]
            merge(record, other, 0)

    return merged
