"""PTX of clusters: blocks that run at once, wait for each other, and write to each other's shared memory."""

from numba.core import types
from numba.cuda.extending import intrinsic

from numbacaps.device.gpu import CLUSTERS
from numbacaps.device.instructions.ptx.inline import (
    I32,
    I64,
    VOID,
    asm,
    instruction,
    pointer_to,
)

# All threads of a cluster wait for each other. Afterwards each sees what the others wrote before.
cluster_meet = instruction(
    "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;", CLUSTERS
)

# The same without that memory order. At a kernel's end it keeps a block's shared memory until all blocks are done with it.
cluster_leave = instruction(
    "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;", CLUSTERS
)

# Makes the mbarriers that a thread has initialised visible to the cluster; its threads meet behind it.
fence_barriers = instruction("fence.mbarrier_init.release.cluster;", CLUSTERS)


@intrinsic
def copy_to_block(typing_context, rank, array, index, size, barrier):
    """Copy ``size`` bytes of a shared array, from an index on, to where the cluster's block of that rank has it.

    The other block's mbarrier at the same address counts the bytes that arrive. A thread that has waited for that mbarrier sees
    the copied bytes without a fence, so its L1 cache is not invalidated. The copy begins at a multiple of 16 bytes and takes a
    multiple of 16 bytes. Before it, the threads that wrote the array call ``fence_proxy_async`` and meet at a barrier.
    """

    def codegen(context, builder, signature, arguments):
        rank, array, index, size, barrier = arguments
        place = builder.gep(pointer_to(context, builder, signature.args[1], array), [index])
        text = (
            "{ .reg .u64 whole; .reg .u32 from, to, count; "
            "cvta.to.shared.u64 whole, $0; cvt.u32.u64 from, whole; "
            "mapa.shared::cluster.u32 to, from, $1; mapa.shared::cluster.u32 count, $3, $1; "
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [from], $2, [count]; }"
        )
        operands = [builder.ptrtoint(place, I64), builder.trunc(rank, I32)]
        operands += [builder.trunc(size, I32), builder.trunc(barrier, I32)]
        asm(builder, VOID, operands, text, "l,r,r,r,~{memory}")
        return context.get_dummy_value()

    return types.void(types.int64, array, types.int64, types.int64, types.int64), codegen
