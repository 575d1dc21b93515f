"""What a pass has gathered of the parents, from lanes to device memory by way of shared memory.

A record is ``size`` numbers of a parent: its capsules' elements, then single numbers. In memory the parents lie side by side,
(places, size, P). A lane has few of them beside each other, so records are laid out in shared memory and copied from there.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import load_run, local_array, short, store_run
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.mma_sync.fragments import round_up


def _pitch(tile, size):
    """Words from one place to the next, which are four banks apart."""
    return round_up(size * tile.geometry.P, 32) + 4


def words_of_records(tile, size):
    """Words of shared memory that the records of a block's places take."""
    return tile.places * _pitch(tile, size)


@cache
def make_records(tile, size):
    """Device functions ``(put, copy)``.

    ``put(shared, first, m, field, p, value)``: number ``field`` of parent ``p`` at the block's place ``m``. All threads meet, then
    ``copy(partial, shared, first, part, block, places)`` writes the records of the places from ``block`` on, as those of a part.
    """
    P, PITCH = map(specialized, (tile.geometry.P, _pitch(tile, size)))
    run = 4 if size * tile.geometry.P % 4 == 0 else 1  # numbers that a thread stores at once
    OF_PLACE = specialized(size * tile.geometry.P)
    RUN, RUNS = map(specialized, (run, size * tile.geometry.P // run))
    PLACES, THREADS = map(specialized, (tile.places, tile.threads))

    @cuda.jit(device=True, forceinline=True)
    def put(shared, first, m, field, p, value):
        shared[at(first + m * PITCH + field * P + p)] = value

    @cuda.jit(device=True, forceinline=True)
    def copy(partial, shared, first, part, block, places):
        some = local_array(RUN, np.float32)
        for piece in range(cuda.threadIdx.x, PLACES * RUNS, THREADS):
            number = short(piece & 0xFFFFFF)
            m, column = short(number // RUNS), short(number % RUNS * RUN)
            if block + m < places:
                load_run(RUN, some, shared, short(first + m * PITCH + column))
                store_run(RUN, partial, (part * places + block + m) * OF_PLACE + column, some)

    return put, copy
