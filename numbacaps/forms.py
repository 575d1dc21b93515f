"""The form of an array: shape, strides, dtype, and what follows from these. Arrays that are alike share one."""

from functools import lru_cache
from math import prod

import numpy as np

from numbacaps.device.bfloat16 import dtype_of, is_bfloat16
from numbacaps.geometry import is_int

FULL_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_DTYPES = (np.dtype(np.float16), *FULL_DTYPES)
DTYPE_NAMES = "float16, bfloat16, float32 or float64"
_KEPT = 1024


class Form:
    """Shape, strides and dtype of arrays, and what follows from these; the same object for arrays that are alike.

    Attributes
    ----------
    shape : tuple of int
    strides : tuple of int
        In bytes.
    dtype : numpy.dtype
    itemsize, size : int
        Bytes of an element, and elements.
    reach : (int, int)
        Bytes from the first element to the beginning of the memory that is spanned, and to its end.
    is_contiguous : bool
        C-contiguous, axes of size 1 apart; without elements always.
    refusal : Exception type and str, or None
        Why no array of the form is taken.
    """

    def __init__(self, shape, strides, dtype):
        self.shape, self.strides, self.dtype = shape, strides, dtype
        self.itemsize, self.size = dtype.itemsize, prod(shape)
        self.is_contiguous = not self.size or all(
            size <= 1 or stride == wanted
            for size, stride, wanted in zip(
                shape, strides, contiguous_strides(shape, dtype.itemsize)
            )
        )
        steps = [(size - 1) * stride for size, stride in zip(shape, strides) if self.size]
        self.reach = (
            sum(step for step in steps if step < 0),
            sum(step for step in steps if step > 0) + (self.itemsize if self.size else 0),
        )
        self.refusal = None
        if not is_taken(dtype):
            self.refusal = TypeError, f"has dtype {dtype}; it takes {DTYPE_NAMES}"
        elif any(stride % dtype.itemsize for stride in strides):
            self.refusal = ValueError, f"has strides {strides}; it takes whole elements"


@lru_cache(_KEPT)
def form_of(shape, strides, dtype):
    """The :class:`Form` of arrays; ``strides`` of None are those of C-contiguous ones."""
    shape = tuple(map(int, shape))
    contiguous = contiguous_strides(shape, dtype.itemsize)
    if strides is None:
        return form_of(shape, contiguous, dtype)
    return Form(shape, tuple(map(int, strides)), dtype)


@lru_cache(_KEPT)
def form_of_interface(shape, strides, typestr):
    """The form that a ``__cuda_array_interface__`` describes; TypeError or ValueError where it describes none."""
    if not all(map(is_int, (*shape, *(strides or ())))) or min(shape, default=0) < 0:
        raise TypeError(f"shape {shape}, strides {strides}")
    if strides and len(strides) != len(shape):
        raise ValueError(f"{len(strides)} strides of {len(shape)} axes")
    return form_of(shape, strides, dtype_of(typestr))


@lru_cache(_KEPT)
def form_of_tensor(shape, strides, dtype):
    """The form of a PyTorch tensor, with ``strides`` in elements, None of a contiguous one.

    Raises
    ------
    TypeError
        NumPy knows no such dtype.
    """
    dtype = dtype_of(str(dtype).removeprefix("torch."))
    strides = strides and tuple(step * dtype.itemsize for step in strides)
    return form_of(tuple(shape), strides, dtype)


def normal_range(dtype, finfo=np.finfo):
    """(smallest, largest) positive number of a dtype with all its digits; ``finfo`` is its library's."""
    info = finfo(dtype)
    return float(info.tiny), float(info.max)


def is_taken(dtype):
    """Whether there is an algorithm for a ``numpy.dtype``."""
    return dtype in _DTYPES or is_bfloat16(dtype)


def contiguous_strides(shape, itemsize):
    """Byte strides of a C-contiguous array."""
    strides = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= size
    return tuple(reversed(strides))
