# %% [markdown]
# # Why fused wins
#
# Laying out buys a simple multiplication with memory traffic. How much, for a real layer: the
# bytes that the forward stages move, beside those that cannot be avoided (each operand read
# once, the output written once)?

# %%
import inspect

import numpy as np

import reference
from experiments.lessons.counting import elements, shared_tiles
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import bars, page
from experiments.lessons.example import GEOMETRY, W, X, unwritten
from experiments.walk.watch import READ, WRITE, watching
from numbacaps import Geometry, stages
from numbacaps.device.target import cuda
from numbacaps.fused.rung_2_shared_tiles import make_shared_tiles
from numbacaps.plan import Plan

lesson = open_lesson(5)
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
# Here is such a kernel, the second rung of the toolkit's ladder: a block makes BM x BN elements of
# the output, one a thread. For each BK of the sum its threads load a tile of the input and a tile
# of the kernel into shared memory, where BN and BM of them use each element. Where an element lies
# is looked up in a table.

# %%
print(inspect.getsource(make_shared_tiles))

# %% [markdown]
# It is right, and what its threads read from memory is counted. The larger the tile, the less is
# read: every element of a tile serves a whole row or column of it.

# %%
g = GEOMETRY
expected = reference.capsule_convolution_einsum(X, W, g.stride)
counted = {}
for BM, BN in ((4, 4), (12, 4), (12, 8)):
    out, launches = shared_tiles(g, X, W, BM, BN)
    reference.assert_close(out, expected, terms=g.Q * g.D2)
    counted[f"tiles of {BM} x {BN}"] = [elements(launches, kind) for kind in (READ, WRITE)]

# %% [markdown]
# The algorithms of the toolkit that multiply without atomics are counted in the same way. The numbers follow, tiles first.

# %%
for name in ("staged", "indexed", "fused"):
    x, w, out = cuda.to_device(X), cuda.to_device(W), unwritten(g.output_shape)
    with watching({}) as launches:
        Plan(g, x.dtype, name).launch_forward(x, w, out, 0)
    reference.assert_close(out.copy_to_host(), expected, terms=g.Q * g.D2)
    counted[name] = [elements(launches, kind) for kind in (READ, WRITE)]
for name, (reads, writes) in counted.items():
    print(f"{name:>16}: {reads:6} elements read, {writes:5} written")
small, large = counted["tiles of 4 x 4"], counted["tiles of 12 x 8"]
print(f"the larger tile reads {small[0] / large[0]:.1f} times less than the smaller")
assert large[0] < small[0] < counted["indexed"][0] and large[1] == np.prod(g.output_shape)
assert counted["staged"][1] > large[1]

# %%
figure, panels = page(2, width=4.6)
for axes, kind, role in zip(panels, (READ, WRITE), ("input", "output")):
    numbers = {name: found[kind] for name, found in counted.items()}
    bars(axes, numbers, role, "read" if kind == READ else "written", "elements")
lesson.show(figure, "traffic", "elements of global memory that each way reads and writes")

# %% [markdown]
# ## Exercise
#
# Write `elements_read(g, BM, BN)`: how many elements of input and kernel together the kernel above
# reads for one image, without padding. `check` runs it and counts.


# %%
def elements_read(g, BM, BN):
    """Elements that all blocks read, a whole number."""
    return ...


check(elements_read)
