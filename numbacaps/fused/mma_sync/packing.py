"""The launcher of :mod:`numbacaps.fused.mma_sync.pack`."""

from dataclasses import replace

import numpy as np

from numbacaps.device.compiled import Compiled, as_argument
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.upload import uploaded
from numbacaps.fused.mma_sync import pack
from numbacaps.fused.mma_sync.table import ABSENT
from numbacaps.fused.pixel_packing import round_up


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
