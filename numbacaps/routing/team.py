"""Sums and maxima over the lanes of a team, in an order that is always the same; all lanes of the warp take part.

parents   over lanes that have parents of their own
columns   over lanes that share a parent
team      over all
"""

from functools import cache

from numbacaps.device.instructions import shuffle
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


def make_parents_sum(shape):
    """Device function of a number that each lane has, the same in all lanes of a parent."""
    return _make_sum(0, _bits(shape.across))


def make_columns_sum(shape):
    """Device function of a number of each lane's columns."""
    return _make_sum(_bits(shape.across), _bits(shape.team))


def make_team_sum(shape):
    """Device function of a number that each lane has."""
    return _make_sum(0, _bits(shape.team))


def _bits(lanes):
    return lanes.bit_length() - 1


@cache
def _make_sum(first, end):
    FIRST, END = map(specialized, (first, end))

    @cuda.jit(device=True, forceinline=True)
    def lanes_sum(value):
        for bit in range(FIRST, END):
            value += shuffle(value, cuda.threadIdx.x % 32 ^ 1 << bit)
        return value

    return lanes_sum


def make_parents_max(shape):
    """The same, the largest."""
    return _make_max(_bits(shape.across))


@cache
def _make_max(end):
    END = specialized(end)

    @cuda.jit(device=True, forceinline=True)
    def lanes_max(value):
        for bit in range(END):
            other = shuffle(value, cuda.threadIdx.x % 32 ^ 1 << bit)
            if other > value:
                value = other
        return value

    return lanes_max


@cache
def make_scattered_sums(shape, count):
    """Device function ``sums(values, lane)`` of ``count`` numbers that each lane has, of :func:`scattered` of which it gets the sum.

    ``values`` has room for a power of two. Each step halves what a lane still has to add.
    """
    room, _, _ = scattered(shape, count)
    return _make_scattered(_bits(shape.team), room)


def scattered(shape, count):
    """(numbers that there is room for, those that a lane gets, lanes that get the same)."""
    room = 1
    while room < count:
        room *= 2
    return room, max(1, room // shape.team), max(1, shape.team // room)


def _make_scattered(bits, size):
    """The steps from one that exchanges ``2 ** (bits - 1)`` lanes on; ``size`` numbers are left."""
    if bits == 0:
        return _nothing
    after, halves = _make_scattered(bits - 1, max(1, size // 2)), size > 1
    HALF, BIT = map(specialized, (size // 2, 1 << bits - 1))

    if not halves:

        @cuda.jit(device=True, forceinline=True)
        def alike(values, lane):
            values[0] += shuffle(values[0], cuda.threadIdx.x % 32 ^ BIT)
            after(values, lane)

        return alike

    @cuda.jit(device=True, forceinline=True)
    def halved(values, lane):
        upper = lane & BIT != 0
        for i in range(HALF):
            low, high = values[i], values[HALF + i]
            other = shuffle(low if upper else high, cuda.threadIdx.x % 32 ^ BIT)
            values[i] = (high if upper else low) + other
        after(values, lane)

    return halved


@cuda.jit(device=True, forceinline=True)
def _nothing(values, lane):
    pass
