"""The kernel operand as the tensor cores want it: core matrices, k along their rows.

    packed[g, n_tile, step, tap, part, pair, half, n, e]

``e`` counts the elements of 16 bytes, ``half`` the two chunks of k that one product takes, ``tap``
the window's positions, ``n`` the columns of a tile. What lies past the channels or the columns is zero.
A thread that loads a ``run`` of k's of the other operand at once has them in as many chunks, so they are
taken apart here too. Part 0 is the kernel rounded to TF32, part 1, for three terms, what rounding took away.
"""

from functools import cache

import numpy as np

from numbacaps.fused.intrinsics import CHUNK, let_next_start, to_tf32, wait_for_last
from numbacaps.kernel_cache import kept_on_disk
from numbacaps.target import at, cuda


@cache
def make_pack(channels, D, taps, N, K, G, kernel_g, BN, CHUNKS, parts, run=1):
    """Kernel that packs float32; a thread an element."""
    ELEMENTS = CHUNK // 4
    DEPTH = channels * D
    PAIRS = CHUNKS // 2
    STEPS = -(-DEPTH // (CHUNKS * ELEMENTS))
    N_TILES = -(-N // BN)
    TAPS, PARTS, KERNEL_G, RUN = taps, parts, kernel_g, run
    SIZE = G * N_TILES * STEPS * TAPS * PARTS * CHUNKS * BN * ELEMENTS
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def pack_kernel(
        b,  # in   the kernel
        packed,  # out
        table,  # in   Product.table
    ):
        let_next_start()  # up to where it waits for what is packed here; another packing at once
        i = np.uint32(cuda.grid(1))
        if i >= SIZE:
            wait_for_last()
            return
        element, rest = np.uint32(i % ELEMENTS), np.uint32(i // ELEMENTS)
        n, rest = np.uint32(rest % BN), np.uint32(rest // BN)
        half, rest = np.uint32(rest % 2), np.uint32(rest // 2)
        pair, rest = np.uint32(rest % PAIRS), np.uint32(rest // PAIRS)
        part, rest = np.uint32(rest % PARTS), np.uint32(rest // PARTS)
        tap, rest = np.uint32(rest % TAPS), np.uint32(rest // TAPS)
        step, rest = np.uint32(rest % STEPS), np.uint32(rest // STEPS)
        n, g = np.uint32(n + rest % N_TILES * BN), np.uint32(rest // N_TILES)
        chunk = np.uint32((step * PAIRS + pair) * 2 + half)
        e = np.uint32((chunk // RUN * ELEMENTS + element) * RUN + chunk % RUN)
        value = ZERO
        if n < N and e < DEPTH:
            k = np.uint32((e // D * TAPS + tap) * D + e % D)
            whole = b[at(g * KERNEL_G + table[at(3 * K + k)] + table[at(4 * K + n)])]
            value = to_tf32(whole)
            if part > 0:
                value = to_tf32(whole - value)
        packed[at(i)] = value
        wait_for_last()  # who waits for this kernel waits for those before it too

    return pack_kernel


def packed_size(channels, D, taps, N, G, BN, CHUNKS, parts):
    """Elements of the packed kernel."""
    elements = CHUNK // 4
    steps = -(-channels * D // (CHUNKS * elements))
    return G * -(-N // BN) * steps * taps * parts * CHUNKS * BN * elements
