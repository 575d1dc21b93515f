"""Rung 1, direct: a thread for each element of the result, which reads its operands from memory.

    c[m, n] = sum over k of a[m, k] * b[k, n]

Nothing is laid out and nothing is shared: each element of ``a`` is read N times, of ``b`` M times, and
the caches are all that saves the memory from it.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda
from numbacaps.fused.addressing import (
    make_first_tap,
    make_gathered_at,
    make_in_array,
    make_pixel_of,
    make_result_at,
)


@cache
def make_direct(pixels, inside, N, K, dtype):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` with N columns and K taps."""
    pixel_of, first_tap = make_pixel_of(pixels), make_first_tap(pixels)
    gathered_at, result_at = make_gathered_at(pixels), make_result_at(pixels)
    in_array = make_in_array(pixels, inside)
    B_G = pixels.steps[1]
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def direct_kernel(
        a,  # in   the gathered array
        b,  # in   the kernel
        c,  # out  the other array
        table,  # in   Product.table
        M,
    ):
        i = cuda.grid(1)
        n = i % N
        m = i // N
        if m >= M:
            return
        g = cuda.blockIdx.y
        image, row, column, d1 = pixel_of(m)
        top, left = first_tap(row, column)
        base = gathered_at(g, image, row, column, d1)
        b_n = g * B_G + table[at(4 * K + n)]
        total = ZERO
        for k in range(K):
            value = ZERO  # over the edge lie zeros, and they multiply
            if in_array(top + table[at(K + k)], left + table[at(2 * K + k)]):
                value = a[at(base + table[at(k)])]
            total += value * b[at(b_n + table[at(3 * K + k)])]
        to = result_at(g, image, row, column, d1)
        c[at(to + table[at(4 * K + N + n)])] = total

    return direct_kernel
