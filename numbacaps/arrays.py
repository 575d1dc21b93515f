"""The arrays that callers hand over: what they are, where they live, and on which stream.

NumPy arrays live on the host. Numba device arrays and anything with ``__cuda_array_interface__``
(CuPy arrays, PyTorch tensors) live on the device and are used in place.
"""

import sys
from functools import cache, lru_cache
from typing import Any

import numpy as np
from cuda.bindings import runtime
from cuda.core.utils import StridedMemoryView

from numbacaps.device.bfloat16 import to_device
from numbacaps.device.compiled import address_of, as_argument, run_as_argument
from numbacaps.device.streams import follow, numba_stream, torch_stream
from numbacaps.device.strided_copy import gather
from numbacaps.device.target import SIMULATED, cuda, current_device
from numbacaps.device.tensors import is_on_gpu
from numbacaps.forms import DTYPE_NAMES, form_of, form_of_interface, form_of_tensor
from numbacaps.made_once import made_once

_TAKES = "a NumPy array, a Numba device array, or an array with __cuda_array_interface__ or DLPack"
_DLPACK_CUDA = 2  # the kind of device that is a GPU of CUDA's
_KEPT = 1024  # addresses
_ON_GPUS = (
    runtime.cudaMemoryType.cudaMemoryTypeDevice,
    runtime.cudaMemoryType.cudaMemoryTypeManaged,
)

Array = Any  # a NumPy array, or a device array of any library that has one of these protocols


class _Interface:
    """A bare holder of a ``__cuda_array_interface__``; it keeps the memory's owner alive."""

    def __init__(self, interface, owner):
        self.__cuda_array_interface__ = interface
        self.owner = owner


class Operand:
    """A caller's array: its name in errors, the array, and what is known of it without touching it.

    The array is asked once, by :func:`describe`.

    Attributes
    ----------
    form : Form
    shape, strides, dtype, is_contiguous
        The form's.
    on_device : bool
    address : int
        Of the first element.
    stream : int or None
        Address of the stream that the array names.
    read_only : bool
    """

    def __init__(
        self, name, array, form, on_device, address=None, stream=None, read_only=False, ordinal=None
    ):
        self.name, self.array, self.form, self.on_device = name, array, form, on_device
        self.stream, self.read_only, self._ordinal = stream, read_only, ordinal
        if address is not None:
            self.address = address

    shape = property(lambda self: self.form.shape)
    strides = property(lambda self: self.form.strides)
    dtype = property(lambda self: self.form.dtype)
    is_contiguous = property(lambda self: self.form.is_contiguous)
    rank = property(lambda self: len(self.form.shape))

    @made_once
    def address(self):  # on the host, or the simulator's
        return _simulated(self.array).__array_interface__["data"][0]

    @property
    def argument(self):
        """A C-contiguous array on the device as kernels take it; see :mod:`numbacaps.device.compiled`."""
        if SIMULATED:
            return as_argument(self.array)
        return run_as_argument(self.address, self.form.size, self.form.itemsize)

    def reshaped(self, shape):
        """A C-contiguous array under another shape, in place; one on the GPU as a device array."""
        if SIMULATED or not self.on_device:
            return self.array.reshape(*shape)
        known = getattr(self.array, "__cuda_ndarray__", False) and self.array.shape == shape
        if known and self.array.is_c_contiguous():
            return self.array  # wrapping it anew would take longer than launching what reads it
        return self._wrapped(self.address, shape)

    def memory(self):
        """(all the memory that the array spans as one run of elements, where the array begins)."""
        low, high = self.byte_bounds()
        count = (high - low) // self.dtype.itemsize
        first = (self.address - low) // self.dtype.itemsize
        if SIMULATED:
            forward = tuple(slice(None, None, -1 if step < 0 else 1) for step in self.strides)
            start = _simulated(self.array)[forward]  # begins at the lowest address
            run = np.lib.stride_tricks.as_strided(start, (count,), (self.dtype.itemsize,))
            return type(self.array)(run), first
        return self._wrapped(low, (count,)), first

    def _wrapped(self, address, shape):
        """A Numba device array of the operand's dtype, which an interface does not always tell."""
        data, typestr = (address, False), self.dtype.str
        interface = {"version": 3, "shape": shape, "typestr": typestr, "data": data}
        array = cuda.as_cuda_array(_Interface(interface, self.array), sync=False)
        return array if array.dtype == self.dtype else array.view(self.dtype)

    def byte_bounds(self):
        """Addresses (first, past the last) of the memory the array spans."""
        low, high = self.form.reach
        return self.address + low, self.address + high

    def device_ordinal(self):
        """Number of the GPU that holds the array."""
        if self._ordinal is not None:  # the array has said so
            return self._ordinal
        try:
            return (_kept_ordinal if _gpus() == 1 else _ordinal)(self.address)
        except LookupError as error:
            raise ValueError(f"{self.name} does not point to CUDA memory ({error})") from None


def _ordinal(address):
    """Number of the GPU that holds an address; LookupError where none does.

    The runtime is asked: of the driver's attribute cuda.bindings (13.3) hands on a 0, whichever GPU it is.
    """
    error, found = runtime.cudaPointerGetAttributes(address)
    if error is not runtime.cudaError_t.cudaSuccess:
        raise LookupError(error.name)
    if found.type not in _ON_GPUS:
        raise LookupError(found.type.name)
    return found.device


_kept_ordinal = lru_cache(_KEPT)(
    _ordinal
)  # where there is one GPU, memory does not change over to another


@cache
def _gpus():
    """GPUs of this process."""
    return len(cuda.gpus)


KEPT = form_of, form_of_interface, form_of_tensor, _kept_ordinal


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
        Its strides are not whole elements, or on a GPU it begins amid one.
    """
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array; it takes {_TAKES}")
        form = form_of(array.shape, array.strides, array.dtype)
        operand = Operand(name, array, form, False, read_only=not array.flags.writeable)
    elif getattr(array, "__cuda_ndarray__", False):
        operand = _describe_numba(name, array)
    elif is_on_gpu(array):
        if SIMULATED:
            _refuse_on_simulator(name, array)
        operand = _describe_tensor(name, array)
    elif (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
        if SIMULATED:
            _refuse_on_simulator(name, array)
        operand = _describe_interface(name, array, interface)
    elif _is_on_gpu_by_dlpack(array):
        if SIMULATED:
            _refuse_on_simulator(name, array)
        operand = _describe_interface(name, array, _interface_of_dlpack(array))
    else:
        torch = sys.modules.get("torch")
        is_tensor = torch is not None and isinstance(array, torch.Tensor)
        if is_tensor and array.is_cpu and not array.is_sparse:
            raise TypeError(
                f"{name} is a PyTorch tensor on the CPU; give {name}.numpy(), or use numbacaps.torch"
            )
        raise TypeError(f"{name} is a {type(array).__name__}; it takes {_TAKES}")
    form = operand.form
    if form.refusal is not None:
        error, said = form.refusal
        raise error(f"{name} {said}")
    # On a GPU no instruction loads elements that lie across.
    if operand.on_device and not SIMULATED and operand.address % form.itemsize:
        raise ValueError(
            f"{name} begins at address {operand.address}; it takes a multiple of {form.itemsize}"
        )
    return operand


def _refuse_on_simulator(name, array):
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


def _describe_numba(name, array):
    """An operand from one of Numba's arrays, or the simulator's."""
    form = form_of(array.shape, array.strides, array.dtype)
    if SIMULATED:
        return Operand(name, array, form, True)
    stream = int(array.stream) if array.stream else None
    return Operand(name, array, form, True, address_of(array), stream)


def _describe_tensor(name, tensor):
    """An operand from a PyTorch tensor, which is asked itself: its interface would be made anew each time."""
    try:
        strides = None if tensor.is_contiguous() else tensor.stride()
        form = form_of_tensor(tensor.shape, strides, tensor.dtype)
    except TypeError:
        raise TypeError(f"{name} has dtype {tensor.dtype}; it takes {DTYPE_NAMES}") from None
    address, ordinal = tensor.data_ptr(), tensor.get_device()
    return Operand(name, tensor, form, True, address, None, False, ordinal)


def _describe_interface(name, array, interface):
    """An operand from a ``__cuda_array_interface__``; TypeError if it is masked or broken."""
    try:
        shape, strides = tuple(interface["shape"]), interface.get("strides")
        strides = tuple(strides) if strides else None
        form = form_of_interface(shape, strides, interface["typestr"])
        address, read_only = interface["data"]
        address = int(address)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise TypeError(
            f"{name} has a __cuda_array_interface__ that cannot be read ({error!r})"
        ) from None
    if interface.get("mask") is not None:
        raise TypeError(f"{name} is a masked array; it takes {_TAKES}")
    return Operand(name, array, form, True, address, interface.get("stream"), read_only)


def repeated(operand, axis, count):
    """An array that is an operand ``count`` times along an axis of one, in the operand's own memory.

    Parameters
    ----------
    operand : Operand
    axis, count : int

    Returns
    -------
    NumPy array or device array
    """
    shape = (*operand.shape[:axis], count, *operand.shape[axis + 1 :])
    if SIMULATED or not operand.on_device:
        seen = np.broadcast_to(_simulated(operand.array), shape)
        return type(operand.array)(seen) if operand.on_device else seen
    strides = (*operand.strides[:axis], 0, *operand.strides[axis + 1 :])
    interface = {"version": 3, "shape": shape, "typestr": operand.dtype.str, "strides": strides}
    interface |= {"data": (operand.address, False), "stream": operand.stream}
    return _Interface(interface, operand.array)


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
        if other.form.dtype is not first.form.dtype and other.dtype != first.dtype:
            raise TypeError(
                f"{other.name} has dtype {other.dtype}; it takes {first.dtype}, as {first.name} has"
            )
        if other.on_device != first.on_device:
            places = ["on the host", "on the device"]
            raise TypeError(
                f"{other.name} is {places[other.on_device]}; it takes an array "
                f"{places[first.on_device]}, as {first.name} is"
            )
    check_device(operands)


def check_device(operands, made_on=None):
    """Refuse arrays that lie on another GPU than the current one, and one that a plan was not made on.

    Raises
    ------
    ValueError
    """
    if SIMULATED or not operands[0].on_device:
        return
    current = current_device()
    if made_on is not None and made_on != current:
        raise ValueError(f"the plan was made on device {made_on}; the current device is {current}")
    for operand in operands:
        if operand.form.size and (ordinal := operand.device_ordinal()) != current:
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
    form = out.form
    if form.shape != shape:
        raise ValueError(f"{out.name} has shape {out.shape}; it takes {shape}")
    if not form.is_contiguous:
        raise ValueError(f"{out.name} is not C-contiguous; it takes a C-contiguous array")
    if out.read_only:
        raise ValueError(f"{out.name} is read-only; it takes a writeable array")
    if not form.size:
        return
    low, high = out.byte_bounds()
    for operand in inputs:
        first, last = operand.byte_bounds()
        if first < high and low < last:
            raise ValueError(f"{out.name} overlaps {operand.name}; it takes memory of its own")


def to_canonical(operand, order, capsule, stream):
    """The operand on the device, C-contiguous, its capsule axes in the product's order.

    Parameters
    ----------
    operand : Operand
    order : tuple of int
        Permutation of the capsule axes, the last ones.
    capsule : tuple of int
        Their shape in the kernels' layout: (G, D1, D2) for an input.
    stream : Numba stream
    """
    axes = _capsules_permuted(operand, order)
    shape = operand.shape[: operand.rank - len(order)] + capsule
    if not operand.on_device:
        host = contiguous(operand.array.transpose(axes)).reshape(shape)
        return to_device(host, stream)
    if operand.is_contiguous and axes == tuple(range(operand.rank)):
        return operand.reshaped(shape)
    return gather(operand, axes, stream).reshape(*shape)


def to_canonical_on_host(operand, order, capsule, stream):
    """The same of a NumPy array that stays one; nothing is copied that lies so already."""
    moved = np.ascontiguousarray(operand.array.transpose(_capsules_permuted(operand, order)))
    return moved.reshape(operand.shape[: operand.rank - len(order)] + capsule)


def _capsules_permuted(operand, order):
    """The permutation of an operand's axes that puts its capsules' into an order."""
    lead = operand.rank - len(order)
    return (*range(lead), *(lead + axis for axis in order))


def contiguous(array):
    """The NumPy array, C-contiguous as Numba sees it too: also axes of size 1 have the strides that they should."""
    return np.ascontiguousarray(array).reshape(-1).reshape(array.shape)


def permuted(array, shape, order, stream, out=None):
    """A device result seen as ``shape``, with its axes in ``order``; copied, to ``out`` if given, if that moves them."""
    array = array.reshape(*shape)
    if out is None and order == tuple(range(len(shape))):
        return array
    return gather(describe("result", array), order, stream, out)


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
        numba_stream(stream)
        return 0
    if stream is None and operands:
        stream = operands[0].stream or torch_stream(operands[0].array)
    stream = numba_stream(stream)
    made_on = {operand.stream for operand in operands if operand.stream}
    if made_on:
        follow(stream, made_on)
    return stream
