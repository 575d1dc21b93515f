"""The kernel operand as the tensor cores want it: core matrices, k along their rows.

    packed[g, n_tile, step, tap, part, pair, half, n, e]

``e`` counts the elements of 16 bytes, ``half`` the two chunks of k that one product takes, ``tap``
the window's positions, ``n`` the columns of a tile. What lies past the channels or the columns is zero.
A thread that loads a ``run`` of k's of the other operand at once has them in as many chunks, so they are
taken apart here too: of k's of 4 bytes, so those of 2 bytes stay in pairs. Part 0 is the kernel, of float32 what
TF32 rounds it to; part 1, for three terms, what rounding took away.
"""

from functools import cache
from math import prod

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.instructions import (
    CHUNK,
    LINE,
    let_next_start,
    prefetch,
    to_tf32,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda


@cache
def make_pack(channels, D, taps, n, steps, G, kernel_g, BN, CHUNKS, parts, dtype, follows, run=1):
    """Kernel that packs float32, or 2 bytes an element; a thread an element.

    One that ``follows`` another goes on beside it.

    The other arguments are those of :func:`finder`.
    """
    sizes = channels, D, taps, n, steps, G, kernel_g, BN, CHUNKS, parts, dtype.itemsize, run
    find = finder(*sizes)
    SIZE = packed_size(channels, D, prod(taps), n.N, G, BN, CHUNKS, parts, dtype)
    ROUNDED = dtype.itemsize == 4
    ZERO, kind = np.float32(0), stored(dtype).type
    FOLLOWS, OF_LINE = follows, LINE // dtype.itemsize

    @kept_on_disk
    @cuda.jit
    def pack_kernel(
        b,  # in   the kernel
        packed,  # out
    ):
        i = np.uint32(cuda.grid(1))
        place, part, filled = find(i)
        if not FOLLOWS:
            if i < b.size // OF_LINE:
                prefetch(b, at(i * OF_LINE))  # while the kernel before this one comes to its end
            wait_for_last()  # who starts behind this kernel may read what was written before it
        let_next_start()  # up to where it waits for what is packed here; another packing at once
        if i < SIZE:
            value = kind(ZERO)
            if filled:
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


def finder(channels, D, taps, n, steps, G, kernel_g, BN, CHUNKS, parts, itemsize, run=1):
    """Device function that says of a packed element where in the kernel it lies, which part of that it is, and
    whether it is not past all channels or columns.

    Parameters
    ----------
    channels, D : int
        As those of a :class:`numbacaps.fused.implicit_gemm.Product`.
    taps : tuple of int
        Rows and columns of the window.
    n, steps : numbacaps.fused.implicit_gemm.Columns, KernelSteps
        Places are worked out, because who waits for the packing would wait for a table's answer too.
    G, kernel_g : int
        How many g there are, and elements of the kernel from one to the next.
    BN, CHUNKS, parts, itemsize, run : int
        Columns of a tile; times 16 bytes of k in a step; 2 in three terms, otherwise 1; bytes of an element; and
        k's that a thread loads at once.
    """
    ELEMENTS = CHUNK // itemsize
    WORD = 4 // itemsize  # elements of 4 bytes
    WORDS = ELEMENTS // WORD
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

    @cuda.jit(device=True, inline="always")
    def find(i):
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
        return place, part, n < N and e < DEPTH

    return find


def packed_size(channels, D, taps, N, G, BN, CHUNKS, parts, dtype):
    """Elements of the packed kernel."""
    elements = CHUNK // dtype.itemsize
    steps = -(-channels * D // (CHUNKS * elements))
    return G * -(-N // BN) * steps * taps * parts * CHUNKS * BN * elements
