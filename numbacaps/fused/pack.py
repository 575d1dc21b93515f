"""The kernel operand as the tensor cores want it: core matrices, k along their rows.

    packed[g, n_tile, step, tap, part, pair, half, n, e]

``e`` counts the elements of 16 bytes, ``half`` the two chunks of k that one product takes, ``tap``
the window's positions, ``n`` the columns of a tile. What lies past the channels or the columns is zero.
A thread that loads a ``run`` of k's of the other operand at once has them in as many chunks, so they are
taken apart here too: of k's of 4 bytes, so those of 2 bytes stay in pairs. Part 0 is the kernel, of float32 what
TF32 rounds it to; part 1, for three terms, what rounding took away.
"""

from dataclasses import dataclass
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
from numbacaps.fused.implicit_gemm import Columns, KernelSteps

_THREADS = 1 << 10  # more than there are behind the last element


@dataclass(frozen=True)
class Packing:
    """What is packed of a product's kernel, and for which tiles.

    Attributes
    ----------
    channels, D : int
        As those of a :class:`numbacaps.fused.implicit_gemm.Product`.
    taps : tuple of int
        Rows and columns of the window.
    n, steps : numbacaps.fused.implicit_gemm.Columns, KernelSteps
        Where elements lie is worked out, because who waits for the packing would wait for a table's answer too.
    G, kernel_g : int
        How many g there are, and elements of the kernel from one to the next.
    BN, CHUNKS : int
        Columns of a tile; times 16 bytes of k in a step.
    parts : int
        2 in three terms, otherwise 1.
    itemsize : int
        Bytes of an element.
    run : int
        k's that a thread loads at once of the other operand.
    """

    channels: int
    D: int
    taps: tuple
    n: Columns
    steps: KernelSteps
    G: int
    kernel_g: int
    BN: int
    CHUNKS: int
    parts: int
    itemsize: int
    run: int = 1

    @property
    def chunk(self):
        """Elements of 16 bytes."""
        return CHUNK // self.itemsize

    @property
    def k_steps(self):
        """Steps of k, the last one filled up with zeros."""
        return -(-self.channels * self.D // (self.CHUNKS * self.chunk))

    @property
    def column_tiles(self):
        """Tiles of columns of a g."""
        return -(-self.n.N // self.BN)

    @property
    def number(self):
        """What elements are counted in: 32 bits where they are enough, because dividing them takes a third as long."""
        return np.uint32 if self.elements + _THREADS <= 1 << 32 else np.int64

    @property
    def elements(self):
        """Elements of the packed kernel."""
        step = prod(self.taps) * self.parts * self.CHUNKS * self.BN * self.chunk
        return self.G * self.column_tiles * self.k_steps * step


@cache
def make_pack(packing, dtype, follows):
    """Kernel that packs float32, or 2 bytes an element; a thread an element.

    Parameters
    ----------
    packing : Packing
    dtype : numpy.dtype
    follows : bool
        Another packing is launched before this one, and the two run beside each other.
    """
    find = finder(packing)
    SIZE, number = packing.elements, packing.number
    ROUNDED = dtype.itemsize == 4
    ZERO, kind = np.float32(0), stored(dtype).type
    FOLLOWS, OF_LINE = follows, LINE // dtype.itemsize

    @kept_on_disk
    @cuda.jit
    def pack_kernel(
        b,  # in   the kernel
        packed,  # out
    ):
        i = number(cuda.grid(1))
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


def finder(packing):
    """Device function that says of a packed element where in the kernel it lies, which part of that it is, and
    whether it is not past all channels or columns.
    """
    p = packing
    D, BN, n = p.D, p.BN, p.n
    ELEMENTS = p.chunk
    WORD = 4 // p.itemsize  # elements of 4 bytes
    WORDS = ELEMENTS // WORD
    DEPTH = p.channels * D
    PAIRS = p.CHUNKS // 2
    STEPS = p.k_steps
    N, CAPSULE = n.N, n.D
    N_TILES = p.column_tiles
    TAP_ROWS, TAP_COLUMNS = p.taps
    TAPS, PARTS, KERNEL_G, RUN = TAP_ROWS * TAP_COLUMNS, p.parts, p.kernel_g, p.run
    FIRST, BY_CHANNEL, BY_D = p.steps.first, p.steps.channel, p.steps.d
    BY_ROW, BY_COLUMN = p.steps.row, p.steps.column
    BY_CAPSULE, BY_ELEMENT = n.kernel
    number = p.number

    @cuda.jit(device=True, inline="always")
    def find(i):
        element, rest = number(i % ELEMENTS), number(i // ELEMENTS)
        n, rest = number(rest % BN), number(rest // BN)
        half, rest = number(rest % 2), number(rest // 2)
        pair, rest = number(rest % PAIRS), number(rest // PAIRS)
        part, rest = number(rest % PARTS), number(rest // PARTS)
        tap, rest = number(rest % TAPS), number(rest // TAPS)
        step, rest = number(rest % STEPS), number(rest // STEPS)
        n, g = number(n + rest % N_TILES * BN), number(rest // N_TILES)
        chunk = number((step * PAIRS + pair) * 2 + half)
        word = number((chunk // RUN * WORDS + element // WORD) * RUN + chunk % RUN)
        e = number(word * WORD + element % WORD)
        place = g * KERNEL_G + FIRST + number(n // CAPSULE) * BY_CAPSULE
        place += number(n % CAPSULE) * BY_ELEMENT
        place += number(e // D) * BY_CHANNEL + number(e % D) * BY_D
        place += number(tap // TAP_COLUMNS) * BY_ROW + number(tap % TAP_COLUMNS) * BY_COLUMN
        return place, part, n < N and e < DEPTH

    return find
