"""The gradient of the votes that reaches the kernel.

    dK[p,c,kh,kw] = sum over n, oh, ow of I^T @ dV[n,p,oh,ow,c,kh,kw]

Thread mapping: a block owns ELEMENTS elements of dK at a time. LANES threads share the sum of an element, each takes
every LANES-th output position; the first lane adds the lanes' sums in their order. Consecutive threads own consecutive
elements, so the D3 of a row read consecutive elements of dV.
"""

from functools import cache

from numbacaps.algorithms.indices import make_index_functions
from numbacaps.device.bfloat16 import bits
from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import BLOCKS, ceil_div, flat_operands
from numbacaps.device.target import SIMULATED, at, cuda
from numbacaps.votes.indices import make_vote_index

_LANES = 4 if SIMULATED else 16  # as the kernel's gradient of "indexed" has; not measured for votes
_ELEMENTS = 16


@cache
def make_votes_backward_kernel(geometry, dtype, sum_window):
    """Kernel for one geometry (its N apart)."""
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
    calculate_vote_index = make_vote_index(geometry, sum_window)

    @kept_on_disk
    @cuda.jit
    def votes_backward_kernel_kernel(
        x,  # in   (N, C, H, W, G, D1, D2)
        dvotes,  # in   (N, P, OH, OW, C, taps, G, D1, D3)
        dw,  # out  (P, C, KH, KW, G, D2, D3)
        N,
    ):
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
                    v_idx = calculate_vote_index(n, p, oh, ow, c, kh * KW + kw)
                    for d1 in range(D1):
                        value = ZERO  # padding is zeros that multiply like any other value
                        if i_idx >= 0:
                            value = read(x[at(i_idx + (g * D1 + d1) * D2 + d2)])
                        total += value * read(dvotes[at(v_idx + (g * D1 + d1) * D3 + d3)])
                    nl += LANES
            partial[at(lane * ELEMENTS + element)] = total
            cuda.syncthreads()  # every lane's sum is there before lane 0 adds them up
            if lane == 0 and i < SIZE:
                for other in range(1, LANES):
                    total += partial[at(other * ELEMENTS + element)]
                dw[at(i)] = write(total)
            cuda.syncthreads()  # the sums are read before they are written again
            first += cuda.gridDim.x * ELEMENTS

    return votes_backward_kernel_kernel


def backward_kernel(geometry, x, dvotes, dw, *, stream, sum_window):
    """Write the gradient of the kernel."""
    g, which = geometry, "summed_votes" if sum_window else "votes"
    x, dvotes, dw = flat_operands(g, **{"x": x, which: dvotes, "dw": dw})
    kernel = make_votes_backward_kernel(g.of_one_image, dw.dtype, sum_window)
    blocks = min(BLOCKS, ceil_div(g.P * g.Q * g.E2, _ELEMENTS))
    kernel[blocks, (_ELEMENTS, _LANES), stream](bits(x), bits(dvotes), bits(dw), g.N)
