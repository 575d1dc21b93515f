"""The partial sums of a product's splits added, always in the same order; at the default, looked through as well.

Parts of both signs can be infinite where the sum is not, so what three terms cannot tell shows in the sum alone.
"""

from functools import cache

import numpy as np

from numbacaps.device.compiled import Compiled, as_argument
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import let_next_start, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import at, cuda
from numbacaps.device.upload import uploaded
from numbacaps.fused.anew import SUMS, numbers_of
from numbacaps.fused.told import is_told

_FLOAT32 = np.dtype(np.float32)
_THREADS = 256
_TOGETHER = 8  # sums that a thread loads at once
# Launch bounds of add_and_look_kernel: 4 blocks fit a multiprocessor, so a thread has at most 64 registers.
_BOUNDS = _THREADS, 4


@cuda.jit(device=True, inline="always")
def _added(partial, splits, size):
    """(a thread's element, its sum over all splits), once the splits are summed; past the end the sum is 0."""
    some = cuda.local.array(_TOGETHER, np.float32)
    i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
    total, split = np.float32(0), 0 if i < size else splits
    wait_for_last()
    while split + _TOGETHER <= splits:  # their loads are under way together
        for ahead in range(_TOGETHER):
            some[ahead] = partial[at((split + ahead) * size + i)]
        for ahead in range(_TOGETHER):
            total += some[ahead]
        split += _TOGETHER
    while split < splits:
        total += partial[at(split * size + i)]
        split += 1
    let_next_start()
    return i, total


@cache
def make_add_splits(dtype):
    """Kernel for results of a dtype; sums are float32."""
    _, write = conversions(dtype)

    @kept_on_disk
    @cuda.jit
    def add_splits_kernel(
        partial,  # in   (splits, size)
        out,  # out  (size,)
        splits,
        size,
    ):
        i, total = _added(partial, splits, size)
        if i < size:
            out[at(i)] = write(total)

    return add_splits_kernel


@cache
def make_add_and_look(wanted):
    """Kernel that takes sums of three terms again where these cannot tell them; ``wanted`` is a key of ``SUMS``."""
    sum_at = SUMS[wanted]

    @kept_on_disk
    @cuda.jit(launch_bounds=_BOUNDS)
    def add_and_look_kernel(
        partial,  # in   (splits, size)
        out,  # out  (size,)
        a,  # in   what the pass reads, as :mod:`numbacaps.fused.anew` has it
        b,
        of,  # in   numbers_of(geometry)
        splits,
        size,
    ):
        i, total = _added(partial, splits, size)
        if i < size:
            if not is_told(total):
                total = np.float32(sum_at(i, a, b, of))
            out[at(i)] = total

    return add_and_look_kernel


class AddSplits:
    """The kernel made ready for a result: what finishes a product whose sum is cut into splits.

    Parameters
    ----------
    size : int
        Elements of the result.
    dtype : numpy.dtype
    splits : int
    looked : tuple of (pass, numbacaps.geometry.Geometry), optional
        Whose sums of three terms are looked through; ``dtype`` is float32.
    """

    def __init__(self, size, dtype, splits, looked=None):
        self._sizes, self.looks = (splits, size), looked is not None
        if looked:
            wanted, geometry = looked
            self._numbers = uploaded(numbers_of(geometry))
            self._of = as_argument(self._numbers)
            kernel, types = make_add_and_look(wanted), (*[_FLOAT32] * 4, np.int64)
        else:
            kernel, types = make_add_splits(dtype), (_FLOAT32, dtype)
        made = Compiled(kernel, types, 2, early=True)
        self._launch = made.on(ceil_div(size, _THREADS), _THREADS)

    def __call__(self, partial, result, read, stream):
        """Launch it on arrays as arguments; ``read`` are the two that the pass reads."""
        a, b = read
        looked = (*a, *b, *self._of) if self.looks else ()
        self._launch(stream, (*partial, *result, *looked, *self._sizes))

    def __str__(self):
        return f", {self._sizes[0]} splits"
