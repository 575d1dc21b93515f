# %% [markdown]
# # A window becomes a column
#
# A capsule is a small matrix; the input is a grid of them. A window slides over the grid. The
# paper's pipeline begins by gathering what each window sees into a column (Algorithm 3, step 1,
# Figure 3):
#
#     I_flat[n, l, q] = I[n, c, h, w]
#     h = oh*stride + kh*dilation - padding,  w = ow*stride + kw*dilation - padding
#
# A position of the window is l = oh*OW + ow. An element of the window is q = (c*KH + kh)*KW + kw.

# %%
import numpy as np

import reference
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import heat, outline, page, pixels
from experiments.lessons.example import GEOMETRY, X, unwritten
from numbacaps import Geometry, stages
from numbacaps.device.target import cuda

lesson = open_lesson(1)
g = GEOMETRY
print(
    f"input: {g.H} x {g.W} capsules of {g.D1} x {g.D2}; window {g.KH} x {g.KW}, stride {g.stride}"
)
print(f"{g.L} positions of the window, {g.Q} capsules under it")

# %% [markdown]
# The kernel reads the input once for every position and writes each column in one run. It does
# exactly what the reference's loops say: it copies, so not one bit may differ.

# %%
columns = unwritten(stages.whole(g).columns_shape)
stages.capsule_im2col(stages.whole(g), cuda.to_device(X), columns)
I_flat = columns.copy_to_host()
expected = reference.capsule_im2col(X, (g.KH, g.KW), g.stride)
assert np.array_equal(I_flat, expected)
print(f"I_flat: {I_flat.shape}, the same as the reference's in every element")

# %% [markdown]
# Windows overlap where the stride is smaller than the window, so capsules are copied more than
# once: the smaller the stride, the more often. With a stride as wide as the window none is copied
# twice, and some at the edge are not copied at all.

# %%
times = reference.capsule_col2im(
    np.ones_like(I_flat, np.float64), g.input_shape, (g.KH, g.KW), g.stride
)[0, 0, ..., 0, 0, 0]
print("how many windows see each capsule:")
print(times.astype(int))
for stride in (1, 2, 3):
    other = Geometry(1, g.C, g.P, g.H, g.W, g.KH, g.KW, 1, g.D1, g.D2, g.D3, stride=stride)
    growth = np.prod(stages.whole(other).columns_shape) / np.prod(other.input_shape)
    print(f"stride {stride}: I_flat holds {growth:.2f} times the input's elements")

# %% [markdown]
# The picture: the digit with the window where it sees the most ink, the column that the window becomes, and how
# many windows see each capsule.

# %%
l = int(np.abs(I_flat[0]).sum(axis=(1, 2, 3, 4)).argmax())
oh, ow = divmod(l, g.OW)
figure, (digit, column, seen) = page(3)
heat(digit, pixels(X[0, 0, :, :, 0]), "input", "input, and a window")
top, left = oh * g.stride[0] * g.D1, ow * g.stride[1] * g.D2
outline(digit, top, left, g.KH * g.D1, g.KW * g.D2)
heat(column, I_flat[0, l, :, 0].reshape(-1, g.D2), "input", f"its column, l = {l}")
for q in range(g.Q):
    outline(column, q * g.D1, 0, g.D1, g.D2)
heat(seen, times, "product", "windows that see a capsule", numbers=True)
lesson.show(figure, "window", f"window {l} of the digit becomes a column of {g.Q} capsules")

# %% [markdown]
# ## Exercise
#
# Write `origin(l, q, g)`: the (c, h, w) of the capsule that stands in column l, row q, or None
# where the window reaches into the padding.


# %%
def origin(l, q, g):
    """(c, h, w) of a capsule of the input, or None."""
    return ...


check(origin)
