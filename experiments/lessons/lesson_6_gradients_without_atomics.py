# %% [markdown]
# # Gradients without atomics
#
# Forward, a capsule is copied to many windows. Back, the gradients of all its copies add up. The
# simple way lets each thread add what it finds to memory that others add to as well:
# an *atomic* addition. How many are there, and how many meet at one pixel?

# %%
import numpy as np

import reference
from experiments.lessons.counting import elements
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import heat, page, pixels
from experiments.lessons.example import GEOMETRY, W, X, unwritten
from experiments.walk.pictures.canvas import ROLES
from experiments.walk.watch import ATOMIC, READ, watching
from numbacaps import Geometry
from numbacaps.device.gpu import H100
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesSplitK
from numbacaps.plan import Plan

lesson = open_lesson(6)
g = GEOMETRY
dO = np.random.default_rng(6).standard_normal(g.output_shape, dtype=np.float32)
dI, dK = reference.capsule_convolution_backward_einsum(X, W, dO, g.stride)


def gradients(algorithm):
    """(dI, dK, launches) by an algorithm of the toolkit."""
    dx, dw = unwritten(g.input_shape), unwritten(g.kernel_shape)
    operands = [cuda.to_device(array) for array in (X, W, dO)]
    with watching({}) as launches:
        Plan(g, X.dtype, algorithm).launch_backward(*operands, dx, dw, 0)
    return dx.copy_to_host(), dw.copy_to_host(), launches


found = {name: gradients(name) for name in ("naive", "indexed")}
for name, (dx, dw, launches) in found.items():
    reference.assert_close(dx, dI, terms=g.P * g.KH * g.KW * g.D3)
    reference.assert_close(dw, dK, terms=g.L * g.D1)
    reads, added = elements(launches, READ), elements(launches, ATOMIC)
    print(f"{name:>8}: {reads} elements read, {added} atomic additions; both gradients are right")
(scatter,) = (one for one in found["naive"][2] if "backward_input" in one.kernel.__name__)
dx_number = [memory.name for memory in scatter.memories].index("dx")
meets = np.bincount(scatter.of(dx_number, ATOMIC)[:, 4], minlength=X.size).reshape(X.shape)
print(f"dI: {meets.sum()} additions to {X.size} pixels, up to {meets.max()} to one")
assert meets.max() > 1 and elements(found["indexed"][2], ATOMIC) == 0

# %% [markdown]
# ## The order of a sum
#
# Which thread comes first is the hardware's choice, so the order of atomic additions is unknown.
# (The simulator's threads take turns, so here it is always one order.) Does it matter? Here are the
# terms of one element of dK, added up in float32 in many random orders.

# %%
d1, d2, d3, kh, kw = 0, 1, 0, 1, 1
rows = X[0, 0, kh : kh + 2 * g.OH : 2, kw : kw + 2 * g.OW : 2, 0, :, d2]
terms = (rows * dO[0, 0, :, :, 0, :, d3]).reshape(-1)
exact = dK[0, 0, kh, kw, 0, d2, d3]
assert np.isclose(terms.astype(np.float64).sum(), exact)
draw, sums = np.random.default_rng(0), []
for _ in range(1000):
    sums.append(np.add.accumulate(draw.permutation(terms))[-1])
distinct = np.unique(sums)
print(f"{len(terms)} terms in {len(sums)} orders: {len(distinct)} different sums in float32")
print(f"they are within {np.ptp(distinct):.1e} of each other; the sum is {exact:.6f}")
assert len(distinct) > 1

# %% [markdown]
# None of them is wrong. But a run that cannot be repeated bit by bit is hard to debug.
#
# ## Gather
#
# The cure is to turn the loop inside out. Each element of the result has one owner, which looks for
# all that reaches it and adds in an order of its own. Nothing meets, nothing has to be cleared
# first. The `indexed` algorithm above does it: it reads as much, and adds nothing by atomics.

# %%
again = gradients("indexed")
assert np.array_equal(again[0], found["indexed"][0]) and np.array_equal(
    again[1], found["indexed"][1]
)
print("indexed, run twice: the same bits")

# %% [markdown]
# ## A long sum and few owners
#
# The kernel's gradient is a product too: dK[k, n] = sum over m of x[m, k] * dy[m, n]. It has few
# elements, and each is a very long sum. In tiles that suit a GPU, hardly any block has work:

# %%
layer, tile = Geometry(128, 1, 4, 13, 13, 3, 3, 1, 4, 8, 16), 64
M, N, K = layer.gemm
blocks = ceil_div(K, tile) * ceil_div(N, tile)
print(f"second layer of the published network: dK has {K} x {N} elements, sums of {M} terms")
print(
    f"tiles of {tile} x {tile}: {blocks} blocks; an H100 has {H100.multiprocessors} multiprocessors"
)
assert blocks < H100.multiprocessors

# %% [markdown]
# So the sum is cut: *split-K*. Blocks of their own add up each part of the rows, and write their
# sums to a place of their own. A second kernel adds the parts, always in one order.

# %%
launcher = RegisterTilesSplitK(implicit_gemm.forward(g), g.N, g.G, W.size, X.dtype)
operands = cuda.to_device(X.reshape(-1)), cuda.to_device(dO.reshape(-1))
results = []
for _ in range(2):
    dw, partial = unwritten(W.size), unwritten(launcher.partial_shape["partial"])
    with watching({}) as launches:
        launcher(*operands, dw, 0, partial)
    results.append(dw.copy_to_host())
reference.assert_close(results[0], dK.reshape(-1), terms=g.L * g.D1)
assert np.array_equal(*results)
print(f"{launcher}; run twice: the same bits")
for launch in launches:
    print(f"{launch.kernel.__name__}: grid {launch.grid}, {elements([launch], ATOMIC)} atomics")
assert launches[0].grid[2] == launcher.splits.count > 1

# %% [markdown]
# Short sums are better sums, too: rounding errors grow with the number of terms that are added one
# after the other. Here are as many terms as the layer's sums have, in more and more parts.

# %%
many = np.random.default_rng(1).standard_normal((16, M), dtype=np.float32)
exact_sums, errors = many.astype(np.float64).sum(axis=1), {}
for splits in (1, 4, 16, 64, 256):
    rows = ceil_div(M, splits)
    ends = [np.add.accumulate(many[:, i : i + rows], axis=1)[:, -1:] for i in range(0, M, rows)]
    total = np.add.accumulate(np.concatenate(ends, axis=1), axis=1)[:, -1]
    errors[splits] = np.sqrt(np.mean((total - exact_sums) ** 2))
    print(f"{splits:>4} parts: off by {errors[splits]:.1e}")
assert errors[256] < errors[1]

# %%
figure, (met, orders, cut) = page(3, width=3.6)
heat(met, pixels(meets[0, 0, :, :, 0]), "gradient", "additions that meet at a pixel of dI")
values, counts = np.unique(sums, return_counts=True)
orders.bar(np.arange(len(values)), counts, color=ROLES["product"])
orders.set(title="one sum in many orders", xlabel="different results", ylabel="orders")
cut.plot(list(errors), list(errors.values()), "o-", color=ROLES["kernel"])
cut.set(xscale="log", yscale="log", title="error of a long sum", xlabel="parts, log scale")
lesson.show(figure, "sums", "where atomics meet, what the order of a sum does, errors by parts")

# %% [markdown]
# ## Exercises
#
# Write `atomic_adds(g)`: how many atomic additions the naive input gradient makes. It has a thread
# for each (n, p, oh, ow, c); of every tap that lies in the input the thread adds one sum to each
# element of the capsule. `check` counts them, without padding.


# %%
def atomic_adds(g):
    """Atomic additions, a whole number."""
    return ...


check(atomic_adds)

# %% [markdown]
# Write `part(split, splits, M, BK)`: the rows of the sum, from `first` up to but without `last`, that
# a split adds. All parts but the last have equally many rows: M / splits, rounded up, and then up to
# a multiple of BK, so that no load of a tile is cut. The last part ends at M.


# %%
def part(split, splits, M, BK):
    """(first, last)."""
    return ..., ...


check(part)
