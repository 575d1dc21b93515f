"""Rung 2, shared tiles: a block brings a tile of each operand into shared memory and multiplies there.

    c[m, n] = sum over k of a[m, k] * b[k, n]

What changed: a block of BM x BN threads reads each element of its operands once instead of BN or BM
times; a thread still computes one element, with two reads of shared memory for each multiplication.
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
def make_shared_tiles(pixels, inside, N, K, tile, dtype):
    """Kernel for one :class:`numbacaps.fused.implicit_gemm.Product`; ``tile`` with TM = TN = 1."""
    BM, BN, BK = tile.BM, tile.BN, tile.BK
    THREADS = tile.threads
    pixel_of, first_tap = make_pixel_of(pixels), make_first_tap(pixels)
    gathered_at, result_at = make_gathered_at(pixels), make_result_at(pixels)
    in_array = make_in_array(pixels, inside)
    B_G = pixels.steps[1]
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
                    image, row, column, d1 = pixel_of(m)
                    top, left = first_tap(row, column)
                    if in_array(top + table[at(K + k)], left + table[at(2 * K + k)]):
                        value = a[at(gathered_at(g, image, row, column, d1) + table[at(k)])]
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
            image, row, column, d1 = pixel_of(m)
            c[at(result_at(g, image, row, column, d1) + table[at(4 * K + N + n)])] = total

    return shared_tiles_kernel
