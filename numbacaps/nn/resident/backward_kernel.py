"""The gradient of a kernel whose input's capsules are, transposed, core matrices: an image's part."""

from math import prod

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    TF32_NEARER,
    cut_tf32,
    descriptor_strides,
    fence_proxy_async,
    local_array,
    meet,
    short,
    to_tf32,
    wgmma_commit,
    wgmma_fence,
    wgmma_fragment,
    wgmma_wait,
)
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.nn.resident.backward_layout import CORE_MATRIX

_ZERO = np.float32(0)
_IN_FLIGHT = 24  # capsules' elements that a thread loads at once


def make_kernel_gradient(one, pipeline):
    """Device function for what images add to the gradient of a kernel whose input's capsules are core matrices.

    dw[(p, d3), (tap, d2)] = sum over (pixel, d1) of d_sums[(p, d3), (pixel, d1)] * input[(tap, d2), (pixel, d1)]
    """
    layer, w = one.layer, one.kernel
    D1, D2 = CORE_MATRIX  # of the input's capsules
    ELEMENTS, CORE = D1 * D2, 4 * D1 * D2  # one of a capsule for each lane; bytes of a core matrix
    OF_CORE = CORE // CHUNK
    WARPGROUPS, THREADS, WARPS = pipeline.warpgroups, pipeline.consumers, pipeline.warpgroups * 4
    columns, (rows, across), capsules = w.taps[1] * D2, w.input, w.channels * prod(w.input)
    all_capsules, sums = capsules + w.padding // ELEMENTS, w.channels * w.taps[0] * columns // 2
    C, KH, KW, OW = map(specialized, (w.channels, *w.taps, w.pixels[1]))
    H, W, SH, SW, DH = map(specialized, (rows, across, *w.stride, w.dilation[0]))
    N, D3, BY_CAPSULE = map(specialized, (layer.N, layer.D3, layer.by_capsule))
    OUT_ROW, OUT_COLUMN, OUT_D1 = map(specialized, layer.rows.results)
    SPLIT = layer.terms > 1
    TERMS = 3 if SPLIT else 1
    PAIRS, BATCHES = map(specialized, (w.pairs, w.batches))
    BN, OF_ROW = map(specialized, (columns, columns // 2))
    SUMS, PART_SUMS = map(specialized, (sums, sums if SPLIT else 1))
    FRAGMENTS, ITEMS = map(specialized, (4 * w.pairs, w.pixels[0] * w.batches))
    B_MATRIX = specialized(descriptor_strides(w.stride[1] * CORE, w.dilation[1] * CORE))
    CAPSULES, ALL_CAPSULES = map(specialized, (capsules, all_capsules))
    AT, TRANSPOSED, READ = map(specialized, (one.at, w.at, w.input_before))
    IMAGE, E2 = map(specialized, (capsules * ELEMENTS, D2 * layer.D3))
    TO, SIZE = map(specialized, (w.partial_at, w.size))
    NEARER, AHEAD = TF32_NEARER, specialized(min(_IN_FLIGHT, ceil_div(all_capsules, WARPS)))

    @cuda.jit(device=True, forceinline=True)
    def transpose(shared, to, outputs, begin, warp, lane, small):
        """Lay the input's capsules out with d1 along their rows; or what TF32 has not of them."""
        held = local_array(AHEAD, np.float32)
        place = to + lane % D2 * D1 + lane // D2
        for first in range(warp, ALL_CAPSULES, WARPS * AHEAD):
            for i in range(AHEAD):
                capsule = min(first + i * WARPS, CAPSULES - 1)
                held[i] = outputs[at(begin + capsule * ELEMENTS + lane)]
            for i in range(AHEAD):
                capsule = first + i * WARPS
                if capsule < ALL_CAPSULES:
                    value = to_tf32(held[i])
                    if small:
                        value = to_tf32(held[i] - value)
                    shared[at(place + capsule * ELEMENTS)] = value if capsule < CAPSULES else _ZERO

    @cuda.jit(device=True, forceinline=True)
    def place_of(row, lane):
        """Where in the gradient the first of a thread's sums of a row lies."""
        place = np.uint32(row // D3) * (C * KH * KW * E2) + np.uint32(row % D3)
        return place + lane % 4 * (2 * D3)

    @cuda.jit(device=True, forceinline=True)
    def load(to, shared, begin, rows_at, item):
        """A thread's part of the sums' gradient: two columns, of pairs of pixels."""
        row_at, below_at = rows_at
        item = np.uint32(min(item, ITEMS - 1))
        oh, ow = np.uint32(item // BATCHES), np.uint32(item % BATCHES * (2 * PAIRS))
        pixel = begin + oh * OUT_ROW + ow * OUT_COLUMN
        for pair in range(PAIRS):
            for second in range(2):
                inside = ow + (2 * pair + second) < OW
                place = pixel + (2 * pair + second) * OUT_COLUMN if inside else begin
                for half in range(2):
                    element = shared[at(place + (below_at if half else row_at))]
                    to[pair * 4 + second * 2 + half] = element if inside else _ZERO

    @cuda.jit(device=True, forceinline=True)
    def compute(work, stage, phases):
        shared, start, floats, partial = work.shared, work.start, work.floats, work.partial
        outputs, image, images, thread = work.outputs, work.image, work.images, work.thread
        warp = work.warp
        acc = local_array(SUMS, np.float32)
        part = local_array(PART_SUMS, np.float32)
        before = local_array(SUMS, np.float32)
        fragment = local_array(FRAGMENTS, np.float32)
        loaded = local_array(FRAGMENTS, np.float32)
        lane = short(thread & 31)
        warpgroup = short(warp >> 2)
        n = np.uint32((warp & 3) * 16 + lane // 4)
        below = np.uint32(n + 8)
        d1_at = lane % 4 * OUT_D1
        n_at = d1_at + (np.uint32(n // D3) * BY_CAPSULE + np.uint32(n % D3) if n < N else 0)
        below_at = d1_at
        if below < N:
            below_at += np.uint32(below // D3) * BY_CAPSULE + np.uint32(below % D3)
        rows_at = short(n_at), short(below_at)
        block = cuda.blockIdx.x
        begins = TO * cuda.gridDim.x + (block * WARPGROUPS + warpgroup) * SIZE
        for i in range(SUMS):
            acc[i] = _ZERO
            before[i] = _ZERO
        if image != block:  # what the block's images before it add
            for half in range(2):
                row = np.uint32(n + half * 8)
                if row < N:
                    place = begins + place_of(row, lane)
                    for tap in range(C * KH * KW):
                        for e in range(2):
                            before[tap * 4 + half * 2 + e] = partial[at(place + tap * E2 + e * D3)]
        for term in range(short(TERMS)):
            if term < 2:  # in three terms the small products first
                meet(THREADS)  # what lay there was read
                begin = READ * images + image * IMAGE
                small = SPLIT and term == 0
                transpose(shared, floats + TRANSPOSED, outputs, begin, warp, lane, small)
                fence_proxy_async()
                meet(THREADS)
            load(loaded, shared, floats + AT, rows_at, warpgroup)
            for item in range(warpgroup, short(ITEMS), WARPGROUPS):
                for i in range(FRAGMENTS):
                    if SPLIT:
                        large = cut_tf32(loaded[i])
                        fragment[i] = (loaded[i] - large) * NEARER if term == 1 else large
                    else:
                        fragment[i] = loaded[i] * NEARER
                row = np.uint32(np.uint32(item) // BATCHES) * SH * W
                row += np.uint32(np.uint32(item) % BATCHES) * (2 * PAIRS * SW)
                b = B_MATRIX + (start + 4 * TRANSPOSED) // CHUNK + row * OF_CORE
                wgmma_fence()
                for pair in range(PAIRS):
                    for c in range(C):
                        for kh in range(KH):
                            capsule = (c * H + kh * DH) * W + 2 * pair * SW
                            to = (c * KH + kh) * OF_ROW
                            if SPLIT:
                                more = 1 if pair > 0 else 0
                                b_at = b + capsule * OF_CORE
                                wgmma_fragment(BN, part, to, fragment, pair * 4, shared, b_at, more)
                            else:
                                b_at = b + capsule * OF_CORE
                                wgmma_fragment(BN, acc, to, fragment, pair * 4, shared, b_at, 1)
                wgmma_commit()
                load(loaded, shared, floats + AT, rows_at, item + WARPGROUPS)
                wgmma_wait()
                if SPLIT:
                    for i in range(SUMS):
                        acc[i] += part[i]
        for half in range(2):
            row = np.uint32(n + half * 8)
            if row < N:
                place = begins + place_of(row, lane)
                for tap in range(C * KH * KW):
                    for e in range(2):
                        i = tap * 4 + half * 2 + e
                        partial[at(place + tap * E2 + e * D3)] = before[i] + acc[i]
        meet(THREADS)
        return stage, phases

    return compute
