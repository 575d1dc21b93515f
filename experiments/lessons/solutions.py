"""A solution of every exercise. Try first: ``check`` has hints."""

import numpy as np


def origin(l, q, g):
    """Lesson 1."""
    c, kh, kw = q // (g.KH * g.KW), q // g.KW % g.KH, q % g.KW
    h = l // g.OW * g.stride[0] + kh * g.dilation[0] - g.padding[0]
    w = l % g.OW * g.stride[1] + kw * g.dilation[1] - g.padding[1]
    return (c, h, w) if 0 <= h < g.H and 0 <= w < g.W else None


def elements_written(g):
    """Lesson 2."""
    column = g.L * g.Q * g.E1
    return g.N * column + g.N * g.P * column + g.P * g.L * g.Q * g.E2


def offsets(n, p, l, q, k, g):
    """Lesson 3."""
    image = ((n * g.P + p) * g.L + l) * g.Q + q
    shared = (p * g.L + l) * g.Q + q
    return (
        image * g.E1 + k * g.D1 * g.D2,
        shared * g.E2 + k * g.D2 * g.D3,
        image * g.E3 + k * g.D1 * g.D3,
    )


def covering(h, w, g):
    """Lesson 4."""
    found = []
    for kh in range(g.KH):
        for kw in range(g.KW):
            oh, down = divmod(h + g.padding[0] - kh * g.dilation[0], g.stride[0])
            ow, across = divmod(w + g.padding[1] - kw * g.dilation[1], g.stride[1])
            if down == across == 0 and 0 <= oh < g.OH and 0 <= ow < g.OW:
                found.append((oh * g.OW + ow, kh, kw))
    return found


def elements_read(g, BM, BN):
    """Lesson 5: each block of rows reads the kernel, each block of columns the input."""
    M, N, K = g.gemm
    return -(-N // BN) * M * K + -(-M // BM) * N * K


def atomic_adds(g):
    """Lesson 6: threads, taps, elements of a capsule."""
    return g.N * g.P * g.L * g.C * g.KH * g.KW * g.E1


def part(split, splits, M, BK):
    """Lesson 6."""
    rows = -(-M // splits)
    rows = -(-rows // BK) * BK
    return split * rows, min(M, (split + 1) * rows)


def held(lane):
    """Lesson 7."""
    group, t = lane // 4, lane % 4
    return (group, t), (group + 8, t), (group, t + 4), (group + 8, t + 4)


def product_of_parts(a_high, a_low, b_high, b_low):
    """Lesson 7."""
    return a_low * b_high + a_high * b_low + a_high * b_high


def stage_and_phase(step, stages):
    """Lesson 8."""
    return step % stages, step // stages % 2


def stages_wanted(copy, product):
    """Lesson 8: as many as products fit into a copy, and the one that is multiplied."""
    return -(-copy // product) + 1


def floor_ms(gflop, nbytes, copy_gbs, sgemm_tflops):
    """Lesson 9."""
    return max(nbytes / (copy_gbs * 1e9) * 1e3, gflop / sgemm_tflops)


def places_taken(blocks, multiprocessors, resident):
    """Lesson 9."""
    at_once = multiprocessors * resident
    waves = -(-blocks // at_once)
    return blocks / (waves * at_once)


def couplings_of(b):
    """Lesson 10."""
    e = np.exp(b - b.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def vote_bytes(g, iterations):
    """Lesson 10: written once, read in each pass."""
    return (1 + iterations) * 4 * g.N * g.P * g.L * g.Q * g.E3
