"""What the instructions of :mod:`numbacaps.device.instructions.ptx.copies` do.

A copy is done at once, so a missing wait does not show here; what lies outside of an array or is misaligned does.
"""

import numpy as np

from numbacaps.device.instructions.simulated.barriers import barrier_at
from numbacaps.device.instructions.simulated.block import memory
from numbacaps.device.instructions.simulated.swizzle import swizzled


def _nothing():
    """An instruction that waits for what is done here."""


cp_async_commit = bulk_store_read = bulk_store_wait = _nothing


def cp_async_wait(pending):
    """Copies are done at once."""


def prefetch(array, index):
    """Nothing is nearer than the rest here."""
    assert 0 <= index < array.size, "not in the array"


def shared_address(shared):
    """Shared memory begins at 0; in 64 bits."""
    return np.int64(0)


def cp_async(size, shared, address, array, index, valid):
    """4, 8 or 16 bytes from an array to a shared address; zeros if not valid."""
    to = memory(shared)[address : address + size]
    assert to.size == size and address % size == 0, "outside of shared memory, or misaligned"
    to[:] = 0
    if valid:
        first = int(index) * array.dtype.itemsize
        assert first >= 0 and first % size == 0, "before the array, or misaligned"
        to[:] = memory(array)[first : first + size]


cp_async_cached = cp_async  # here nothing is cached


def _run(array, index, shared, address, size):
    """The bytes of an array, and those of shared memory, that a bulk copy takes one to the other."""
    first, address, size = int(index) * array.dtype.itemsize, int(address), int(size)
    assert address % 16 == 0 and first % 16 == 0 and size % 16 == 0, "not at 16 bytes"
    of_array = memory(array)[first : first + size]
    of_shared = memory(shared)[address : address + size]
    assert first >= 0 and of_array.size == of_shared.size == size, "outside of one of them"
    return of_array, of_shared


def bulk_copy(shared, address, array, index, size, barrier):
    """A run of bytes from an array to shared memory; the barrier counts them in."""
    read, to = _run(array, index, shared, address, size)
    to[:] = read
    barrier_at(barrier).take(size=-read.size)


def bulk_store(array, index, shared, address, size):
    """A run of bytes from shared memory to an array."""
    to, read = _run(array, index, shared, address, size)
    to[:] = read


def map_address(words, which):
    """One of a kernel's tensor maps: here an object that :func:`tensor_copy` asks."""
    return words[16 * which]


def tensor_copy(shared, address, map, first, second, third, fourth, fifth, barrier):
    """The box of a :class:`numbacaps.device.tensor_map.SimulatedMap` that begins at these coordinates."""
    words = map.fetch([int(i) for i in (first, second, third, fourth, fifth)])
    address = int(address)
    assert address % 128 == 0, "a box lies at a multiple of 128 bytes"
    assert not map.row or address % (8 * map.row) == 0, "a swizzled box lies at its pattern's size"
    at, to = address + np.arange(4 * words.size), memory(shared)
    assert at[-1] < to.size, "outside of shared memory"
    to[swizzled(at, map.row)] = words.view(np.uint8)
    barrier_at(barrier).take(size=-at.size)


def load_run(count, to, array, index):
    """Several elements in one load."""
    assert int(index) % count == 0, "misaligned"
    to[0:count] = array[index : index + count]


def store_pair(array, index, first, second):
    """Two elements in one store."""
    assert int(index) % 2 == 0, "misaligned"
    array[index], array[index + 1] = first, second


def store_pair_where(condition, array, index, first, second):
    """The same where a condition holds."""
    if condition:
        store_pair(array, index, first, second)


def store_quad(array, index, first, second, third, fourth):
    """Four elements in one store."""
    assert int(index) % 4 == 0, "misaligned"
    array[index : index + 4] = first, second, third, fourth


def store_run(count, array, index, values):
    """Several elements in one store."""
    assert int(index) % count == 0, "misaligned"
    array[index : index + count] = values[0:count]


def store_words(array, index, first, second, third, fourth):
    """Four times 4 bytes in one store, whatever the array holds."""
    at = int(index) * array.dtype.itemsize
    assert at % 16 == 0, "misaligned"
    words = np.array((first, second, third, fourth), np.float32)
    memory(array)[at : at + 16] = words.view(np.uint8)


def copy_chunk(source, begin, target, to):
    """16 bytes from one array to another."""
    begin, to = (
        int(index) * array.dtype.itemsize for array, index in ((source, begin), (target, to))
    )
    assert begin % 16 == 0 and to % 16 == 0, "misaligned"
    memory(target)[to : to + 16] = memory(source)[begin : begin + 16]
