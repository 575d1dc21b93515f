"""How float32 is multiplied, and on which devices; the words are those of Triton's ``input_precision``.

=========== ==================================================================================
``ieee``    ordinary arithmetic of float32 (or float64)
``tf32x3``  three products of the tensor cores for one, about as exact as float32 arithmetic
``tf32``    one product of the tensor cores: operands of 11 bits of mantissa, sums in float32
=========== ==================================================================================
"""

import numpy as np

from numbacaps.device import gpu
from numbacaps.device.bfloat16 import is_bfloat16

PRECISIONS = ("ieee", "tf32x3", "tf32")
TERMS = {"tf32": 1, "tf32x3": 3}  # products of the tensor cores for one of float32


def precisions(dtype):
    """The precisions that ``"fused"`` has for a dtype on this device.

    Parameters
    ----------
    dtype : numpy.dtype

    Returns
    -------
    tuple of str
        Words of :data:`PRECISIONS`; empty where the dtype cannot be multiplied.
    """
    if is_bfloat16(dtype) and not gpu.current().has_bfloat16:
        return ()
    if dtype != np.float32:
        return ("ieee",)
    return ("ieee", *TERMS) if has_tensor_cores() else ("ieee",)


def terms_of(dtype, precision):
    """Products of the tensor cores for one of the dtype's; None for ordinary arithmetic."""
    return 1 if dtype.itemsize == 2 else TERMS.get(precision)


def has_warpgroups():
    """Whether this device, or the simulator, has products of warpgroups (wgmma)."""
    return gpu.current().has_warpgroups


def has_tensor_cores():
    """Whether this device, or the simulator, has products of warps (mma.sync)."""
    return gpu.current().has_mma_sync
