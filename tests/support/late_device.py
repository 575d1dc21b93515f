"""A device that does its work as late as it may, and hands freed memory at once to whoever asks next, by the simulator.

A launch only writes down where its arrays lie: as on a GPU, it keeps no array alive. If an array of a queued kernel or copy
was freed before its turn, that is an error: on a GPU its memory could hold other data by then.
"""

import weakref
from contextlib import contextmanager

import numpy as np
from numba.cuda.simulator import kernel
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.simulator.kernel import FakeCUDAKernel

from numbacaps.device import keeping, streams
from numbacaps.device.target import cuda

_BYTES, _ALIGNED, _FREE = 1 << 25, 512, 255  # every byte of what is free: NaN in all types


class _Block(np.ndarray):
    """Memory in use: all arrays that lie in it hold it."""


class _Bare:
    """Where an array lies, without holding it."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__


class LateDevice:
    """What is queued, and the pool."""

    def __init__(self):
        self._memory, self._end = np.full(_BYTES, _FREE, np.uint8), 0
        self._unused = {}  # size to blocks
        self._queued, self._done = [], 0

    def __len__(self):
        """Launches and copies that are queued."""
        return len(self._queued) - self._done

    # ---- work

    def queue(self, name, arguments, work):
        """Queue ``work(*arguments)``, which is known by a name."""
        owners = [weakref.ref(one) for one in map(_owner, arguments) if one is not None]
        bare = [self._bare(argument) for argument in arguments]

        def done():
            lost = [reference for reference in owners if reference() is None]
            assert not lost, f"{name} has to use memory that was freed while it was queued"
            work(*bare)

        self._queued.append(done)

    def finish(self, until=None):
        """Do what is queued, or so much of all that ever was."""
        until = len(self._queued) if until is None else until
        while self._done < until:
            self._done += 1
            self._queued[self._done - 1]()

    def event(self, timing=True):
        return _Event(self)

    # ---- memory

    def array(self, shape, dtype):
        """A NumPy array in the pool, contents undefined."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape))
        size = -(-max(1, count * dtype.itemsize) // _ALIGNED) * _ALIGNED
        unused = self._unused.setdefault(size, [])
        begin = unused.pop() if unused else self._end
        self._end = max(self._end, begin + size)
        assert self._end <= _BYTES, "the pool is full"
        block = self._memory[begin : begin + size].view(_Block)
        weakref.finalize(block, self._free, begin, size).atexit = False
        return block[: count * dtype.itemsize].view(np.ndarray).view(dtype).reshape(shape)

    def _free(self, begin, size):
        self._memory[begin : begin + size] = _FREE
        self._unused[size].append(begin)

    def _bare(self, argument):
        """An argument of a kernel, without holding what lies in the pool."""
        if _owner(argument) is None:
            return argument
        return FakeCUDAArray(np.asarray(_Bare(argument._ary)))


def _owner(argument):
    """The block that an array lies in, if it is one of the pool's."""
    array = argument
    while not isinstance(array, _Block):
        if isinstance(array, FakeCUDAArray):
            array = array._ary
        elif isinstance(array, np.ndarray):
            array = array.base
        elif isinstance(array, tuple) and array:  # what NumPy has been given a view of, and how
            array = array[0]
        else:
            return None
    return array


class _Event:
    def __init__(self, device):
        self._device, self._at = device, 0

    def record(self, stream=0):
        self._at = len(self._device._queued)

    def wait(self, stream=0):
        pass  # there is one stream

    def query(self):
        return self._device._done >= self._at

    def synchronize(self):
        self._device.finish(self._at)


@contextmanager
def late_device(monkeypatch):
    """A ``with`` block in which the simulator is such a device; arrays are made in it, and read."""
    device, call = LateDevice(), FakeCUDAKernel.__call__
    to_host, to_device = FakeCUDAArray.copy_to_host, FakeCUDAArray.copy_to_device

    def launch(launched, *arguments):
        if launched._device or kernel._kernel_context:
            return call(launched, *arguments)
        how = launched.grid_dim, launched.block_dim, launched.dynshared_size

        def work(*bare):
            launched.grid_dim, launched.block_dim, launched.dynshared_size = how
            call(launched, *bare)

        device.queue(launched.fn.__name__, arguments, work)

    def read(array, *how, **more):
        device.finish()
        return to_host(array, *how, **more)

    def write(array, host, stream=None):
        device.queue("a copy", [array], lambda to: to_device(to, host))
        if stream is None:
            device.finish()

    def new(shape, dtype=np.float64, stream=0):
        return FakeCUDAArray(device.array(shape, dtype), stream)

    def sent(host, stream=0):
        host = np.array(host)  # the driver has read it on return
        array = new(host.shape, host.dtype, stream)
        write(array, host, stream)
        return array

    with monkeypatch.context() as patched:
        for name, stub in (("device_array", new), ("to_device", sent)):
            patched.setattr(cuda, name, stub)
        patched.setattr(cuda, "event", device.event)
        patched.setattr(cuda, "synchronize", device.finish)
        patched.setattr(FakeCUDAKernel, "__call__", launch)
        patched.setattr(FakeCUDAArray, "copy_to_host", read)
        patched.setattr(FakeCUDAArray, "copy_to_device", write)
        patched.setattr(streams.Stream, "synchronize", lambda stream: device.finish())
        patched.setattr(keeping, "SIMULATED", False)
        yield device
        keeping.let_go()
        device.finish()
