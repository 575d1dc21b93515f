"""The forward pass by one kernel, for a network that fits in a multiprocessor."""

from functools import partial
from math import prod

import numpy as np

from numbacaps.fused import implicit_gemm
from numbacaps.fused.intrinsics import Compiled
from numbacaps.fused.pack import make_pack
from numbacaps.launch import launch, launch_tiles
from numbacaps.nn import residence
from numbacaps.nn.passes import ForwardPass
from numbacaps.pipelines.fused import has_warpgroups, multiprocessors
from numbacaps.target import SIMULATED, cuda

_MOST_ROUNDS = 2  # images of a multiprocessor: with one it is the faster way, with eight it is not


def forward_pass(layers, N, dtype, keeps_sums=True):
    """The forward pass of a batch size that should take the least time; arguments are :class:`ForwardPass`'s."""
    kind = ForwardPass if why_not(layers, dtype) or _are_many(N) else ResidentPass
    return kind(layers, N, dtype, keeps_sums)


def _are_many(N):
    """Whether kernels that take all images at once are faster, layer by layer."""
    return N > _MOST_ROUNDS * multiprocessors()


def why_not(layers, dtype):
    """Why one kernel cannot compute a network; None where it can."""
    if SIMULATED or not has_warpgroups():
        return "only a GPU of compute capability 9.0 has warpgroup products"
    if dtype != np.float32:
        return f"dtype is {dtype}"
    return residence.why_not(layers)


class ResidentPass(ForwardPass):
    """The same of a network that can stay in a multiprocessor; a block takes image after image.

    Parameters
    ----------
    layers, N, dtype, keeps_sums
        As those of :class:`numbacaps.nn.passes.ForwardPass`. Where the sums are not kept, of the outputs only
        the last one is written.
    """

    def __init__(self, layers, N, dtype, keeps_sums=True):
        from numbacaps.nn.resident import make_resident_forward

        super().__init__(layers, N, dtype, keeps_sums)
        _, place, first, others = residence.place(layers, keeps_sums)
        last = layers[-1]
        self._place, self._images, self._others = place, N, others
        self._products = [implicit_gemm.forward(placed.geometry) for placed in layers[1:]]
        end = others[-1]
        self._packed = cuda.device_array(
            end.packed_at + end.chunks * end.chunk_bytes // dtype.itemsize, dtype
        )
        classes = last.layer.channels
        which = (first, others, place, classes, end.size // classes, keeps_sums)
        kernel = make_resident_forward(*which)
        self._kernel = Compiled(kernel, [dtype] * 6, 1, place.bytes, early=True)
        self._packs = [self._packing(product, one) for product, one in zip(self._products, others)]

    def _allocate(self, shapes, dtype, keeps_sums):
        written = shapes if keeps_sums else shapes[-1:]
        self._all_sums, sums = _one_behind_the_other(written, dtype)
        self._all_outputs, outputs = _one_behind_the_other(written, dtype)
        absent = [None] * (len(shapes) - len(written))
        self.sums = sums if keeps_sums else [None] * len(shapes)
        self.outputs = absent + outputs

    @staticmethod
    def _packing(product, one):
        """The kernel that packs a layer's."""
        parts = 2 if one.terms > 1 else 1
        depth = product.channels, product.D, one.taps, product.n, product.kernel_steps
        chunks, dtype = one.groups * 2, np.dtype(np.float32)
        kernel = make_pack(
            *depth, 1, product.pixels.steps[1], one.BN, chunks, parts, dtype, False, one.run
        )
        return Compiled(kernel, (dtype, dtype), 0, early=True)

    def pack(self, kernels, beside):
        for pack, one, kernel in zip(self._packs, self._others, kernels[1:]):
            size = one.chunks * one.chunk_bytes // 4
            room = self._packed[one.packed_at : one.packed_at + size]
            beside.run(partial(launch, pack, size, 1, (kernel, room)))

    def launch(self, x, kernels, beside):
        beside.join()
        sums = self._all_sums
        arrays = (x, kernels[0], self._packed, sums, self._all_outputs, self.lengths)
        grid = min(self._images, multiprocessors())
        how = grid, self._place.threads
        launch_tiles(self._kernel, *how, (*arrays, self._images), beside.stream, self._place.bytes)

    def explain(self):
        tiles = ", ".join(f"{one.tiles} of {one.BN} columns" for one in self._others)
        return (
            f"all layers in one kernel, an image in a multiprocessor: {self._place.warpgroups} "
            f"warpgroups, tiles of 64 rows ({tiles}), {self._others[0].terms} terms, "
            f"{self._place.ring} rows of taps ahead"
        )


def _one_behind_the_other(shapes, dtype):
    """One array, and parts of it of these shapes."""
    sizes = [prod(shape) for shape in shapes]
    whole, parts, begin = cuda.device_array(sum(sizes), dtype), [], 0
    for shape, size in zip(shapes, sizes):
        parts.append(whole[begin : begin + size].reshape(shape))
        begin += size
    return whole, parts
