"""The tensor map of an array in capsule layout: the description by which TMA copies a box of it."""

from functools import lru_cache, partial

import numpy as np
from cuda.bindings import driver

from numbacaps.device.compiled import address_of, where
from numbacaps.device.instructions.simulated.block import memory
from numbacaps.device.instructions.simulated.registers import to_tf32
from numbacaps.device.target import SIMULATED

_FLOAT = 4  # bytes
_ALL = (1, 1, 1, 1, 1)
_KEPT = 64  # places of arrays


MAP_WORDS = 16  # of 64 bits


def tensor_map(array, sizes, strides, box, steps=_ALL, swizzled=False):
    """A tensor map as 64-bit words; on the simulator the first of them is a :class:`SimulatedMap`.

    Parameters
    ----------
    array : device array
        Of float32, or taken for it; it begins at a multiple of 16 bytes.
    sizes : tuple of int
        Of its five axes, the one whose elements are neighbours first.
    strides : tuple of int
        Elements from one index of the last four axes to the next.
    box : tuple of int
        Indices along each axis that one copy spans.
    steps : tuple of int
        From one that it fetches to the next along each axis, at most 8.
    swizzled : bool
        A box's rows, of 32, 64 or 128 bytes, are swizzled in the mode of their length, and rounded to TF32.

    Returns
    -------
    tuple of int

    Raises
    ------
    RuntimeError
        The driver refuses the map.
    """
    if SIMULATED:
        map = SimulatedMap(array, sizes, strides, box, steps, swizzled)
        return map, *[0] * (MAP_WORDS - 1)
    return encoded(address_of(array), sizes, strides, box, steps, swizzled)


def encoded(address, sizes, strides, box, steps=_ALL, swizzled=False):
    """The map of an array at an address, as :func:`tensor_map`: what the driver makes of it."""
    kinds, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    kind, swizzle = kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, swizzles.CU_TENSOR_MAP_SWIZZLE_NONE
    if swizzled:
        kind = kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
        swizzle = getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{box[0] * _FLOAT}B")
    status, made = driver.cuTensorMapEncodeTiled(
        kind,
        len(sizes),
        address,
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(stride * _FLOAT) for stride in strides],
        [driver.cuuint32_t(size) for size in box],
        [driver.cuuint32_t(step) for step in steps],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(
            f"no tensor map of sizes {sizes}, strides {strides}, box {box}, steps {steps}: {status}"
        )
    signed = (int(word) for word in made.opaque)
    return tuple(word - (word >> 63 << 64) for word in signed)


class TensorMaps:
    """The tensor maps that a kernel takes: of the last arrays that it was given, kept by where these begin.

    Parameters
    ----------
    tensors : tuple
        For each array what :func:`tensor_map` takes behind it.
    """

    def __init__(self, *tensors):
        self._tensors = tensors
        self._kept = lru_cache(_KEPT)(partial(_all_encoded, tensors))

    def __call__(self, *arrays):
        """All maps as the kernel takes them, of arrays as :func:`numbacaps.device.compiled.as_argument` has them."""
        if SIMULATED:
            maps = (tensor_map(array, *of) for (array,), of in zip(arrays, self._tensors))
            return (sum(maps, ()),)
        return self._kept(*map(where, arrays))


def _all_encoded(tensors, *addresses):
    return sum((encoded(address, *of) for address, of in zip(addresses, tensors)), ())


class SimulatedMap:
    """The same for the simulator's copies."""

    def __init__(self, array, sizes, strides, box, steps, swizzled):
        self.words = memory(array).view(np.uint32)
        self.sizes, self.strides, self.box, self.steps = sizes, (1, *strides), box, steps
        self.row = _FLOAT * box[0] if swizzled else 0
        assert all(1 <= size <= 256 for size in box) and box[0] % 4 == 0
        assert all(stride % 4 == 0 for stride in strides)
        assert not swizzled or (self.row in (32, 64, 128) and steps[0] == 1)

    def fetch(self, coordinates):
        """The words of the box that begins there; zeros outside of the tensor."""
        assert coordinates[0] % 4 == 0, "a box begins at a multiple of 16 bytes"
        place, inside = np.int64(0), True
        axes = zip(coordinates, self.sizes, self.strides, self.box, self.steps)
        for axis, (first, size, stride, span, step) in enumerate(axes):
            i = first + np.arange(0, span, step)
            i = i.reshape(i.size, *[1] * axis)
            place, inside = place + i * stride, inside & (i >= 0) & (i < size)
        words = np.where(inside, self.words[np.where(inside, place, 0)], np.uint32(0)).ravel()
        return to_tf32(words.view(np.float32)).view(np.uint32) if self.row else words
