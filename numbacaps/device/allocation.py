"""New device arrays, made in a small part of the time that Numba's own ``device_array`` takes.

What Numba derives from a shape, and the allocator, are looked up once and kept. If an operand is PyTorch's or CuPy's,
memory comes from that library's pool, which neither calls the driver nor waits for the GPU. That holds on the library's
current stream alone: the pool reuses memory in the order of that stream's work.
"""

import sys
from functools import lru_cache

from numbacaps.device.cupy_arrays import cupy_stream, is_cupy, memory_of_pool
from numbacaps.device.streams import DEFAULT, torch_stream
from numbacaps.device.target import SIMULATED, cuda, current_device
from numbacaps.device.tensors import is_on_gpu, memory_beside

if not SIMULATED:
    from numba.cuda.api_util import prepare_shape_strides_dtype
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import MemoryPointer, binding

_KEPT = 256  # shapes


def new_array(shape, dtype, stream, beside=None):
    """A C-contiguous Numba device array, contents undefined, that names a stream.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    stream : Numba stream or 0
        Where it is used first.
    beside : array, optional
        Of the current device; the new one lies in its library's memory, if that can be.
    """
    if SIMULATED or 0 in shape:
        return cuda.device_array(shape, dtype, stream=stream)
    array, context = object.__new__(DeviceNDArray), _context(current_device())
    array.__dict__.update(_described(shape, dtype), stream=stream)
    nbytes, own, found = array.alloc_size, (int(stream) if stream else 0) or DEFAULT, None
    if is_on_gpu(beside):
        if (torch_stream(beside) or DEFAULT) == own:
            found = memory_beside(beside, nbytes)
    elif "cupy" in sys.modules and is_cupy(beside) and (cupy_stream() or DEFAULT) == own:
        found = memory_of_pool(nbytes)
    array.gpu_data = context.memalloc(nbytes) if found is None else _held(context, nbytes, *found)
    return array


@lru_cache(_KEPT)
def _described(shape, dtype):
    """The attributes of Numba's array of a shape, which has no memory."""
    return vars(DeviceNDArray(*prepare_shape_strides_dtype(shape, None, dtype, "C"), gpu_data=()))


@lru_cache
def _context(device):
    """Numba's context of the current device, whose number that is."""
    return cuda.current_context()


def _held(context, nbytes, address, owner):
    """Memory of another library as Numba's arrays hold it."""
    return MemoryPointer(context, binding.CUdeviceptr(address), nbytes, owner)


KEPT = _described, _context
