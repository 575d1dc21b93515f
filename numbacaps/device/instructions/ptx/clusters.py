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

# All threads of a cluster wait for each other, and see what the others have written to shared memory.
cluster_meet = instruction(
    "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;", CLUSTERS
)

# The same where nothing that was written has to be seen: a block that leaves takes its shared memory with it.
cluster_leave = instruction(
    "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;", CLUSTERS
)

# Barriers (mbarrier) that a thread has made are there for all of the cluster, once that meets.
fence_barriers = instruction("fence.mbarrier_init.release.cluster;", CLUSTERS)


@intrinsic
def copy_to_block(typing_context, rank, array, index, size, barrier):
    """Copy ``size`` bytes of a shared array, from an index on, to where the cluster's block of that rank has it.

    That block's barrier (mbarrier) at the same address counts the bytes in. Who waits there finds them: no fence is needed,
    and the L1 cache keeps what it has. Index and size are of multiples of 16 bytes, and who has written the array has made it
    known by ``fence_proxy_async`` and a barrier.
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
