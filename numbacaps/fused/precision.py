"""How float32 is multiplied, and on which devices; the words are those of Triton's ``input_precision``.

=========== =========================================================================================
``auto``    the default: the fastest that is about as exact as ``ieee`` (numbacaps/README.md has numbers)
``ieee``    ordinary arithmetic of float32 (or float64)
``tf32x3``  three products of the tensor cores for one, about as exact as float32 arithmetic
``tf32``    one product of the tensor cores: operands of 11 bits of mantissa, sums in float32
=========== =========================================================================================
"""

import numpy as np

from numbacaps.device import gpu
from numbacaps.device.bfloat16 import is_bfloat16
from numbacaps.device.target import SIMULATED

AUTO = "auto"
PRECISIONS = (AUTO, "ieee", "tf32x3", "tf32")
TERMS = {"tf32": 1, "tf32x3": 3}  # products of the tensor cores for one of float32
# Below these, three terms are slower than ordinary arithmetic, or less exact. Their largest error was 1.9 to 2.3 times as large in sums of 12
# to 14 products; in sums of 24 to 30, which are taken, 1.45 to 1.5 times (7 drawn products, H200, 2026-12-01).
_FEWEST_COLUMNS, _FEWEST_SUMMED = 3, 24
# From which three terms are taken whatever the columns. With one column or two, and sums of 110 to 900 products, they took 0.21 to 0.97 of
# the time of ordinary arithmetic, and once 1.18; their largest error was smaller (15 drawn products, H200, 2026-12-01). Sums of 96 to 110
# products, and other GPUs, were not timed.
_MANY_SUMMED = 96


def precisions(dtype):
    """The precisions that ``"fused"`` has for a dtype on this device, beside ``"auto"``.

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


def chosen_for(dtype, columns, summed):
    """The word that ``"auto"`` stands for in a pass.

    Three terms of the tensor cores, whose results are looked through (:mod:`numbacaps.fused.told`), or ordinary
    arithmetic. The choice depends on the convolution and the GPU alone, so a call has the same bits each time.

    Parameters
    ----------
    dtype : numpy.dtype
    columns : int
        N of the matrix product.
    summed : int
        Products of a sum, the most of the pass.
    """
    large = columns >= _FEWEST_COLUMNS and summed >= _FEWEST_SUMMED or summed >= _MANY_SUMMED
    fits = dtype == np.float32 and has_tensor_cores() and not SIMULATED
    return "tf32x3" if large and fits else "ieee"


def has_warpgroups():
    """Whether this device, or the simulator, has products of warpgroups (wgmma)."""
    return gpu.current().has_warpgroups


def has_tensor_cores():
    """Whether this device, or the simulator, has products of warps (mma.sync)."""
    return gpu.current().has_mma_sync
