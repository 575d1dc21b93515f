"""The arrays that callers hand over: what they are, where they live, and on which stream.

NumPy arrays live on the host. Numba device arrays and anything with ``__cuda_array_interface__``
(CuPy arrays, PyTorch tensors) live on the device and are used in place.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.core.utils import StridedMemoryView

from numbacaps.device.bfloat16 import dtype_of, is_bfloat16, to_device
from numbacaps.device.strided_copy import gather
from numbacaps.device.target import SIMULATED, cuda

FULL_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_DTYPES = (np.dtype(np.float16), *FULL_DTYPES)
DTYPE_NAMES = "float16, bfloat16, float32 or float64"
_TAKES = "a NumPy array, a Numba device array, or an array with __cuda_array_interface__ or DLPack"
_DLPACK_CUDA = 2  # the kind of device that is a GPU of CUDA's


Array = Any  # a NumPy array, or a device array of any library that has one of these protocols


class _Interface:
    """A bare holder of a ``__cuda_array_interface__``; it keeps the memory's owner alive."""

    def __init__(self, interface, owner):
        self.__cuda_array_interface__ = interface
        self.owner = owner


@dataclass(frozen=True)
class Operand:
    """A caller's array: its name in errors, the array, and what is known of it without touching it.

    Attributes
    ----------
    on_device : bool
    shape : tuple of int
    strides : tuple of int
        In bytes, always given.
    dtype : numpy.dtype
    """

    name: str
    array: object
    on_device: bool
    shape: tuple
    strides: tuple
    dtype: np.dtype

    @property
    def rank(self):
        return len(self.shape)

    @property
    def is_contiguous(self):
        """C-contiguous, axes of size 1 apart."""
        expected = self.dtype.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True

    def reshaped(self, shape):
        """A C-contiguous array under another shape, in place; one on the GPU as a device array."""
        if SIMULATED or not self.on_device:
            return self.array.reshape(*shape)
        known = getattr(self.array, "__cuda_ndarray__", False) and self.array.shape == shape
        if known and self.array.is_c_contiguous():
            return self.array  # wrapping it anew would take longer than launching what reads it
        interface = dict(self.array.__cuda_array_interface__)
        interface.update(shape=shape, strides=None)
        return self._wrapped(interface)

    def memory(self):
        """(all the memory that the array spans as one run of elements, where the array begins)."""
        low, high = self.byte_bounds()
        count = (high - low) // self.dtype.itemsize
        if SIMULATED:
            forward = tuple(slice(None, None, -1 if step < 0 else 1) for step in self.strides)
            start = _simulated(self.array)[forward]  # begins at the lowest address
            run = np.lib.stride_tricks.as_strided(start, (count,), (self.dtype.itemsize,))
            return type(self.array)(run), (self._address() - low) // self.dtype.itemsize
        interface = dict(self.array.__cuda_array_interface__)
        interface.update(shape=(count,), strides=None, data=(low, False))
        return self._wrapped(interface), (self._address() - low) // self.dtype.itemsize

    def _wrapped(self, interface):
        """A Numba device array of the operand's dtype, which an interface does not always tell."""
        array = cuda.as_cuda_array(_Interface(interface, self.array), sync=False)
        return array if array.dtype == self.dtype else array.view(self.dtype)

    def _address(self):
        """Address of the first element."""
        if self.on_device and not SIMULATED:
            return self.array.__cuda_array_interface__["data"][0]
        return _simulated(self.array).__array_interface__["data"][0]

    def byte_bounds(self):
        """Addresses (first, past the last) of the memory the array spans."""
        start = self._address()
        steps = [(size - 1) * stride for size, stride in zip(self.shape, self.strides)]
        low = start + sum(step for step in steps if step < 0)
        return low, start + sum(step for step in steps if step > 0) + self.dtype.itemsize

    def device_ordinal(self):
        """Number of the GPU that holds the array."""
        from cuda.bindings import driver

        error, ordinal = driver.cuPointerGetAttribute(
            driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            self.array.__cuda_array_interface__["data"][0],
        )
        if error != driver.CUresult.CUDA_SUCCESS:
            raise ValueError(f"{self.name} does not point to CUDA memory ({error.name})")
        return ordinal


def _simulated(array):
    """The NumPy array behind one of the simulator's."""
    return getattr(array, "_ary", array)


def describe(name, array):
    """What ``array`` is.

    Raises
    ------
    TypeError
        It is no array, a masked one, its dtype is not float16, bfloat16, float32 or float64, its interface is broken,
        or it is another library's device array while kernels run on the simulator.
    ImportError
        It is a device array of bfloat16, and the package that brings that dtype is not here.
    ValueError
        Its strides are not whole elements.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; it takes {_TAKES}")
    if isinstance(array, np.ndarray):
        operand = Operand(name, array, False, array.shape, array.strides, array.dtype)
    elif SIMULATED and getattr(array, "__cuda_ndarray__", False):
        shape, strides = tuple(array.shape), tuple(array.strides)
        operand = Operand(name, array, True, shape, strides, array.dtype)
    elif (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
        _refuse_on_simulator(name, array)
        operand = _describe_interface(name, array, interface)
    elif _is_on_gpu_by_dlpack(array):
        _refuse_on_simulator(name, array)
        array = _Interface(_interface_of_dlpack(array), array)
        operand = _describe_interface(name, array, array.__cuda_array_interface__)
    else:
        raise TypeError(f"{name} is a {type(array).__name__}; it takes {_TAKES}")
    if not is_taken(operand.dtype):
        raise TypeError(f"{name} has dtype {operand.dtype}; it takes {DTYPE_NAMES}")
    if any(stride % operand.dtype.itemsize for stride in operand.strides):
        raise ValueError(f"{name} has strides {operand.strides}; it takes whole elements")
    return operand


def _refuse_on_simulator(name, array):
    if SIMULATED:
        raise TypeError(
            f"{name} is a {type(array).__name__} on a GPU, but kernels run on the simulator, "
            "which takes NumPy arrays and Numba's own"
        )


def _is_on_gpu_by_dlpack(array):
    """Whether an array says by DLPack, and by nothing else, that it lies on a GPU."""
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) == _DLPACK_CUDA


def _interface_of_dlpack(array):
    """A ``__cuda_array_interface__`` for an array that has DLPack alone; it is used where it lies."""
    view = StridedMemoryView.from_dlpack(array, stream_ptr=-1)  # we order the streams ourselves
    dtype = np.dtype(view.dtype)
    strides = view.strides and tuple(step * dtype.itemsize for step in view.strides)
    return {
        "version": 3,
        "shape": tuple(view.shape),
        "typestr": "<V2" if dtype.name == "bfloat16" else dtype.str,
        "data": (view.ptr, view.readonly),
        "strides": strides,
    }


def is_taken(dtype):
    """Whether there is an algorithm for a ``numpy.dtype``."""
    return dtype in _DTYPES or is_bfloat16(dtype)


def _describe_interface(name, array, interface):
    """An operand from a ``__cuda_array_interface__``; TypeError if it is masked or broken."""
    try:
        dtype, shape = dtype_of(interface["typestr"]), tuple(map(int, interface["shape"]))
        strides = interface.get("strides") or contiguous_strides(shape, dtype.itemsize)
        int(interface["data"][0])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise TypeError(
            f"{name} has a __cuda_array_interface__ that cannot be read ({error!r})"
        ) from None
    if interface.get("mask") is not None:
        raise TypeError(f"{name} is a masked array; it takes {_TAKES}")
    return Operand(name, array, True, shape, tuple(strides), dtype)


def contiguous_strides(shape, itemsize):
    """Byte strides of a C-contiguous array."""
    strides = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= size
    return tuple(reversed(strides))


def check_together(operands):
    """Refuse operands that differ in dtype or place.

    Raises
    ------
    TypeError
        The dtypes differ, or some arrays are on the host and some on the device.
    ValueError
        An array lies on another GPU than the current one.
    """
    first = operands[0]
    for other in operands[1:]:
        if other.dtype != first.dtype:
            raise TypeError(
                f"{other.name} has dtype {other.dtype}; it takes {first.dtype}, as {first.name} has"
            )
        if other.on_device != first.on_device:
            places = ["on the host", "on the device"]
            raise TypeError(
                f"{other.name} is {places[other.on_device]}; it takes an array "
                f"{places[first.on_device]}, as {first.name} is"
            )
    if first.on_device and not SIMULATED:
        current = cuda.get_current_device().id
        for operand in operands:
            if 0 not in operand.shape and (ordinal := operand.device_ordinal()) != current:
                raise ValueError(
                    f"{operand.name} is on device {ordinal}; it takes an array on the current "
                    f"device, {current}"
                )


def check_out(out, shape, inputs):
    """Refuse an ``out`` that does not fit, is not contiguous, or overlaps an input.

    Raises
    ------
    ValueError
    """
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; it takes {shape}")
    if not out.is_contiguous:
        raise ValueError("out is not C-contiguous; it takes a C-contiguous array")
    read_only = not out.array.flags.writeable if not out.on_device else _is_read_only(out.array)
    if read_only:
        raise ValueError("out is read-only; it takes a writeable array")
    if 0 in shape:
        return
    low, high = out.byte_bounds()
    for operand in inputs:
        first, last = operand.byte_bounds()
        if first < high and low < last:
            raise ValueError(f"out overlaps {operand.name}; it takes memory of its own")


def _is_read_only(array):
    """Whether a device array's interface forbids writing."""
    return not SIMULATED and array.__cuda_array_interface__["data"][1]


def to_canonical(operand, order, capsule, stream):
    """The operand on the device, C-contiguous, its capsule axes in the product's order.

    Parameters
    ----------
    operand : Operand
    order : tuple of int
        Permutation of the capsule axes (those behind the first four).
    capsule : tuple of int
        Their shape in the kernels' layout: (G, D1, D2) for an input.
    stream : Numba stream
    """
    axes = (0, 1, 2, 3, *(4 + axis for axis in order))
    shape = operand.shape[:4] + capsule
    if not operand.on_device:
        host = contiguous(operand.array.transpose(axes)).reshape(shape)
        return to_device(host, stream)
    if operand.is_contiguous and axes == tuple(range(operand.rank)):
        return operand.reshaped(shape)
    return gather(operand, axes, stream).reshape(*shape)


def to_canonical_on_host(operand, order, capsule, stream):
    """The same of a NumPy array that stays one; nothing is copied that lies so already."""
    axes = (0, 1, 2, 3, *(4 + axis for axis in order))
    return np.ascontiguousarray(operand.array.transpose(axes)).reshape(operand.shape[:4] + capsule)


def contiguous(array):
    """The NumPy array, C-contiguous as Numba sees it too: also axes of size 1 have the strides that they should."""
    return np.ascontiguousarray(array).reshape(-1).reshape(array.shape)


def permuted(array, shape, order, stream):
    """A device result seen as ``shape``, with its axes in ``order``; copied if that moves them."""
    array = array.reshape(*shape)
    if order == tuple(range(len(shape))):
        return array
    return gather(describe("result", array), order, stream)


def resolve_stream(stream, operands):
    """The Numba stream to work on, ordered behind the streams that the operands were made on.

    ``stream`` may be a Numba stream, an object with ``__cuda_stream__`` (cuda.core), ``cuda_stream``
    (PyTorch) or ``ptr`` (CuPy), or a stream's address. None is the stream that ``operands[0]``
    names in its ``__cuda_array_interface__``, of a PyTorch tensor the one that is current in PyTorch, else the
    default stream.

    Raises
    ------
    TypeError
        ``stream`` is something else.
    """
    if SIMULATED:  # everything is synchronous there
        _check_stream(stream)
        return 0
    made_on = [
        operand.array.__cuda_array_interface__.get("stream")
        for operand in operands
        if operand.on_device
    ]
    if stream is None:
        stream = made_on[0] if made_on and made_on[0] else _torch_stream(operands)
    stream = _numba_stream(stream)
    for other in {address for address in made_on if address} - {_address(stream)}:
        event = cuda.event(timing=False)
        event.record(cuda.external_stream(other))
        event.wait(stream)
    return stream


def _torch_stream(operands):
    """Address of PyTorch's current stream, if the first operand is a tensor: it names none itself; else 0."""
    torch, first = sys.modules.get("torch"), operands[0].array if operands else None
    if torch is None or not isinstance(first, torch.Tensor):
        return 0
    return torch.cuda.current_stream(first.device).cuda_stream


def _address(stream):
    """A Numba stream's CUDA address; 0 for the default stream."""
    return int(stream) if stream else 0


def _numba_stream(stream):
    """Any library's stream as Numba's."""
    _check_stream(stream)
    if hasattr(stream, "auto_synchronize"):  # Numba's own
        return stream
    if hasattr(stream, "__cuda_stream__"):
        stream = int(stream.__cuda_stream__()[1])
    for attribute in ("cuda_stream", "ptr"):
        stream = getattr(stream, attribute, stream)
    return cuda.external_stream(int(stream)) if stream else 0


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
