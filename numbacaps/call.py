"""A call of a public function: its arguments accepted, its arrays on the device, its results delivered."""

from dataclasses import dataclass

import numpy as np

from numbacaps.algorithms.registry import ALGORITHMS, find_algorithm, resolve
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
from numbacaps.device.bfloat16 import to_device
from numbacaps.device.target import check_target, cuda
from numbacaps.device.workspace import check_limit
from numbacaps.limits import check_limits
from numbacaps.plan import kept_plan
from numbacaps.product import inverse, parse_product
from numbacaps.shapes import geometry_of, output_shape


@dataclass(frozen=True)
class Result:
    """Where a result is written, and how it goes back to the caller.

    Attributes
    ----------
    array : device array or None
        In the kernels' layout; None where the result is empty.
    shape : tuple of int
        As the caller sees it.
    order : tuple of int
        The caller's capsule axes, as numbers of the kernels'.
    out : numbacaps.arrays.Operand or None
        The caller's array for it.
    in_place : bool
        ``array`` is the memory of ``out``.
    """

    array: object
    shape: tuple
    order: tuple
    out: Operand | None = None
    in_place: bool = False


class Call:
    """A call whose arguments have been accepted; before, nothing is allocated or launched.

    Parameters
    ----------
    arrays : tuple
        (x, w) or (x, w, dy).
    stride, padding, dilation, product, algorithm, precision, workspace_limit, out, stream
        As :func:`numbacaps.capsule_conv2d` takes them.
    votes : bool
        The result is the votes.

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
        precision="ieee",
        workspace_limit=None,
        out=None,
        stream=None,
        votes=False,
    ):
        given = [describe(name, array) for name, array in zip(("x", "w", "dy"), arrays)]
        x, w = given[:2]
        self._given, self._product = given, parse_product(product)
        self.geometry = geometry_of(x.shape, w.shape, self._product, stride, padding, dilation)
        self._limit = check_limit(workspace_limit)
        for dy in given[2:]:
            if dy.shape != self._shape("y"):
                raise ValueError(f"dy has shape {dy.shape}; it takes {self._shape('y')}")
        self._algorithm, self._precision = resolve(algorithm, votes), precision
        self._on_host = ALGORITHMS[self._algorithm].stays_on_host(x)
        if not self._on_host:
            check_target()
        check_together(given)
        find_algorithm(algorithm, x.dtype, precision, votes)
        passes = ("votes",) if votes else ("input", "kernel") if len(given) > 2 else ("forward",)
        check_limits(self.geometry, self._algorithm, passes)
        self._out = None
        if out is not None:
            self._out = describe("out", out)
            check_together([x, self._out])
            check_out(self._out, self._shape("votes" if votes else "y"), given)
        arrays = given if out is None else [*given, self._out]
        self.stream = resolve_stream(stream, arrays)

    @property
    def is_empty(self):
        """There are no images."""
        return self.geometry.N == 0

    def _shape(self, which):
        """Shape of x, w, y or the votes, as the caller sees it."""
        x, w = self._given[:2]
        if which in "xw":
            return (x if which == "x" else w).shape
        y = output_shape(self.geometry, self._product, x.shape, w.shape)
        return y if which == "y" else self.geometry.votes_shape[:7] + y[4:]

    def plan(self):
        """The plan that runs it."""
        dtype, how = self._given[0].dtype, (self._algorithm, self._precision, self._limit)
        return kept_plan(self.geometry, dtype, *how, self.stream)

    def operands(self, unread=()):
        """The operands on the device in the kernels' layout; None for those named in ``unread``."""
        g, product = self.geometry, self._product
        layouts = (
            (product.x_order, g.input_shape[4:]),
            (product.w_order, g.kernel_shape[4:]),
            (product.y_order, g.output_shape[4:]),
        )
        canonical = to_canonical_on_host if self._on_host else to_canonical
        return [
            None if one.name in unread else canonical(one, order, capsule, self.stream)
            for one, (order, capsule) in zip(self._given, layouts)
        ]

    def result(self, which):
        """Room for the gradient of x or w, for y or for the votes: straight in ``out`` if that can be."""
        g, product, shape = self.geometry, self._product, self._shape(which)
        order = {"x": product.x_order, "w": product.w_order}.get(which, product.y_order)
        out = self._out if which in ("y", "votes") else None
        if self.is_empty and which != "w":
            return Result(None, shape, inverse(order), out)
        layout = {"x": g.input_shape, "w": g.kernel_shape, "y": g.output_shape}
        layout = layout.get(which, g.votes_shape)
        if out is not None and out.on_device and order == tuple(range(len(order))):
            array = to_canonical(out, tuple(range(out.rank - 4)), layout[4:], self.stream)
            return Result(array, shape, inverse(order), out, in_place=True)
        if self._on_host:
            array = (np.zeros if self.is_empty else np.empty)(layout, self._given[0].dtype)
        elif self.is_empty:
            array = to_device(np.zeros(layout, self._given[0].dtype), self.stream)
        else:
            array = cuda.device_array(layout, self._given[0].dtype, stream=self.stream)
        return Result(array, shape, inverse(order), out)

    def deliver(self, result):
        """The result in the caller's shape, order of capsule axes and place; None for None."""
        if result is None:
            return None
        out, on_device = result.out, self._given[0].on_device
        if result.array is None:
            return self._empty(result)
        if result.in_place:
            return out.array
        shape, axes = _kernels_axes(result)
        if on_device:
            array = permuted(result.array, shape, axes, self.stream)
            if out is None:
                return array.bind(self.stream)  # whoever takes it next is ordered behind the stream
            out.reshaped(out.shape).copy_to_device(array, stream=self.stream)
            return out.array
        host = result.array
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
        return np.empty(result.shape, first.dtype)


def _kernels_axes(result):
    """(the caller's shape with its axes in the kernels' order, the permutation back)."""
    lead = len(result.shape) - len(result.order)
    axes = (*range(lead), *(lead + axis for axis in result.order))
    shape = [0] * len(axes)
    for mine, theirs in enumerate(axes):
        shape[theirs] = result.shape[mine]
    return tuple(shape), axes
