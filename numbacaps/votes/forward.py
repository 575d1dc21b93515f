"""The votes: every product of the convolution by itself, or the sum of those of a window and a channel.

    V[n,p,oh,ow,c,kh,kw] = I[n,c,..] @ K[p,c,kh,kw]
    with sum_window: V[n,p,oh,ow,c] = sum over kh, kw

Thread mapping: consecutive threads own consecutive elements of the votes, so they write consecutive addresses.
"""

from functools import cache

from numbacaps.algorithms.indices import make_index_functions
from numbacaps.device.bfloat16 import bits
from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import flat_operands, launch
from numbacaps.device.target import at, cuda
from numbacaps.votes.indices import taps_of


@cache
def make_votes(geometry, dtype, sum_window):
    """Kernel for one geometry (its N apart)."""
    C, P, KW, D1, D2, D3 = (getattr(geometry, name) for name in ("C", "P", "KW", "D1", "D2", "D3"))
    OH, OW, E3 = geometry.OH, geometry.OW, geometry.E3
    TAPS = taps_of(geometry, sum_window)
    ADDED = geometry.KH * KW // TAPS
    IMAGE = P * OH * OW * C * TAPS * E3
    ZERO = sum_dtype(dtype).type(0)
    read, write = conversions(dtype)
    calculate_input_index, calculate_weight_index, _ = make_index_functions(geometry)

    @kept_on_disk
    @cuda.jit
    def votes_kernel(
        x,  # in   (N, C, H, W, G, D1, D2)
        w,  # in   (P, C, KH, KW, G, D2, D3)
        votes,  # out  (N, P, OH, OW, C, taps, G, D1, D3)
        N,
    ):
        i = cuda.grid(1)  # (p, oh, ow, c, tap, g, d1, d3)
        if i >= IMAGE:
            return
        d3 = i % D3
        d1 = i // D3 % D1
        g = i // (D3 * D1) % (E3 // (D3 * D1))
        first = i // E3 % TAPS
        c = i // (E3 * TAPS) % C
        ow = i // (E3 * TAPS * C) % OW
        oh = i // (E3 * TAPS * C * OW) % OH
        p = i // (E3 * TAPS * C * OW * OH)
        n = cuda.blockIdx.y
        while n < N:
            total = ZERO
            for tap in range(first, first + ADDED):
                i_idx = calculate_input_index(n, c, oh, ow, tap // KW, tap % KW)
                idx = calculate_weight_index(p, c, tap // KW, tap % KW)
                for d2 in range(D2):
                    value = ZERO  # padding is zeros that multiply like any other value
                    if i_idx >= 0:
                        value = read(x[at(i_idx + (g * D1 + d1) * D2 + d2)])
                    total += value * read(w[at(idx + (g * D2 + d2) * D3 + d3)])
            votes[at(n * IMAGE + i)] = write(total)
            n += cuda.gridDim.y

    return votes_kernel


def votes(geometry, x, w, out, *, stream, workspace, sum_window=False):
    """Write the votes; ``workspace`` is not used."""
    g = geometry
    arrays = flat_operands(g, x=x, w=w, **{"summed_votes" if sum_window else "votes": out})
    kernel = make_votes(g.of_one_image, x.dtype, sum_window)
    count = g.P * g.L * g.C * taps_of(g, sum_window) * g.E3
    launch(kernel, count, g.N, (*map(bits, arrays), g.N), stream)
