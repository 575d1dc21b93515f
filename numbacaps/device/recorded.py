"""Launches that are written down once, and repeated on other memory.

Where kernels, grids and numbers follow from shapes alone, a call differs from the last one in addresses. So the functions that
launch are called once, with a :class:`Recording` in the place of the stream and stand-ins in the place of arrays; from then on
:meth:`Recording.repeat` launches, which takes a few microseconds a kernel.
"""

from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace

import numpy as np

from numbacaps.device.compiled import address_of, launch_stream, run_as_argument
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.made_once import made_once

_BEGINS = 256  # bytes; in one memory each workspace begins at a multiple


@dataclass(frozen=True)
class StandIn:
    """A C-contiguous array in some memory whose address is not known yet.

    Attributes
    ----------
    memory : str
    first : int
        Byte of it where the array begins.
    shape : tuple of int
    dtype : numpy.dtype
    is_aligned : bool
        The memory begins at a multiple of 16 bytes.
    """

    memory: str
    first: int
    shape: tuple
    dtype: np.dtype
    is_aligned: bool = True

    @property
    def size(self):
        """Elements."""
        return prod(self.shape)

    @property
    def nbytes(self):
        """Bytes."""
        return self.size * self.dtype.itemsize

    @property
    def device_ctypes_pointer(self):
        """An address that is as well aligned as the array's will be."""
        return SimpleNamespace(value=self.first + (0 if self.is_aligned else self.dtype.itemsize))

    def reshape(self, *shape):
        """The same elements under another shape: integers, or a tuple of them."""
        return replace(self, shape=shape[0] if isinstance(shape[0], tuple) else shape)

    def view(self, dtype):
        """A run of elements as one of another dtype."""
        dtype = np.dtype(dtype)
        return replace(self, shape=(self.nbytes // dtype.itemsize,), dtype=dtype)

    def __getitem__(self, index):
        """Some of the first axis (a slice), or one of it."""
        count, *others = self.shape
        each = prod(others) * self.dtype.itemsize
        if not isinstance(index, slice):
            return replace(self, first=self.first + index * each, shape=tuple(others))
        start, stop, _ = index.indices(count)
        return replace(self, first=self.first + start * each, shape=(stop - start, *others))

    def on(self, memory):
        """The simulator's array of it, flat, in an array of the memory's bytes."""
        part = np.asarray(memory)[self.first : self.first + self.nbytes]
        return type(memory)(part.view(self.dtype))


def stand_ins(arguments, arrays):
    """Arguments with stand-ins in the place of device arrays, which are put into a list; tuples and lists become tuples.

    The stand-in of the array at place i of the list has the memory ``str(i)``.
    """
    if isinstance(arguments, (tuple, list)):
        return tuple(stand_ins(one, arrays) for one in arguments)
    if not hasattr(arguments, "dtype"):
        return arguments
    arrays.append(arguments)
    is_aligned = address_of(arguments) % CHUNK == 0
    dtype = np.dtype(arguments.dtype)
    return StandIn(str(len(arrays) - 1), 0, tuple(arguments.shape), dtype, is_aligned)


def memory_of(array):
    """The memory of a C-contiguous device array, as :meth:`Recording.repeat` takes it."""
    if SIMULATED:
        return type(array)(np.asarray(array).reshape(-1).view(np.uint8))
    return address_of(array)


class Recording:
    """Launches in their order, and the workspaces that they take.

    Attributes
    ----------
    workspaces : dict of str to int
        Bytes of the memories that were asked for as :class:`numbacaps.device.workspace.Rooms` are.
    """

    def __init__(self):
        self._launches, self.workspaces = [], {}

    def note(self, launched, arguments, scalars=()):
        """Write a prepared launch down (:meth:`numbacaps.device.compiled.Compiled.on`): of arrays, then integers, then scalars."""
        flat, places = [], []
        for one in arguments:
            if not isinstance(one, StandIn):
                flat.append(one)
            elif SIMULATED:
                places.append((len(flat), one.memory, one))
                flat.append(one)
            else:
                places.append((len(flat) + 4, one.memory, one.first))  # where the address is
                flat.extend(run_as_argument(0, one.size, one.dtype.itemsize))
        self._launches.append((launched, [*flat, *scalars], places))

    @made_once
    def one_workspace(self):
        """All workspaces in one memory: (bytes of the memory, dict of name to the byte where that workspace begins).

        The recording must be complete.
        """
        firsts, end = {}, 0
        for name, nbytes in self.workspaces.items():
            firsts[name], end = end, end + ceil_div(nbytes, _BEGINS) * _BEGINS
        return end, firsts

    def repeat(self, stream, memories):
        """Launch everything on a Numba stream.

        Parameters
        ----------
        stream : Numba stream or 0
        memories : dict of str to int
            The address of each memory; on the simulator an array of its bytes.
        """
        stream = launch_stream(stream)
        for launched, flat, places in self._launches:
            arguments = flat.copy()
            for at, memory, first in places:
                memory = memories[memory]
                arguments[at] = first.on(memory) if SIMULATED else memory + first
            launched(stream, arguments)

    # ---- as rooms of workspaces

    def of(self, stream):
        """Itself: it has one stream."""
        return self

    def __getitem__(self, name):
        return _Workspace(self, name)


@dataclass(frozen=True)
class _Workspace:
    """A memory of a recording's own."""

    recording: Recording
    name: str

    def arrays(self, shapes, dtype):
        """{name: stand-in} of one shape."""
        ((name, shape),) = shapes.items()
        found = StandIn(f"workspace {self.name}", 0, tuple(shape), np.dtype(dtype))
        before = self.recording.workspaces.get(found.memory, 0)
        self.recording.workspaces[found.memory] = max(before, found.nbytes)
        return {name: found}
