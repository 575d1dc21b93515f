"""The tensor map of an array in capsule layout: what the copy engine has to know to fetch a box of it."""

from functools import lru_cache

from cuda.bindings import driver

_FLOAT = 4  # bytes
_ALL = (1, 1, 1, 1, 1)
_KEPT = 256  # maps of as many arrays


@lru_cache(_KEPT)
def tensor_map(address, sizes, strides, box, steps=_ALL, swizzled=False):
    """A tensor map as 64-bit words.

    Parameters
    ----------
    address : int
        Where the array of float32 begins on the device; a multiple of 16.
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
