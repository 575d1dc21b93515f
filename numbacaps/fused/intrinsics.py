"""The PTX that Numba has no words for: asynchronous copies, products of small matrices, rounding.

On the simulator the same names are what these instructions do, written in NumPy
(:mod:`numbacaps.fused.emulated`), so indexing can be tested without a GPU. What only
:mod:`numbacaps.fused.bulk_wgmma` and later rungs use, which take a GPU, they have from :mod:`numbacaps.fused.ptx`
itself.

Addresses are byte addresses of a block's shared memory. A matrix that ``wgmma`` reads is made of *core
matrices*: 8 rows of 16 bytes, 128 bytes in one run. A descriptor says where the first one begins,
how far the next 16 bytes of k are, and how far the next 8 rows: see :func:`descriptor_strides`. (No swizzle but in
:mod:`numbacaps.fused.swapped_wgmma`.)
"""

import numpy as np

from numbacaps.target import SIMULATED

CHUNK = 16  # bytes of k in a core matrix's row
LINE = 128  # bytes that one prefetch brings
short = np.int32  # takes one register, where Python's ints take two

# What is multiplied by it and then cut to TF32 is on average neither too small nor too large, and a
# number that TF32 has stays as it is. Rounding to nearest takes four instructions.
TF32_NEARER = np.float32(1 + 0.36 * 2.0**-10)


def descriptor_strides(along_k, along_rows):
    """The part of a matrix descriptor that does not depend on the address.

    Parameters
    ----------
    along_k : int
        Bytes from a core matrix to the one with the next 16 bytes of k.
    along_rows : int
        Bytes from a core matrix to the one with the next 8 rows.

    Returns
    -------
    int
        To be added to ``address // 16``.
    """
    return along_k // 16 << 16 | along_rows // 16 << 32


if SIMULATED:
    from numbacaps.fused import emulated as chosen
    from numbacaps.fused.emulated import Compiled, address_of
else:
    from numbacaps.fused import ptx as chosen
    from numbacaps.fused.compiled import Compiled, address_of

cp_async = chosen.cp_async
cp_async_commit = chosen.cp_async_commit
cp_async_wait = chosen.cp_async_wait
cut_tf32 = chosen.cut_tf32
expm1 = chosen.expm1
fence_proxy_async = chosen.fence_proxy_async
from_bfloat16 = chosen.from_bfloat16
let_next_start = chosen.let_next_start
inverse_root = chosen.inverse_root
load_run = chosen.load_run
mma = chosen.mma
prefetch = chosen.prefetch
shared_address = chosen.shared_address
shuffle = chosen.shuffle
store_pair = chosen.store_pair
store_run = chosen.store_run
to_bfloat16 = chosen.to_bfloat16
to_tf32 = chosen.to_tf32
wait_for_last = chosen.wait_for_last
wgmma = chosen.wgmma
wgmma_commit = chosen.wgmma_commit
wgmma_fence = chosen.wgmma_fence
wgmma_wait = chosen.wgmma_wait
