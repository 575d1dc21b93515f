"""numbacaps' kernels on CUDA tensors: on PyTorch's current stream, in memory of PyTorch's allocator.

Results and workspaces are tensors, so PyTorch counts them, orders their reuse behind the stream, and keeps them for a
CUDA graph. Nothing waits for the GPU. What a call decides (kernels, tiles, tables of offsets) is kept by its shapes,
for the last 256 kinds of calls; what a CUDA graph has captured is kept until :func:`forget_captured`. Of kernels that
are said to stay as they are the packed copies are kept (:mod:`numbacaps.torch.packings`); captured calls pack in the graph,
so a replay reads the kernel as it is then.
"""

from contextlib import nullcontext
from functools import lru_cache
from math import prod

import numpy as np
import torch

from numbacaps.algorithms.registry import VOTES
from numbacaps.arrays import Operand
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.compiled import launch_stream, run_as_argument
from numbacaps.device.instructions import CHUNK
from numbacaps.device.streams import identity, numba_stream, torch_stream
from numbacaps.device.target import cuda, current_device
from numbacaps.kept import PLANS, cleared_too
from numbacaps.last_used import LastUsed
from numbacaps.plan import Plan
from numbacaps.signature import signature_of
from numbacaps.torch.closed import no_view
from numbacaps.torch.packings import Packings

_DTYPES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
TENSORS = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}
_KINDS = 256  # of calls that are kept
_plans = LastUsed(_KINDS, 0)  # a plan's own workspaces stay empty
_captured = set()
_packings = Packings(PLANS)
cleared_too(lambda: (_plans.clear(), _packings.clear(), _signature.cache_clear()))


def convolve(x, w, how, rooms=None):
    """The output of a capsule convolution.

    Parameters
    ----------
    x, w : Tensor on one CUDA device
    how
        stride, padding, dilation, sequences of two int; product, precision; and keep_packed: ``w`` stays as it is, as far
        as its version counter tells, and what is packed of it is kept for the next call.
    rooms : SharedRooms, optional
        Workspaces of calls that have the same ``w``.

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
    *how, keep_packed = how
    with Call(x, x.shape, w.shape, x.dtype, how, "forward") as call:
        y, out = call.result("y")
        if y.numel():
            operands = call.operand("x", x), call.operand("w", w), out
            with call.packing(w, keep_packed, rooms) as where:
                call.plan.forward_operands(*operands, call.stream, **where)
        return call.deliver("y", y)


def input_gradient(dy, w, x_shape, how, rooms=None):
    """The gradient of x, for that of the output; as :func:`convolve`."""
    *how, keep_packed = how
    with Call(dy, tuple(x_shape), w.shape, dy.dtype, how, "input") as call:
        call.check("dy", dy)
        dx, into = call.result("x")
        if dx.numel():
            operands = None, call.operand("w", w), call.operand("y", dy), into, None
            with call.packing(w, keep_packed, rooms) as where:
                call.plan.backward_operands(*operands, call.stream, **where)
        return call.deliver("x", dx)


def kernel_gradient(x, dy, w_shape, how):
    """The gradient of w, for that of the output; as :func:`convolve`."""
    *how, _ = how
    with Call(x, x.shape, tuple(w_shape), x.dtype, how, "kernel") as call:
        call.check("dy", dy)
        dw, into = call.result("w")
        if x.numel():
            operands = call.operand("x", x), None, call.operand("y", dy), None, into
            call.plan.backward_operands(*operands, call.stream, room=_Room(call.device))
        else:
            dw.zero_()
        return call.deliver("w", dw)


def votes(x, w, how):
    """The votes; as :func:`convolve`, but that ``how`` ends with sum_window, whether they are summed over the window."""
    *how, sum_window = how
    about = _about(sum_window)
    with Call(x, x.shape, w.shape, x.dtype, how, "forward", about) as call:
        made, out = call.result(about)
        if made.numel():
            operands = call.operand("x", x), call.operand("w", w), out
            call.plan.votes_operands(*operands, call.stream, sum_window)
        return call.deliver(about, made)


def votes_input_gradient(dvotes, w, x_shape, how):
    """The gradient of x, for that of the votes; as :func:`votes`."""
    *how, sum_window = how
    about = _about(sum_window)
    with Call(dvotes, tuple(x_shape), w.shape, dvotes.dtype, how, "input", about) as call:
        call.check("dvotes", dvotes)
        dx, into = call.result("x")
        if dx.numel():
            operands = None, call.operand("w", w), call.operand(about, dvotes), into, None
            call.plan.votes_backward_operands(*operands, call.stream, sum_window)
        return call.deliver("x", dx)


def votes_kernel_gradient(x, dvotes, w_shape, how):
    """The gradient of w, for that of the votes; as :func:`votes`."""
    *how, sum_window = how
    about = _about(sum_window)
    with Call(x, x.shape, tuple(w_shape), x.dtype, how, "kernel", about) as call:
        call.check("dvotes", dvotes)
        dw, into = call.result("w")
        if x.numel():
            operands = call.operand("x", x), None, call.operand(about, dvotes), None, into
            call.plan.votes_backward_operands(*operands, call.stream, sum_window)
        else:
            dw.zero_()
        return call.deliver("w", dw)


def _about(sum_window):
    return "summed_votes" if sum_window else "votes"


def forget_captured():
    """Give back what captured calls read: no graph that has captured any may be replayed afterwards."""
    _captured.clear()


def forget_packed(w):
    """Give back the packed copies of a kernel: the next call packs it anew."""
    _packings.forget(w)


@lru_cache(_KINDS)
def _signature(x_shape, w_shape, dtype, stride, padding, dilation, product, precision, votes):
    """The signature of calls that are alike."""
    shapes, options = (tuple(x_shape), tuple(w_shape)), (product, "auto", precision, None, votes)
    return signature_of(*shapes, dtype_of(_DTYPES[dtype]), stride, padding, dilation, *options)


class Place:
    """The device and the current stream of a tensor; a ``with`` block in which the device is the current one.

    Attributes
    ----------
    index : int
        Of the device.
    stream : Numba stream or 0
    """

    def __init__(self, beside):
        self._beside, self.index = beside, beside.get_device()

    def __enter__(self):
        self._elsewhere = None
        if current_device() != self.index:
            self._elsewhere = cuda.gpus[self.index]
            self._elsewhere.__enter__()
        self.stream = numba_stream(torch_stream(self._beside))
        return self

    def __exit__(self, *exception):
        if self._elsewhere is not None:
            self._elsewhere.__exit__(*exception)

    @property
    def device(self):
        """PyTorch's name of it."""
        return self._beside.device

    @property
    def launch_stream(self):
        """The stream as prepared launches take it."""
        return launch_stream(self.stream)


def argument(tensor):
    """A contiguous tensor as kernels take it; see :mod:`numbacaps.device.compiled`."""
    return run_as_argument(tensor.data_ptr(), tensor.numel(), tensor.itemsize)


class _Operand(Operand):
    """A tensor on a CUDA device. Every call makes some, so few attributes are set."""

    on_device, stream, read_only, _ordinal = True, None, False, None

    def __init__(self, name, tensor, form):
        self.name, self.array, self.form, self.address = name, tensor, form, tensor.data_ptr()


class Call(Place):
    """A call of one of the passes, on the device and the current stream of a tensor.

    ``wanted`` is "forward", "input" or "kernel"; ``about`` is "y", "votes" or "summed_votes": what forward makes, or whose
    gradient is given.
    """

    def __init__(self, beside, x_shape, w_shape, dtype, how, wanted, about="y"):
        stride, padding, dilation, product, precision = how
        votes, self._limits = _WANTED[about, wanted == "forward"]
        super().__init__(beside)
        moves = tuple(stride), tuple(padding), tuple(dilation)
        self._of = _signature(x_shape, w_shape, dtype, *moves, product, precision, votes)
        self._about, self._wanted, self._kept, self._plan = about, wanted, [], None

    def __enter__(self):
        super().__enter__()
        self._captured = torch.cuda.is_current_stream_capturing()
        return self

    @property
    def plan(self):
        """The plan of calls like this one."""
        found = self._plan
        if found is None:
            found = self._plan = _plans.get(self._key, self._new_plan)
            if self._captured:
                _captured.add(found)
        return found

    @property
    def _key(self):
        return self._of, self._wanted, self._about, self.index

    def _check_has_run(self):
        """Refuse to decide anything while the stream is captured."""
        s = self._of
        if self._captured:
            raise RuntimeError(
                f"x {s.shapes['x']} by w {s.shapes['w']} is captured before it has run: call it once before, so that "
                "its kernels are compiled and its tables are on the GPU"
            )

    def _new_plan(self):
        s = self._of
        self._check_has_run()
        s.check_limits(self._limits or (self._wanted,))
        return self._decided()

    def _decided(self):
        """What calls like this one decide."""
        s = self._of
        return Plan(s.geometry, s.dtype, s.algorithm, s.precision, votes=s.votes)

    def packing(self, w, keep, rooms=None):
        """A ``with`` block in which the pass is launched: its workspaces, and whether ``w`` lies packed there."""
        keeps = keep and not self._captured and self.plan.packs(self._wanted)
        if rooms is None and not keeps:
            return _Room(self.device)
        # Arrays that begin elsewhere than copies want are multiplied by ordinary arithmetic, which packs nothing.
        is_aligned = all(tensor.data_ptr() % CHUNK == 0 for tensor in self._kept)
        if rooms is not None:
            return nullcontext(rooms.of((self._key, is_aligned), self.plan.packs(self._wanted)))
        key = *self._key, is_aligned, identity(self.stream)
        return _packings.room(w, key, lambda: _Room(self.device))

    def check(self, which, tensor):
        """Refuse a gradient that is not shaped like what it is of."""
        wanted = self._of.shapes[self._about]
        if tensor.shape != wanted:
            raise RuntimeError(f"{which} has shape {tuple(tensor.shape)}; it takes {wanted}")

    def in_order(self, which, tensor):
        """A tensor whose capsule axes are in the kernels' order."""
        s = self._of
        return tensor if s.in_order[which] else _permuted(tensor.detach(), s.orders[which])

    def operand(self, which, tensor):
        """A tensor as kernels read it: C-contiguous, its capsule axes in the kernels' order."""
        tensor = self.in_order(which, tensor)
        if not tensor.is_contiguous():
            tensor = tensor.detach().contiguous()
        self._kept.append(tensor)  # until everything is queued; then the allocator orders its reuse
        return self._described(which, tensor)

    def _described(self, which, tensor):
        return _Operand(which, tensor, self._of.forms[which])

    def result(self, which):
        """(a tensor for a result in the kernels' order, the same as an operand)."""
        like = self._of.contiguous[which]
        tensor = self._beside.new_empty_strided(*like)  # faster than new_empty
        return tensor, self._described(which, tensor)

    def deliver(self, which, tensor):
        """The result in the caller's order, contiguous."""
        s = self._of
        if s.in_order[which]:
            return tensor
        return no_view(_permuted(tensor, s.back[which]).contiguous())


_OF_VOTES, _OF_SUMS, _OF_GRADIENTS = VOTES
# (what a call is about, whether it goes forward) to what it wants of votes, and its passes of
# numbacaps.limits.PASSES, where these are not the call's own.
_WANTED = {
    ("y", True): ("", ()),
    ("y", False): ("", ()),
    ("votes", True): (_OF_VOTES, ("votes",)),
    ("votes", False): (_OF_GRADIENTS, ("votes_gradients",)),
    ("summed_votes", True): (_OF_SUMS, ("summed_votes",)),
    ("summed_votes", False): (_OF_GRADIENTS, ("votes_gradients",)),
}


def _permuted(tensor, order):
    """The capsule's axes, the last ones, in another order."""
    lead = tensor.dim() - len(order)
    return tensor.permute(*range(lead), *(lead + axis for axis in order))


class SharedRooms:
    """Workspaces that calls on one stream take in turns: of those that are alike, and have the same kernel, the first packs it."""

    def __init__(self, device):
        self._device, self._rooms = device, {}

    def of(self, key, packs):
        """Those of a kind of calls, which reads a packed copy of the kernel or not; and whether that is there."""
        packed = packs and key in self._rooms
        room = self._rooms.setdefault(key, _Room(self._device))
        return {"packed": packed, "room": room}


class _Room:
    """Workspaces of one pass, made when they are asked for; see :class:`numbacaps.device.workspace.Workspaces`.

    As a ``with`` block it is what :meth:`Call.packing` gives where nothing lies packed.
    """

    def __init__(self, device):
        self._device, self._held, self._made = device, [], None

    def __enter__(self):
        return {"packed": False, "room": self}

    def __exit__(self, *exception):
        pass

    def __getitem__(self, name):
        return self

    def arguments(self, shapes, dtype):
        """Memory of some shapes, as arguments of kernels; the same at every call."""
        if self._made is None:
            self._made = {name: self._new(prod(shape), dtype) for name, shape in shapes.items()}
        return self._made

    def _new(self, size, dtype):
        tensor = torch.empty(size, dtype=TENSORS[dtype], device=self._device)
        self._held.append(tensor)
        return argument(tensor)
