"""The ring in shared memory through which packed kernels come, and device functions in a row that hand it on."""

import numpy as np

from numbacaps.fused.intrinsics import short
from numbacaps.target import cuda


def in_turn(functions):
    """A device function that calls some, one after the other, and hands the ring's place on."""
    first, *others = functions
    if not others:
        return first
    rest = in_turn(others)

    @cuda.jit(device=True, forceinline=True)
    def chained(where, turn, phases):
        turn, phases = first(where, turn, phases)
        return rest(where, turn, phases)

    return chained


def ring_of(place, slots):
    """Device functions for the ring's first so many slots: where one lies, its phase, and what comes after some.

    A place in the ring is a slot's number, and a bit for every slot: the phase that its barriers are in.
    """
    RING, RING_AT, PITCH, GAP, SLOTS = place.ring, place.ring_at, place.pitch, place.gap, slots
    ALL = (1 << slots) - 1

    @cuda.jit(device=True, forceinline=True)
    def lies_at(turn):
        return RING_AT + turn * PITCH + (GAP if turn >= RING else 0)

    @cuda.jit(device=True, forceinline=True)
    def phase_of(turn, phases):
        return short(phases >> (turn & 31) & 1)

    @cuda.jit(device=True, forceinline=True)
    def after(turn, phases, count):
        bits = np.uint32(np.uint32((np.uint32(1) << (count & 15)) - 1) << (turn & 15))
        bits = np.uint32(bits | bits >> SLOTS) & ALL
        turn = short(turn + count)
        return short(turn - SLOTS if turn >= SLOTS else turn), short(phases ^ bits)

    return lies_at, phase_of, after
