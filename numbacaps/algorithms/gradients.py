"""Algorithm 5's gradients, of the convolution and of its votes: each element is summed by index.

What is given is the gradient ``dy`` of the output or of the votes. ``gradient_at(n, p, oh, ow, c, tap)`` is the offset of
the gradient of a product there: in the output its position's, in the votes its vote's.

Thread mapping: consecutive threads own consecutive elements of the result, so they write consecutive addresses.
"""

from numbacaps.algorithms.indices import make_index_functions
from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.launch import BLOCKS, ceil_div
from numbacaps.device.target import SIMULATED, at, cuda

_LANES = 4 if SIMULATED else 16  # not measured for votes
_ELEMENTS = 16


def make_input_gradient(geometry, dtype, gradient_at):
    """Device function that writes the input's gradient: one thread an element, sum over p, kh, kw and d3.

    ``input_gradient(w, dy, dx, N)`` takes w (P, C, KH, KW, G, D2, D3), the gradients, and dx (N, C, H, W, G, D1, D2). The D2
    threads of a row of a capsule read the same gradients, and each of them has a row of K^T of its own.
    """
    C, P, H, W, KH, KW = (getattr(geometry, name) for name in ("C", "P", "H", "W", "KH", "KW"))
    OH, OW, D1, D2, D3 = (getattr(geometry, name) for name in ("OH", "OW", "D1", "D2", "D3"))
    E1 = geometry.E1
    SH, SW = geometry.stride
    PH, PW = geometry.padding
    DH, DW = geometry.dilation
    IMAGE = C * H * W * E1
    ZERO = sum_dtype(dtype).type(0)
    read, write = conversions(dtype)
    _, calculate_weight_index, _ = make_index_functions(geometry)

    @cuda.jit(device=True, inline="always")
    def input_gradient(w, dy, dx, N):
        i = cuda.grid(1)  # (c, h, w, g, d1, d2)
        if i >= IMAGE:
            return
        d2 = i % D2
        d1 = i // D2 % D1
        g = i // (D2 * D1) % (E1 // (D2 * D1))
        column = i // E1 % W
        row = i // (E1 * W) % H
        c = i // (E1 * W * H)
        n = cuda.blockIdx.y
        while n < N:
            total = ZERO
            for kh in range(KH):
                top = row + PH - kh * DH
                oh = top // SH
                if top % SH != 0 or oh < 0 or oh >= OH:
                    continue
                for kw in range(KW):
                    left = column + PW - kw * DW
                    ow = left // SW
                    if left % SW != 0 or ow < 0 or ow >= OW:
                        continue
                    for p in range(P):
                        d_idx = gradient_at(n, p, oh, ow, c, kh * KW + kw)
                        idx = calculate_weight_index(p, c, kh, kw)
                        for d3 in range(D3):
                            gradient = read(dy[at(d_idx + (g * D1 + d1) * D3 + d3)])
                            total += gradient * read(w[at(idx + (g * D2 + d2) * D3 + d3)])
            dx[at(n * IMAGE + i)] = write(total)
            n += cuda.gridDim.y

    return input_gradient


def make_kernel_gradient(geometry, dtype, gradient_at):
    """Device function that writes the kernel's gradient: the sum over n, oh, ow and d1.

    ``kernel_gradient(x, dy, dw, N)`` takes x (N, C, H, W, G, D1, D2), the gradients, and dw (P, C, KH, KW, G, D2, D3). A
    block owns ELEMENTS elements of dw at a time. LANES threads share the sum of an element, each takes every LANES-th
    output position; the first lane adds the lanes' sums in their order. So the D3 of a row read consecutive gradients.
    """
    C, P, KH, KW = (getattr(geometry, name) for name in ("C", "P", "KH", "KW"))
    OH, OW, D1, D2, D3 = (getattr(geometry, name) for name in ("OH", "OW", "D1", "D2", "D3"))
    E2 = geometry.E2
    SIZE = P * C * KH * KW * E2
    L = OH * OW
    LANES, ELEMENTS = _LANES, _ELEMENTS
    SHARED = LANES * ELEMENTS
    sums = sum_dtype(dtype)
    ZERO = sums.type(0)
    read, write = conversions(dtype)
    calculate_input_index, _, _ = make_index_functions(geometry)

    @cuda.jit(device=True, inline="always")
    def kernel_gradient(x, dy, dw, N):
        partial = cuda.shared.array(SHARED, sums)
        element = cuda.threadIdx.x
        lane = cuda.threadIdx.y
        first = cuda.blockIdx.x * ELEMENTS
        while first < SIZE:
            i = first + element  # (p, c, kh, kw, g, d2, d3)
            total = ZERO
            if i < SIZE:
                d3 = i % D3
                d2 = i // D3 % D2
                g = i // (D3 * D2) % (E2 // (D3 * D2))
                kw = i // E2 % KW
                kh = i // (E2 * KW) % KH
                c = i // (E2 * KW * KH) % C
                p = i // (E2 * KW * KH * C)
                nl = lane
                while nl < N * L:
                    n = nl // L
                    oh = nl % L // OW
                    ow = nl % L % OW
                    i_idx = calculate_input_index(n, c, oh, ow, kh, kw)
                    d_idx = gradient_at(n, p, oh, ow, c, kh * KW + kw)
                    for d1 in range(D1):
                        value = ZERO  # padding is zeros that multiply like any other value
                        if i_idx >= 0:
                            value = read(x[at(i_idx + (g * D1 + d1) * D2 + d2)])
                        total += value * read(dy[at(d_idx + (g * D1 + d1) * D3 + d3)])
                    nl += LANES
            partial[at(lane * ELEMENTS + element)] = total
            cuda.syncthreads()  # every lane's sum is there before lane 0 adds them up
            if lane == 0 and i < SIZE:
                for other in range(1, LANES):
                    total += partial[at(other * ELEMENTS + element)]
                dw[at(i)] = write(total)
            cuda.syncthreads()  # the sums are read before they are written again
            first += cuda.gridDim.x * ELEMENTS

    return kernel_gradient


def kernel_gradient_grid(geometry):
    """(grid, block) of the kernel's gradient."""
    blocks = min(BLOCKS, ceil_div(geometry.P * geometry.Q * geometry.E2, _ELEMENTS))
    return blocks, (_ELEMENTS, _LANES)
