"""XLA's foreign function interface in ctypes: Python functions that XLA calls where a program runs.

XLA calls a handler with a frame: buffers in device memory, attributes, the stream on which work is to be queued. The
structures are those of ``xla/ffi/api/c_api.h`` (version 0.x), which comes with jaxlib: each begins with its size, and later
versions add fields behind the ones that are read here. So nothing of ours is compiled.
"""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from dataclasses import dataclass
from math import prod

import jax
import numpy as np

from numbacaps.device.bfloat16 import dtype_of

_MAJOR = 0
_METADATA = 1  # the extension by which XLA asks what a handler is
_EXECUTE = 3
_STRING = 4
_INTERNAL = 13
_DTYPES = {10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"}


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", c_uint32), ("state", c_int64)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Span(Structure):
    _fields_ = [("data", POINTER(c_char)), ("size", c_size_t)]

    @property
    def text(self):
        return ctypes.string_at(self.data, self.size).decode()


class _Buffer(Structure):
    _fields_ = [
        *(("size", c_size_t), ("extension", c_void_p)),
        *(("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64))),
    ]


class _Buffers(Structure):  # arguments or results
    _fields_ = [
        *(("size", c_size_t), ("extension", c_void_p)),
        *(("count", c_int64), ("types", POINTER(c_int)), ("all", POINTER(POINTER(_Buffer)))),
    ]


class _Attributes(Structure):
    _fields_ = [
        *(("size", c_size_t), ("extension", c_void_p), ("count", c_int64)),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(_Span))),
        ("all", POINTER(c_void_p)),
    ]


class _ErrorMade(Structure):
    _fields_ = [
        *(("size", c_size_t), ("extension", c_void_p)),
        *(("message", c_char_p), ("code", c_int)),
    ]


class _Asked(Structure):  # for a stream or a device's number
    _fields_ = [
        *(("size", c_size_t), ("extension", c_void_p)),
        *(("context", c_void_p), ("answer", c_void_p)),
    ]


_Call = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class _Api(Structure):
    _fields_ = [
        *(("size", c_size_t), ("extension", c_void_p), ("version", _Version)),
        ("internal", c_void_p),
        *((name, _Call) for name in ("error_create", "error_message", "error_destroy")),
        *((name, _Call) for name in ("register", "stream", "type_register", "context")),
        *((name, _Call) for name in ("state_set", "state_get", "allocate", "free")),
        *((name, _Call) for name in ("schedule", "threads", "future", "available", "failed")),
        *((name, _Call) for name in ("run_id", "device")),
    ]


class _Frame(Structure):
    _fields_ = [
        *(("size", c_size_t), ("extension", POINTER(_MetadataExtension))),
        *(("api", POINTER(_Api)), ("context", c_void_p), ("stage", c_int)),
        *(("arguments", _Buffers), ("results", _Buffers), ("attributes", _Attributes)),
    ]


_Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
_kept = []  # handlers, as long as XLA may call them


@dataclass(frozen=True)
class Buffer:
    """Memory of XLA's, C-contiguous.

    Attributes
    ----------
    address : int
    shape : tuple of int
    dtype : numpy.dtype
    """

    address: int
    shape: tuple
    dtype: np.dtype

    @property
    def nbytes(self):
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Where:
    """Where work is queued: the stream's address, 0 for the default one, and the GPU's number."""

    stream: int
    device: int


def register(name, function, platform="CUDA"):
    """Let programs of JAX call a Python function, by ``jax.ffi.ffi_call(name, ...)``.

    Parameters
    ----------
    name : str
    function : callable
        ``function(arguments, results, how, where)``: lists of :class:`Buffer`, the attribute ``how``, a str, and a
        :class:`Where`. It queues work that fills the results. What it raises is the program's error.
    platform : str
        XLA's name: ``"CUDA"`` or ``"cpu"``.
    """

    def handle(frame):
        frame = frame.contents
        if frame.extension and frame.extension.contents.base.type == _METADATA:
            return _introduce(frame)
        try:
            if frame.stage == _EXECUTE:
                arguments, results = map(_buffers, (frame.arguments, frame.results))
                function(arguments, results, _how(frame.attributes), _where(frame, platform))
        except BaseException as error:  # none passes through C
            return _error(frame, f"{type(error).__name__}: {error}")
        return None

    handler = _Handler(handle)
    _kept.append(handler)
    pointer = ctypes.cast(handler, c_void_p).value
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(pointer), platform=platform)


def _introduce(frame):
    """Tell XLA for which version the handler was made: the one that it has itself, if it is 0.x."""
    metadata, version = frame.extension.contents.metadata.contents, frame.api.contents.version
    metadata.version.major, metadata.version.minor = _MAJOR, version.minor
    metadata.traits = 0  # its calls are not traced into a graph
    return None


def _buffers(found):
    return [_buffer(found.all[i].contents) for i in range(found.count)]


def _buffer(buffer):
    if buffer.dtype not in _DTYPES:
        raise TypeError(
            f"XLA's dtype {buffer.dtype}; numbacaps takes {', '.join(_DTYPES.values())}"
        )
    shape = tuple(buffer.dims[: buffer.rank])
    return Buffer(buffer.data or 0, shape, dtype_of(_DTYPES[buffer.dtype]))


def _how(attributes):
    """The attribute ``how``."""
    for i in range(attributes.count):
        if attributes.types[i] == _STRING and attributes.names[i].contents.text == "how":
            return ctypes.cast(attributes.all[i], POINTER(_Span)).contents.text
    raise LookupError("the call has no attribute 'how'")


def _where(frame, platform):
    if platform == "cpu":
        return Where(0, 0)
    api = frame.api.contents
    stream = _asked(api.stream, frame)
    # The number is an int32 in the place of a pointer.
    return Where(stream, c_int32(_asked(api.device, frame) & 0xFFFFFFFF).value)


def _asked(question, frame):
    asked = _Asked(ctypes.sizeof(_Asked), None, frame.context, None)
    if question(ctypes.addressof(asked)):
        raise RuntimeError("XLA does not tell the stream, or the device")
    return asked.answer or 0


def _error(frame, message):
    """An error of XLA's, which it frees."""
    message = message.encode()
    made = _ErrorMade(ctypes.sizeof(_ErrorMade), None, message, _INTERNAL)
    return frame.api.contents.error_create(ctypes.addressof(made))
