"""Rung 2, shared tiles: a block brings a tile of each operand into shared memory and multiplies there.

    c[m, n] = sum over k of a[m, k] * b[k, n]

What changed: a block of BM x BN threads reads each element of its operands once instead of BN or BM
times; a thread still computes one element, with two reads of shared memory for each multiplication.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda


@cache
def make_shared_tiles(pixels, inside, N, K, tile, dtype):
    """Kernel for one :class:`numbacaps.fused.implicit_gemm.Product`; ``tile`` with TM = TN = 1."""
    BM, BN, BK = tile.BM, tile.BN, tile.BK
    THREADS = tile.threads
    ROWS, COLUMNS, D1 = pixels.rows, pixels.columns, pixels.D1
    A_IMAGE, A_ROW, A_COLUMN, A_D1 = pixels.gathered
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = pixels.other
    C_FIRST = pixels.first
    ROW_STEP, ROW_START = pixels.top
    COLUMN_STEP, COLUMN_START = pixels.left
    HEIGHT, WIDTH = pixels.extent
    A_G, B_G, C_G = pixels.steps
    INSIDE = inside
    A_SIZE, B_SIZE = BM * BK, BK * BN
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def shared_tiles_kernel(
        a,  # in   the gathered array
        b,  # in   the kernel
        c,  # out  the other array
        table,  # in   Product.table
        M,
    ):
        a_tile = cuda.shared.array(A_SIZE, dtype)  # (BM, BK)
        b_tile = cuda.shared.array(B_SIZE, dtype)  # (BK, BN)
        thread = cuda.threadIdx.x
        m0 = cuda.blockIdx.x * BM
        n0 = cuda.blockIdx.y * BN
        g = cuda.blockIdx.z
        total = ZERO
        for k0 in range(0, K, BK):
            for i in range(thread, A_SIZE, THREADS):
                m = m0 + i // BK
                k = k0 + i % BK
                value = ZERO  # over the edge lie zeros, and they multiply
                if m < M and k < K:
                    column = m // D1 % COLUMNS
                    row = m // (D1 * COLUMNS) % ROWS
                    image = m // (D1 * COLUMNS * ROWS)
                    h = row * ROW_STEP + ROW_START + table[at(K + k)]
                    w = column * COLUMN_STEP + COLUMN_START + table[at(2 * K + k)]
                    if INSIDE or (h >= 0 and h < HEIGHT and w >= 0 and w < WIDTH):
                        base = image * A_IMAGE + row * A_ROW + column * A_COLUMN + m % D1 * A_D1
                        value = a[at(g * A_G + base + table[at(k)])]
                a_tile[at(i)] = value
            for i in range(thread, B_SIZE, THREADS):
                k = k0 + i // BN
                n = n0 + i % BN
                value = ZERO
                if k < K and n < N:
                    value = b[at(g * B_G + table[at(3 * K + k)] + table[at(4 * K + n)])]
                b_tile[at(i)] = value
            cuda.syncthreads()  # both tiles are there
            for k in range(BK):
                total += a_tile[at(thread // BN * BK + k)] * b_tile[at(k * BN + thread % BN)]
            cuda.syncthreads()  # both have been read
        m = m0 + thread // BN
        n = n0 + thread % BN
        if m < M and n < N:
            column = m // D1 % COLUMNS
            row = m // (D1 * COLUMNS) % ROWS
            image = m // (D1 * COLUMNS * ROWS)
            to = C_FIRST + image * C_IMAGE + row * C_ROW + column * C_COLUMN + m % D1 * C_D1
            c[at(g * C_G + to + table[at(4 * K + N + n)])] = total

    return shared_tiles_kernel
