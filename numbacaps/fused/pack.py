"""The kernel operand as the tensor cores want it: core matrices, k along their rows.

    packed[g, n_tile, step, tap, part, pair, half, n, e]

``e`` counts the elements of 16 bytes, ``half`` the two chunks of k that one product takes, ``tap``
the window's positions, ``n`` the columns of a tile. What lies past the channels or the columns is zero.
A thread that loads a ``run`` of k's of the other operand at once has them in as many chunks, so they are
taken apart here too: of k's of 4 bytes, so those of 2 bytes stay in pairs. Part 0 is the kernel, of float32 what
TF32 rounds it to; part 1, for three terms, what rounding took away.

Sizes come with the launch (:attr:`Packing.numbers`), so one compiled kernel serves all of them. It is compiled for the element's type
and for the number of parts, which decide what is stored; for whether another packing is ahead of it, which decides where
it waits; and for kernels so large that 32 bits do not count their elements, which cost longer divisions.
"""

from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.division import LARGEST, divide, divisor
from numbacaps.device.instructions import (
    CHUNK,
    LINE,
    let_next_start,
    prefetch,
    to_tf32,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.implicit_gemm import Columns, KernelSteps

_THREADS = 1 << 10  # more than there are behind the last element
# Where the numbers of a packing stand in their tuple; of a divisor, in two places, and what divides by it in the second.
SIZE, DEPTH, N, FIRST, BY_G, BY_CAPSULE, BY_ELEMENT, BY_CHANNEL, BY_D, BY_ROW, BY_COLUMN = range(11)
BN, PAIRS, TAPS, STEPS, N_TILES, RUN, CAPSULE, D, TAP_COLUMNS = range(11, 29, 2)
OVER_BN, OVER_PAIRS, OVER_TAPS, OVER_STEPS, OVER_N_TILES = range(12, 22, 2)
OVER_RUN, OVER_CAPSULE, OVER_D, OVER_TAP_COLUMNS = range(22, 30, 2)
NUMBERS = 29


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
    def elements(self):
        """Elements of the packed kernel."""
        step = prod(self.taps) * self.parts * self.CHUNKS * self.BN * self.chunk
        return self.G * self.column_tiles * self.k_steps * step

    @property
    def form(self):
        """What kernels are compiled for."""
        far = max(self.elements + _THREADS, self.reach)
        return Form(self.itemsize, self.parts, far > LARGEST)

    @property
    def reach(self):
        """Where in the kernel the last element lies that is packed, or farther on."""
        n, steps, (rows, columns) = self.n, self.steps, self.taps
        of_columns = self.G * self.kernel_g + n.N // n.D * n.kernel[0] + n.D * n.kernel[1]
        of_taps = steps.first + rows * steps.row + columns * steps.column
        return of_columns + of_taps + self.channels * steps.channel + self.D * steps.d

    @property
    def numbers(self):
        """What the kernel reads of all the rest."""
        n, steps = self.n, self.steps
        depth, across = self.channels * self.D, self.taps[1]
        sizes = self.elements, depth, n.N, steps.first, self.kernel_g
        by = *n.kernel, steps.channel, steps.d, steps.row, steps.column
        tile = self.BN, self.CHUNKS // 2, prod(self.taps), self.k_steps, self.column_tiles
        divisors = *tile, self.run, n.D, self.D, across
        return tuple(map(int, (*sizes, *by, *chain(*map(divisor, divisors)))))


@dataclass(frozen=True)
class Form:
    """What the packing of some kernels has in common.

    Attributes
    ----------
    itemsize, parts : int
        As those of a :class:`Packing`.
    many : bool
        Elements and places are counted in 64 bits, because 32 are not enough. To divide such numbers takes long.
    """

    itemsize: int
    parts: int
    many: bool


@cache
def make_pack(form, dtype, follows):
    """Kernel that packs float32, or 2 bytes an element; a thread an element.

    Parameters
    ----------
    form : Form
    dtype : numpy.dtype
    follows : bool
        Another packing is launched before this one, and the two run beside each other.
    """
    find, number = make_find(form), np.int64 if form.many else np.uint32
    ROUNDED = dtype.itemsize == 4
    ZERO, kind = np.float32(0), stored(dtype).type
    FOLLOWS, OF_LINE = follows, LINE // dtype.itemsize

    @kept_on_disk
    @cuda.jit
    def pack_kernel(
        b,  # in   the kernel
        packed,  # out
        of,  # in   Packing.numbers
    ):
        i = number(cuda.grid(1))
        place, part, filled = find(i, of)
        if not FOLLOWS:
            if i < b.size // OF_LINE:
                prefetch(b, at(i * OF_LINE))  # while the kernel before this one comes to its end
            wait_for_last()  # who starts behind this kernel may read what was written before it
        let_next_start()  # up to where it waits for what is packed here; another packing at once
        if i < of[SIZE]:
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


def make_find(form):
    """``find(i, of)``: of a packed element where in the kernel it lies, which part of that it is, and whether it is not
    past all channels or columns. ``of`` is :attr:`Packing.numbers`.
    """
    ELEMENTS, PARTS = CHUNK // form.itemsize, form.parts
    WORD = 4 // form.itemsize  # elements of 4 bytes
    WORDS = ELEMENTS // WORD
    number, over = (np.int64, _divide_many) if form.many else (np.uint32, divide)

    @cuda.jit(device=True, inline="always")
    def find(i, of):
        element, rest = number(i % ELEMENTS), number(i // ELEMENTS)
        rest, n = over(rest, of[BN], of[OVER_BN])
        half, rest = number(rest % 2), number(rest // 2)
        rest, pair = over(rest, of[PAIRS], of[OVER_PAIRS])
        part, rest = number(rest % PARTS), number(rest // PARTS)
        rest, tap = over(rest, of[TAPS], of[OVER_TAPS])
        rest, step = over(rest, of[STEPS], of[OVER_STEPS])
        g, n_tile = over(rest, of[N_TILES], of[OVER_N_TILES])
        n = number(n + n_tile * number(of[BN]))
        chunk = number((step * number(of[PAIRS]) + pair) * 2 + half)
        run, chunk = over(chunk, of[RUN], of[OVER_RUN])
        word = number((run * WORDS + element // WORD) * number(of[RUN]) + chunk)
        e = number(word * WORD + element % WORD)
        capsule, of_capsule = over(n, of[CAPSULE], of[OVER_CAPSULE])
        channel, d = over(e, of[D], of[OVER_D])
        row, column = over(tap, of[TAP_COLUMNS], of[OVER_TAP_COLUMNS])
        place = number(g * number(of[BY_G]) + number(of[FIRST]))
        place += number(capsule * number(of[BY_CAPSULE]) + of_capsule * number(of[BY_ELEMENT]))
        place += number(channel * number(of[BY_CHANNEL]) + d * number(of[BY_D]))
        place += number(row * number(of[BY_ROW]) + column * number(of[BY_COLUMN]))
        return place, part, (n < of[N]) & (e < of[DEPTH])

    return find


@cuda.jit(device=True, inline="always")
def _divide_many(n, d, factor):
    """(n // d, n % d) in 64 bits."""
    quotient = n // d
    return quotient, n - quotient * d


def finder(packing):
    """``find(i)`` of :func:`make_find` for a packing that is known when it is compiled."""
    find, numbers = make_find(packing.form), tuple(map(specialized, packing.numbers))

    @cuda.jit(device=True, forceinline=True)
    def find_known(i):
        return find(i, numbers)

    return find_known
