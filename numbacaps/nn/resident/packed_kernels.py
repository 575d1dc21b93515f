"""The packed kernels that resident passes read, made by one launch for both passes."""

import numpy as np

from numbacaps.device.compiled import Compiled
from numbacaps.device.launch import launch
from numbacaps.device.target import cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.pack import Packing, finder
from numbacaps.nn.resident.pack_network import make_pack_network
from numbacaps.nn.resident.pack_taps import taps_finder
from numbacaps.nn.state import starts_of

_FLOAT = 4  # bytes


class PackedKernels:
    """What resident passes read of all layers' kernels but the first.

    Parameters
    ----------
    placed : sequence of numbacaps.nn.layer.PlacedLayer
    layout : numbacaps.nn.resident.layout.Layout
    backward : bool
        The backward pass reads them too.

    Attributes
    ----------
    forward, backward : device array
        What each pass reads.
    """

    def __init__(self, placed, layout, backward):
        found, dtype = (
            packings(placed, layout, backward, starts_of(placed)[1:]),
            np.dtype(np.float32),
        )
        size, of_both = elements_of(found, layout)
        self._all = cuda.device_array(of_both, dtype)
        self.forward, self.backward = self._all[:size], self._all[size:]
        self._kernel = compiled_pack(found)

    def pack(self, state, stream):
        """Queue it."""
        launch(self._kernel, self._all.size, 1, (state.weights, self._all), stream)


def compiled_pack(packings):
    """The kernel of :func:`numbacaps.nn.resident.pack_network.make_pack_network`."""
    dtype = np.dtype(np.float32)
    return Compiled(make_pack_network(packings), (dtype, dtype), 0, early=True)


def elements_of(packings, layout):
    """Elements of what the forward pass reads, and of what both do; the backward pass's lie behind."""
    sizes = [elements for _, _, elements, _ in packings]
    return sum(sizes[: len(layout.forward.layers)]), sum(sizes)


def packings(placed, layout, backward, begins):
    """What :func:`numbacaps.nn.resident.pack_network.make_pack_network` takes; arguments as :class:`PackedKernels`'s.

    ``begins`` says where, of all weights, those of each layer but the first begin.
    """
    found = [
        (finder, _forward_form(one, of), one.chunks.elements, begin)
        for one, of, begin in zip(layout.forward.layers, placed[1:], begins)
    ]
    others = layout.backward.layers if backward else ()
    found += [
        (taps_finder, _backward_form(one), one.chunks.elements, begin)
        for one, begin in zip(others, begins)
    ]
    return tuple(found)


def _forward_form(one, placed):
    """What the forward pass's kernel of a layer is to :func:`numbacaps.fused.pack.finder`."""
    product, chunks = implicit_gemm.forward(placed.geometry), one.chunks
    taps, parts = (one.taps.rows, one.taps.columns), 2 if one.terms > 1 else 1
    depth = product.channels, product.D, taps, product.n, product.kernel_steps
    return (Packing(*depth, 1, 0, one.BN, chunks.groups * 2, parts, _FLOAT, chunks.run),)


def _backward_form(one):
    """The same of the backward pass's to :func:`numbacaps.nn.resident.pack_taps.taps_finder`."""
    return one.product, one.layer.D3, 2 if one.layer.terms > 1 else 1
