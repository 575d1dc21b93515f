"""Streams; and work that is launched kernel by kernel the first time, and as one CUDA graph from then on."""

import gc
import sys
import threading
import warnings
import weakref
from contextlib import nullcontext
from functools import lru_cache

import numpy as np
from cuda.bindings import driver

from numbacaps.device.target import SIMULATED, cuda

# Locks are taken by ``with`` alone: Ctrl-C comes between any other two steps.
_whole_device = threading.RLock()  # held by a thread that captures a stream, or calls synchronize
_waiting = threading.RLock()  # held while is_idle waits, and to add to _captures
# An item while a thread of this package captures a stream. (threading.Event takes its lock in Python: Ctrl-C can leave it locked.)
_captures = []
_RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_NOT_CAPTURING = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
_SUCCESS = driver.CUresult.CUDA_SUCCESS


class Graph:
    """A CUDA graph, ready to be launched.

    Parameters
    ----------
    executable : cuda.bindings.driver.CUgraphExec
        It is destroyed with this object.
    """

    def __init__(self, executable):
        self._executable = executable
        weakref.finalize(self, driver.cuGraphExecDestroy, executable).atexit = False

    def launch(self, stream):
        """Queue it on a stream of cuda.core."""
        _done(driver.cuGraphLaunch(self._executable, int(stream.handle)))


def captured(stream, work):
    """The graph of what ``work()`` launches on a stream of cuda.core; nothing runs now.

    Another thread can break a capture off. Then the capture is ended all the same, and there is no graph to destroy. (cuda.core 1.2's
    ``GraphBuilder`` does not end such a capture, and it destroys the graph twice.)

    Raises
    ------
    RuntimeError
        The driver refuses, or another thread has broken the capture off.
    """
    with _whole_device:
        quiet = _Quiet()
        try:
            try:
                quiet.begin()
                graph = _recorded(int(stream.handle), work)
                try:
                    return Graph(_done(driver.cuGraphInstantiate(graph, 0)))
                finally:
                    driver.cuGraphDestroy(graph)
            finally:
                quiet.end()
        finally:  # Ctrl-C may have come to the first one
            quiet.end()


def _recorded(address, work):
    """The CUDA graph of what ``work()`` launches on a stream."""
    try:
        _done(driver.cuStreamBeginCapture(address, _RELAXED))
        work()
        return _done(driver.cuStreamEndCapture(address))
    except BaseException:  # whether it has been ended or not: a capture that has is not ended again
        status, graph = driver.cuStreamEndCapture(address)
        if status is _SUCCESS:
            driver.cuGraphDestroy(graph)
        raise


def _done(answer):
    """The driver's result. RuntimeError with the driver's words if its status is an error."""
    status, *values = answer
    if status is not _SUCCESS:
        _, said = driver.cuGetErrorString(status)
        raise RuntimeError(f"{status.name}: {said.decode() if said else 'no description'}")
    return values[0] if values else None


class _Quiet:
    """Between begin and end no thread waits for the device in is_idle, and Python collects no garbage.

    Finalizers of garbage wait for the device, which would break this thread's capture off. Freeing memory (``cuMemFree``) waits for
    queued kernels, too, but it breaks no capture off: measured on an H200. (No ``with`` block of a generator: if Ctrl-C comes at its beginning, it ends with the traceback alone.)
    """

    def __init__(self):
        self._collects = gc.isenabled()

    def begin(self):
        """Stop both."""
        with _waiting:
            _captures.append(self)
        gc.disable()

    def end(self):
        """Undo what begin has done by now. A second call does nothing."""
        if self._collects:
            gc.enable()
        _captures.clear()


def synchronize():
    """Wait for all work of the device. CUDA refuses that while any stream is captured, so captures end first."""
    with _whole_device:
        cuda.synchronize()


def between_captures():
    """A ``with`` block that begins when this package captures no stream, and during which it begins no capture.

    Enter it before taking a lock that captured work may take, if the device is waited for behind that lock.
    """
    return _whole_device


def is_idle(device=None):
    """Wait for all work of a device, by default the current one: True. False, without waiting, if this package captures a stream.

    False, too, if another library captures one: its capture is broken off then, for CUDA refuses to wait and does not say so before.
    """
    with _waiting:
        if _captures:
            return False
        try:
            with nullcontext() if device is None else cuda.gpus[device]:
                cuda.synchronize()
        except Exception:  # whatever a driver says
            return False
        return True


class Stream:
    """A CUDA stream as Numba and cuda.core know it.

    Attributes
    ----------
    numba : Numba stream
        On the simulator, where everything is synchronous, the default one.
    captures : bool
        Work on it can be captured.
    """

    def __init__(self):
        self._core = _core_stream()
        self.captures = self._core is not None
        self.numba = cuda.external_stream(int(self._core.handle)) if self.captures else 0

    def capture(self, work):
        """A function that replays what ``work()`` launches on the stream; nothing runs now."""
        graph = captured(self._core, work)
        return lambda: graph.launch(self._core)

    def event(self):
        """A point in streams' work: now, until it is recorded. It takes no time."""
        return cuda.event() if SIMULATED else self._core.record()  # a tenth of Numba's time

    def record(self, event):
        """Move an event to the end of what is queued."""
        if self._core is not None:
            self._core.record(event)
        else:
            event.record(self.numba)

    def wait(self, event):
        """Let what is queued from now on wait for an event."""
        if self._core is not None:
            self._core.wait(event)
        else:
            event.wait(self.numba)

    def wait_for(self, event):
        """Let the host wait for an event."""
        if self._core is not None:
            event.sync()
        else:
            event.synchronize()

    def synchronize(self):
        """Wait for the stream's work."""
        if self.numba:
            self.numba.synchronize()


_TRIES = 3  # to capture the same work
_KEPT = 256  # streams of other libraries
DEFAULT = 1  # the default stream's address where one must be named: 0 says that there is none
_PER_THREAD = 2  # the address by which every thread names a default stream of its own


def numba_stream(stream):
    """Any library's stream as Numba's; 0 for the default stream, None, and on the simulator.

    Parameters
    ----------
    stream
        A Numba stream, an object with ``__cuda_stream__`` (cuda.core), ``cuda_stream`` (PyTorch) or ``ptr`` (CuPy), a
        stream's address, or None.

    Raises
    ------
    TypeError
        ``stream`` is something else.
    """
    if type(stream) is not int or stream < 0:
        _check_stream(stream)
        if hasattr(stream, "auto_synchronize"):  # Numba's own
            return 0 if SIMULATED or not int(stream) else stream
        stream = _address(stream)
    return _external(stream) if stream and not SIMULATED else 0


def _address(stream):
    """The address of another library's stream, or of one that is an address; 0 of None."""
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for attribute in ("cuda_stream", "ptr"):
        stream = getattr(stream, attribute, stream)
    return int(stream or 0)


@lru_cache(_KEPT)
def _external(address):
    return cuda.external_stream(address)


KEPT = (_external,)


def _check_stream(stream):
    """TypeError unless ``stream`` is None or something that names a stream."""
    is_address = isinstance(stream, (int, np.integer)) and not isinstance(stream, bool)
    names_one = ("auto_synchronize", "__cuda_stream__", "cuda_stream", "ptr")
    if stream is None or (is_address and stream >= 0):
        return
    if is_address or not any(hasattr(stream, attribute) for attribute in names_one):
        raise TypeError(
            f"stream is {stream!r}; it takes a Numba stream, an object with __cuda_stream__, "
            "cuda_stream or ptr, or a stream's address"
        )


def identity(stream):
    """What tells a Numba stream from all others, also from those that were destroyed; None while it is captured.

    An address does not: CUDA may give the address of a destroyed stream to a new one, while work of the destroyed one is
    still queued. The new stream does not wait for this work. ``cuStreamGetId`` tells them apart. It is refused while the
    stream is captured, and it breaks the capture off.

    Raises
    ------
    RuntimeError
        The driver refuses for another reason.
    """
    if SIMULATED or not stream:
        return place(stream)
    if is_capturing(stream):
        return None
    return _done(driver.cuStreamGetId(stream.handle))


def place(stream):
    """A Numba stream's address, and of a thread's default stream the thread, too: no two streams have one place at a time."""
    address = int(stream) if stream else 0
    return (address, threading.get_ident()) if address == _PER_THREAD else address


def is_lasting(stream):
    """Whether a Numba stream is there as long as it is held, and is the same one in every thread."""
    return not getattr(stream, "external", False) and (not stream or int(stream) != _PER_THREAD)


def is_capturing(stream):
    """Whether what is launched on a Numba stream becomes part of a graph; the default stream cannot be captured."""
    if SIMULATED or not stream:
        return False
    status, capturing = driver.cuStreamIsCapturing(stream.handle)
    return status is _SUCCESS and capturing is not _NOT_CAPTURING


def torch_stream(tensor):
    """Address of PyTorch's current stream, if it is a tensor: tensors name none themselves; else 0."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return 0
    device = tensor.get_device()
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # without an object for the stream
    return raw(device) if raw else torch.cuda.current_stream(device).cuda_stream


def follow(stream, addresses):
    """Let a Numba stream wait for what is queued by now on others, which are known by their addresses."""
    own = int(stream) if stream else 0
    for address in addresses:
        if address and address != own:
            event = cuda.event(timing=False)
            event.record(_external(address))
            event.wait(stream)


class Beside:
    """Streams for work that need not be done in the order of another stream's.

    On the simulator, where everything is synchronous, it is done in order all the same.

    Parameters
    ----------
    stream : Numba stream
        Whose work they branch off, and into which they flow back.
    count : int
        Streams, which take the work in turn.
    """

    def __init__(self, stream, count=4):
        self.stream, self._turn, self._busy = stream, 0, set()
        self._others = []
        if not SIMULATED:
            self._others = [Stream() for _ in range(count)]
            events = [cuda.event(timing=False) for _ in range(2 + count)]
            self._branch, self._mark, *self._ends = events

    def mark(self):
        """Remember what is queued on the stream by now."""
        if self._others:
            self._mark.record(self.stream)

    def run(self, work):
        """Queue ``work(stream)`` behind what is queued on the stream by now."""
        if self._others:
            self._branch.record(self.stream)
            self._run(work, self._branch)
        else:
            work(self.stream)

    def run_marked(self, work):
        """Queue ``work(stream)`` behind what was queued on the stream at the last :meth:`mark`."""
        if self._others:
            self._run(work, self._mark)
        else:
            work(self.stream)

    def _run(self, work, branch):
        turn, self._turn = self._turn, (self._turn + 1) % len(self._others)
        self._busy.add(turn)
        other = self._others[turn].numba
        branch.wait(other)
        work(other)

    def forget(self):
        """Take it that nothing was run: after work that broke off, whose part nobody waits for."""
        self._turn, self._busy = 0, set()

    def join(self):
        """Let what is queued on the stream from now on wait for all that was run beside it."""
        for turn in sorted(self._busy):
            self._ends[turn].record(self._others[turn].numba)
            self._ends[turn].wait(self.stream)
        self.forget()

    def synchronize(self):
        """Wait for all that was run beside it."""
        for other in self._others:
            other.synchronize()


def _core_stream():
    """A stream of cuda.core; None on the simulator."""
    if SIMULATED:
        return None
    from cuda.core import Device

    device = Device(cuda.get_current_device().id)
    device.set_current()
    return device.create_stream()


class Repeated:
    """Work that is done again and again on the same arrays.

    The first call launches kernel by kernel, which compiles them and allocates workspaces, and
    captures; every other call is one graph launch. Where the stream cannot capture, or the work
    cannot be captured, all calls launch kernel by kernel; a warning says why if that was not known
    before. The results are the same.

    Another thread can break a capture off, so up to three calls try to capture.

    Parameters
    ----------
    work : callable
        ``work()`` launches on the stream, and allocates nothing from its second call on.
    stream : Stream
    capturable : bool
    """

    def __init__(self, work, stream, capturable):
        self._work, self._stream = work, stream
        self._tries = _TRIES if capturable and stream.captures else 0
        self._replay = None

    @property
    def captured(self):
        """The next call is one graph launch."""
        return self._replay is not None

    def __call__(self):
        if self._replay is not None:
            self._replay()
            return
        self._work()
        if self._tries:
            try:
                self._replay = self._stream.capture(self._work)
            except Exception as refusal:  # a driver's, or a library's
                self._tries -= 1
                if not self._tries:
                    said = f"launched kernel by kernel, because it cannot be captured: {refusal}"
                    warnings.warn(said, RuntimeWarning, stacklevel=2)
