"""A kernel packed for :mod:`numbacaps.nn.resident.backward`: core matrices of taps, output elements along their rows.

    packed[taps, part, step, half, n, e]

What changed from :mod:`numbacaps.fused.pack`: ``k`` counts (p, d3) and ``n`` a tap's (c, d2), some taps side by side.
Neighbours of ``n`` that a thread adds in one run lie where its sums are: pairs of them, 8 columns apart. What
rounding took away is multiplied first, so it comes first.
"""

import numpy as np

from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


def taps_finder(product, D3, parts):
    """Device function as :func:`numbacaps.fused.pack.finder`'s, of float32.

    Parameters
    ----------
    product : numbacaps.nn.resident.backward_layout.TapProduct
    D3 : int
        Elements of a row of the output's capsules.
    parts : int
        2 in three terms, otherwise 1.
    """
    STEPS, RUN, WIDE = map(specialized, (product.steps, product.run, product.wide))
    PARTS, DEPTH, CAPSULE = map(specialized, (parts, product.K, D3))
    WIDTH, ROW, TAPS = map(specialized, (product.N, product.D, product.taps))
    COLUMNS, TOGETHER = map(specialized, (product.columns, product.together))
    OF_CAPSULE = specialized(product.N * product.taps * D3)

    @cuda.jit(device=True, forceinline=True)
    def find(i):
        element, rest = np.uint32(i % 4), np.uint32(i // 4)
        column, rest = np.uint32(rest % COLUMNS), np.uint32(rest // COLUMNS)
        chunk, rest = np.uint32(rest % (2 * STEPS)), np.uint32(rest // (2 * STEPS))
        part, rest = np.uint32(PARTS - 1 - rest % PARTS), np.uint32(rest // PARTS)
        k = np.uint32((chunk // RUN * 4 + element) * RUN + chunk % RUN)
        tap, n = np.uint32(rest * TOGETHER + column // WIDTH), np.uint32(column % WIDTH)
        block, pair = np.uint32(n // 8), np.uint32(n % 8 // 2)
        n = np.uint32(((block // WIDE * 4 + pair) * WIDE + block % WIDE) * 2 + n % 2)
        place = np.uint32(k // CAPSULE) * OF_CAPSULE + np.uint32(k % CAPSULE)
        place += (np.uint32(n // ROW) * TAPS + tap) * (ROW * CAPSULE) + np.uint32(n % ROW) * CAPSULE
        return place, part, k < DEPTH

    return find
