"""Where a vote lies in its array."""

from functools import cache

from numbacaps.device.target import cuda


def taps_of(geometry, sum_window):
    """Votes that an input channel has for an output capsule: one for each tap of the window, or one for all."""
    return 1 if sum_window else geometry.KH * geometry.KW


@cache
def make_vote_index(geometry, sum_window):
    """Device function: the offset of a vote in (N, P, OH, OW, C, taps, E3)."""
    C, P, OH, OW, E3 = (getattr(geometry, name) for name in ("C", "P", "OH", "OW", "E3"))
    TAPS = taps_of(geometry, sum_window)
    STEP = 0 if sum_window else 1  # from the vote of a tap to the next one's

    @cuda.jit(device=True, inline="always")
    def calculate_vote_index(n, p, oh, ow, c, tap):
        return (((((n * P + p) * OH + oh) * OW + ow) * C + c) * TAPS + tap * STEP) * E3

    return calculate_vote_index
