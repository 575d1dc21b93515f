"""Either pass by one kernel, for a network that fits in a multiprocessor."""

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from numbacaps.device.gpu import multiprocessors
from numbacaps.device.launch import launch_tiles
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused.choose_split_k import split_k_beside
from numbacaps.fused.precision import TERMS, has_warpgroups
from numbacaps.fused.rung_3_register_tiles.split_k import ADD_THREADS
from numbacaps.nn.convolution import Convolution
from numbacaps.nn.kernels.margin_loss import margin_loss
from numbacaps.nn.passes import BackwardPass, ForwardPass
from numbacaps.nn.protocol import Backward, Forward, differentiate
from numbacaps.nn.resident.backward_loss import make_loss
from numbacaps.nn.resident.forward_layout import precision_of
from numbacaps.nn.resident.launches import (
    compiled_backward,
    compiled_forward,
    compiled_sum,
    grid_of,
    parts_of,
)
from numbacaps.nn.resident.layout import layout_of
from numbacaps.nn.resident.packed_kernels import PackedKernels

_MOST_ROUNDS = 2  # images of a multiprocessor in three terms, no gradients wanted; everywhere else it is faster


def forward_pass(layers, N, dtype, for_gradients=True) -> Forward:
    """The forward pass of a batch size that should take the least time.

    Parameters
    ----------
    layers, N, dtype, for_gradients
        As those of :class:`numbacaps.nn.passes.ForwardPass`.
    """
    why = why_layered(layers, N, dtype, for_gradients)
    if why:
        return ForwardPass(layers, N, dtype, for_gradients, why=why)
    return ResidentPass(layers, N, dtype, for_gradients)


def why_layered(layers, N, dtype, for_gradients):
    """Why a batch passes layer by layer; None where it passes as one kernel. For gradients it is the same of all ``N``."""
    why = why_not(layers, dtype)
    if for_gradients:  # each backward pass reads what its own forward pass leaves
        return why or layout_of(layers).why_no_backward
    return why or _why_slow(layout_of(layers).forward, N)


def backward_pass(forward) -> Backward:
    """The backward pass behind a forward pass."""
    resident = isinstance(forward, ResidentPass)
    return ResidentBackwardPass(forward) if resident else BackwardPass(forward)


def _why_slow(layout, N):
    """Why kernels that take all images at once are faster, layer by layer; None where they are not."""
    most = _MOST_ROUNDS * multiprocessors()
    if layout.terms == 1 or N <= most:
        return None
    return f"{N} images in three terms are more than {most}, {_MOST_ROUNDS} a multiprocessor"


def why_not(layers, dtype) -> str | None:
    """Why one kernel cannot compute a network; None where it can."""
    if SIMULATED or not has_warpgroups():
        return "only a GPU of compute capability 9.0 has warpgroup products"
    if dtype != np.float32:
        return f"dtype is {dtype}"
    return layout_of(layers).why_not


class ResidentPass:
    """The forward pass of a network that can stay in a multiprocessor; a block takes image after image.

    A :class:`numbacaps.nn.protocol.Forward`. Sums before activations never leave the multiprocessor: gradients read
    the outputs and the squashes' slopes.

    Parameters
    ----------
    layers, N, dtype, for_gradients
        As those of :class:`numbacaps.nn.passes.ForwardPass`. Where it is not for gradients, of the outputs only
        the last one is written.

    Attributes
    ----------
    placed : sequence of PlacedLayer
    layout : numbacaps.nn.resident.layout.Layout
    images : int
    slopes : list of device array (N, groups, 2)
        Of every layer's squash; see :func:`numbacaps.fused.activation.squash_slopes_of_result`.
    all_slopes, all_outputs : device array
        ``slopes`` and ``outputs``, one behind the other.
    packed : PackedKernels
    """

    capturable = True

    def __init__(self, layers, N, dtype, for_gradients=True):
        self.placed, self.images = layers, N
        self.layers, self.layout = [one.layer for one in layers], layout_of(layers)
        shapes = [(N, prod(one.output_shape)) for one in layers]
        written = shapes if for_gradients else shapes[-1:]
        self.all_outputs, outputs = _one_behind_the_other(written, dtype)
        self.outputs = [None] * (len(shapes) - len(written)) + outputs
        classes = layers[-1].layer.channels
        self.lengths = cuda.device_array((N, classes), dtype)
        self.packed = PackedKernels(layers, self.layout, for_gradients)
        kept = self.layout.forward.outputs if for_gradients else ()
        self.all_slopes, self.slopes = _one_behind_the_other(
            [(N, one.groups, 2) for one in kept], dtype
        )
        self._kernel = compiled_forward(self.layout.forward, classes, for_gradients)

    def pack(self, state, beside):
        """Queue the packing of all kernels, for both passes."""
        self.packed.pack(state, beside.stream)

    def launch(self, x, state, beside):
        """Queue the pass, behind what was packed."""
        arrays = x, state.kernels[0], self.packed.forward, self.all_slopes, self.all_outputs
        arguments = *arrays, self.lengths, self.images
        grid, block, shared = grid_of(self.layout.forward, self.images)
        launch_tiles(self._kernel, grid, block, arguments, beside.stream, shared)

    def explain(self) -> str:
        """A line: what the kernel is made of."""
        forward = self.layout.forward
        products = ", ".join(
            f"{one.rows.count} rows by {one.BN}"
            if one.schedule.swapped
            else f"{one.schedule.tiles} times 64 by {one.BN}"
            for one in forward.layers
        )
        return (
            f"all layers in one kernel, an image in a multiprocessor: {forward.pipeline.warpgroups} "
            f"warpgroups, products of {products} columns, {forward.terms} terms, "
            f"{forward.pipeline.early} rows of taps ahead"
        )

    def __repr__(self):
        return f"<ResidentPass of {self.images} images: {self.explain()}>"


class ResidentBackwardPass:
    """The backward pass of a network that can stay in a multiprocessor.

    A :class:`numbacaps.nn.protocol.Backward`. Gradients of kernels that are sums over images of large parts have
    kernels of their own, behind it.

    Parameters
    ----------
    forward : ResidentPass
        Whose results it reads; one for gradients.
    """

    def __init__(self, forward):
        self.forward, dtype = forward, forward.lengths.dtype
        layout = self._layout = forward.layout.backward
        images = forward.images
        self._kernel = compiled_backward(layout, make_loss(layout, forward.layers[-1].channels))
        apart = layout.apart
        shapes = [(images, layout.gradients[k].output.size) for k in apart]
        self._all_d_sums, written = _one_behind_the_other(shapes, dtype)
        self._d_sums = dict(zip(apart, written))
        self._reduces = self._reductions(sorted(apart, key=lambda k: -forward.outputs[k - 1].size))
        parts, size = parts_of(layout, images)
        self._parts = {k: _Parts(*part) for k, part in parts.items()}
        self._partial = cuda.device_array(size, dtype)

    def _reductions(self, numbers):
        """What computes the gradients of these layers' kernels, beside each other: {layer: function}."""
        if not numbers:
            return {}
        placed = [self.forward.placed[k] for k in numbers]
        geometries = [replace(one.geometry, N=self.forward.images) for one in placed]
        dtype = self.forward.lengths.dtype
        words, found = set(map(precision_of, placed)), None
        if len(words) == 1 and words <= set(TERMS):
            found = split_k_beside(geometries, dtype, *words)
        if found is None:
            hows = [(dtype, one.layer.algorithm, one.layer.precision) for one in placed]
            found = [Convolution(g, *how).backward_kernel for g, how in zip(geometries, hows)]
            return dict(zip(numbers, found))
        return {k: _with_room(reduce, dtype) for k, reduce in zip(numbers, found)}

    def differentiate(self, x, labels, state, beside):
        """Queue both passes of a batch, and the packing of the kernels."""
        differentiate(self, x, labels, state, beside)

    def pack(self, state, beside):
        """Nothing: the forward pass packs for both."""

    def launch(self, x, labels, state, beside):
        """Queue the loss and the pass, behind the forward pass."""
        forward, stream = self.forward, beside.stream
        results = state.step, state.losses, state.hits
        beside.run(lambda other: margin_loss(forward.lengths, labels, *results, other))
        arrays = x, labels, forward.lengths, forward.all_slopes, forward.all_outputs
        arrays += forward.packed.backward, self._all_d_sums, self._partial
        grid, block, shared = grid_of(self._layout, forward.images)
        launch_tiles(self._kernel, grid, block, (*arrays, forward.images), stream, shared)
        beside.mark()
        for number, (k, reduce) in enumerate(self._reduces.items()):
            work = partial(reduce, forward.outputs[k - 1], self._d_sums[k], state.d_kernels[k])
            if number == 0:
                work(stream)  # which takes longest
            else:
                beside.run_marked(work)
        for k, parts in self._parts.items():
            beside.run_marked(partial(parts.add, self._partial, state.d_kernels[k]))
        beside.join()

    def explain(self) -> str:
        """A line: what the kernel computes, and which kernels' gradients are apart, and why."""
        layers = enumerate(self._layout.layers, 1)
        apart = [f"layers[{k}]: {one.why_apart}" for k, one in layers if one.why_apart]
        line = "all layers in one kernel, an image in a multiprocessor"
        return f"{line}; gradients of kernels apart: {'; '.join(apart)}" if apart else line

    def __repr__(self):
        return f"<ResidentBackwardPass of {self.forward.images} images: {self.explain()}>"


def _with_room(reduce, dtype):
    """A :class:`numbacaps.fused.rung_5_warp_specialized.launcher.WarpSpecializedSplitK` with its workspace."""
    room = cuda.device_array(reduce.partial_shape["partial"], dtype)
    return lambda x, dy, dw, stream: reduce(x, dy, dw, stream, room)


class _Parts:
    """What blocks add to a kernel's gradient, ``count`` times ``size`` elements from ``begin`` on."""

    def __init__(self, count, size, begin):
        self._place, self._sizes = slice(begin, begin + count * size), (count, size)
        self._kernel, self._grid = compiled_sum(count, size)

    def add(self, partial, d_kernel, stream):
        """Queue their sum."""
        arguments = partial[self._place], d_kernel, *self._sizes
        launch_tiles(self._kernel, self._grid, ADD_THREADS, arguments, stream)


def _one_behind_the_other(shapes, dtype):
    """One array, and parts of it of these shapes."""
    sizes = [prod(shape) for shape in shapes]
    whole, parts, begin = cuda.device_array(sum(sizes), dtype), [], 0
    for shape, size in zip(shapes, sizes):
        parts.append(whole[begin : begin + size].reshape(shape))
        begin += size
    return whole, parts
