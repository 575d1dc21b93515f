# %% [markdown]
# # Tensor cores
#
# A tensor core multiplies small matrices in one instruction, `mma.sync`, that a whole warp issues
# together. Its operands are not in memory: each thread holds a few of their elements in registers, its
# *fragment*. Here is one such instruction, C = A @ B with A of MxK elements and B of KxN.

# %%
import numpy as np

import reference
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import page
from experiments.lessons.example import GEOMETRY, W, X, unwritten
from experiments.walk.pictures.canvas import ROLES
from numbacaps import capsule_conv2d
from numbacaps.device.instructions import TF32_NEARER, cut_tf32, mma
from numbacaps.device.target import cuda

lesson = open_lesson(7)
M, N, K, LANES = 16, 8, 8, 32


@cuda.jit
def warp_product_kernel(
    a,  # in   (M, K)
    b,  # in   (K, N)
    c,  # out  (M, N)
):
    a_part = cuda.local.array(4, np.float32)
    b_part = cuda.local.array(2, np.float32)
    sums = cuda.local.array(4, np.float32)
    lane = cuda.threadIdx.x
    group, t = lane // 4, lane % 4
    a_part[0], a_part[1] = a[group, t], a[group + 8, t]
    a_part[2], a_part[3] = a[group, t + 4], a[group + 8, t + 4]
    b_part[0], b_part[1] = b[t, group], b[t + 4, group]
    for i in range(4):
        sums[i] = 0
    mma(sums, 0, a_part, 0, b_part, 0)
    c[group, 2 * t], c[group, 2 * t + 1] = sums[0], sums[1]
    c[group + 8, 2 * t], c[group + 8, 2 * t + 1] = sums[2], sums[3]


def warp_product(a, b):
    """A @ B by one instruction of a warp."""
    c = unwritten((M, N))
    warp_product_kernel[1, LANES](cuda.to_device(a), cuda.to_device(b), c)
    return c.copy_to_host()


draw = np.random.default_rng(7)
a, b = (draw.integers(-9, 9, shape).astype(np.float32) for shape in ((M, K), (K, N)))
assert np.array_equal(warp_product(a, b), a @ b)
print(
    f"({M} x {K}) @ ({K} x {N}): {M * N * K} products by {LANES} threads, right for whole numbers"
)
print(
    f"a thread holds {M * K // LANES} elements of A, {K * N // LANES} of B, {M * N // LANES} of C"
)

# %% [markdown]
# Whole numbers that are small come out exactly. Others do not, because the tensor cores read of a float32
# only the bits that the format TF32 has: the sign, the exponent, and the first bits of the
# mantissa. The others are cut off.

# %%
pi = np.float32(np.pi)
cut = cut_tf32(pi)
for name, value in (("float32", pi), ("TF32", cut)):
    bits = f"{value.view(np.uint32):032b}"
    print(f"{name:>8}: {bits[0]} {bits[1:9]} {bits[9:]}  {value:.8f}")
kept = next(n for n in range(1, 24) if cut_tf32(np.float32(1 + 2.0**-n)) == 1) - 1
print(
    f"TF32 keeps {kept} bits of the mantissa; pi is cut by {float((pi - cut) / pi):.1e} of itself"
)

# %% [markdown]
# To cut makes every factor too small. The toolkit multiplies factors by a number a little above one first, so
# that on average they are neither too small nor too large.

# %%
values = draw.uniform(1, 2, 100_000).astype(np.float32)
bias = {
    "cut": np.mean(cut_tf32(values) / values - 1.0),
    "brought nearer, then cut": np.mean(cut_tf32(values * TF32_NEARER) / values - 1.0),
}
for name, mean in bias.items():
    print(f"{name}: off by {mean:+.1e} on average")
assert abs(bias["brought nearer, then cut"]) < abs(bias["cut"]) / 10

# %% [markdown]
# ## Three terms in the place of one
#
# What is cut off need not be lost. It is a number of its own, the low part, and the tensor cores can
# multiply it too. A product of float32 becomes three of TF32:
#
#     a * b = low(a) * high(b) + high(a) * low(b) + high(a) * high(b)
#
# The fourth, low(a) * low(b), is left out. How large are the parts?


# %%
def split(values):
    """(high, low), which add up to the values; as TF32 sees them."""
    high = cut_tf32(values)
    return high, cut_tf32((values - high) * TF32_NEARER)


high, low = split(values)
print(f"the low part is at most {np.max(np.abs(low / values)):.1e} of a number")
print(f"low * low is at most {np.max(np.abs(low / values)) ** 2:.1e} of a product")
a, b = draw.uniform(1, 2, (M, K)).astype(np.float32), draw.uniform(1, 2, (K, N)).astype(np.float32)
exact = a.astype(np.float64) @ b.astype(np.float64)
(a_high, a_low), (b_high, b_low) = split(a), split(b)
one_term = warp_product(a, b)
three_terms = warp_product(a_low, b_high) + warp_product(a_high, b_low)
three_terms += warp_product(a_high, b_high)
for name, result in (("one", one_term), ("three", three_terms), ("float32", a @ b)):
    print(f"{name:>8}: off by {reference.relative_error(result, exact):.1e}")
assert (
    reference.relative_error(three_terms, exact) < reference.relative_error(one_term, exact) / 100
)

# %% [markdown]
# ## The toolkit's own kernels
#
# `precision` chooses: `tf32` is one term, `tf32x3` three, `ieee` ordinary arithmetic. `auto`, the default,
# takes three terms for large products on a GPU, and sums again what three terms cannot tell: infinities, NaN and
# numbers near the ends of float32's range. The digit's convolution, and the error that the tests allow:

# %%
g = GEOMETRY
expected = reference.capsule_convolution_einsum(X, W, g.stride)
for precision in ("ieee", "tf32x3", "tf32"):
    y = capsule_conv2d(
        X[:, :, :, :, 0], W[:, :, :, :, 0], stride=2, algorithm="fused", precision=precision
    )
    error = reference.relative_error(y, expected[:, :, :, :, 0])
    allowed = reference.tolerance(np.float32, g.Q * g.D2, precision)
    print(f"{precision:>7}: off by {error:.1e}, allowed {allowed:.1e}")
    assert error <= allowed

# %% [markdown]
# The picture: which lane holds which element of A, and errors as sums grow longer.

# %%
lengths, errors = 8 * 2 ** np.arange(8), {"tf32": [], "tf32x3": [], "float32": []}
for length in lengths:
    a, b = (draw.standard_normal((64, length)).astype(np.float32) for _ in range(2))
    exact = np.sum(a.astype(np.float64) * b, axis=1)
    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    nearer = cut_tf32(a * TF32_NEARER), cut_tf32(b * TF32_NEARER)
    sums = {
        "tf32": np.sum(nearer[0] * nearer[1], axis=1),
        "tf32x3": np.sum(a_low * b_high + a_high * b_low + a_high * b_high, axis=1),
        "float32": np.sum(a * b, axis=1),
    }
    for name, found in sums.items():
        errors[name].append(reference.relative_error(found, exact))
figure, (lanes, growth) = page(2, width=4.4)
holder = np.empty((M, K), int)
for lane in range(LANES):
    for row in (lane // 4, lane // 4 + 8):
        holder[row, [lane % 4, lane % 4 + 4]] = lane
lanes.imshow(holder, cmap="tab20", aspect="auto")
for row, column in np.ndindex(M, K):
    lanes.text(column, row, holder[row, column], ha="center", va="center", fontsize=8)
lanes.set(title="A: the lane that holds an element", xlabel="k", ylabel="m")
for (name, found), role in zip(errors.items(), ("gradient", "kernel", "input")):
    growth.plot(lengths, found, "o-", color=ROLES[role], label=name)
growth.set(xscale="log", yscale="log", title="error of a sum", xlabel="terms, log scale")
growth.legend(frameon=False)
lesson.show(figure, "fragments", "lanes and the elements of A that they hold; errors of sums")

# %% [markdown]
# ## Exercises
#
# The kernel above loads A. Its picture says which lane holds an element, not in which register. Write
# `held(lane)`: the (row, column) of the elements of A in a lane's registers `a_part`, in their order.
# `check` asks the instruction itself.


# %%
def held(lane):
    """Four pairs (m, k)."""
    return ...


check(held)

# %% [markdown]
# Write `product_of_parts(a_high, a_low, b_high, b_low)`: the product of two split numbers as `tf32x3` has it.


# %%
def product_of_parts(a_high, a_low, b_high, b_low):
    """A number."""
    return ...


check(product_of_parts)
