"""All of a network's kernels packed by one launch, for one pass or both.

A thread finds out which of the packed kernels its element is of, and where it lies; the rest is as in
:mod:`numbacaps.fused.pack`. Launched one by one the kernels take longer to begin than to pack.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import let_next_start, to_tf32, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cache
def make_pack_network(packings):
    """Kernel that packs float32 for TF32; a thread an element.

    Parameters
    ----------
    packings : tuple
        Of each packed kernel, as they lie one behind the other, (finder, its arguments, elements, where among all
        weights the kernel begins); finders as :func:`numbacaps.fused.pack.finder`.
    """
    find = _first_of(packings)
    SIZE = specialized(sum(elements for _, _, elements, _ in packings))
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def pack_network_kernel(
        weights,  # in   of all layers
        packed,  # out
    ):
        i = np.uint32(cuda.grid(1))
        place, part, filled = find(i)
        wait_for_last()  # the weights have moved
        let_next_start()
        if i < SIZE:
            value = ZERO
            if filled:
                whole = weights[at(place)]
                value = to_tf32(whole)
                if part > 0:
                    value = to_tf32(whole - value)
            packed[at(i)] = value

    return pack_network_kernel


def _first_of(packings):
    """Device function for elements of the first packed kernel, and of those behind it."""
    (finder, arguments, elements, begin), *others = packings
    own, ELEMENTS, BEGIN = finder(*arguments), *map(specialized, (elements, begin))
    if not others:

        @cuda.jit(device=True, forceinline=True)
        def find(i):
            place, part, filled = own(i)
            return BEGIN + place, part, filled

        return find

    rest = _first_of(others)

    @cuda.jit(device=True, forceinline=True)
    def find_any(i):
        if i < ELEMENTS:
            place, part, filled = own(i)
            place = BEGIN + place
        else:
            place, part, filled = rest(np.uint32(i - ELEMENTS))
        return place, part, filled

    return find_any
