# %% [markdown]
# # Why fused wins
#
# Laying out buys a simple multiplication with memory traffic. How much, for a real layer: the
# bytes that the forward stages move, beside those that cannot be avoided (each operand read
# once, the output written once)?

# %%
import numpy as np

import reference
from experiments.lessons.example import GEOMETRY, W, X, unwritten
from experiments.walk.watch import READ, WRITE, watching
from numbacaps import ALGORITHMS, Geometry, stages
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import cuda
from numbacaps.plan import Plan

LAYER = Geometry(128, 1, 4, 13, 13, 3, 3, 1, 4, 8, 16)
laid_out = sum(stages.whole(LAYER).traffic(stage, 4)[0] for stage in stages.FORWARD)
least = LAYER.min_bytes(4)
print("second layer of the published network, batch 128:")
print(
    f"laid out {laid_out / 1e6:.0f} MB, unavoidable {least / 1e6:.1f} MB: {laid_out / least:.0f} x"
)
print(f"FLOP a byte: {LAYER.flop / laid_out:.1f} laid out, {LAYER.flop / least:.0f} at best")
assert laid_out > least

# %% [markdown]
# ## The fold
#
# Each output element is a sum over (c, kh, kw, d2), and that is one matrix product: rows are
# (n, oh, ow, d1), columns (p, d3), and the sum runs over (c, kh, kw, d2). So a tiled matrix
# product can gather its left operand straight from the input, hold the sums in registers, and
# write nothing but the output.

# %%
M, N, K = LAYER.gemm
print(f"M = N*OH*OW*D1 = {M}, N = P*D3 = {N}, K = C*KH*KW*D2 = {K}")
assert 2 * M * N * K == LAYER.flop


# %% [markdown]
# Here it is for one image: a block makes BM x BN elements of the output, one a thread. For each
# BK of the sum its threads load a tile of the input and a tile of the kernel into shared memory,
# where BN and BM of them use each element.


# %%
def make_fused(g, BM, BN, BK=4):
    """Kernel for one geometry (one image, G = 1, no padding) and one tile."""
    M, N, K = g.gemm
    SH, SW = g.stride

    @cuda.jit
    def fused_kernel(
        x,  # in   (C, H, W, D1, D2)
        w,  # in   (P, Q, D2, D3)
        out,  # out  (P, L, D1, D3)
    ):
        a_tile = cuda.shared.array((BM, BK), np.float32)
        b_tile = cuda.shared.array((BK, BN), np.float32)
        t = cuda.threadIdx.x
        row, column = t // BN, t % BN
        m0, n0 = cuda.blockIdx.x * BM, cuda.blockIdx.y * BN
        total = np.float32(0)
        for k0 in range(0, K, BK):
            i = t
            while i < BM * BK:
                m, k = m0 + i // BK, k0 + i % BK
                a_tile[i // BK, i % BK] = 0
                if m < M and k < K:
                    l, d1, q, d2 = m // g.D1, m % g.D1, k // g.D2, k % g.D2
                    h = l // g.OW * SH + q // g.KW % g.KH
                    column_of_x = l % g.OW * SW + q % g.KW
                    a_tile[i // BK, i % BK] = x[q // (g.KH * g.KW), h, column_of_x, d1, d2]
                i += BM * BN
            i = t
            while i < BK * BN:
                k, n = k0 + i // BN, n0 + i % BN
                b_tile[i // BN, i % BN] = 0
                if k < K and n < N:
                    b_tile[i // BN, i % BN] = w[n // g.D3, k // g.D2, k % g.D2, n % g.D3]
                i += BM * BN
            cuda.syncthreads()  # the tiles are complete before anyone multiplies
            for k in range(BK):
                total += a_tile[row, k] * b_tile[k, column]
            cuda.syncthreads()  # everyone is done before the tiles are written again
        m, n = m0 + row, n0 + column
        if m < M and n < N:
            out[n // g.D3, m // g.D1, m % g.D1, n % g.D3] = total

    return fused_kernel


def run_fused(g, x, w, BM, BN):
    """The output, and the launch as it was watched."""
    M, N, _ = g.gemm
    operands = (
        cuda.to_device(x.reshape(g.C, g.H, g.W, g.D1, g.D2)),
        cuda.to_device(w.reshape(g.P, g.Q, g.D2, g.D3)),
        unwritten((g.P, g.L, g.D1, g.D3)),
    )
    with watching({}) as launches:
        make_fused(g, BM, BN)[(ceil_div(M, BM), ceil_div(N, BN)), BM * BN](*operands)
    return operands[2].copy_to_host().reshape(g.output_shape), launches[0]


# %% [markdown]
# It is right, and what its threads read from memory is counted. The larger the tile, the less is
# read: every element of a tile serves a whole row or column of it.

# %%
g = GEOMETRY
expected = reference.capsule_convolution_einsum(X, W, g.stride)
counted = {}
for BM, BN in ((4, 4), (12, 4), (12, 8)):
    out, launch = run_fused(g, X, W, BM, BN)
    reference.assert_close(out, expected, terms=g.Q * g.D2)
    counted[f"tiles of {BM} x {BN}"] = [launch.count(kind, shared=False) for kind in (READ, WRITE)]

# %% [markdown]
# Beside it, the algorithms of the toolkit that multiply without atomics, counted in the same way.

# %%
for name in ("staged", "indexed", "fused"):
    if name in ALGORITHMS:
        x, w, out = cuda.to_device(X), cuda.to_device(W), unwritten(g.output_shape)
        with watching({}) as launches:
            Plan(g, x.dtype, name).launch_forward(x, w, out, 0)
        reference.assert_close(out.copy_to_host(), expected, terms=g.Q * g.D2)
        counted[name] = [
            sum(launch.count(kind, shared=False) for launch in launches) for kind in (READ, WRITE)
        ]
for name, (reads, writes) in counted.items():
    print(f"{name:>16}: {reads:6} elements read, {writes:5} written")
small, large = counted["tiles of 4 x 4"], counted["tiles of 12 x 8"]
print(f"the larger tile reads {small[0] / large[0]:.1f} times less than the smaller")
assert large[0] < small[0] < counted["indexed"][0] and large[1] == np.prod(g.output_shape)
assert counted["staged"][1] > large[1]

# %% [markdown]
# ## Exercise
#
# Write `elements_read(g, BM, BN)`: how many elements of input and kernel together the kernel above
# reads for one image. `check(elements_read)` runs it and counts.


# %%
def check(elements_read):
    """Judge an ``elements_read(g, BM, BN)`` by counting what the kernel reads.

    Raises
    ------
    AssertionError
        It is wrong for some geometry and tile; the message says which.
    """
    for sizes, BM, BN in (
        ((1, 1, 2, 4, 4, 2, 2, 1, 2, 2, 2, 1), 4, 2),
        ((1, 2, 3, 5, 4, 2, 3, 1, 1, 2, 3, 2), 3, 5),
    ):
        g = Geometry(*sizes)
        x, w = np.ones(g.input_shape, np.float32), np.ones(g.kernel_shape, np.float32)
        _, launch = run_fused(g, x, w, BM, BN)
        read = launch.count(READ, shared=False)
        assert elements_read(g, BM, BN) == read, f"{read} elements are read with {BM} x {BN} of {g}"
