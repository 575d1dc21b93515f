"""The instructions as inline PTX, for a real GPU."""

from numbacaps.device.instructions.ptx.arrays import local_array, shared_array
from numbacaps.device.instructions.ptx.barriers import (
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
from numbacaps.device.instructions.ptx.clusters import (
    cluster_leave,
    cluster_meet,
    copy_to_block,
    fence_barriers,
)
from numbacaps.device.instructions.ptx.copies import (
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
from numbacaps.device.instructions.ptx.registers import (
    HALVES,
    clock,
    cut_tf32,
    expm1,
    fewer_registers,
    float_of,
    from_bfloat16,
    halves_bfloat16,
    halves_float16,
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
from numbacaps.device.instructions.ptx.tensor_cores import (
    FRAGMENT_PRODUCTS,
    WARP_PRODUCTS,
    load_matrices,
    load_matrices_transposed,
    mma,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_fragment,
    wgmma_fragment_bfloat16,
    wgmma_fragment_float16,
    wgmma_wait,
    wgmma_wait_but,
)

# A kernel on disk is named by what its values print as, and those that one function makes would print alike.
for _name, _made in list(globals().items()):
    if isinstance(_made, type(shared_address)):
        _made._name = _name
