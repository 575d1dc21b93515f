"""The gradient of the votes that reaches the input.

    dI[n,c,h,w] = sum over p and the (oh,ow,kh,kw) that read (h,w) of dV[n,p,oh,ow,c,kh,kw] @ K[p,c,kh,kw]^T

Thread mapping: consecutive threads own consecutive elements of dI. The D2 threads of a row of a capsule read the same
elements of dV, and each of them has a row of K^T of its own.
"""

from functools import cache

from numbacaps.algorithms.indices import make_index_functions
from numbacaps.device.bfloat16 import bits
from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import flat_operands, launch
from numbacaps.device.target import at, cuda
from numbacaps.votes.indices import make_vote_index


@cache
def make_votes_backward_input(geometry, dtype, sum_window):
    """Kernel for one geometry (its N apart)."""
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
    calculate_vote_index = make_vote_index(geometry, sum_window)

    @kept_on_disk
    @cuda.jit
    def votes_backward_input_kernel(
        w,  # in   (P, C, KH, KW, G, D2, D3)
        dvotes,  # in   (N, P, OH, OW, C, taps, G, D1, D3)
        dx,  # out  (N, C, H, W, G, D1, D2)
        N,
    ):
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
                        v_idx = calculate_vote_index(n, p, oh, ow, c, kh * KW + kw)
                        idx = calculate_weight_index(p, c, kh, kw)
                        for d3 in range(D3):
                            gradient = read(dvotes[at(v_idx + (g * D1 + d1) * D3 + d3)])
                            total += gradient * read(w[at(idx + (g * D2 + d2) * D3 + d3)])
            dx[at(n * IMAGE + i)] = write(total)
            n += cuda.gridDim.y

    return votes_backward_input_kernel


def backward_input(geometry, w, dvotes, dx, *, stream, sum_window):
    """Write the gradient of the input."""
    g, which = geometry, "summed_votes" if sum_window else "votes"
    w, dvotes, dx = flat_operands(g, **{"w": w, which: dvotes, "dx": dx})
    kernel = make_votes_backward_input(g.of_one_image, dx.dtype, sum_window)
    launch(kernel, g.C * g.H * g.W * g.E1, g.N, (bits(w), bits(dvotes), bits(dx), g.N), stream)
