"""Zeros for the pixels of the input that no window's tap reaches: all of dx is cleared, the products then write the rest."""

from functools import cache, cached_property

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.compiled import Compiled, aligned
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import CHUNK, let_next_start, store_run, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, ceil_div
from numbacaps.device.target import cuda
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.launcher import Launcher


@cache
def make_clear(dtype, each):
    """Kernel that stores ``each`` zeros at a time."""
    EACH, BLOCK = each, THREADS
    held = np.dtype(stored(dtype))
    _, as_element = conversions(dtype)
    ZERO = np.float32(0)

    @kept_on_disk
    @cuda.jit
    def clear_kernel(
        out,  # out  (size,)
        size,  # a multiple of EACH
    ):
        zeros = cuda.local.array(EACH, held)
        for i in range(EACH):
            zeros[i] = as_element(ZERO)
        first = (np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x) * EACH
        wait_for_last()  # whoever read what lay here
        let_next_start()
        if first < size:
            store_run(EACH, out, first, zeros)

    return clear_kernel


class ClearLauncher(Launcher):
    """The clearing of a result, in a pass's list of launchers.

    Parameters
    ----------
    size : int
        Elements of the result.
    dtype : numpy.dtype
    differentiates : bool
        The other launchers of the pass differentiate an activation; of zeros that leaves zeros.
    """

    packed = 0

    def __init__(self, size, dtype, differentiates):
        self._size, self._dtype = size, dtype
        self.epilogue, self._behind = Epilogue(differentiates=differentiates), ""
        each = CHUNK // dtype.itemsize
        self._whole = self._made(each if size % each == 0 else 1)

    def _made(self, each):
        compiled = Compiled(make_clear(self._dtype, each), (self._dtype,), 1, early=True)
        return compiled.on(ceil_div(self._size, THREADS * each), THREADS)

    @cached_property
    def _unaligned(self):
        return self._made(1)

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """There is nothing to pack."""

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Clear the result."""
        launch = self._whole if aligned(CHUNK, result) else self._unaligned
        launch(stream, (*result, self._size))

    def __str__(self):
        return f"clear {self._size} elements"
