"""All layers of a sequence in one kernel a pass, on CUDA tensors (:mod:`numbacaps.nn.resident`).

A few small kernels stand beside it: forward they pack the weights, backward they add parts up, and gradients of large kernels have
kernels of their own. Memory and streams are PyTorch's, as in :mod:`numbacaps.torch.kernels`. Which sequences run so depends on shapes,
the precision and the GPU alone (:func:`numbacaps.nn.resident.passes.why_layered`); the gradient of x is not computed here.
"""

from itertools import accumulate
from math import isfinite, prod
from typing import NamedTuple

import numpy as np
import torch

from numbacaps.device.compiled import run_as_argument
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import spread
from numbacaps.device.linking import linked_side_by_side
from numbacaps.fused.rung_3_register_tiles.split_k import ADD_THREADS
from numbacaps.kept import cleared_too
from numbacaps.last_used import LastUsed
from numbacaps.nn.layer import Layer, chain
from numbacaps.nn.resident.backward_given import make_given
from numbacaps.nn.resident.launches import (
    compiled_backward,
    compiled_forward,
    compiled_sum,
    grid_of,
    parts_of,
)
from numbacaps.nn.resident.layout import layout_of
from numbacaps.nn.resident.packed_kernels import compiled_pack, elements_of, packings
from numbacaps.nn.resident.passes import why_layered
from numbacaps.product import parse_product
from numbacaps.torch.kernels import Place, argument, kernel_gradient

_KINDS = 256  # of sequences that are kept, and of batch sizes of each
_DTYPE = np.dtype(np.float32)
_EXPONENTIAL = "exponential"  # the formula of squash that such kernels have
_LAYERED = object()  # what is kept of a sequence that runs layer by layer
_NO_LABELS = run_as_argument(0, 0, 8)
_kept = LastUsed(_KINDS, 0)
cleared_too(_kept.clear)


def passes_of(x, weights, layers, with_gradients):
    """The passes of a sequence in one kernel each; None where it runs layer by layer.

    Parameters
    ----------
    x : Tensor (N, C, H, W, *T1) on a CUDA device
    weights : sequence of Tensor
    layers : tuple of numbacaps.torch.sequence_operators.Joined
    with_gradients : bool
        Those of the weights are wanted. Then the answer is the same of all N, which may be a symbol.
    """
    if x.dtype is not torch.float32:
        return None
    N = None if with_gradients else x.shape[0]
    shapes = sizes_of(x.shape[1:]), tuple([sizes_of(w.shape) for w in weights])
    key = N, shapes, layers, x.get_device()

    def decide():
        placed = _placed(layers, *shapes)
        if placed is None:
            return _LAYERED
        with Place(x):
            why = why_layered(placed, N, _DTYPE, with_gradients)
        return _LAYERED if why else Passes(placed, layers, with_gradients)

    kept = _kept.get(key, decide)
    return None if kept is _LAYERED else kept


def sizes_of(shape):
    """A shape, whose sizes may be symbols, as a tuple of int."""
    return tuple(map(int, shape))


def _placed(layers, image, w_shapes):
    """The layers as :mod:`numbacaps.nn` has them; None where it has no such."""
    given = []
    for layer, (P, _, KH, KW, *capsule) in zip(layers, w_shapes):
        stride, padding, dilation, product, precision, _ = layer.how
        group, slope, formula = layer.activation or (0, 1.0, "")
        if formula != _EXPONENTIAL or prod(layer.capsule) % group or not isfinite(slope):
            return None
        parsed = parse_product(product)
        for order in (parsed.x_order, parsed.w_order, parsed.y_order):
            if list(order) != sorted(order):
                return None
        moves = {"stride": stride, "padding": padding, "dilation": dilation}
        how = {"product": product, "precision": precision, "capsule": layer.read_as}
        given.append(Layer(P, tuple(capsule), (KH, KW), slope=slope, squash=group, **moves, **how))
    placed = chain(given, image, _DTYPE)
    return placed if placed[-1].geometry.L == 1 else None  # the last outputs are class capsules


class Passes:
    """Both passes of a sequence, in one kernel each.

    Parameters
    ----------
    placed : tuple of numbacaps.nn.layer.PlacedLayer
    layers : tuple of numbacaps.torch.sequence_operators.Joined
    with_gradients : bool
    """

    nbytes = 0  # workspaces are the calls' own

    def __init__(self, placed, layers, with_gradients):
        self._placed, self._layers, self._with_gradients = placed, layers, with_gradients
        self._layout = layout_of(placed)
        outputs = self._layout.forward.outputs
        self._outputs = sum(one.size for one in outputs)
        self._slopes = sum(2 * one.groups for one in outputs)
        sizes = [prod(one.geometry.kernel_shape) for one in placed[1:]]
        begins = list(accumulate(sizes, initial=0))[:-1]
        self._packings = packings(placed, self._layout, with_gradients, begins)
        self._packed, self._packed_for_both = elements_of(self._packings, self._layout)
        self._launches = LastUsed(_KINDS, 0)  # of batch sizes

    def kept_shapes(self, N):
        """Shapes of what the gradients read: outputs, slopes of squashes, packed kernels."""
        return (N, self._outputs), (N, self._slopes), (self._packed_for_both,)

    def _launches_of(self, N):
        return self._launches.get(N, lambda: self._new_launches(N))

    def _new_launches(self, N):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"a sequence of {len(self._layers)} layers is captured for {N} images before it has run: call it "
                "once before, so that its kernels are compiled"
            )
        with linked_side_by_side():
            return self._made(N)

    def _made(self, N):
        layout, size = self._layout, self._packed_for_both
        pack = compiled_pack(self._packings).on(*spread(size))
        compiled = compiled_forward(layout.forward, self._classes, self._with_gradients)
        forward = compiled.on(*grid_of(layout.forward, N))
        if not self._with_gradients:
            return _Launches(pack, forward, None, {}, 0)
        back = layout.backward
        backward = compiled_backward(back, make_given(back)).on(*grid_of(back, N))
        parts, elements = parts_of(back, N)
        adds = {k: _add(*part) for k, part in parts.items()}
        return _Launches(pack, forward, backward, adds, elements)

    @property
    def _classes(self):
        return self._placed[-1].geometry.P

    def run(self, x, weights):
        """(y, what the gradients read), each with memory of its own."""
        N, last = x.shape[0], self._placed[-1].output_shape
        first, *others = map(_aligned, weights)
        x = _aligned(x)
        outputs, slopes, packed = kept = [x.new_empty(shape) for shape in self.kept_shapes(N)]
        if not self._with_gradients:
            outputs, kept = x.new_empty((N, *last)), []
        if not N:
            return x.new_empty((N, *last)), kept
        with Place(x) as place:
            launches, stream = self._launches_of(N), place.launch_stream
            flat = torch.cat([w.view(-1) for w in others])
            launches.pack(stream, [*argument(flat), *argument(packed)])
            lengths = x.new_empty((N, self._classes))
            written = argument(slopes), argument(outputs), argument(lengths)
            read = argument(x), argument(first), argument(packed[: self._packed])
            launches.forward(stream, [number for one in (*read, *written) for number in one] + [N])
        if not kept:
            return outputs, kept
        # What the gradients read stays as it is, whatever is done to y.
        return _some(outputs, N * (self._outputs - prod(last)), (N, *last)).clone(), kept

    def run_back(self, x, weights, kept, dy):
        """The gradients of the weights."""
        N, (outputs, slopes, packed), back = x.shape[0], kept, self._layout.backward
        if not N:
            return [torch.zeros_like(w) for w in weights]
        x, dy = _aligned(x), dy.contiguous()
        found = [torch.empty(w.shape, dtype=w.dtype, device=w.device) for w in weights]
        apart = back.apart
        with Place(x) as place:
            launches, stream = self._launches_of(N), place.launch_stream
            d_sums = x.new_empty(N * sum(back.gradients[k].output.size for k in apart))
            parts = x.new_empty(launches.parts)
            read = argument(x), _NO_LABELS, argument(dy), argument(slopes), argument(outputs)
            given = *read, argument(packed[self._packed :]), argument(d_sums), argument(parts)
            launches.backward(stream, [number for one in given for number in one] + [N])
            for k, (add, begin, count, size) in launches.adds.items():
                part = parts[begin : begin + count * size]
                add(stream, [*argument(part), *argument(found[k]), count, size])
        for k in apart:
            one, before = back.gradients[k], back.gradients[k - 1].output
            made = self._placed[k].geometry
            g_shape = N, made.P, made.OH, made.OW, *self._layers[k].capsule
            d = _some(d_sums, N * one.d_sums_at, g_shape)
            read = _some(
                outputs, N * before.elements_before, (N, *self._placed[k - 1].output_shape)
            )
            found[k] = kernel_gradient(read, d, weights[k].shape, self._layers[k].how)
        return found


class _Launches(NamedTuple):
    """What a batch size launches.

    Attributes
    ----------
    pack, forward, backward : callable
        Prepared launches; ``backward`` is None without gradients.
    adds : dict
        Of layers' numbers, what adds a kernel's gradient up: (launch, element of the parts where they begin, parts, elements of one).
    parts : int
        Elements of the parts.
    """

    pack: object
    forward: object
    backward: object
    adds: dict
    parts: int


def _add(count, size, begin):
    kernel, blocks = compiled_sum(count, size)
    return kernel.on(blocks, ADD_THREADS), begin, count, size


def _aligned(tensor):
    """A contiguous tensor that begins where copies want it."""
    tensor = tensor.detach().contiguous()
    return tensor.clone() if tensor.data_ptr() % CHUNK else tensor


def _some(whole, begin, shape):
    """Some elements of a contiguous tensor, from one on, under a shape."""
    return whole.view(-1)[begin : begin + prod(shape)].view(shape)
