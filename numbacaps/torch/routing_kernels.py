"""Routing on CUDA tensors, as the convolution (:mod:`numbacaps.torch.kernels`): on PyTorch's current stream, in its memory.

A runner is kept for each kind of call, and what it launches is written down at the first one (:mod:`numbacaps.device.recorded`).
Each call has a workspace of its own. Operands are widened to the dtype of sums, and results narrowed, by PyTorch and by the
kernels, so that all of it can be captured. Votes that are summed over the window are those of :mod:`numbacaps.torch.routing_bands`.
"""

from math import prod
from typing import NamedTuple

import numpy as np
import torch

from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.instructions import CHUNK
from numbacaps.device.recorded import StandIn
from numbacaps.routing.call import children_of, shapes_of_operands
from numbacaps.routing.options import check_given
from numbacaps.routing.runner import Runner, kept_states
from numbacaps.torch.kernels import TENSORS, Call

KEEP_OF_BATCH = 2  # which states are kept (:func:`route`)
_OF_EM = {"activations": torch.ones, "beta_u": torch.zeros, "beta_a": torch.zeros}


def route(x, w, more, options, window, precision, keep):
    """Capsules, and of EM routing activations.

    Parameters
    ----------
    x, w : Tensor on one CUDA device, of one or more images
    more : dict of str to Tensor
        Of activations, beta_u, beta_a and logits those that are given.
    options : numbacaps.routing.options.Options
    window : tuple
        stride, padding, dilation, product.
    precision : str
        As :func:`numbacaps.capsule_routing`.
    keep : int
        0, or where the gradient is wanted, too, which states are kept for it: 1, those that are small beside x, or
        :data:`KEEP_OF_BATCH`, also those of a batch that are small.

    Returns
    -------
    (Tensor (N, P, OH, OW, *T3), Tensor (N, P, OH, OW) or None, Tensor (N, numbers) or None)
        The last one for :func:`gradients`.

    Raises
    ------
    TypeError, ValueError
        As :func:`numbacaps.capsule_routing`.
    RuntimeError
        The stream is captured, and there was no such call before.
    """
    with RoutingCall(x, w, more, options, window, precision, "forward") as call:
        y, a = call.new_result("y"), None
        results = [call.array(y, call.parents)]
        if options.is_em:
            a = call.new("d_activations")
            results.append(call.array(a, call.parents[:3]))
        states = call.new_states(keep) if keep else None
        call.launch("forward", *call.operands(), results, states=call.states(states))
        return call.deliver("y", y), a, states


def gradients(x, w, dy, d_activations, states, more, options, window, precision):
    """The gradients of x, w and what is given besides, by name, for those of the results; as :func:`route`.

    ``states`` is None where :func:`route` has left none.
    """
    with RoutingCall(x, w, more, options, window, precision, "backward") as call:
        call.check("dy", dy)
        d_results = {"d_activations": d_activations} if options.is_em else {}
        call.check_shapes(d_results)
        given = [call.array(call.in_order("y", dy), call.parents)]
        given += [call.array(one, call.parents[:3]) for one in d_results.values()]
        own = {name: call.new(name) for name in (_OF_EM if options.is_em else more)}
        of_own = [call.array(one, call.seen(name)) for name, one in own.items()] or [None]
        arguments = *call.operands(), given, *call.into(), of_own
        call.launch("backward", *arguments, states=call.states(states))
        return {**call.gradients(), **own}


class RoutingCall(Call):
    """A call of routing, ``wanted`` "forward" or "backward"."""

    def __init__(self, x, w, more, options, window, precision, wanted):
        super().__init__(x, x.shape, w.shape, x.dtype, (*window, "auto"), wanted)
        if wanted == "backward":
            self._limits = "input", "kernel"
        self._x, self._w, self._more, self._options = x, w, more, options
        self._precision = precision
        self._memories = []  # tensors that kernels read or write
        self.geometry = g = self._of.geometry
        self._shapes, self.parents = shapes_of_operands(g, options), (g.N, g.P, g.L, g.E3)
        check_given(more, options)
        self.check_shapes(more)

    @property
    def _key(self):
        return *super()._key, self._options, self._precision, tuple(self._more)

    def _decided(self):
        how = self.geometry, self._of.dtype, self._options
        keeps = self._numbers_kept(KEEP_OF_BATCH) > 0
        return Runner(*how, precision=self._precision, keeps=keeps)

    def launch(self, method, *arguments, states):
        """Launch what a method of the runner launches. ``arguments`` has memories (:meth:`array`) in the place of arrays."""
        addresses = [one.data_ptr() for one in self._memories]
        key = tuple(address % CHUNK == 0 for address in addresses), states is None
        recording = self.plan.recorded(key)
        if recording is None:
            self._check_has_run()
            recording = self.plan.recording(key, method, *_stood_in((arguments, states), key[0]))
        memories = {str(i): memory_of(one) for i, one in enumerate(self._memories)}
        nbytes, firsts = recording.one_workspace
        whole = new_bytes(nbytes, self.device)
        self._kept.append(whole)
        for name, first in firsts.items():
            memories[name] = memory_of(whole, first)
        recording.repeat(self.stream, memories)

    def check_shapes(self, tensors):
        """Refuse operands besides x and w that do not fit them."""
        for name, tensor in tensors.items():
            if tuple(tensor.shape) != self._shapes[name]:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}; it takes {self._shapes[name]}"
                )

    def _numbers_kept(self, keep):
        """Numbers of an image's states that are kept."""
        g, sums = self.geometry, sum_dtype(self._of.dtype)
        images = g.N if keep == KEEP_OF_BATCH else None
        return kept_states(g, self._options, self._precision, sums.itemsize, images)

    def new_states(self, keep):
        """A tensor for the states that are kept for the gradient; None where none are."""
        g, sums = self.geometry, self.plan.shape.sums
        numbers = self._numbers_kept(keep)
        how = {"dtype": TENSORS[sums], "device": self.device}
        return torch.empty((g.N, numbers), **how) if numbers else None

    def states(self, tensor):
        """Kept states for :meth:`launch`, None for none."""
        if tensor is None:
            return None
        return self.array(tensor, tuple(tensor.shape), self.plan.shape.sums)

    def new(self, name):
        """A tensor of an operand's shape, and of x's dtype."""
        return torch.empty(self._shapes[name], dtype=self._x.dtype, device=self.device)

    def seen(self, name):
        """An operand's shape as the kernels have it."""
        g = self.geometry
        children = prod(children_of(g, self._options))
        return (g.P, children) if name == "logits" else self._shapes[name]

    def new_result(self, which):
        """A tensor for a result in the kernels' order."""
        return self.result(which)[0]

    def array(self, tensor, shape, dtype=None):
        """The memory of a tensor, which is made contiguous, under a shape: an argument of :meth:`launch`."""
        self._memories.append(tensor if tensor.is_contiguous() else tensor.contiguous())
        return _Memory(len(self._memories) - 1, shape, dtype or self._of.dtype)

    def operands(self):
        """x, w and what the routing takes besides, in the dtype of sums."""
        g = self.geometry
        x = self.array(self.in_order("x", self._x), g.input_shape)
        w = self.array(self.in_order("w", self._w), g.kernel_shape)
        return x, w, self.others()

    def others(self):
        """What the routing takes besides x and w, in the dtype of sums."""
        if not self._options.is_em:
            return (self._wide("logits") if self._more else None,)
        return tuple(map(self._wide, _OF_EM))

    def into(self):
        """Where the gradients of x and w are written."""
        g, (self._dx, self._dw) = self.geometry, map(self.new_result, ("x", "w"))
        return self.array(self._dx, g.input_shape), self.array(self._dw, g.kernel_shape)

    def gradients(self):
        """Those of x and w, by name, once they are written."""
        return {"x": self.deliver("x", self._dx), "w": self.deliver("w", self._dw)}

    def _wide(self, name):
        sums = self.plan.shape.sums
        how = {"dtype": TENSORS[sums], "device": self.device}
        given = self._more.get(name)
        tensor = _OF_EM[name](self._shapes[name], **how) if given is None else given.to(**how)
        return self.array(tensor, self.seen(name), sums)


class _Memory(NamedTuple):
    """What a kernel reads or writes: the number of a call's tensor, under a shape and a dtype."""

    number: int
    shape: tuple
    dtype: np.dtype


def _stood_in(arguments, aligned):
    """Arguments with stand-ins in the place of memories.

    ``aligned[number]`` says whether the memory of that number begins at a multiple of 16 bytes.
    """
    if isinstance(arguments, _Memory):
        number, shape, dtype = arguments
        return StandIn(str(number), 0, tuple(shape), dtype, aligned[number])
    if isinstance(arguments, (tuple, list)):
        return tuple(_stood_in(one, aligned) for one in arguments)
    return arguments


def memory_of(tensor, first=0):
    """Where a byte of a tensor's memory is."""
    return tensor.data_ptr() + first


def new_bytes(count, device):
    """A tensor of ``count`` bytes."""
    return torch.empty(count, dtype=torch.uint8, device=device)
