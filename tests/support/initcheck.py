"""The initcheck of compute-sanitizer, for Numba's simulator: it finds kernels that read uninitialized device memory.

:func:`initcheck` watches the arrays that ``cuda.device_array`` makes. An element is initialized once a kernel or the host has
written it. The simulator's tensor maps (TMA) are not watched.
"""

import sys
from bisect import bisect_right
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

from numbacaps.device.instructions.simulated import copies
from numbacaps.device.target import cuda


class Initialized:
    """Which bytes of the watched arrays are initialized.

    Attributes
    ----------
    errors : list of str
        Lines of kernels that have read uninitialized bytes.
    """

    def __init__(self):
        self._first, self._arrays, self.errors = [], [], []

    def add(self, array):
        """Watch an array. It is kept, so that no other array gets its address."""
        at = bisect_right(self._first, _address(array))
        self._first.insert(at, _address(array))
        self._arrays.insert(at, (array, np.zeros(array.nbytes, bool)))

    def of(self, array):
        """Whether each byte of an array is initialized: bool (*shape, itemsize); None if the array is not watched."""
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
        """Add an error if bytes that are read are not all initialized; ``bits`` as :meth:`of` returns them."""
        if bits is not None and not bits.all():
            self.errors.append(_kernels_line())

    def write(self, array, key):
        """Mark elements of an array as initialized."""
        bits = self.of(array)
        if bits is not None:
            bits[key] = True


def _address(array):
    return array.__array_interface__["data"][0]


def _kernels_line():
    """File, line and name of the kernel, or of the device function, that reads."""
    frame, names = sys._getframe(1), (__file__, "/simulated/", "numba/cuda")
    while any(name in frame.f_code.co_filename for name in names):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}"


class _Bytes(np.ndarray):
    """Bytes of an array that a simulated copy reads or writes.

    ``bits`` says which of them are initialized, and is None if the array is not watched.
    """

    bits = memory = None

    def __getitem__(self, key):
        part = super().__getitem__(key)
        if self.bits is not None:
            part.bits, part.memory = self.bits[key], self.memory
        return part

    def __setitem__(self, key, value):
        if getattr(value, "bits", None) is not None:
            value.memory.read(value.bits)
        if self.bits is not None:
            self.bits[key] = True
        super().__setitem__(key, np.asarray(value))


@contextmanager
def initcheck():
    """A ``with`` block in which kernels' reads are checked; it gives the :class:`Initialized`, whose ``errors`` has what was found."""
    initialized, within, fake = Initialized(), FakeWithinKernelCUDAArray, FakeCUDAArray
    get, put = within.__getitem__, within.__setitem__
    put_by_host, send = fake.__setitem__, fake.copy_to_device
    memory = copies.memory

    def read(array, key):
        own = array._item._ary
        found, bits = get(array, key), initialized.of(own)
        # A slice is a view, of which nothing is read yet. Only load_run copies it.
        if bits is not None and (
            np.ndim(own[key]) == 0 or sys._getframe(1).f_code is copies.load_run.__code__
        ):
            initialized.read(bits[key])
        return found

    def write(array, key, value):
        initialized.write(array._item._ary, key)
        put(array, key, value)

    def write_by_host(array, key, value):
        initialized.write(array._ary, key)
        put_by_host(array, key, value)

    def receive(array, other, stream=0):
        initialized.write(array._ary, ...)
        return send(array, other, stream)

    def bytes_of(array):
        found = memory(array).view(_Bytes)
        bits = initialized.of(np.asarray(found))
        if bits is not None:
            found.bits, found.memory = bits.reshape(-1), initialized
        return found

    def adding(make):
        def made(*how, **more):
            array = make(*how, **more)
            initialized.add(array._ary)
            return array

        return made

    patches = (
        (within, "__getitem__", read),
        (within, "__setitem__", write),
        (fake, "__setitem__", write_by_host),
        (fake, "copy_to_device", receive),
        (copies, "memory", bytes_of),
        *(
            (cuda, name, adding(getattr(cuda, name)))
            for name in ("device_array", "device_array_like")
        ),
    )
    with ExitStack() as stack:
        for where, name, new in patches:
            stack.enter_context(patch.object(where, name, new))
        yield initialized
