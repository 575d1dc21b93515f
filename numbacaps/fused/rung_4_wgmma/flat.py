"""Rung 4, its idea alone: one warpgroup multiplies 64 rows by all columns, 8 of k at a time.

    c[m, n] = sum over k of a[m, k] * b[k, n]

``wgmma`` reads both operands from shared memory, as *core matrices*: 8 rows of 16 bytes, 128 bytes in
one run. Here a step of 8 k's is two chunks of 4, so a tile in shared memory is

    a_tile (2 chunks, 64 rows, 4)    b_tile (2 chunks, N columns, 4)

and each operand takes one descriptor. ``cp.async`` copies what lies there, 16 bytes of a capsule's row at a time;
where a tap reaches over the edge it copies zeros. Every step waits for its copies.

What is left out: sizes that do not fill tiles (they are refused), several stages, pixels that share
what they read, packing. :mod:`numbacaps.fused.rung_4_wgmma.kernel` has all of these.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    cp_async,
    cp_async_commit,
    cp_async_wait,
    descriptor_strides,
    fence_proxy_async,
    shared_address,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.keeping import keep
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import launch_tiles
from numbacaps.device.target import at, cuda
from numbacaps.device.upload import uploaded
from numbacaps.fused import addressing

_BM, _BK, _THREADS = 64, 8, 128  # of one wgmma of TF32, and of a warpgroup
_MOST_COLUMNS = 128


@cache
def make_flat_wgmma(pixels, N, K):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` of float32 that :func:`why_not` lets pass."""
    BM, BK, THREADS = _BM, _BK, _THREADS
    pixel_of, first_tap = addressing.make_pixel_of(pixels), addressing.make_first_tap(pixels)
    gathered_at = addressing.make_gathered_at(pixels)
    result_at = addressing.make_result_at(pixels)
    in_array = addressing.make_in_array(pixels)
    B_G = pixels.steps[1]
    SUMS = BM * N // THREADS  # of a thread
    A_BYTES, ELEMENTS = BM * BK * 4, (BM + N) * BK
    A_MATRIX = descriptor_strides(BM * CHUNK, 128)
    B_MATRIX = descriptor_strides(N * CHUNK, 128)
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def flat_wgmma_kernel(
        a,  # in   the gathered array
        b,  # in   the kernel
        c,  # out  the other array
        table,  # in   Product.table
    ):
        shared = cuda.shared.array(ELEMENTS, np.float32, 128)
        acc = cuda.local.array(SUMS, np.float32)
        start = shared_address(shared)
        thread = cuda.threadIdx.x
        m0 = cuda.blockIdx.x * BM
        g = cuda.blockIdx.y
        # A thread copies one chunk of one row in every step.
        row, chunk = thread % BM, thread // BM
        image, h, w, d1 = pixel_of(m0 + row)
        top, left = first_tap(h, w)
        base = gathered_at(g, image, h, w, d1)
        for i in range(SUMS):
            acc[i] = ZERO
        for k0 in range(0, K, BK):
            k = k0 + chunk * 4
            ok = in_array(top + table[at(K + k)], left + table[at(2 * K + k)])
            a_from = base + table[at(k)] if ok else 0
            cp_async(16, shared, start + thread * CHUNK, a, a_from, ok)
            for i in range(thread, N * BK, THREADS):  # neighbours copy neighbouring columns
                n, k = i % N, i // N
                b_to = start + A_BYTES + (k // 4 * N + n) * CHUNK + k % 4 * 4
                b_from = g * B_G + table[at(3 * K + k0 + k)] + table[at(4 * K + n)]
                cp_async(4, shared, b_to, b, b_from, True)
            cp_async_commit()
            cp_async_wait(0)  # this thread's copies have arrived
            fence_proxy_async()  # and the tensor cores may see them
            cuda.syncthreads()  # so have the others'
            wgmma_fence()
            wgmma(N, acc, 0, shared, A_MATRIX + start // 16, B_MATRIX + (start + A_BYTES) // 16)
            wgmma_commit()
            wgmma_wait()
            cuda.syncthreads()  # both tiles have been read
        # A thread has two rows, 8 apart, and of every 8 columns two neighbours.
        lane, warp = thread % 32, thread // 32
        for half in range(2):
            image, h, w, d1 = pixel_of(m0 + warp * 16 + lane // 4 + half * 8)
            to = result_at(g, image, h, w, d1)
            for i in range(SUMS // 2):
                n = i // 2 * 8 + lane % 4 * 2 + i % 2
                c[at(to + table[at(4 * K + N + n)])] = acc[i // 2 * 4 + half * 2 + i % 2]

    return flat_wgmma_kernel


def why_not(product, images):
    """Why a product cannot be computed without tails; None where it can."""
    if product.M(images) % _BM:
        return f"{product.M(images)} rows are no multiple of {_BM}"
    if product.N % 8 or product.N > _MOST_COLUMNS:
        return f"{product.N} columns; it takes multiples of 8 up to {_MOST_COLUMNS}"
    if product.D % 4 or product.K % _BK:
        return f"{product.D} elements of a capsule's row, {product.K} of k: no multiples of 4 and {_BK}"
    return None


def flat_wgmma(product, images, G, gathered, kernel, result, stream=0):
    """Launch the product on runs of elements that begin at multiples of 16 bytes; ValueError where it has tails."""
    why = why_not(product, images)
    if why:
        raise ValueError(why)
    launched = make_flat_wgmma(product.pixels, product.N, product.K)
    table = uploaded(product.table)
    operands = gathered, kernel, result, table
    launch_tiles(launched, (product.M(images) // _BM, G), _THREADS, operands, stream)
    keep(stream, table)
