"""Philox 4x32-10 (Salmon and others, 2011): random words from a counter and a key, with no state.

Every thread asks for the words of its own counter, so what it gets depends on nothing else. Words
are 32 bits wide, in unsigned 64-bit integers, which hold the products of two.
"""

import numpy as np

from numbacaps.device.target import cuda

WORD = np.uint64(0xFFFFFFFF)
BITS = np.uint64(32)
MULTIPLY_0, MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@cuda.jit(device=True, inline="always")
def philox(c0, c1, c2, c3, k0, k1):
    """Four random words for a counter of four words and a key of two, all uint64."""
    for _ in range(10):
        low = MULTIPLY_0 * c0
        high = MULTIPLY_1 * c2
        c0 = (high >> BITS) ^ c1 ^ k0
        c1 = high & WORD
        c2 = (low >> BITS) ^ c3 ^ k1
        c3 = low & WORD
        k0 = (k0 + WEYL_0) & WORD
        k1 = (k1 + WEYL_1) & WORD
    return c0, c1, c2, c3
