"""The partial sums of a product's splits added, always in the same order; at the default, looked through as well.

The next kernel may start when the sums are written. If it started earlier, its blocks would share the few multiprocessors that have no
block of this kernel.

Parts of both signs can be infinite where the sum is not, so what three terms cannot tell shows in the sum alone.
"""

from functools import cache

import numpy as np

from numbacaps.device.compiled import Compiled, as_argument
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import let_next_start, shared_array, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import at, cuda
from numbacaps.device.upload import uploaded
from numbacaps.fused.anew import SUMS, numbers_of
from numbacaps.fused.told import is_told

_FLOAT32 = np.dtype(np.float32)
_THREADS = 256
_TOGETHER = 8  # sums that a thread loads at once
_MOST_PARTS = 32  # with 8 elements for each: 32 bytes of a split
# Launch bounds of add_and_look_kernel: 4 blocks fit a multiprocessor, so a thread has at most 64 registers.
_BOUNDS = _THREADS, 4


def parts_of(splits):
    """Threads that share the sum of one element: a power of 2, so that each has ``_TOGETHER`` splits or more. ``splits`` may be an array."""
    shared = np.clip(splits // _TOGETHER, 1, _MOST_PARTS)
    return 1 << np.log2(shared).astype(int)


def loaded_at_once(splits):
    """Splits of an element whose loads are under way at once."""
    return _TOGETHER * parts_of(splits)


@cuda.jit(device=True, inline="always")
def _added(partial, splits, size, parts):
    """(a thread's element, its sum over all splits, whether the thread is to write it), once the splits are summed."""
    sums = shared_array(_THREADS, np.float32)
    some = cuda.local.array(_TOGETHER, np.float32)
    thread = np.uint32(cuda.threadIdx.x)
    abreast = np.uint32(np.uint32(_THREADS) // np.uint32(parts))
    part, own = np.int64(np.uint32(thread // abreast)), np.int64(np.uint32(thread % abreast))
    i = cuda.blockIdx.x * np.int64(abreast) + own
    total, split = np.float32(0), part if i < size else splits
    wait_for_last()
    while split < splits:  # a part's splits are ``parts`` apart
        # Past the end the last split is loaded, and not added: loads behind a branch would wait for each other.
        for ahead in range(_TOGETHER):
            other = min(split + ahead * parts, splits - 1)
            some[ahead] = partial[at(other * size + i)]
        for ahead in range(_TOGETHER):
            total += some[ahead] if split + ahead * parts < splits else np.float32(0)
        split += _TOGETHER * parts
    sums[at(thread)] = total
    cuda.syncthreads()
    if part == 0:
        for other in range(1, parts):
            total += sums[at(other * np.int64(abreast) + own)]
    return i, total, part == 0 and i < size


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
        parts,
    ):
        i, total, writes = _added(partial, splits, size, parts)
        if writes:
            out[at(i)] = write(total)
        let_next_start()

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
        parts,
    ):
        i, total, writes = _added(partial, splits, size, parts)
        if writes:
            if not is_told(total):
                total = np.float32(sum_at(i, a, b, of))
            out[at(i)] = total
        let_next_start()

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
        parts = int(parts_of(splits))
        self._sizes, self.looks = (splits, size, parts), looked is not None
        if looked:
            wanted, geometry = looked
            self._numbers = uploaded(numbers_of(geometry))
            self._of = as_argument(self._numbers)
            kernel, types = make_add_and_look(wanted), (*[_FLOAT32] * 4, np.int64)
        else:
            kernel, types = make_add_splits(dtype), (_FLOAT32, dtype)
        made = Compiled(kernel, types, 3, early=True)
        self._launch = made.on(ceil_div(size, _THREADS // parts), _THREADS)

    def __call__(self, partial, result, read, stream):
        """Launch it on arrays as arguments; ``read`` are the two that the pass reads."""
        a, b = read
        looked = (*a, *b, *self._of) if self.looks else ()
        self._launch(stream, (*partial, *result, *looked, *self._sizes))

    def __str__(self):
        return f", {self._sizes[0]} splits"
