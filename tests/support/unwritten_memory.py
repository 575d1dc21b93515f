"""What compute-sanitizer's initcheck looks for, on the simulator: kernels that read device memory which nobody has written.

Watched is what ``cuda.device_array`` makes. Memory that was written once counts as written, whatever has used it since.
"""

import sys
from bisect import bisect_right
from contextlib import ExitStack, contextmanager
from copy import copy
from unittest.mock import patch

import numpy as np
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

from numbacaps.device import tensor_map
from numbacaps.device.instructions.simulated import copies
from numbacaps.device.target import cuda


class Written:
    """Which bytes of arrays have been written.

    Attributes
    ----------
    places : list of str
        Where kernels have read others.
    """

    def __init__(self):
        self._first, self._arrays, self.places = [], [], []

    def add(self, array):
        """Watch an array, which lives on until the end."""
        at = bisect_right(self._first, _address(array))
        self._first.insert(at, _address(array))
        self._arrays.insert(at, (array, np.zeros(array.nbytes, bool)))

    def of(self, array):
        """Of each byte of an array (*shape, itemsize), or None if its memory is not watched."""
        at = bisect_right(self._first, _address(array)) - 1
        if at < 0 or not array.size:
            return None
        whole, bits = self._arrays[at]
        start = _address(array) - _address(whole)
        if start >= whole.nbytes:
            return None
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        return np.lib.stride_tricks.as_strided(bits[start:], shape, strides)

    def read(self, bits):
        """Note the kernel that reads bytes of which these bits tell."""
        if bits is not None and not bits.all():
            self.places.append(_kernels_line())

    def write(self, array, key):
        """Note that elements are written."""
        bits = self.of(array)
        if bits is not None:
            bits[key] = True


def _address(array):
    return array.__array_interface__["data"][0]


def _kernels_line():
    """The line that reads, of a kernel or of a function that it calls."""
    frame, names = sys._getframe(1), (__file__, "/simulated/", "numba/cuda")
    while any(name in frame.f_code.co_filename for name in names):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}"


class _Bytes(np.ndarray):
    """Bytes that copies read and write, and the bits of those that are watched."""

    bits = written = None

    def __getitem__(self, key):
        part = super().__getitem__(key)
        if self.bits is not None:
            part.bits, part.written = self.bits[key], self.written
        return part

    def __setitem__(self, key, value):
        if getattr(value, "bits", None) is not None:
            value.written.read(value.bits)
        if self.bits is not None:
            self.bits[key] = True
        super().__setitem__(key, np.asarray(value))


@contextmanager
def watched():
    """A ``with`` block whose :class:`Written` tells what kernels have read in there."""
    written, within, fake = Written(), FakeWithinKernelCUDAArray, FakeCUDAArray
    get, put = within.__getitem__, within.__setitem__
    put_by_host, send = fake.__setitem__, fake.copy_to_device
    fetch, memory = tensor_map.SimulatedMap.fetch, copies.memory

    def read(array, key):
        own = array._item._ary
        found, bits = get(array, key), written.of(own)
        # Of a part of an array only load_run reads; others go on with it.
        if bits is not None and (
            np.ndim(own[key]) == 0 or sys._getframe(1).f_code is copies.load_run.__code__
        ):
            written.read(bits[key])
        return found

    def write(array, key, value):
        written.write(array._item._ary, key)
        put(array, key, value)

    def write_by_host(array, key, value):
        written.write(array._ary, key)
        put_by_host(array, key, value)

    def receive(array, other, stream=0):
        written.write(array._ary, ...)
        return send(array, other, stream)

    def bytes_of(array):
        found = memory(array).view(_Bytes)
        bits = written.of(np.asarray(found))
        if bits is not None:
            found.bits, found.written = bits.reshape(-1), written
        return found

    def fetch_box(box, coordinates):
        bits = written.of(box.words)
        if bits is not None:
            unwritten = copy(box)
            unwritten.words, unwritten.row = (~bits.all(1)).astype(np.uint32), 0
            written.read(fetch(unwritten, coordinates) == 0)  # outside of the tensor, too
        return fetch(box, coordinates)

    def adding(make):
        def made(*how, **more):
            array = make(*how, **more)
            written.add(array._ary)
            return array

        return made

    patches = (
        (within, "__getitem__", read),
        (within, "__setitem__", write),
        (fake, "__setitem__", write_by_host),
        (fake, "copy_to_device", receive),
        (copies, "memory", bytes_of),
        (tensor_map.SimulatedMap, "fetch", fetch_box),
        *(
            (cuda, name, adding(getattr(cuda, name)))
            for name in ("device_array", "device_array_like")
        ),
    )
    with ExitStack() as stack:
        for where, name, new in patches:
            stack.enter_context(patch.object(where, name, new))
        yield written
