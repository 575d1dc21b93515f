# %% [markdown]
# # Replicate
#
# Every column meets every output channel, and every kernel capsule meets every position. For a
# batch of independent products each needs operands at an address of its own. So the columns are
# copied once for each output channel, and each channel's capsules once for each position
# (Algorithm 3, steps 2 and 3, Figures 4 and 5):
#
#     I'[n, p, l, q] = I_flat[n, l, q]
#     K'[p, l, q] = K[p, q]

# %%
import numpy as np

import reference
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import bars, page
from experiments.lessons.example import GEOMETRY, W, X, unwritten
from experiments.walk.watch import READ, WRITE, watching
from numbacaps import Geometry, stages
from numbacaps.device.target import cuda

lesson = open_lesson(2)
g = GEOMETRY
columns = cuda.to_device(reference.capsule_im2col(X, (g.KH, g.KW), g.stride))
extended_input = unwritten(stages.whole(g).extended_input_shape)
extended_kernel = unwritten(stages.whole(g).extended_kernel_shape)
with watching({"I_flat": columns, "I'": extended_input, "K'": extended_kernel}) as launches:
    stages.input_extend(stages.whole(g), columns, extended_input)
    stages.kernel_extend(stages.whole(g), cuda.to_device(W), extended_kernel)

# %% [markdown]
# Nothing is computed here. All copies of a column are the column itself, bit by bit.

# %%
I_flat, K = columns.copy_to_host(), W.reshape(g.P, 1, g.Q, g.G, g.D2, g.D3)
assert np.array_equal(
    extended_input.copy_to_host(),
    np.broadcast_to(I_flat[:, None], stages.whole(g).extended_input_shape),
)
assert np.array_equal(
    extended_kernel.copy_to_host(), np.broadcast_to(K, stages.whole(g).extended_kernel_shape)
)
print(f"I': {g.P} copies of I_flat; K': {g.L} copies of each channel's {g.Q} capsules")

# %% [markdown]
# The price is memory traffic. It is counted here, while the real kernels run: every access of
# every thread is kept. Each thread reads an element once and writes it wherever a copy goes.

# %%
for launch in launches:
    reads, writes = launch.count(READ, shared=False), launch.count(WRITE, shared=False)
    print(f"{launch.kernel.__name__}: {reads} reads, {writes} writes, no arithmetic")
written = sum(launch.count(WRITE, shared=False) for launch in launches)
operands = X.size + W.size
print(
    f"{written} elements written to copy {operands} of input and kernel: {written / operands:.1f}"
)
assert written > operands

# %% [markdown]
# In a real layer the copies outgrow everything else.

# %%
layer = Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, stride=2)
megabytes = 4 * np.prod(stages.whole(layer).extended_input_shape) / 2**20
original = 4 * np.prod(layer.input_shape) / 2**20
print(f"third layer of the published network: I is {original:.1f} MiB, I' {megabytes:.1f} MiB")

# %%
figure, (here, there) = page(2, width=4.6)
for axes, of, title in ((here, g, "this digit"), (there, layer, f"third layer, batch {layer.N}")):
    whole = stages.whole(of)
    shapes = {"I": of.input_shape, "I_flat": whole.columns_shape}
    shapes |= {"I'": whole.extended_input_shape, "K": of.kernel_shape}
    shapes["K'"] = whole.extended_kernel_shape
    elements = {name: np.prod(shape) for name, shape in shapes.items()}
    roles = ["kernel" if "K" in name else "input" for name in elements]
    bars(axes, elements, roles, title, "elements", logarithmic=True)
lesson.show(figure, "copies", "elements of input, kernel and their copies")

# %% [markdown]
# ## Exercise
#
# Write `elements_written(g)`: how many elements the stages capsule_im2col, input_extend and
# kernel_extend write for a geometry g. `check` runs the kernels and counts.


# %%
def elements_written(g):
    """Elements that three stages write, a whole number."""
    return ...


check(elements_written)
