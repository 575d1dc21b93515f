"""Whose host time is measured: calls of ours on arrays of three libraries, and the fold in eager PyTorch."""

from functools import partial

import numpy as np

import numbacaps
from experiments.measuring import opponents
from numbacaps.device.target import cuda
from numbacaps.extras import require

ARRAYS = ("torch", "cupy", "numba")
LAYOUTS = ("nchw", "channels_last")
OURS = (
    "plan",
    "capsule_conv2d",
    "gradients",
)  # a plan's call, the public function's, both gradients'
THEIRS = {"plan": "forward", "capsule_conv2d": "forward", "gradients": "gradients"}


def shapes(g):
    """(x, w, y) as a user has them: matrix capsules, without the axis G."""
    return [shape[:4] + shape[5:] for shape in (g.input_shape, g.kernel_shape, g.output_shape)]


def arrays_of(library, geometry):
    """(x, w, dy, y) of a library, float32, on the device.

    Raises
    ------
    ImportError
        The library is not here.
    """
    rng = np.random.default_rng(0)
    x, w, dy = (rng.standard_normal(shape, np.float32) for shape in shapes(geometry))
    to_device = {"torch": _to_torch, "cupy": _to_cupy, "numba": lambda: cuda.to_device}[library]()
    return [to_device(array) for array in (x, w, dy, np.zeros_like(dy))]


def _to_torch():
    opponents.torch_on_gpu()
    return lambda array: opponents.torch().from_numpy(array).cuda()


def _to_cupy():
    return require("cupy", "cublas", "host_cost with CuPy arrays").asarray


def ours(geometry, arrays, precision):
    """Our calls by name, each queued on the arrays' own stream."""
    x, w, dy, y = arrays
    moves = {"stride": geometry.stride, "padding": geometry.padding, "dilation": geometry.dilation}
    how = moves | {"precision": precision}
    plan = numbacaps.plan(*shapes(geometry)[:2], **how)
    return {
        "plan": partial(plan, x, w, y),
        "capsule_conv2d": partial(numbacaps.capsule_conv2d, x, w, **how),
        "gradients": partial(numbacaps.capsule_conv2d_backward, x, w, dy, **how),
    }


def fold(geometry, arrays, layout):
    """The same by eager PyTorch, capsule layout to capsule layout: forward, and autograd through it.

    Two permutes, conv2d in ``layout`` (one of :data:`LAYOUTS`), one permute; the gradients are those of a forward pass
    that has run.
    """
    torch, g = opponents.torch(), geometry
    x, w, dy, _ = arrays

    def forward(x, w):
        folded = opponents.fold(x.unsqueeze(4), g.input_shape, layout)
        kernel = opponents.fold_kernel(w.unsqueeze(4), g.kernel_shape, layout)
        y = torch.nn.functional.conv2d(folded, kernel, None, g.stride, g.padding, g.dilation)
        return opponents.unfold(y, g.output_shape).squeeze(4).contiguous()

    leaves = [array.detach().clone().requires_grad_() for array in (x, w)]
    y = forward(*leaves)
    return {
        "forward": partial(forward, x, w),
        "gradients": partial(torch.autograd.grad, y, leaves, dy, retain_graph=True),
    }
