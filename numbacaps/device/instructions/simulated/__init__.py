"""What the instructions do, written in NumPy, for the simulator: a thread at a time.

What is checked: every index, address, descriptor, coordinate and phase; that barriers count what arrives, and that
nothing hangs. What is not: fences, types, registers, and what runs at the same time by chance.
"""

from numbacaps.device.instructions.simulated.arrays import local_array, shared_array
from numbacaps.device.instructions.simulated.barriers import (
    fence_proxy_async,
    let_next_start,
    mbarrier_arrive,
    mbarrier_arrive_times,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    mbarrier_wait_where,
    meet,
    meet_at,
    wait_for_last,
)
from numbacaps.device.instructions.simulated.clusters import (
    cluster_leave,
    cluster_meet,
    copy_to_block,
    fence_barriers,
)
from numbacaps.device.instructions.simulated.copies import (
    bulk_copy,
    bulk_store,
    bulk_store_read,
    bulk_store_wait,
    copy_chunk,
    cp_async,
    cp_async_cached,
    cp_async_commit,
    cp_async_wait,
    load_run,
    map_address,
    prefetch,
    shared_address,
    store_pair,
    store_pair_where,
    store_quad,
    store_run,
    store_words,
    tensor_copy,
)
from numbacaps.device.instructions.simulated.registers import (
    HALVES,
    clock,
    cut_tf32,
    expm1,
    fewer_registers,
    float_of,
    from_bfloat16,
    inverse_root,
    larger,
    more_registers,
    permuted_bytes,
    pinned,
    shuffle,
    to_bfloat16,
    to_tf32,
    unforeseen,
    unroll_loops,
)
from numbacaps.device.instructions.simulated.tensor_cores import (
    FRAGMENT_PRODUCTS,
    WARP_PRODUCTS,
    load_matrices,
    load_matrices_transposed,
    mma,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_fragment,
    wgmma_wait,
    wgmma_wait_but,
)
