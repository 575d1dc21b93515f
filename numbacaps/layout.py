"""Copy a strided device array into one run of elements.

Kernels take C-contiguous arrays with the capsule axes in the order (G, D1, D2). An array that is
strided, or whose product names its axes in another order, is brought there by this copy.

    out[i] = source[coordinates of i in C order]

Thread mapping: one thread an element, consecutive threads on consecutive elements of the result.
"""

from functools import cache

from numbacaps.launch import launch
from numbacaps.target import cuda

_RANK = 8  # axes of the strided view; adjoining axes that lie in one run are merged first


@cache
def make_gather():
    """Kernel that reads a rank-8 strided view in C order."""

    @cuda.jit
    def gather_kernel(
        source,  # in   (S0, ..., S7), any strides
        out,  # out  (size,)
    ):
        i = cuda.grid(1)
        if i >= out.size:
            return
        s = source.shape
        i7 = i % s[7]
        i6 = i // s[7]
        i5 = i6 // s[6]
        i4 = i5 // s[5]
        i3 = i4 // s[4]
        i2 = i3 // s[3]
        i1 = i2 // s[2]
        i0 = i1 // s[1]
        out[i] = source[i0, i1 % s[1], i2 % s[2], i3 % s[3], i4 % s[4], i5 % s[5], i6 % s[6], i7]

    return gather_kernel


def merge_axes(shape, strides):
    """The same elements in the same order with fewer axes: adjoining runs become one axis."""
    merged = []
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def gather(name, source, shape, strides, stream):
    """A new C-contiguous device array of ``shape`` with the elements that strides lead to.

    Parameters
    ----------
    name : str
        What an error calls the array.
    source : StridedSource
        See :func:`numbacaps.arrays.strided_view`.
    shape, strides : tuple of int
        Sizes and byte strides of the axes, in the order of the result.
    stream : Numba stream

    Raises
    ------
    ValueError
        More than 8 axes are left once adjoining ones are merged.
    """
    axes = merge_axes(shape, strides)
    if len(axes) > _RANK:
        raise ValueError(
            f"{name} has {len(axes)} strided axes; a copy takes at most {_RANK}: make it contiguous"
        )
    axes = [(1, 0)] * (_RANK - len(axes)) + axes
    view = source.view(tuple(size for size, _ in axes), tuple(stride for _, stride in axes))
    out = cuda.device_array(shape, source.dtype, stream=stream)
    launch(make_gather(), out.size, 1, (view, out.reshape(out.size)), stream)
    return out
