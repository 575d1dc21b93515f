"""A call of a public function: check its arguments, bring its arrays to the device, deliver its results."""

import sys
from dataclasses import dataclass

import numpy as np

from numbacaps.algorithms.registry import ALGORITHMS, VOTES
from numbacaps.arrays import (
    Operand,
    check_out,
    check_together,
    describe,
    permuted,
    resolve_stream,
    to_canonical,
    to_canonical_on_host,
)
from numbacaps.device.allocation import new_array
from numbacaps.device.bfloat16 import to_device
from numbacaps.device.cupy_arrays import in_cupy, is_cupy
from numbacaps.device.keeping import keep
from numbacaps.device.streams import DEFAULT, follow, is_capturing, numba_stream
from numbacaps.device.target import cuda
from numbacaps.kept import kept_plan, settle
from numbacaps.limits import refuse_unaddressable
from numbacaps.signature import signature_of


@dataclass
class Result:
    """Where a result is written, and how it goes back to the caller.

    Attributes
    ----------
    operand : numbacaps.arrays.Operand or None
        On the device, C-contiguous, in the kernels' order of axes; None where the result is empty.
    shape : tuple of int
        As the caller sees it.
    order : tuple of int
        The caller's capsule axes, as numbers of the kernels'.
    out : numbacaps.arrays.Operand or None
        The caller's array for it.
    in_place : bool
        ``operand`` is what the caller gets.
    """

    operand: Operand | None
    shape: tuple
    order: tuple
    out: Operand | None = None
    in_place: bool = False


class Call:
    """A call whose arguments have been accepted; before, nothing is allocated or launched.

    It is used in a ``with`` block, behind which it keeps the copies that queued kernels read.

    Parameters
    ----------
    arrays : tuple
        (x, w), or (x, w, gradient of what the call is about).
    stride, padding, dilation, product, algorithm, precision, workspace_limit, stream
        As :func:`numbacaps.capsule_conv2d` takes them.
    about : str
        "y", "votes" or "summed_votes": the result, or whose gradient is given.
    outs : dict of str to (str, array or None), optional
        For a result that is to be written to a caller's array, that array's name in errors and the array.

    Raises
    ------
    TypeError, ValueError, RuntimeError, ImportError
        As :func:`numbacaps.capsule_conv2d`.
    """

    def __init__(
        self,
        arrays,
        stride,
        padding,
        dilation,
        product,
        *,
        algorithm,
        precision="auto",
        workspace_limit=None,
        about="y",
        outs=None,
        stream=None,
    ):
        names = "x", "w", "dy" if about == "y" else "dvotes"
        given = [describe(name, array) for name, array in zip(names, arrays)]
        x, w = given[0].form, given[1].form
        votes, passes = _wanted(about, is_gradient=len(given) > 2)
        options = product, algorithm, precision, workspace_limit, votes
        how = stride, padding, dilation, *options
        self.signature = signature_of(x.shape, w.shape, x.dtype, *how)
        shapes = self.signature.shapes
        for dy in given[2:]:
            if dy.shape != shapes[about]:
                raise ValueError(f"{dy.name} has shape {dy.shape}; it takes {shapes[about]}")
        algorithm = ALGORITHMS[self.signature.algorithm]
        self._on_host = algorithm.on_host and algorithm.stays_on_host(given[0])
        self.signature.check_limits(passes)
        self._outs = {}
        for which, (name, out) in (outs or {}).items():
            if out is not None:
                self._outs[which] = describe(name, out)
        operands = [*given, *self._outs.values()]
        check_together(operands)
        for i, (which, out) in enumerate(self._outs.items(), len(given)):
            check_out(out, shapes[which], operands[:i])
        self._given, self._about = given, about
        self.on_device = given[0].on_device  # as the results will be
        self._gives_cupy = "cupy" in sys.modules and is_cupy(given[0].array)
        self.stream = resolve_stream(stream, operands)
        if is_capturing(self.stream):
            raise ValueError(
                "stream is being captured; this function takes one that is not, because a graph reads memory that "
                "it frees: capture a call of numbacaps.plan(...) or numbacaps.routing_plan(...), which hold it"
            )
        self._copies, self._plans = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._copies:
            keep(self.stream, self._copies, sum(one.nbytes for one in self._copies))
        for plan in self._plans:
            settle(plan)

    def plan(self, signature=None):
        """The plan that runs it, or of another signature a part of it; behind the call it gives back what it does not keep."""
        found = kept_plan(signature or self.signature, self.stream)
        self._plans.append(found)
        return found

    def operands(self, unread=()):
        """The operands on the device in the kernels' layout; None for those named in ``unread``."""
        return [
            None if one.name in unread else self._canonical(one, which)
            for one, which in zip(self._given, ("x", "w", self._about))
        ]

    def _canonical(self, operand, which):
        """An operand on the device, C-contiguous, in the kernels' order of axes: as it lies, if it is that."""
        s = self.signature
        if operand.on_device and operand.form.is_contiguous and s.in_order[which]:
            return operand
        canonical = to_canonical_on_host if self._on_host else to_canonical
        array = canonical(operand, s.orders[which], s.layouts[which][-3:], self.stream)
        return describe(operand.name, self.passing(array))

    def passing(self, array):
        """An array of the call's own, which nobody holds behind it."""
        if not self._on_host:
            self._copies.append(array)
        return array

    def result(self, which):
        """Room for the gradient of x or w, for y or for votes: straight in the caller's array if that can be."""
        s, shape = self.signature, self.signature.shapes[which]
        order, out = s.back[which], self._outs.get(which)
        if s.is_empty and which != "w":
            return Result(None, shape, order, out)
        if out is not None and out.on_device and s.in_order[which] and not s.is_empty:
            return Result(out, shape, order, out, in_place=True)
        layout, in_place = s.layouts[which], False
        if self._on_host:
            refuse_unaddressable(which, layout, s.dtype)
            array = (np.zeros if s.is_empty else np.empty)(layout, s.dtype)
        elif s.is_empty:
            array = self.passing(to_device(np.zeros(layout, s.dtype), self.stream))
        else:
            in_place = out is None and self.on_device and s.in_order[which]
            of = shape if in_place else layout
            array = new_array(of, s.dtype, self.stream, self._given[0].array)
            if not in_place:
                self.passing(array)
        return Result(describe(which, array), shape, order, out, in_place)

    def deliver(self, result):
        """The result as the caller gets it: ``out``, or an array of the library that x is of; None for None."""
        if result is None:
            return None
        array = result.operand.array if result.in_place else self.moved(result)
        return self.as_given(array) if self._gives_cupy and result.out is None else array

    def as_given(self, array):
        """A result in no array of the caller's: CuPy's where x is, in the same memory; others as they are."""
        if not self._gives_cupy:
            return array
        x = self._given[0]
        # CuPy's arrays name no stream: whoever takes this one is on the stream that is current there
        own = int(self.stream) if self.stream else DEFAULT if x.stream else 0
        follow(numba_stream(x.stream), (own,))
        return in_cupy(array)

    def moved(self, result):
        """A result that was written elsewhere, brought to ``out`` or to a NumPy or Numba array of the caller's shape."""
        out = result.out
        if result.operand is None:
            return self._empty(result)
        shape, axes = _kernels_axes(result)
        if self.on_device:
            array = permuted(result.operand.array, shape, axes, self.stream, out)
            # whoever takes it next is ordered behind the stream
            return array.bind(self.stream) if out is None else out.array
        host = result.operand.array
        if not self._on_host:
            host = host.copy_to_host(stream=self.stream)
            if self.stream:
                self.stream.synchronize()
        host = host.reshape(shape).transpose(axes)
        if out is None:
            return np.ascontiguousarray(host)
        out.array[...] = host
        return out.array

    def _empty(self, result):
        """A result with no elements."""
        if result.out is not None:
            return result.out.array
        first = self._given[0]
        if first.on_device:
            return cuda.device_array(result.shape, first.dtype)
        refuse_unaddressable("the result", result.shape, first.dtype)
        return np.empty(result.shape, first.dtype)


def _wanted(about, is_gradient):
    """(what a call wants of votes, its passes of :data:`numbacaps.limits.PASSES`)"""
    if about == "y":
        return "", ("input", "kernel") if is_gradient else ("forward",)
    votes, summed, gradients = VOTES
    if is_gradient:
        return gradients, ("votes_gradients",)
    return votes if about == "votes" else summed, (about,)


def _kernels_axes(result):
    """(the caller's shape with its axes in the kernels' order, the permutation back)."""
    lead = len(result.shape) - len(result.order)
    axes = (*range(lead), *(lead + axis for axis in result.order))
    shape = [0] * len(axes)
    for mine, theirs in enumerate(axes):
        shape[theirs] = result.shape[mine]
    return tuple(shape), axes
