"""PTX of clusters: blocks that run at once, wait for each other, and write to each other's shared memory."""

from numba.core import types
from numba.cuda.extending import intrinsic

from numbacaps.device.gpu import CLUSTERS
from numbacaps.device.instructions.ptx.inline import (
    F32,
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


@intrinsic
def to_block(typing_context, rank, array, index, value, barrier):
    """array[index] = value of a shared array of floats, as the cluster's block of that rank has it, while the thread goes on.

    That block's barrier (mbarrier) at the same address counts the bytes in. Who waits there finds them: no fence is needed,
    and the L1 cache keeps what it has.
    """

    def codegen(context, builder, signature, arguments):
        rank, array, index, value, barrier = arguments
        place = builder.gep(pointer_to(context, builder, signature.args[1], array), [index])
        kind, constraint = ("f32", "f") if value.type == F32 else ("f64", "d")
        text = (
            "{ .reg .u64 whole; .reg .u32 place, count; "
            "cvta.to.shared.u64 whole, $0; cvt.u32.u64 place, whole; "
            "mapa.shared::cluster.u32 place, place, $1; mapa.shared::cluster.u32 count, $3, $1; "
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
            f".{kind} [place], $2, [count]; }}"
        )
        operands = [builder.ptrtoint(place, I64), builder.trunc(rank, I32), value]
        operands.append(builder.trunc(barrier, I32))
        asm(builder, VOID, operands, text, f"l,r,{constraint},r,~{{memory}}")
        return context.get_dummy_value()

    return types.void(types.int64, array, types.int64, array.dtype, types.int64), codegen
