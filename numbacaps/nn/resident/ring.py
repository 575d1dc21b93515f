"""The ring in shared memory through which packed kernels come, and device functions in a row that hand it on.

What a kernel does once an image has to be fetched as code too, so loops count in a way that LLVM does not
unroll (:func:`numbacaps.device.instructions.unforeseen`).
"""

import numpy as np

from numbacaps.device.instructions import CHUNK, cp_async, short, unforeseen
from numbacaps.device.target import cuda


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


def make_fetch(threads):
    """Device function by which so many threads ask for some floats, a multiple of 4, of an array."""
    THREADS = threads

    @cuda.jit(device=True, forceinline=True)
    def fetch(shared, address, array, begin, size, thread):
        i = short(4 * thread)
        while i < size:
            cp_async(16, shared, address + 4 * i, array, begin + i, True)
            i = unforeseen(i + 4 * THREADS)

    return fetch


def ring_of(place, slots):
    """Device functions for the ring's first so many slots: where one lies, its phase, and the next place, or a later one.

    A place in the ring is a slot's number, and a bit for every slot: the phase that its barriers are in. Where
    it lies is counted as descriptors do, in 16 bytes.
    """
    RING, PITCH, SLOTS = place.ring, place.pitch // CHUNK, slots
    RING_AT, ALL = place.ring_at // CHUNK, (1 << slots) - 1
    GAP = place.gap // CHUNK if slots > place.ring else 0

    @cuda.jit(device=True, forceinline=True)
    def lies_at(start, turn):
        begin = np.uint32(np.uint32(start) // CHUNK) + RING_AT
        return np.uint32(begin + turn * PITCH + (GAP if turn >= RING else 0))

    @cuda.jit(device=True, forceinline=True)
    def phase_of(turn, phases):
        return short(np.uint32(phases) >> (turn & 31) & 1)

    @cuda.jit(device=True, forceinline=True)
    def following(turn, phases):
        flipped = np.uint32(np.uint32(1) << (turn & 31))
        return short(turn + 1 if turn < SLOTS - 1 else 0), short(phases ^ flipped)

    @cuda.jit(device=True, forceinline=True)
    def after(turn, phases, count):
        bits = np.uint32(np.uint32((np.uint32(1) << (count & 15)) - 1) << (turn & 15))
        bits = np.uint32(bits | bits >> SLOTS) & ALL
        turn = short(turn + count)
        return short(turn - SLOTS if turn >= SLOTS else turn), short(phases ^ bits)

    return lies_at, phase_of, following, after


def make_past(place, slots, count):
    """Device function for the ring's place behind so many chunks, which may be more than it has slots."""
    _, _, _, after = ring_of(place, slots)
    ALL, ROUNDS, REST = (1 << slots) - 1, count // slots, count % slots

    @cuda.jit(device=True, forceinline=True)
    def past(turn, phases):
        return after(turn, short(phases ^ ALL) if ROUNDS % 2 else phases, REST)

    return past
