"""Either pass by one kernel, for a network that fits in a multiprocessor."""

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from numbacaps.algorithms.fused import has_warpgroups, reduce_beside
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.compiled import Compiled
from numbacaps.device.launch import ceil_div, launch, launch_tiles
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.pack import Packing, finder
from numbacaps.fused.rung_3_register_tiles.split_k import ADD_THREADS, ADDED, make_add_splits
from numbacaps.nn.kernels.margin_loss import margin_loss
from numbacaps.nn.passes import BackwardPass, ForwardPass
from numbacaps.nn.resident import backward_layout as backward_residence
from numbacaps.nn.resident import layout as residence
from numbacaps.nn.resident.backward import make_resident_backward
from numbacaps.nn.resident.forward import make_resident_forward
from numbacaps.nn.resident.pack_network import make_pack_network
from numbacaps.nn.resident.pack_taps import taps_finder
from numbacaps.nn.state import starts_of

_MOST_ROUNDS = 2  # images of a multiprocessor in three terms, no gradients wanted; everywhere else it is faster


def forward_pass(layers, N, dtype, for_gradients=True):
    """The forward pass of a batch size that should take the least time; arguments are :class:`ForwardPass`'s."""
    why = why_not(layers, dtype)
    if for_gradients:  # each backward pass reads what its own forward pass leaves
        why = why or backward_residence.why_not(layers)
    elif not why:
        why = _why_slow(layers, N)
    if why:
        return ForwardPass(layers, N, dtype, for_gradients, why=why)
    return ResidentPass(layers, N, dtype, for_gradients)


def backward_pass(forward):
    """The backward pass behind a forward pass."""
    resident = isinstance(forward, ResidentPass)
    return ResidentBackwardPass(forward) if resident else BackwardPass(forward)


def _why_slow(layers, N):
    """Why kernels that take all images at once are faster, layer by layer; None where they are not."""
    most = _MOST_ROUNDS * multiprocessors()
    if residence.terms_of(layers) == 1 or N <= most:
        return None
    return f"{N} images in three terms are more than {most}, {_MOST_ROUNDS} a multiprocessor"


def why_not(layers, dtype):
    """Why one kernel cannot compute a network; None where it can."""
    if SIMULATED or not has_warpgroups():
        return "only a GPU of compute capability 9.0 has warpgroup products"
    if dtype != np.float32:
        return f"dtype is {dtype}"
    return residence.why_not(layers)


class ResidentPass(ForwardPass):
    """The same of a network that can stay in a multiprocessor; a block takes image after image.

    Sums before activations never leave it: gradients read the outputs and the squashes' slopes.

    Parameters
    ----------
    layers, N, dtype, for_gradients
        As those of :class:`numbacaps.nn.passes.ForwardPass`. Where it is not for gradients, of the outputs only
        the last one is written.

    Attributes
    ----------
    placed : sequence of PlacedLayer
    images : int
    slopes : list of device array (N, groups, 2)
        Of every layer's squash; see :func:`numbacaps.fused.activation.squash_slopes_of_result`.
    all_slopes, all_outputs : device array
        ``slopes`` and ``outputs``, one behind the other.
    packed : PackedKernels
    """

    def __init__(self, layers, N, dtype, for_gradients=True):
        super().__init__(layers, N, dtype, for_gradients)
        _, place, first, others = residence.place(layers, for_gradients)
        self.placed, self.images = layers, N
        self._place, self._others = place, others
        self.packed = PackedKernels(layers, others, for_gradients)
        groups = [int(layer.squash) for layer in self.layers] if for_gradients else []
        shapes = [(*out.shape[:1], out.shape[1] // of, 2) for out, of in zip(self.outputs, groups)]
        self.all_slopes, self.slopes = _one_behind_the_other(shapes, dtype)
        classes = layers[-1].layer.channels
        which = first, others, place, classes, others[-1].size // classes, for_gradients
        kernel = make_resident_forward(*which)
        self._kernel = Compiled(kernel, [dtype] * 6, 1, place.bytes, early=True)

    def _allocate(self, shapes, dtype, for_gradients):
        written = shapes if for_gradients else shapes[-1:]
        self.all_outputs, outputs = _one_behind_the_other(written, dtype)
        absent = [None] * (len(shapes) - len(written))
        self.sums, self.outputs = [None] * len(shapes), absent + outputs

    def pack(self, state, beside):
        self.packed.pack(state, beside.stream)

    def launch(self, x, state, beside):
        packed, place = self.packed.forward, self._place
        arrays = x, state.kernels[0], packed, self.all_slopes, self.all_outputs, self.lengths
        how = min(self.images, multiprocessors()), place.threads
        launch_tiles(self._kernel, *how, (*arrays, self.images), beside.stream, place.bytes)

    def explain(self):
        products = ", ".join(
            f"{one.rows} rows by {one.BN}" if one.few else f"{one.tiles} times 64 by {one.BN}"
            for one in self._others
        )
        return (
            f"all layers in one kernel, an image in a multiprocessor: {self._place.warpgroups} "
            f"warpgroups, products of {products} columns, {self._others[0].terms} terms, "
            f"{self._place.ring} rows of taps ahead"
        )


class ResidentBackwardPass(BackwardPass):
    """The same of a network whose backward pass can stay in a multiprocessor.

    Gradients of kernels that are sums over images of large parts have kernels of their own, behind it.

    Parameters
    ----------
    forward : ResidentPass
        Whose results it reads; one for gradients.
    """

    def __init__(self, forward):
        self.forward, dtype = forward, forward.lengths.dtype
        place = backward_residence.place(forward.placed)
        self._place, images, floats = place, forward.images, [dtype] * 6
        kernel = make_resident_backward(place, forward.layers[-1].channels)
        types = (dtype, np.int64, *floats)
        # Not early: blocks that wait for the forward pass delay it by more than a launch takes (measured).
        self._kernel = Compiled(kernel, types, 1, place.ring.bytes)
        apart = [k for k, one in enumerate(place.outputs) if one.d_sums_at is not None]
        shapes = [(images, place.outputs[k].size) for k in apart]
        self._all_d_sums, written = _one_behind_the_other(shapes, dtype)
        self._d_sums = dict(zip(apart, written))
        self._reduces = self._reductions(sorted(apart, key=lambda k: -forward.outputs[k - 1].size))
        # A block adds its images up, so where they are more than multiprocessors these decide the sum's order.
        self._blocks = min(images, multiprocessors())
        self._parts, begin = [], 0
        computed = [place.first, *(one.weights for one in place.layers)]
        for which, shares in zip(computed, [1, *[place.ring.warpgroups] * len(place.layers)]):
            count = self._blocks * shares
            self._parts.append(
                which and _Parts(count, which.size, self._blocks * which.partial_at, dtype)
            )
            begin += count * which.size if which else 0
        self._partial = cuda.device_array(begin, dtype)

    def _reductions(self, numbers):
        """What computes the gradients of these layers' kernels, beside each other: {layer: function}."""
        placed = [self.forward.placed[k] for k in numbers]
        geometries = [replace(one.geometry, N=self.forward.images) for one in placed]
        dtype = self.forward.lengths.dtype
        found = reduce_beside(geometries, dtype, placed[0].layer.precision) if placed else []
        if found is None:
            return {k: self.forward.convolutions[k].backward_kernel for k in numbers}
        return {k: _with_room(reduce, dtype) for k, reduce in zip(numbers, found)}

    def pack(self, state, beside):
        """Nothing: the forward pass packs for both."""

    def launch(self, x, labels, state, beside):
        forward, stream = self.forward, beside.stream
        results = state.step, state.losses, state.hits
        beside.run(lambda other: margin_loss(forward.lengths, labels, *results, other))
        arrays = x, labels, forward.lengths, forward.all_slopes, forward.all_outputs
        arrays += forward.packed.backward, self._all_d_sums, self._partial
        ring = self._place.ring
        how = self._blocks, ring.threads
        launch_tiles(self._kernel, *how, (*arrays, forward.images), stream, ring.bytes)
        beside.mark()
        for number, (k, reduce) in enumerate(self._reduces.items()):
            work = partial(reduce, forward.outputs[k - 1], self._d_sums[k], state.d_kernels[k])
            if number == 0:
                work(stream)  # which takes longest
            else:
                beside.run_marked(work)
        for parts, d_kernel in zip(self._parts, state.d_kernels):
            if parts is not None:
                beside.run_marked(partial(parts.add, self._partial, d_kernel))
        beside.join()


def _with_room(reduce, dtype):
    """A :class:`numbacaps.algorithms.fused.BulkReduce` with its workspace."""
    room = cuda.device_array(reduce.partial_shape["partial"], dtype)
    return lambda x, dy, dw, stream: reduce(x, dy, dw, stream, room)


class PackedKernels:
    """What the passes by one kernel read of all layers' kernels but the first, packed by one launch.

    Parameters
    ----------
    placed : sequence of PlacedLayer
    layers : sequence of numbacaps.nn.resident.layout.ResidentLayer
    backward : bool
        The backward pass reads them too.

    Attributes
    ----------
    forward, backward : device array
        What each pass reads.
    """

    def __init__(self, placed, layers, backward):
        found, dtype = packings(placed, layers, backward), np.dtype(np.float32)
        sizes = [elements for _, _, elements, _ in found]
        self._all, size = cuda.device_array(sum(sizes), dtype), sum(sizes[: len(layers)])
        self.forward, self.backward = self._all[:size], self._all[size:]
        self._kernel = Compiled(make_pack_network(found), (dtype, dtype), 0, early=True)

    def pack(self, state, stream):
        """Queue it."""
        launch(self._kernel, self._all.size, 1, (state.weights, self._all), stream)


def packings(placed, layers, backward):
    """What :func:`numbacaps.nn.resident.pack_network.make_pack_network` takes; arguments as :class:`PackedKernels`'s."""
    begins = starts_of(placed)[1:]
    found = [
        (finder, _forward_form(one, of), one.chunks * one.chunk_bytes // 4, begin)
        for one, of, begin in zip(layers, placed[1:], begins)
    ]
    others = backward_residence.place(placed).layers if backward else ()
    found += [
        (taps_finder, _backward_form(one), one.packed, begin) for one, begin in zip(others, begins)
    ]
    return tuple(found)


def _forward_form(one, placed):
    """What the forward pass's kernel of a layer is to :func:`numbacaps.fused.pack.finder`."""
    product = implicit_gemm.forward(placed.geometry)
    depth = product.channels, product.D, one.taps, product.n, product.kernel_steps
    parts = 2 if one.terms > 1 else 1
    return (Packing(*depth, 1, 0, one.BN, one.groups * 2, parts, 4, one.run),)


def _backward_form(one):
    """The same of the backward pass's to :func:`numbacaps.nn.resident.pack_taps.taps_finder`."""
    shape = one.K, one.layer.D3, one.N, one.D, one.taps
    return *shape, one.together, one.steps, one.run, one.wide, 2 if one.layer.terms > 1 else 1


class _Parts:
    """What blocks add to a kernel's gradient, ``count`` times ``size`` elements from ``begin`` on."""

    def __init__(self, count, size, begin, dtype):
        self._place, self._grid = slice(begin, begin + count * size), ceil_div(size, ADDED)
        self._kernel = Compiled(make_add_splits(count, size, dtype), (dtype, dtype), 0, early=True)

    def add(self, partial, d_kernel, stream):
        """Queue their sum."""
        arguments = partial[self._place], d_kernel
        launch_tiles(self._kernel, self._grid, ADD_THREADS, arguments, stream)


def _one_behind_the_other(shapes, dtype):
    """One array, and parts of it of these shapes."""
    sizes = [prod(shape) for shape in shapes]
    whole, parts, begin = cuda.device_array(sum(sizes), dtype), [], 0
    for shape, size in zip(shapes, sizes):
        parts.append(whole[begin : begin + size].reshape(shape))
        begin += size
    return whole, parts
