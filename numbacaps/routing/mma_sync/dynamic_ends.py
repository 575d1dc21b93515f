"""Between two passes of dynamic routing: what the parts have gathered is added in their order, and the parents squash.

The state that is written is that of :mod:`numbacaps.routing.dynamic_ends`. Here a block has all parents of a position, whose
capsules fit shared memory, and writes their sums once more as lanes hold them.

Thread mapping: one block an image at a position; its threads walk over the elements of all parents, then over the parents.
"""

import math
from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    let_next_start,
    local_array,
    shared_array,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import SIMULATED, at, cuda
from numbacaps.routing.dynamic import state_fields
from numbacaps.routing.dynamic_ends import make_length, make_shrunk
from numbacaps.routing.mma_sync.fragments import make_slot

END_THREADS = 32 if SIMULATED else 256
_TOGETHER = 16  # sums that a thread loads at once


@cache
def make_dynamic_end(fragments, L, is_first):
    """Kernel between two passes, the first of which found A = 0 in no state."""
    elements = fragments.D1 * fragments.D3
    P, E, COLUMNS = map(specialized, (fragments.P, elements, fragments.P * elements))
    FIELDS, OF_IMAGE, FIRST = *map(specialized, (state_fields(elements)[0], L)), is_first
    BASE, slot = np.float32(math.log2(math.e)), make_slot(fragments)
    THREADS, TOGETHER = END_THREADS, _TOGETHER
    ZERO = np.float32(0)
    length, shrunk = make_length(elements, np.dtype(np.float32)), make_shrunk(np.dtype(np.float32))

    @kept_on_disk
    @cuda.jit
    def routing_dynamic_end_kernel(
        partial,  # in   (parts, N * L, P, E)
        states,  # in and out  (states, N * L, FIELDS, P)
        y,  # out  (N, P, L, E)
        summed,  # out  A times log2(e), as lanes hold it
        places,  # N * L
        parts,
        old,  # which state was read, and which is written
        new,
    ):
        sums = shared_array(COLUMNS, np.float32)
        factors = shared_array(P, np.float32)
        some = local_array(TOGETHER, np.float32)
        place = cuda.blockIdx.x
        wait_for_last()  # the parts have been summed
        let_next_start()
        for column in range(cuda.threadIdx.x, COLUMNS, THREADS):
            total, part = ZERO, 0
            while part + TOGETHER <= parts:  # their loads are under way together
                for ahead in range(TOGETHER):
                    some[ahead] = partial[at(((part + ahead) * places + place) * COLUMNS + column)]
                for ahead in range(TOGETHER):
                    total += some[ahead]
                part += TOGETHER
            while part < parts:
                total += partial[at((part * places + place) * COLUMNS + column)]
                part += 1
            sums[at(column)] = total
        cuda.syncthreads()  # every parent's s is there
        for p in range(cuda.threadIdx.x, P, THREADS):
            factors[at(p)] = shrunk(length(sums, p * E, 1))
        cuda.syncthreads()  # and what it is multiplied by
        from_, to = (old * places + place) * FIELDS, (new * places + place) * FIELDS
        for column in range(cuda.threadIdx.x, COLUMNS, THREADS):
            p, e = column // E, column % E
            v = sums[at(column)] * factors[at(p)]
            before = ZERO if FIRST else states[at((from_ + e) * P + p)]
            states[at((to + e) * P + p)] = before + v
            summed[at(slot(place, p, e))] = (before + v) * BASE
            states[at((to + E + e) * P + p)] = sums[at(column)]
            y[at(((place // OF_IMAGE * P + p) * OF_IMAGE + place % OF_IMAGE) * E + e)] = v
            if e == 0:
                states[at((to + 2 * E) * P + p)] = ZERO

    return routing_dynamic_end_kernel
