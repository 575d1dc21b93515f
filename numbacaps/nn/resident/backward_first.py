"""The gradient of the first layer's kernel, by ordinary arithmetic: an image's part."""

import numpy as np

from numbacaps.device.instructions import (
    cp_async_commit,
    cp_async_wait,
    local_array,
    meet,
    short,
    unforeseen,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.nn.resident.pipeline import make_fetch

_ZERO = np.float32(0)
_PIXELS = 3  # of which a thread takes windows at once


def make_first_kernel_gradient(first, pipeline):
    """Device function for what images add to the gradient of the first kernel; threads share the pixels."""
    layer, reads, THREADS = first.layer, first.layer.reads, pipeline.consumers
    shares = THREADS // layer.N
    N, K, D3 = map(specialized, (layer.N, layer.K, layer.N // layer.P))
    PIXELS, COLUMNS = map(specialized, (layer.pixels, layer.columns))
    ROW, COLUMN, CHANNEL = map(specialized, (reads.row, reads.column, reads.channel))
    tap = reads.tap_row, reads.tap_column, reads.first
    TAP_ROW, TAP_COLUMN, FIRST = map(specialized, tap)
    C, KH, KW, D2 = map(specialized, (layer.C, layer.KH, layer.KW, layer.D2))
    X, AT, TO, SIZE = map(specialized, (first.x, first.at, first.partial_at, first.size))
    SHARES_AT, SHARES = map(specialized, (first.shares_at, shares))
    BEFORE, fetch = specialized(first.shares_at + shares * first.size), make_fetch(THREADS)

    @cuda.jit(device=True, forceinline=True)
    def compute(work, stage, phases):
        shared, start, floats, partial = work.shared, work.start, work.floats, work.partial
        image, thread = work.image, work.thread
        total = local_array(K, np.float32)
        cp_async_wait(0)
        block = cuda.blockIdx.x
        begins, again = TO * cuda.gridDim.x + block * SIZE, image != block
        if again:  # what the block's images before it add
            fetch(shared, start + 4 * BEFORE, partial, begins, SIZE, thread)
        cp_async_commit()
        meet(THREADS)  # the image is there
        n, share = np.uint32(np.uint32(thread) % N), np.uint32(np.uint32(thread) // N)
        n_at = np.uint32(n // D3) * (PIXELS * D3) + np.uint32(n % D3)
        for k in range(K):
            total[k] = _ZERO
        first = short(share) if share < SHARES else short(PIXELS)
        while first < PIXELS:
            for one in range(_PIXELS):
                pixel = np.uint32(min(first + one * SHARES, PIXELS - 1))
                slot = np.uint32(pixel // COLUMNS) * ROW
                slot = floats + X + FIRST + short(slot + np.uint32(pixel % COLUMNS) * COLUMN)
                gradient = shared[at(floats + AT + short(n_at + pixel * D3))]
                if first + one * SHARES >= PIXELS:
                    gradient = _ZERO
                for c in range(C):
                    for kh in range(KH):
                        for kw in range(KW):
                            for d2 in range(D2):
                                tap = slot + c * CHANNEL + kh * TAP_ROW + kw * TAP_COLUMN + d2
                                k = ((c * KH + kh) * KW + kw) * D2 + d2
                                total[k] += shared[at(tap)] * gradient
            first = unforeseen(first + _PIXELS * SHARES)
        if share < SHARES:
            for k in range(K):
                shared[at(floats + SHARES_AT + (share * K + k) * N + n)] = total[k]
        cp_async_wait(0)
        meet(THREADS)
        i = short(thread)
        while i < SIZE:
            d3, k = np.uint32(np.uint32(i) % D3), np.uint32(np.uint32(i) // D3)
            own = np.uint32(k % K) * N + np.uint32(k // K) * D3 + d3
            whole = _ZERO
            for other in range(SHARES):
                whole += shared[at(floats + SHARES_AT + other * SIZE + own)]
            if again:
                whole += shared[at(floats + BEFORE + i)]
            partial[at(begins + i)] = whole
            i = unforeseen(i + THREADS)
        meet(THREADS)  # the next image's may come
        return stage, phases

    return compute
