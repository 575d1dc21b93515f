"""Rung 1, direct: a thread for each element of the result, which reads its operands from memory.

    c[m, n] = sum over k of a[m, k] * b[k, n]

Nothing is laid out and nothing is shared: each element of ``a`` is read N times, of ``b`` M times, and
the caches are all that saves the memory from it.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda


@cache
def make_direct(pixels, inside, N, K, dtype):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` with N columns and K taps."""
    ROWS, COLUMNS, D1 = pixels.rows, pixels.columns, pixels.D1
    A_IMAGE, A_ROW, A_COLUMN, A_D1 = pixels.gathered
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = pixels.other
    C_FIRST = pixels.first
    ROW_STEP, ROW_START = pixels.top
    COLUMN_STEP, COLUMN_START = pixels.left
    HEIGHT, WIDTH = pixels.extent
    A_G, B_G, C_G = pixels.steps
    INSIDE = inside
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
        d1 = m % D1
        column = m // D1 % COLUMNS
        row = m // (D1 * COLUMNS) % ROWS
        image = m // (D1 * COLUMNS * ROWS)
        top = row * ROW_STEP + ROW_START
        left = column * COLUMN_STEP + COLUMN_START
        base = g * A_G + image * A_IMAGE + row * A_ROW + column * A_COLUMN + d1 * A_D1
        b_n = g * B_G + table[at(4 * K + n)]
        total = ZERO
        for k in range(K):
            value = ZERO  # over the edge lie zeros, and they multiply
            h = top + table[at(K + k)]
            w = left + table[at(2 * K + k)]
            if INSIDE or (h >= 0 and h < HEIGHT and w >= 0 and w < WIDTH):
                value = a[at(base + table[at(k)])]
            total += value * b[at(b_n + table[at(3 * K + k)])]
        to = g * C_G + C_FIRST + image * C_IMAGE + row * C_ROW + column * C_COLUMN + d1 * C_D1
        c[at(to + table[at(4 * K + N + n)])] = total

    return direct_kernel
