"""CuPy's arrays, recognised and made without importing CuPy."""

import sys

from numbacaps.device.bfloat16 import bits


def is_cupy(array):
    """Whether an array is one of CuPy's."""
    return isinstance(array, getattr(sys.modules.get("cupy"), "ndarray", ()))


def in_cupy(array):
    """A Numba device array as one of CuPy's, in the same memory, which that one keeps alive."""
    unnamed = bits(array).bind()  # of an array that names a stream, CuPy lets the host wait for it
    found = sys.modules["cupy"].asarray(unnamed)
    return found if found.dtype == array.dtype else found.view(array.dtype)


def cupy_stream():
    """Address of CuPy's current stream; 0 for the default stream."""
    return sys.modules["cupy"].cuda.get_current_stream().ptr


def memory_of_pool(nbytes):
    """(address, owner) of memory on the current GPU, allocated by CuPy for its current stream."""
    memory = sys.modules["cupy"].cuda.alloc(nbytes)
    return memory.ptr, memory
