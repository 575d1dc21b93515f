"""CuPy's arrays, recognised and made without importing CuPy."""

import sys

from numbacaps.device.bfloat16 import bits


def is_cupy(array):
    """Whether an array is one of CuPy's."""
    return isinstance(array, getattr(sys.modules.get("cupy"), "ndarray", ()))


def in_cupy(array):
    """A Numba device array as one of CuPy's, in the same memory, which that one keeps alive."""
    cupy, memory = sys.modules["cupy"], getattr(array, "gpu_data", None)
    if memory is not None and _is_whole(array, memory, cupy):
        return cupy.ndarray(array.shape, array.dtype, memptr=memory.owner)
    unnamed = bits(array).bind()  # of an array that names a stream, CuPy lets the host wait for it
    found = cupy.asarray(unnamed)
    return found if found.dtype == array.dtype else found.view(array.dtype)


def _is_whole(array, memory, cupy):
    """Whether an array begins where memory of CuPy's pool does; CuPy's own constructor takes an eighth of ``asarray``'s time."""
    owner = memory.owner
    is_pool = isinstance(owner, cupy.cuda.MemoryPointer)
    return is_pool and owner.ptr == memory.device_pointer_value and array.is_c_contiguous()


def cupy_stream():
    """Address of CuPy's current stream; 0 for the default stream."""
    return sys.modules["cupy"].cuda.get_current_stream().ptr


def memory_of_pool(nbytes):
    """(address, owner) of memory on the current GPU, allocated by CuPy for its current stream."""
    memory = sys.modules["cupy"].cuda.alloc(nbytes)
    return memory.ptr, memory
