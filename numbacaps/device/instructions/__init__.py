"""The instructions that Numba has no words for: copies, barriers, clusters of blocks, tensor cores, registers.

:mod:`~numbacaps.device.instructions.ptx` writes them as inline PTX; on the simulator the same names are what they do,
written in NumPy (:mod:`~numbacaps.device.instructions.simulated`). This module chooses, once: kernels import from here.

Addresses are byte addresses of a block's shared memory. A matrix that ``wgmma`` reads is made of *core
matrices*: 8 rows of 16 bytes, 128 bytes in one run. A descriptor says where the first one begins,
how far the next 16 bytes of k are, and how far the next 8 rows: see :func:`descriptor_strides`.
"""

import numpy as np

from numbacaps.device.target import SIMULATED

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
    from numbacaps.device.instructions import simulated as chosen
else:
    from numbacaps.device.instructions import ptx as chosen

FRAGMENT_PRODUCTS = chosen.FRAGMENT_PRODUCTS
HALVES = chosen.HALVES
WARP_PRODUCTS = chosen.WARP_PRODUCTS
bulk_copy = chosen.bulk_copy
bulk_store = chosen.bulk_store
bulk_store_read = chosen.bulk_store_read
bulk_store_wait = chosen.bulk_store_wait
clock = chosen.clock
cluster_leave = chosen.cluster_leave
cluster_meet = chosen.cluster_meet
copy_chunk = chosen.copy_chunk
copy_to_block = chosen.copy_to_block
cp_async = chosen.cp_async
cp_async_cached = chosen.cp_async_cached
cp_async_commit = chosen.cp_async_commit
cp_async_wait = chosen.cp_async_wait
cut_tf32 = chosen.cut_tf32
expm1 = chosen.expm1
fence_barriers = chosen.fence_barriers
fence_proxy_async = chosen.fence_proxy_async
fewer_registers = chosen.fewer_registers
float_of = chosen.float_of
from_bfloat16 = chosen.from_bfloat16
inverse_root = chosen.inverse_root
larger = chosen.larger
let_next_start = chosen.let_next_start
load_matrices = chosen.load_matrices
load_matrices_transposed = chosen.load_matrices_transposed
load_run = chosen.load_run
local_array = chosen.local_array
map_address = chosen.map_address
mbarrier_arrive = chosen.mbarrier_arrive
mbarrier_arrive_times = chosen.mbarrier_arrive_times
mbarrier_expect = chosen.mbarrier_expect
mbarrier_init = chosen.mbarrier_init
mbarrier_wait = chosen.mbarrier_wait
mbarrier_wait_where = chosen.mbarrier_wait_where
meet = chosen.meet
meet_at = chosen.meet_at
mma = chosen.mma
more_registers = chosen.more_registers
permuted_bytes = chosen.permuted_bytes
pinned = chosen.pinned
prefetch = chosen.prefetch
shared_address = chosen.shared_address
shared_array = chosen.shared_array
shuffle = chosen.shuffle
store_pair = chosen.store_pair
store_pair_where = chosen.store_pair_where
store_quad = chosen.store_quad
store_run = chosen.store_run
store_words = chosen.store_words
tensor_copy = chosen.tensor_copy
to_bfloat16 = chosen.to_bfloat16
to_tf32 = chosen.to_tf32
unforeseen = chosen.unforeseen
unroll_loops = chosen.unroll_loops
wait_for_last = chosen.wait_for_last
wgmma = chosen.wgmma
wgmma_fragment = chosen.wgmma_fragment
wgmma_commit = chosen.wgmma_commit
wgmma_fence = chosen.wgmma_fence
wgmma_fragment = chosen.FRAGMENT_PRODUCTS["float32"]
wgmma_wait = chosen.wgmma_wait
wgmma_wait_but = chosen.wgmma_wait_but
