"""Sums and maxima over the lanes of a team, in an order that is always the same; all lanes of the warp take part.

parents   over the lanes that have parents of their own
columns   over the lanes that share a parent
team      over all of them
"""

from functools import cache

from numbacaps.device.instructions import shuffle
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda

_MOST_STEPS = 5  # of halving the lanes of a team: those of a warp


def make_parents_sum(shape):
    """Device function ``lanes_sum(value)`` over all parents, of a value that the lanes of a parent have in common."""
    return _make_sum(0, _bits(shape.across))


def make_columns_sum(shape):
    """Device function ``lanes_sum(value)`` over the lanes that share a parent."""
    return _make_sum(_bits(shape.across), _bits(shape.team))


def make_team_sum(shape):
    """Device function ``lanes_sum(value)`` over the team."""
    return _make_sum(0, _bits(shape.team))


def make_lanes_sum(lanes):
    """Device function ``lanes_sum(value)`` over neighbouring lanes, a power of two of them."""
    return _make_sum(0, _bits(lanes))


def make_lanes_max(lanes):
    """Device function ``lanes_max(value)`` over the same."""
    return _make_max(0, _bits(lanes))


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
    """Device function ``lanes_max(value)``, over the lanes that :func:`make_parents_sum` adds up."""
    return _make_max(0, _bits(shape.across))


def make_columns_max(shape):
    """Device function ``lanes_max(value)`` over the lanes that share a parent."""
    return _make_max(_bits(shape.across), _bits(shape.team))


@cache
def _make_max(first, end):
    FIRST, END = map(specialized, (first, end))

    @cuda.jit(device=True, forceinline=True)
    def lanes_max(value):
        for bit in range(FIRST, END):
            other = shuffle(value, cuda.threadIdx.x % 32 ^ 1 << bit)
            if other > value:
                value = other
        return value

    return lanes_max


@cache
def make_scattered_sums(shape, count):
    """Device function ``sums(values, lane)``: adds up ``count`` values over the team, and scatters the sums over its lanes.

    Every lane has values of its own, ``values[0]`` to ``values[count - 1]``. Afterwards each lane has some of their sums, in
    ``values[0]`` and on. In each step a lane sends the half of its values that others will have to a lane that keeps them,
    and adds what it gets to the half that it keeps. So a step has half as much to send as the one before. With 4 lanes and
    4 values, ``v[k]`` a lane's k-th:

        lanes 0, 1 keep v[0], v[1];  lanes 2, 3 keep v[2], v[3]
        lane 0 keeps v[0];  lane 1 keeps v[1];  lane 2 keeps v[2];  lane 3 keeps v[3]

    :func:`scattered` says how many sums a lane gets, and which.
    """
    room, _, _ = scattered(shape, count)
    bits, keeps = _bits(shape.team), [max(1, room >> step) // 2 for step in range(_MOST_STEPS)]
    return _in_turn(
        *[
            _make_exchange(half, 1 << bits - 1 - step if step < bits else 0)
            for step, half in enumerate(keeps)
        ]
    )


def scattered(shape, count):
    """What :func:`make_scattered_sums` does with ``count`` values.

    Returns
    -------
    room : int
        How long ``values`` has to be: the next power of two. What no value fills has to be zero.
    gets : int
        Sums that a lane gets: lane i those from ``i // same * gets`` on.
    same : int
        Lanes side by side that get the same sum, where there are more lanes than values.
    """
    room = 1
    while room < count:
        room *= 2
    return room, max(1, room // shape.team), max(1, shape.team // room)


def _make_exchange(half, bit):
    """A step: lanes that differ in a bit exchange half of their values, or the sum that is left (0); no bit, no step."""
    HALF, BIT = map(specialized, (half, bit))

    @cuda.jit(device=True, forceinline=True)
    def exchange(values, lane):
        if BIT > 0:
            if HALF > 0:
                upper = lane & BIT != 0
                for i in range(HALF):
                    low, high = values[i], values[HALF + i]
                    other = shuffle(low if upper else high, cuda.threadIdx.x % 32 ^ BIT)
                    values[i] = (high if upper else low) + other
            else:
                values[0] += shuffle(values[0], cuda.threadIdx.x % 32 ^ BIT)

    return exchange


def _in_turn(first, second, third, fourth, fifth):
    @cuda.jit(device=True, forceinline=True)
    def sums(values, lane):
        first(values, lane)
        second(values, lane)
        third(values, lane)
        fourth(values, lane)
        fifth(values, lane)

    return sums
