"""PTX that orders: barriers in shared memory (mbarrier), named barriers, fences, programmatic dependent launch."""

from numba.core import types
from numba.cuda.extending import intrinsic

from numbacaps.device.instructions.ptx.inline import I32, VOID, asm, instruction, with_number

fence_proxy_async = instruction("fence.proxy.async.shared::cta;")

# Kernels of a GPU that lacks them start when the one before has ended. Once all blocks of a kernel let the next one start,
# its blocks come to where there is room, and wait there. If they come too early, those that only wait take the room of
# those that work, and the next product's blocks crowd on a few multiprocessors: up to three times the time (measured). So
# products by warps and by ordinary arithmetic, and what adds splits or columns, wait for the last kernel and let the next
# one start once their sums are there; where blocks are few that costs half a microsecond. Kernels that pack,
# clear or squash, and products of a block a multiprocessor, which take all room anyway, let it start sooner.
let_next_start = instruction("griddepcontrol.launch_dependents;", since=(9, 0))

wait_for_last = instruction("griddepcontrol.wait;", since=(9, 0))

# N threads of the block, a multiple of 32, wait for each other. Other threads do not count.
meet = with_number("bar.sync 1, {};")


@intrinsic
def meet_at(typing_context, barrier, number):
    """The same at one of the block's barriers, 2 to 15."""

    def codegen(context, builder, signature, arguments):
        text = f"bar.sync $0, {arguments[1].constant};"
        asm(builder, VOID, [builder.trunc(arguments[0], I32)], text, "r,~{memory}")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _on_barrier(text, values=0):
    """An intrinsic on a barrier in shared memory: its address, then 32-bit values."""

    def codegen(context, builder, signature, arguments):
        operands = [builder.trunc(argument, I32) for argument in arguments[1:]]
        asm(builder, VOID, operands, text, ",".join(["r"] * len(operands)) + ",~{memory}")
        return context.get_dummy_value()

    def nothing(typing_context, shared, address):
        return types.void(shared, types.int64), codegen

    def one(typing_context, shared, address, value):
        return types.void(shared, types.int64, types.int64), codegen

    def two(typing_context, shared, address, value, other):
        return types.void(shared, types.int64, types.int64, types.int64), codegen

    return intrinsic((nothing, one, two)[values])


mbarrier_init = _on_barrier("mbarrier.init.shared::cta.b64 [$0], $1;", 1)

mbarrier_arrive = _on_barrier("mbarrier.arrive.shared::cta.b64 _, [$0];")

mbarrier_expect = _on_barrier("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", 1)

mbarrier_arrive_times = _on_barrier("mbarrier.arrive.shared::cta.b64 _, [$0], $1;", 1)

mbarrier_wait = _on_barrier(
    "{ .reg .pred done; again: "
    "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra again; }",
    1,
)

# Where the last operand is 0 it does not wait: a branch that divides no block of the compiler's.
mbarrier_wait_where = _on_barrier(
    "{ .reg .pred done, skip; setp.eq.b32 skip, $2, 0; @skip bra over; again: "
    "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra again; over: }",
    2,
)
