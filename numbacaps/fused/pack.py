"""The kernel operand as the tensor cores want it: core matrices, k along their rows.

    packed[g, n_tile, step, pair, tap, half, n, e]

``e`` counts the elements of 16 bytes, ``half`` the two chunks of k that one product takes, ``tap``
the window's positions, ``n`` the columns of a tile. What lies past the channels or the columns is zero.
"""

from functools import cache

from numbacaps.fused.intrinsics import CHUNK, to_tf32
from numbacaps.target import at, cuda


@cache
def make_pack(channels, D, taps, N, K, G, kernel_g, BN, CHUNKS, dtype):
    """Kernel that packs; a thread an element. TF32 is rounded to nearest here."""
    ELEMENTS = CHUNK // dtype.itemsize
    DEPTH = channels * D
    PAIRS = CHUNKS // 2
    STEPS = -(-DEPTH // (CHUNKS * ELEMENTS))
    N_TILES = -(-N // BN)
    TAPS, KERNEL_G = taps, kernel_g
    SIZE = G * N_TILES * STEPS * PAIRS * TAPS * 2 * BN * ELEMENTS
    ZERO = dtype.type(0)

    @cuda.jit(cache=True)
    def pack_kernel(
        b,  # in   the kernel
        packed,  # out
        table,  # in   Product.table
    ):
        i = cuda.grid(1)
        if i >= SIZE:
            return
        element = i % ELEMENTS
        n = i // ELEMENTS % BN
        half = i // (ELEMENTS * BN) % 2
        tap = i // (ELEMENTS * BN * 2) % TAPS
        pair = i // (ELEMENTS * BN * 2 * TAPS) % PAIRS
        step = i // (ELEMENTS * BN * 2 * TAPS * PAIRS) % STEPS
        n += i // (ELEMENTS * BN * 2 * TAPS * PAIRS * STEPS) % N_TILES * BN
        g = i // (ELEMENTS * BN * 2 * TAPS * PAIRS * STEPS * N_TILES)
        e = ((step * PAIRS + pair) * 2 + half) * ELEMENTS + element
        value = ZERO
        if n < N and e < DEPTH:
            k = (e // D * TAPS + tap) * D + e % D
            value = to_tf32(b[at(g * KERNEL_G + table[at(3 * K + k)] + table[at(4 * K + n)])])
        packed[at(i)] = value

    return pack_kernel


def packed_size(channels, D, taps, N, G, BN, CHUNKS, dtype):
    """Elements of the packed kernel."""
    elements = CHUNK // dtype.itemsize
    steps = -(-channels * D // (CHUNKS * elements))
    return G * -(-N // BN) * steps * taps * CHUNKS * BN * elements
