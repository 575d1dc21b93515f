# %% [markdown]
# # Multiply
#
# Now every product has operands of its own, equally far apart, and one strided batch multiplies
# them all (Algorithm 3, step 4, Figure 6):
#
#     O'[n, p, l, q] = I'[n, p, l, q] @ K'[p, l, q]

# %%
import numpy as np

import reference
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import bars, heat, page
from experiments.lessons.example import GEOMETRY, W, X, unwritten
from numbacaps import Geometry, stages
from numbacaps.device.target import cuda

lesson = open_lesson(3)
g = GEOMETRY
I_flat = reference.capsule_im2col(X, (g.KH, g.KW), g.stride)
extended_input = reference.input_extend(I_flat, g.P)
extended_kernel = reference.kernel_extend(W, g.L)
products = unwritten(stages.whole(g).products_shape)
stages.multiply(
    stages.whole(g), cuda.to_device(extended_input), cuda.to_device(extended_kernel), products
)
count = g.N * g.P * g.L * g.Q
print(f"{count} products of ({g.D1} x {g.D2}) @ ({g.D2} x {g.D3})")

# %% [markdown]
# Here rounding may differ: the order of a sum is the kernel's own. What may differ is known, and
# the comparison allows no more.

# %%
expected = reference.strided_batched_matrix_multiply(
    extended_input.astype(np.float64), extended_kernel.astype(np.float64)
)
error = reference.relative_error(products.copy_to_host(), expected)
allowed = reference.tolerance(np.float32, g.D2)
assert error <= allowed
print(f"largest difference from float64: {error:.1e} of the largest value, allowed {allowed:.1e}")

# %% [markdown]
# A small product does little with what it loads. FLOP for each byte moved, as laid out and as it
# could be if operands were read once and only the sums written:

# %%
bytes_laid_out, flop = stages.whole(g).traffic("strided_batched_matmul", 4)
assert flop == 2 * count * g.D1 * g.D2 * g.D3 == g.flop
print(f"laid out: {flop / bytes_laid_out:.2f} FLOP a byte, for this stage alone")
print(f"at best:  {g.flop / g.min_bytes(4):.2f} FLOP a byte, for the whole convolution")
assert g.flop / g.min_bytes(4) > flop / bytes_laid_out

# %% [markdown]
# ## What the paper writes, and what holds
#
# Algorithm 2 loops over c up to D1 and gives an input capsule D1*D2 elements. That loop is the
# batch axis G of rank-3 capsules, and a capsule holds G*D1*D2. If G is dropped, capsules overlap
# in memory; where it is not, each begins where the last one ended.

# %%
rank_3 = Geometry(1, 1, 1, 2, 2, 1, 1, 2, 2, 3, 2)
numbers = np.arange(np.prod(rank_3.input_shape)).reshape(rank_3.input_shape)
second = numbers[0, 0, 0, 1].flat[0]
print(f"the second capsule begins at {second}; G*D1*D2 is {rank_3.E1}")
print(f"the paper's D1*D2 is {rank_3.D1 * rank_3.D2}")
assert second == rank_3.E1 != rank_3.D1 * rank_3.D2

# %% [markdown]
# The picture: the product with the most ink, and what each way gets out of a byte.

# %%
n, p, l, q = np.unravel_index(
    np.abs(extended_input).sum(axis=(4, 5, 6)).argmax(), extended_input.shape[:4]
)
figure, (left, right, result, intensity) = page(4, width=3)
heat(left, extended_input[n, p, l, q, 0], "input", f"I'[{n}, {p}, {l}, {q}]", numbers=True)
heat(right, extended_kernel[p, l, q, 0], "kernel", f"K'[{p}, {l}, {q}]", numbers=True)
heat(result, products.copy_to_host()[n, p, l, q, 0], "product", "their product", numbers=True)
rates = {"laid out": flop / bytes_laid_out, "at best": g.flop / g.min_bytes(4)}
bars(intensity, rates, "output", "what a byte is good for", "FLOP a byte")
lesson.show(figure, "product", "one product of the batch, and FLOP a byte laid out and at best")

# %% [markdown]
# ## Exercise
#
# Write `offsets(n, p, l, q, k, g)`: where matrix k of the rank-3 product (n, p, l, q) begins in
# I', K' and O' as three flat arrays. K' has no axis n: all images share it.


# %%
def offsets(n, p, l, q, k, g):
    """(offset in I', offset in K', offset in O'), in elements."""
    return ..., ..., ...


check(offsets)
