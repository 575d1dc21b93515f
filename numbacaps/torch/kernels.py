"""numbacaps' kernels on CUDA tensors: on PyTorch's current stream, in memory of PyTorch's allocator.

Results and workspaces are tensors, so PyTorch counts them, orders their reuse behind the stream, and keeps them for a
CUDA graph. Nothing waits for the GPU. What a call decides (kernels, tiles, tables of offsets) is kept by its shapes,
for the last 64 kinds of calls; what a CUDA graph has captured is kept until :func:`forget_captured`.
"""

from contextlib import nullcontext
from math import prod

import numpy as np
import torch

from numbacaps.arrays import Operand
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.compiled import run_as_argument
from numbacaps.device.streams import numba_stream
from numbacaps.device.target import cuda, current_device
from numbacaps.forms import form_of
from numbacaps.kept import PLANS, KeptPlans
from numbacaps.limits import check_limits
from numbacaps.plan import Plan
from numbacaps.signature import signature_of

_DTYPES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
_TENSORS = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}
_plans = KeptPlans(PLANS, 0)  # a plan's own workspaces stay empty
_captured = set()


def convolve(x, w, stride, padding, dilation, product, precision):
    """The output of a capsule convolution.

    Parameters
    ----------
    x, w : Tensor on one CUDA device
    stride, padding, dilation : sequence of two int
    product, precision : str

    Returns
    -------
    Tensor

    Raises
    ------
    TypeError, ValueError
        As :func:`numbacaps.capsule_conv2d`.
    RuntimeError
        The stream is captured, and there was no such call before.
    """
    how = stride, padding, dilation, product, precision
    with _Call(x.device, x.shape, w.shape, x.dtype, how, "forward") as call:
        y, out = call.result("y")
        if y.numel():
            operands = call.operand("x", x), call.operand("w", w), out
            call.plan.forward_operands(*operands, call.stream, room=call.room)
        return call.deliver("y", y)


def input_gradient(dy, w, x_shape, stride, padding, dilation, product, precision):
    """The gradient of x, for that of the output; as :func:`convolve`."""
    how = stride, padding, dilation, product, precision
    with _Call(dy.device, x_shape, w.shape, dy.dtype, how, "input") as call:
        call.check("dy", dy)
        dx, into = call.result("x")
        if dx.numel():
            operands = None, call.operand("w", w), call.operand("y", dy), into, None
            call.plan.backward_operands(*operands, call.stream, room=call.room)
        return call.deliver("x", dx)


def kernel_gradient(x, dy, w_shape, stride, padding, dilation, product, precision):
    """The gradient of w, for that of the output; as :func:`convolve`."""
    how = stride, padding, dilation, product, precision
    with _Call(x.device, x.shape, w_shape, x.dtype, how, "kernel") as call:
        call.check("dy", dy)
        dw, into = call.result("w")
        if x.numel():
            operands = call.operand("x", x), None, call.operand("y", dy), None, into
            call.plan.backward_operands(*operands, call.stream, room=call.room)
        else:
            dw.zero_()
        return call.deliver("w", dw)


def forget_captured():
    """Give back what captured calls read: no graph that has captured any may be replayed afterwards."""
    _captured.clear()


class _Call:
    """A call of one of the passes, on the device of its tensors."""

    def __init__(self, device, x_shape, w_shape, dtype, how, wanted):
        *moves, product, precision = how
        shapes = tuple(x_shape), tuple(w_shape)
        options = product, "auto", precision, None
        self._device, self._dtype = device, dtype
        self._of = signature_of(*shapes, dtype_of(_DTYPES[dtype]), *map(tuple, moves), *options)
        self._wanted, self._kept = wanted, []

    def __enter__(self):
        index = self._device.index
        self._on = nullcontext() if current_device() == index else cuda.gpus[index]
        self._on.__enter__()
        stream = torch.cuda.current_stream(self._device)
        self.stream = numba_stream(stream.cuda_stream)
        self.room = _Room(self._device)
        return self

    def __exit__(self, *exception):
        self._on.__exit__(*exception)

    @property
    def plan(self):
        """The plan of calls like this one."""
        s = self._of
        key = s, self._wanted, self._device.index
        captured = torch.cuda.is_current_stream_capturing()
        found = _plans.get(key, lambda: self._new_plan(captured))
        if captured:
            _captured.add(found)
        return found

    def _new_plan(self, captured):
        s = self._of
        if captured:
            raise RuntimeError(
                f"x {s.shapes['x']} by w {s.shapes['w']} is captured before it has run: call it once before, so that "
                "its kernels are compiled and its tables are on the GPU"
            )
        check_limits(s.geometry, s.algorithm, (self._wanted,))
        return Plan(s.geometry, s.dtype, s.algorithm, s.precision)

    def check(self, which, tensor):
        """Refuse a gradient that is not shaped like the output."""
        wanted = self._of.shapes["y"]
        if tuple(tensor.shape) != wanted:
            raise RuntimeError(f"{which} has shape {tuple(tensor.shape)}; it takes {wanted}")

    def operand(self, which, tensor):
        """A tensor as kernels read it: C-contiguous, its capsule axes in the kernels' order."""
        s = self._of
        tensor = tensor.detach()
        if not s.in_order[which]:
            tensor = tensor.permute(0, 1, 2, 3, *(4 + axis for axis in s.orders[which]))
        tensor = tensor.contiguous()
        self._kept.append(tensor)  # until everything is queued; then the allocator orders its reuse
        return self._described(which, tensor)

    def _described(self, which, tensor):
        form = form_of(self._of.layouts[which], None, self._of.dtype)
        return Operand(which, tensor, form, True, tensor.data_ptr())

    def result(self, which):
        """(a tensor for a result in the kernels' order, the same as an operand)."""
        s = self._of
        shape = s.shapes[which]
        if not s.in_order[which]:
            shape = shape[:4] + tuple(shape[4 + axis] for axis in s.orders[which])
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor, self._described(which, tensor)

    def deliver(self, which, tensor):
        """The result in the caller's order, contiguous."""
        s = self._of
        if s.in_order[which]:
            return tensor
        return tensor.permute(0, 1, 2, 3, *(4 + axis for axis in s.back[which])).contiguous()


class _Room:
    """Workspaces of one call, by name; see :class:`numbacaps.device.workspace.Workspaces`."""

    def __init__(self, device):
        self._device, self._held = device, []

    def __getitem__(self, name):
        return self

    def arguments(self, shapes, dtype):
        """New memory of some shapes, as arguments of kernels."""
        made = {}
        for name, shape in shapes.items():
            tensor = torch.empty(prod(shape), dtype=_TENSORS[dtype], device=self._device)
            self._held.append(tensor)
            made[name] = run_as_argument(tensor.data_ptr(), tensor.numel(), dtype.itemsize)
        return made
