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
