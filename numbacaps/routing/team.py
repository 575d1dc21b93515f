"""Sums and maxima over the lanes of a team, in an order that is always the same."""

from functools import cache

from numbacaps.device.instructions import shuffle
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


@cache
def make_team_functions(team):
    """Device functions ``(team_sum, team_max)`` of a number that each lane has; all lanes of the warp take part."""
    BITS = team.bit_length() - 1
    BITS = specialized(BITS)

    @cuda.jit(device=True, forceinline=True)
    def team_sum(value):
        for bit in range(BITS):
            value += shuffle(value, cuda.threadIdx.x % 32 ^ 1 << bit)
        return value

    @cuda.jit(device=True, forceinline=True)
    def team_max(value):
        for bit in range(BITS):
            other = shuffle(value, cuda.threadIdx.x % 32 ^ 1 << bit)
            if other > value:
                value = other
        return value

    return team_sum, team_max
