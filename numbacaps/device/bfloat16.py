"""bfloat16: the first half of a float32, which neither NumPy nor Numba's arrays know.

The package ml_dtypes gives NumPy a dtype for it, which is also what CuPy's arrays have; PyTorch's tensors name it as
that one does. Kernels take the bits, and make numbers of them themselves (:mod:`numbacaps.device.dtypes`).
"""

import numpy as np

from numbacaps.device.target import cuda
from numbacaps.extras import require

_TYPESTR = "<V2"  # in an array's interface
_BITS = np.dtype(np.uint16)


def dtype_of(name):
    """The dtype of a name, of a type, or of an interface's ``typestr``, bfloat16 too.

    Raises
    ------
    TypeError
        NumPy knows no such dtype.
    ImportError
        It is bfloat16, and the package that brings that dtype is not here.
    """
    if isinstance(name, str) and name in ("bfloat16", _TYPESTR):
        return np.dtype(require("ml_dtypes", "bfloat16", "dtype bfloat16").bfloat16)
    return np.dtype(name)


def is_bfloat16(dtype):
    """Whether a ``numpy.dtype`` is bfloat16, in this machine's byte order."""
    return dtype.name == "bfloat16" and dtype.isnative


def stored(dtype):
    """What kernels take a ``numpy.dtype`` for."""
    return _BITS if is_bfloat16(dtype) else dtype


def bits(array):
    """An array, on the host or the device, as kernels take it; where it lies."""
    return array if stored(array.dtype) == array.dtype else array.view(_BITS)


def to_device(host, stream=0):
    """A NumPy array, C-contiguous, on the device; Numba itself cannot send bfloat16."""
    sent = cuda.to_device(bits(host), stream=stream)
    return sent if sent.dtype == host.dtype else sent.view(host.dtype)
