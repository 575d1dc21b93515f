"""The kernel operand as the tensor cores want it: core matrices, k along their rows.

    packed[g, n_tile, step, tap, part, pair, half, n, e]

``e`` counts the elements of 16 bytes, ``half`` the two chunks of k that one product takes, ``tap``
the window's positions, ``n`` the columns of a tile. What lies past the channels or the columns is zero.
A thread that loads a ``run`` of k's of the other operand at once has them in as many chunks, so they are
taken apart here too: of k's of 4 bytes, so those of float16 stay in pairs. Part 0 is the kernel, of float32 what
TF32 rounds it to; part 1, for three terms, what rounding took away.
"""

from functools import cache

import numpy as np

from numbacaps.fused.intrinsics import CHUNK, let_next_start, to_tf32, wait_for_last
from numbacaps.kernel_cache import kept_on_disk
from numbacaps.target import at, cuda


@cache
def make_pack(channels, D, taps, n, steps, G, kernel_g, BN, CHUNKS, parts, dtype, follows, run=1):
    """Kernel that packs float32 or float16; a thread an element.

    ``n`` and ``steps`` are :class:`numbacaps.fused.implicit_gemm.Columns` and ``KernelSteps``: places are worked
    out, because who waits for the packing would wait for a table's answer too. One that ``follows`` another
    packing goes on beside it.
    """
    ELEMENTS = CHUNK // dtype.itemsize
    WORD = 4 // dtype.itemsize  # elements of 4 bytes
    WORDS = ELEMENTS // WORD
    ROUNDED = dtype.itemsize == 4
    DEPTH = channels * D
    PAIRS = CHUNKS // 2
    STEPS = -(-DEPTH // (CHUNKS * ELEMENTS))
    N, CAPSULE = n.N, n.D
    N_TILES = -(-N // BN)
    TAP_ROWS, TAP_COLUMNS = taps
    TAPS, PARTS, KERNEL_G, RUN = TAP_ROWS * TAP_COLUMNS, parts, kernel_g, run
    FIRST, BY_CHANNEL, BY_ROW, BY_COLUMN, BY_D = (
        steps.first,
        steps.channel,
        steps.row,
        steps.column,
        steps.d,
    )
    BY_CAPSULE, BY_ELEMENT = n.kernel
    SIZE = G * N_TILES * STEPS * TAPS * PARTS * CHUNKS * BN * ELEMENTS
    ZERO, dtype_of = np.float32(0), dtype.type
    FOLLOWS = follows

    @kept_on_disk
    @cuda.jit
    def pack_kernel(
        b,  # in   the kernel
        packed,  # out
    ):
        i = np.uint32(cuda.grid(1))
        element, rest = np.uint32(i % ELEMENTS), np.uint32(i // ELEMENTS)
        n, rest = np.uint32(rest % BN), np.uint32(rest // BN)
        half, rest = np.uint32(rest % 2), np.uint32(rest // 2)
        pair, rest = np.uint32(rest % PAIRS), np.uint32(rest // PAIRS)
        part, rest = np.uint32(rest % PARTS), np.uint32(rest // PARTS)
        tap, rest = np.uint32(rest % TAPS), np.uint32(rest // TAPS)
        step, rest = np.uint32(rest % STEPS), np.uint32(rest // STEPS)
        n, g = np.uint32(n + rest % N_TILES * BN), np.uint32(rest // N_TILES)
        chunk = np.uint32((step * PAIRS + pair) * 2 + half)
        word = np.uint32((chunk // RUN * WORDS + element // WORD) * RUN + chunk % RUN)
        e = np.uint32(word * WORD + element % WORD)
        place = g * KERNEL_G + FIRST + np.uint32(n // CAPSULE) * BY_CAPSULE
        place += np.uint32(n % CAPSULE) * BY_ELEMENT
        place += np.uint32(e // D) * BY_CHANNEL + np.uint32(e % D) * BY_D
        place += np.uint32(tap // TAP_COLUMNS) * BY_ROW + np.uint32(tap % TAP_COLUMNS) * BY_COLUMN
        if not FOLLOWS:
            wait_for_last()  # who starts behind this kernel may read what was written before it
        let_next_start()  # up to where it waits for what is packed here; another packing at once
        if i < SIZE:
            value = dtype_of(ZERO)
            if n < N and e < DEPTH:
                whole = b[at(place)]
                if ROUNDED:
                    value = to_tf32(whole)
                    if part > 0:
                        value = to_tf32(whole - value)
                else:
                    value = whole
            packed[at(i)] = value
        if FOLLOWS:
            wait_for_last()  # who waits for this kernel waits for those before it too

    return pack_kernel


def packed_size(channels, D, taps, N, G, BN, CHUNKS, parts, dtype):
    """Elements of the packed kernel."""
    elements = CHUNK // dtype.itemsize
    steps = -(-channels * D // (CHUNKS * elements))
    return G * -(-N // BN) * steps * taps * parts * CHUNKS * BN * elements
