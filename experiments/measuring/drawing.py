"""Geometries drawn at random: what a user who varies every axis meets, not what kernels were built against."""

import numpy as np

from numbacaps import Geometry

BATCHES = (1, 2, 8, 32, 64, 128, 256)
CHANNELS = (1, 64)  # log-uniform between the two, as the others that have bounds
HEIGHTS = (4, 64)
WHOLE = 0  # a window as large as the input
WINDOWS = (1, 2, 3, 5, 7, 9, WHOLE)
STRIDES = (1, 2, 3)
DILATIONS = (1, 2)
CAPSULES = (1, 16)  # uniform: 3, 5, 7 and their like as often as the powers of two
SQUARE, ALIKE = 0.7, 0.5  # how often W is H, and D1, D2 and D3 are one number
FLOP = (1e7, 1e11)
MOST_BYTES = 4 << 30  # of operands and result in float32


def drawn(seed, number):
    """The geometry of that number under a seed: the same whatever was drawn before it.

    Parameters
    ----------
    seed, number : int
        0 or more.

    Returns
    -------
    numbacaps.Geometry
        Of :data:`FLOP` and at most :data:`MOST_BYTES`; others are drawn again.
    """
    rng = np.random.default_rng((seed, number))
    while True:
        geometry = _drawn_once(rng)
        if geometry and FLOP[0] <= geometry.flop <= FLOP[1]:
            if geometry.min_bytes(4) <= MOST_BYTES:
                return geometry


def _drawn_once(rng):
    """A geometry, or None where the window does not fit."""

    def log_uniform(low, high):
        return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))

    N = int(rng.choice(BATCHES))
    C, P, H = log_uniform(*CHANNELS), log_uniform(*CHANNELS), log_uniform(*HEIGHTS)
    W = H if rng.random() < SQUARE else log_uniform(*HEIGHTS)
    window = int(rng.choice(WINDOWS))
    KH, KW = (H, W) if window == WHOLE else (window, window)
    padding = int(rng.integers(0, KH // 2 + 1))
    moves = int(rng.choice(STRIDES)), (padding, min(padding, KW // 2)), int(rng.choice(DILATIONS))
    low, high = CAPSULES
    D1, D2, D3 = map(int, rng.integers(low, high + 1, 3))
    if rng.random() < ALIKE:
        D2 = D3 = D1
    try:
        return Geometry(N, C, P, H, W, KH, KW, 1, D1, D2, D3, *moves)
    except ValueError:  # the window is larger than the padded input
        return None
