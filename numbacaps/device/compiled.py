"""Kernels compiled ahead, and launched without asking again what their arguments are.

Numba finds out the type of every argument at every launch. Here it is known: flat arrays of C-contiguous
memory, 64-bit integers, tuples of them. What a kernel takes for an array, and where a compiled kernel's
handles are, is Numba's own business; all that leans on it is in this file and in
:mod:`numbacaps.device.instructions.ptx`. On the simulator nothing is compiled, and Numba launches.

What is launched again and again is prepared (``prepared = compiled.on(grid, block, shared)``), and an array that
several launches take is described once (:func:`as_argument`): ``prepared(stream, (*as_argument(a), *as_argument(b), 3))``.
"""

from functools import lru_cache
from operator import itemgetter

import numpy as np
from cuda.bindings import driver
from cuda.core import LaunchConfig, Stream, launch
from numba import from_dtype
from numba.core import types

from numbacaps.device.bfloat16 import bits, stored
from numbacaps.device.gpu import EARLY_START, SHARED_WITHOUT_ASKING
from numbacaps.device.kernel_cache import note_launch, watching
from numbacaps.device.linking import when_linked
from numbacaps.device.target import SIMULATED, cuda, current_device

_KEPT = 1024  # launch configurations


class _Compiled:
    """A kernel for flat arrays of some dtypes, then 64-bit integers; ``words`` are a tuple behind the second array.

    ``compiled[grid, block, stream, shared](*arguments)`` launches it, as Numba's kernels do. An array
    is a C-contiguous Numba device array of any shape; nothing is checked. :meth:`on` prepares such launches.

    Parameters
    ----------
    kernel
        Of ``cuda.jit``.
    arrays : sequence of dtype_like
    integers, words : int
    shared : int
        Bytes of shared memory that a block may ask for.
    early : bool
        It may start when the kernel before it on the stream lets it, and waits for that one's results itself.
    """

    def __init__(self, kernel, arrays, integers, shared=0, words=0, early=False):
        kinds = [types.Array(from_dtype(stored(np.dtype(dtype))), 1, "C") for dtype in arrays]
        kinds[2:2] = [types.UniTuple(types.int64, words)] if words else []
        self._made = kernel.compile((*kinds, *[types.int64] * integers))
        self._source, self._shared, self._early = kernel, shared, early
        self._of_devices = {}  # device to (kernel as it is loaded there, whether it starts early)
        when_linked(self._loaded)

    def _loaded(self):
        """(kernel, whether it starts early) on the current device, where a block may ask for its shared memory."""
        device = current_device()
        found = self._of_devices.get(device)
        if found is None:
            function = self._made._codelibrary.get_cufunc()
            if self._shared > SHARED_WITHOUT_ASKING:
                most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.cuKernelSetAttribute(most, self._shared, function.handle, device)
            found = function.kernel, self._early and _starts_early()
            self._of_devices[device] = found
        return found

    def on(self, grid, block, shared=0, cluster=None):
        """Launches on a grid of the current device: a function of a stream (of :func:`launch_stream`) and a tuple of
        arguments.

        ``cluster`` blocks along y of a grid (x, y), of which y is a multiple, run at once and share their shared memory.
        """
        source, ready = self._source, []

        def prepare():
            kernel, early = self._loaded()
            ready[:] = kernel, _config(grid, block, shared, early, cluster)
            return ready

        when_linked(prepare)

        def launched(stream, arguments):
            if watching:
                note_launch(source)
            kernel, config = ready or prepare()
            launch(stream, config, kernel, *arguments)

        return launched

    def __getitem__(self, how):
        grid, block, stream, shared = how
        launched, stream = self.on(grid, block, shared), launch_stream(stream)
        return lambda *arguments: launched(stream, values(arguments))


def _starts_early():
    """Whether cuda.core (1.2) and this device (9.0) can start a kernel before the last one has ended."""
    known = hasattr(LaunchConfig, "programmatic_stream_serialization")
    return known and cuda.get_current_device().compute_capability >= EARLY_START


@lru_cache(_KEPT)
def _config(grid, block, shared, early, cluster):
    how = {"programmatic_stream_serialization": True} if early else {}
    if cluster is not None:
        x, y = grid
        grid, how["cluster"] = (x, y // cluster, 1), (1, cluster, 1)  # cuda.core counts clusters
    return LaunchConfig(grid=grid, block=block, shmem_size=shared, **how)


@lru_cache(_KEPT)
def _stream(address):
    return Stream.from_handle(address)


KEPT = _config, _stream


def values(arguments):
    """What a compiled kernel takes for its arguments: integers, tuples of them, and arrays."""
    found = []
    for argument in arguments:
        if isinstance(argument, int):
            found.append(argument)
        elif isinstance(argument, tuple):
            found.extend(argument)
        else:
            found.extend(as_argument(argument))
    return found


class _Simulated:
    """The same on the simulator."""

    def __init__(self, kernel, arrays, integers, shared=0, words=0, early=False):
        self._kernel = kernel

    def on(self, grid, block, shared=0, cluster=None):
        if cluster is None:
            return lambda stream, arguments: self[grid, block, stream, shared](*arguments)

        def launched(stream, arguments):
            from numbacaps.device.turns import clusters_of

            with clusters_of(cluster):
                self[grid, block, stream, shared](*arguments)

        return launched

    def __getitem__(self, how):
        kernel = self._kernel[how]

        def launched(*arguments):
            kernel(*(bits(a) if hasattr(a, "dtype") else a for a in arguments))

        return launched


Compiled = _Simulated if SIMULATED else _Compiled


def launch_stream(stream):
    """A Numba stream, or 0, as prepared launches take it."""
    return stream if SIMULATED else _stream(int(stream) if stream else 0)


def as_argument(array):
    """A C-contiguous Numba device array, of any shape, as compiled kernels take it.

    Returns
    -------
    tuple
        On a GPU of 7 integers (:func:`run_as_argument`); on the simulator of the array, flat.
    """
    if SIMULATED:
        return (array.reshape(array.size),)
    return run_as_argument(address_of(array), array.size, array.dtype.itemsize)


def run_as_argument(address, size, itemsize):
    """The same of a run of elements at an address: two owners that there are not, elements, bytes of one, address, shape,
    strides.
    """
    return 0, 0, size, itemsize, address, size, itemsize


def as_words(numbers):
    """A tuple of integers as compiled kernels take it behind their second array."""
    return (numbers,) if SIMULATED else numbers


where = itemgetter(4)  # the address among such integers


def aligned(multiple, *arguments):
    """Whether arrays, as :func:`as_argument` has them, begin at multiples of some bytes; on the simulator all do."""
    if SIMULATED:
        return True
    for argument in arguments:
        if where(argument) % multiple:
            return False
    return True


def address_of(array):
    """Where a Numba device array begins; on the simulator everything lies as copies want it, at 0."""
    return 0 if SIMULATED else array.device_ctypes_pointer.value or 0
