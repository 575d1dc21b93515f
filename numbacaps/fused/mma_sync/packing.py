"""The launchers of :mod:`numbacaps.fused.mma_sync.pack`, and the workspace that they write to."""

from dataclasses import replace

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.compiled import Compiled, as_argument, run_as_argument
from numbacaps.device.gpu import SHARED_WITHOUT_ASKING
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.device.upload import uploaded
from numbacaps.fused.mma_sync import pack
from numbacaps.fused.mma_sync.table import ABSENT

_ELEMENTS = 4096  # of a block that packs pixels


def seen_as(workspace, dtype):
    """Workspace, of float32, as an argument of elements of a dtype."""
    if SIMULATED:
        return (workspace[0].view(stored(dtype)),)
    address, size, itemsize = workspace[-3:]
    return run_as_argument(address, size * itemsize // dtype.itemsize, dtype.itemsize)


def round_up(count, each):
    """A count as a whole multiple of another."""
    return ceil_div(count, each) * each


class PixelPacking:
    """The packing of the array that a product gathers.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    """

    def __init__(self, product, images, G, dtype):
        p, each, C, D = product.pixels, CHUNK // dtype.itemsize, product.channels, product.D
        row = round_up(C * D, each)
        capsules = p.extent[0] * p.extent[1] * G * p.D1
        self.elements = images * capsules * row
        of_block, channels, pitch = _block(C, D, each)
        self._numbers = images, C, capsules, p.D1, G, D, row, of_block, channels, pitch
        grid = ceil_div(capsules, of_block) * ceil_div(C, channels) * images
        shared = of_block * pitch * dtype.itemsize
        made = Compiled(pack.make_pack_pixels(dtype), (dtype, dtype), 11, shared, early=True)
        self._launch = made.on(grid, pack.THREADS, shared)

    def __call__(self, source, packed, first, stream):
        """Launch it; it writes from element ``first`` on."""
        self._launch(stream, (*source, *packed, *self._numbers, first))


def _block(C, D, each):
    """(capsules, channels, pitch) of a block that packs pixels.

    A thread has one element of a channel's capsules where these are short. Rows of capsules begin on banks of their own.
    """
    of_block = max(1, pack.THREADS // D)
    most = max(1, _ELEMENTS // (of_block * D * pack.CHANNELS)) * pack.CHANNELS
    channels = round_up(ceil_div(C, ceil_div(C, most)), pack.CHANNELS)
    return of_block, channels, (channels * D // each | 1) * each


def why_not_packed(product, G, dtype):
    """Why the array that a product gathers is not packed; None where it is."""
    p, each = product.pixels, CHUNK // dtype.itemsize
    if p.extent[0] * p.extent[1] * G * p.D1 * product.D >= 2**28:
        return "2^28 elements of a channel or more"
    if (pack.CHANNELS * product.D + each) * dtype.itemsize > SHARED_WITHOUT_ASKING:
        return f"capsules of {product.D} elements, which a block's shared memory does not take"
    return None


class MatrixPacking:
    """The packing of the kernel for some products: a row of columns for every k of each.

    Parameters
    ----------
    walks : sequence of numbacaps.fused.mma_sync.table.Walk
    G : int
    dtype : numpy.dtype
    """

    def __init__(self, walks, G, dtype):
        each = CHUNK // dtype.itemsize
        lies, columns = np.concatenate([walk.kernel for walk in walks]), walks[0].in_kernel
        self.row = round_up(columns.size, each)
        filling = np.full(self.row - columns.size, ABSENT)
        table = np.concatenate([lies, columns, filling]).astype(np.int32)
        self._table = uploaded(table)
        self._argument = as_argument(self._table)
        self.elements = G * lies.size * self.row
        self._numbers = lies.size, self.row, walks[0].steps[1]
        grid = max(1, ceil_div(lies.size * self.row // each, pack.THREADS)), G
        types = dtype, dtype, np.int32
        made = Compiled(pack.make_pack_matrix(dtype), types, 4, early=True)
        self._launch = made.on(grid, pack.THREADS)

    def walks(self, walks):
        """The same walks through the packed kernel."""
        made, first = [], 0
        for walk in walks:
            kernel = (first + np.arange(walk.K)) * self.row
            steps = walk.steps[0], self._numbers[0] * self.row, walk.steps[2]
            columns = np.arange(walk.in_kernel.size)
            made.append(replace(walk, kernel=kernel, in_kernel=columns, steps=steps))
            first += walk.K
        return made

    def __call__(self, source, packed, first, stream):
        """Launch it; it writes from element ``first`` on."""
        self._launch(stream, (*source, *packed, *self._argument, *self._numbers, first))
