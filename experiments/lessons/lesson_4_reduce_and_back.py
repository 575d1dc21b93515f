# %% [markdown]
# # Reduce, and back
#
# The products of a position add up to its output capsule (Algorithm 3, step 5, Figure 6):
#
#     O[n, p, l] = sum over q of O'[n, p, l, q]
#
# Algorithm 4 goes the same way back. What was a copy becomes a sum; what was a sum, a copy.

# %%
import numpy as np

import reference
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import heat, page, pixels
from experiments.lessons.example import GEOMETRY, W, X, unwritten
from numbacaps import stages
from numbacaps.device.target import cuda

lesson = open_lesson(4)
g, window = GEOMETRY, (GEOMETRY.KH, GEOMETRY.KW)
I_flat = reference.capsule_im2col(X, window, g.stride)
extended_input, extended_kernel = (
    reference.input_extend(I_flat, g.P),
    reference.kernel_extend(W, g.L),
)
products = reference.strided_batched_matrix_multiply(extended_input, extended_kernel)
out = unwritten(g.output_shape)
stages.output_reduce(stages.whole(g), cuda.to_device(products), out)
O = out.copy_to_host()
expected = reference.capsule_convolution_einsum(X, W, g.stride)
error = reference.relative_error(O, expected)
assert error <= reference.tolerance(np.float32, g.Q * g.D2)
print(f"O: each of {O.size} elements is a sum of {g.Q} products; off by {error:.1e} at most")

# %% [markdown]
# ## Back
#
# Take half the squared length of O - T as loss. Its gradient dO = O - T comes in, and the stages
# follow: dO is copied for every product; each copy meets the transposed operands; the copies of
# the forward pass are summed up; overlapping windows add up.
#
# The paper writes I_d' = ...(K', O'): what holds is dO', the gradient, not the output.

# %%
T = np.random.default_rng(2).standard_normal(g.output_shape).astype(np.float32)
dO = O - T
extended_dy = unwritten(stages.whole(g).products_shape)
stages.output_extend(stages.whole(g), cuda.to_device(dO), extended_dy)
d_products = unwritten(stages.whole(g).extended_input_shape)
stages.multiply_for_input_gradient(
    stages.whole(g), extended_dy, cuda.to_device(extended_kernel), d_products
)
d_columns, dx = unwritten(stages.whole(g).columns_shape), unwritten(g.input_shape)
stages.input_reduce(stages.whole(g), d_products, d_columns)
stages.capsule_col2im(stages.whole(g), d_columns, dx)
dI = dx.copy_to_host()

# %% [markdown]
# Is it the gradient? Move one pixel a little each way: the loss must follow the gradient there.


# %%
def loss(x):
    """Half the squared length of O - T, in float64."""
    return 0.5 * np.sum((reference.capsule_convolution_einsum(x, W, g.stride) - T) ** 2)


pixel, step = np.unravel_index(np.abs(dI).argmax(), dI.shape), 1e-3
ahead, behind = X.astype(np.float64), X.astype(np.float64)
ahead[pixel] += step
behind[pixel] -= step
slope = (loss(ahead) - loss(behind)) / (2 * step)
print(f"slope of the loss at the pixel with the largest gradient: {slope:.5f}")
print(f"dI there, from the kernels:                               {dI[pixel]:.5f}")
assert abs(slope - dI[pixel]) < 1e-4 * abs(slope)

# %% [markdown]
# Copy and sum are each other's transposes: what input_extend copies P times, input_reduce sums
# over P. For a transposed pair, (copy of a) times b equals a times (sum of b).

# %%
draw = np.random.default_rng(3)
a, b = draw.random(stages.whole(g).columns_shape), draw.random(stages.whole(g).extended_input_shape)
left = np.sum(reference.input_extend(a, g.P) * b)
right = np.sum(a * reference.input_reduce(b))
print(f"{left:.6f} = {right:.6f}")
assert np.isclose(left, right)

# %%
figure, (digit, output, gradient) = page(3)
heat(digit, pixels(X[0, 0, :, :, 0]), "input", "I")
heat(output, pixels(O[0, 0, :, :, 0]), "output", "O, the first output channel")
heat(gradient, pixels(dI[0, 0, :, :, 0]), "gradient", "dI")
row, column = pixel[2] * g.D1 + pixel[5], pixel[3] * g.D2 + pixel[6]
gradient.plot(column, row, "o", mfc="none", mec="black", ms=10)
lesson.show(
    figure, "gradient", "input, output and gradient; the circle is the pixel that was moved"
)

# %% [markdown]
# ## Exercise
#
# capsule_col2im gathers: the thread that owns an input element finds the windows that cover it,
# so no two threads add to one place. Write `covering(h, w, g)`: the list of (l, kh, kw) at which
# a window covers the capsule (h, w).


# %%
def covering(h, w, g):
    """List of (l, kh, kw), in any order."""
    return ...


check(covering)
