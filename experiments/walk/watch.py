"""Which thread of a kernel reads and writes what: counted while the kernel runs on the simulator.

Nothing here knows a formula. The arrays that a kernel is given, and those it shares in a block, are
wrapped so that every access leaves a row behind: who, where, and by which instruction. Local arrays
are registers and leave none.

A warp's accesses meet where its threads come by one instruction equally often; the hardware then
moves every 32-byte sector that any of them touches. A thread that skips a turn in a loop is counted
with the turn that it takes next.
"""

import dis
import inspect
import linecache
import sys
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import itemgetter
from pathlib import Path
from unittest.mock import patch

import numpy as np

from numbacaps.device import instructions
from numbacaps.device.turns import Block, this_block, this_thread

KINDS = READ, WRITE, ATOMIC = range(3)
WARP, SECTOR, LINE = 32, 32, 128  # threads, bytes, bytes
_INSTRUCTIONS = str(
    Path(instructions.__file__).parent
)  # their files, which stand for the hardware's


@dataclass(frozen=True)
class Memory:
    """An array that a kernel touched: its name, whether a block shares it, its size."""

    name: str
    shared: bool
    size: int
    itemsize: int


@dataclass(frozen=True)
class Launch:
    """One kernel, launched once.

    Attributes
    ----------
    kernel : function
        What ``numba.cuda.jit`` was given.
    grid, block : tuple of int
    memories : tuple of Memory
    accesses : ndarray of int64, (count, 7)
        A row an access, each thread's in the order it made them: number of the block, number of
        the thread in it, which of ``memories``, which of :data:`KINDS`, the element, the
        instruction, and how often the thread had come by it.
    """

    kernel: object
    grid: tuple
    block: tuple
    memories: tuple
    accesses: np.ndarray

    def of(self, memory, kind):
        """The rows of one memory (its number) and one kind."""
        return self.accesses[(self.accesses[:, 2] == memory) & (self.accesses[:, 3] == kind)]

    def count(self, kind, shared):
        """Accesses of a kind to global or to shared memory, all threads together."""
        return sum(
            len(self.of(i, kind))
            for i, memory in enumerate(self.memories)
            if memory.shared == shared
        )

    def transactions(self, memory, kind):
        """What the warps ask for: (requests, sectors moved, fewest sectors, 128-byte lines).

        The fewest is what each request's distinct elements fill when they lie side by side.
        """
        rows, itemsize = self.of(memory, kind), self.memories[memory].itemsize
        request = _numbered(rows[:, 0], rows[:, 1] // WARP, rows[:, 5], rows[:, 6])
        byte = rows[:, 4] * itemsize

        def per_request(places):
            """How many different places each request touches."""
            _, first = np.unique(_numbered(request, places), return_index=True)
            return np.bincount(request[first])

        elements = per_request(byte)
        fewest = -(-elements * itemsize // SECTOR)
        sectors, lines = per_request(byte // SECTOR), per_request(byte // LINE)
        return tuple(int(n) for n in (len(elements), sectors.sum(), fewest.sum(), lines.sum()))


def _numbered(*columns):
    """The same number for every row that holds the same, from 0 on without a gap."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, place = np.unique(column, return_inverse=True)
        _, number = np.unique(number * (len(column) + 1) + place, return_inverse=True)
    return number


@contextmanager
def watching(names):
    """Watch every kernel that is launched.

    Parameters
    ----------
    names : dict of str to device array
        What to call the arrays that are known; any other goes by the kernel's own parameter.

    Yields
    ------
    list of Launch
        Filled as kernels run.
    """
    from numba.cuda.simulator import kernel, kernelapi

    from numbacaps.device.instructions.simulated import arrays

    launches, run = [], kernel.FakeCUDAKernel.__call__

    def watched_run(self, *arguments):
        if self._device or kernel._kernel_context:
            return run(self, *arguments)
        watch = _Watch(self, names, arguments)

        def shared_array(_, shape, dtype, alignment=None):
            return watch.share(this_block().common, shape, dtype, sys._getframe(1))

        def array_of_line(frame, size, dtype):
            return watch.share(this_block().common, size, dtype, frame)

        def atomic_add(_, array, index, value):
            return watch.add(array, index, value, sys._getframe(1))

        with (
            patch.object(kernel, "FakeWithinKernelCUDAArray", watch.wrap),
            patch.object(kernelapi.FakeCUDAShared, "array", shared_array),
            patch.object(arrays, "array_of_line", array_of_line),
            patch.object(kernelapi.FakeCUDAAtomic, "add", atomic_add),
            patch.object(kernel, "BlockManager", partial(_Block, watch)),
        ):
            run(self, *arguments)
        launches.append(watch.launch())

    with patch.object(kernel.FakeCUDAKernel, "__call__", watched_run):
        yield launches


class _Watch:
    """The accesses of one launch as they come in."""

    def __init__(self, kernel, names, arguments):
        self.kernel = kernel
        self.memories = []
        self.threads = []
        self.starts, self.instructions = {}, {}  # numbers by (code, first byte), by (code, byte)
        parameters = inspect.signature(kernel.fn).parameters
        self.names = {
            _address(array): name
            for name, array in zip(parameters, arguments)
            if hasattr(array, "_ary")
        } | {_address(array): name for name, array in names.items()}

    def remember(self, name, shared, array):
        """The number of a memory that a kernel touches."""
        self.memories.append(Memory(name, shared, prod(array.shape), array.dtype.itemsize))
        return len(self.memories) - 1

    def wrap(self, array):
        """Stands for the simulator's wrapper of a kernel's argument."""
        return _Watched(self, array, self.remember(self.names[_address(array)], False, array))

    def share(self, allocations, shape, dtype, frame):
        """Stands for ``cuda.shared.array``: one array a block and line of source."""
        from numba.cuda.np import numpy_support
        from numba.cuda.types import Type

        line = frame.f_code.co_filename, frame.f_lineno
        array = np.empty(shape, numpy_support.as_dtype(dtype) if isinstance(dtype, Type) else dtype)
        array = allocations.setdefault(line, array)  # whoever comes second gets the first's
        name = linecache.getline(*line).partition("=")[0].strip()
        known = [memory.shared and memory.name == name for memory in self.memories]
        number = known.index(True) if True in known else self.remember(name, True, array)
        return _Watched(self, array, number)

    def add(self, array, index, value, frame):
        """Stands for ``cuda.atomic.add``."""
        self.note(array.memory, ATOMIC, array.elements(index), frame)
        old = array.array[index]  # no thread comes in between: they take turns
        array.array[index] = old + value
        return old

    def note(self, memory, kind, elements, frame):
        """Keep an access of the thread that runs; one instruction may take several elements."""
        thread = this_thread()
        place = id(frame.f_code), frame.f_lasti
        instruction = self.instructions.get(place)
        if instruction is None:
            instruction = self.instructions[place] = self.number(frame)
        turn = thread.turns[instruction] = thread.turns.get(instruction, 0) + 1
        for element in elements:
            thread.accesses += memory, kind, element, instruction, turn

    def number(self, frame):
        """A number for the instruction that a frame is at, wherever in it (some have a tail)."""
        starts = [instruction.offset for instruction in dis.get_instructions(frame.f_code)]
        start = id(frame.f_code), starts[bisect_right(starts, frame.f_lasti) - 1]
        return self.starts.setdefault(start, len(self.starts))

    def launch(self):
        """What was seen."""
        grid, block = tuple(self.kernel.grid_dim), tuple(self.kernel.block_dim)
        rows = [np.empty((0, 7), np.int64)]
        for (x, y, z), _, thread, accesses in sorted(self.threads, key=itemgetter(0, 1)):
            number = x + grid[0] * (y + grid[1] * z), thread
            accesses = np.array(accesses, np.int64).reshape(-1, 5)
            rows.append(np.insert(accesses, 0, [[number[0]], [number[1]]], axis=1))
        rows = np.concatenate(rows)
        return Launch(self.kernel.fn, grid, block, tuple(self.memories), rows)


class _Watched:
    """An array as a kernel sees it, every access of which is kept."""

    def __init__(self, watch, array, memory):
        self.watch, self.array, self.memory = watch, array, memory
        self.size, self.shape, self.dtype = array.size, array.shape, array.dtype

    def elements(self, index):
        """The elements' numbers in C order."""
        if isinstance(index, slice):
            return range(*map(int, (index.start, index.stop, 1)))
        if isinstance(index, tuple):
            return [int(np.ravel_multi_index(tuple(map(int, index)), tuple(self.shape)))]
        return [int(index)]

    def note(self, kind, index):
        """Keep an access by the line of the kernel that makes it, or whose instruction does."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename.startswith(_INSTRUCTIONS):
            frame = frame.f_back
        self.watch.note(self.memory, kind, self.elements(index), frame)

    def __getitem__(self, index):
        self.note(READ, index)
        return self.array[index]

    def __setitem__(self, index, value):
        self.note(WRITE, index)
        self.array[index] = value


def _address(array):
    """Where a simulated device array lies."""
    return array._ary.ctypes.data


class _Block(Block):
    """A simulated block whose threads keep their accesses."""

    def __init__(self, watch, *arguments):
        super().__init__(*arguments)
        self.watch = watch

    def begin(self, point):
        thread = super().begin(point)
        thread.accesses, thread.turns = [], {}  # in order; how often it came by each instruction
        place = tuple(thread.blockIdx), point
        self.watch.threads.append((*place, thread.thread_id, thread.accesses))
        return thread
