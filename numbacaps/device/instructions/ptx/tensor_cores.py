"""PTX of the tensor cores: products of warpgroups (wgmma) and of warps (mma.sync), and their fragments."""

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from numbacaps.device.instructions.ptx.inline import (
    F32,
    I32,
    I64,
    VOID,
    asm,
    instruction,
    pointer_to,
    with_number,
    written_for,
)

wgmma_fence = instruction("wgmma.fence.sync.aligned;")

wgmma_commit = instruction("wgmma.commit_group.sync.aligned;")

wgmma_wait = instruction("wgmma.wait_group.sync.aligned 0;")

# The same of a warpgroup's groups of products.
wgmma_wait_but = with_number("wgmma.wait_group.sync.aligned {};")


def _warpgroup_product(name, shape, kind, registers, transposed=""):
    """What calls the product of a warpgroup: ``call(builder, columns, [sums, *a, b, *add])``.

    ``a`` is the first operand's address, or the registers that hold it; these products may leave out what the sums
    hold, where ``add`` is 0.
    """
    a_kinds = [I32] * 4 if registers else [I64]
    kinds = [*a_kinds, I64, *([I32] if registers else [])]

    def write(builder, function, columns):
        count = columns // 2
        sums = ", ".join(f"${i}" for i in range(count))
        a = ", ".join(f"${count + i}" for i in range(len(a_kinds)))
        b = count + len(a_kinds)
        text = f"wgmma.mma_async.sync.aligned.m64n{columns}{shape}.f32.{kind}.{kind} {{{sums}}}, "
        if registers:
            test = f".reg .pred more; setp.ne.b32 more, ${b + 1}, 0;"
            text = f"{{ {test} {text}{{{a}}}, ${b}, more, 1, 1{transposed}; }}"
        else:
            text = f"{text}{a}, ${b}, 1, 1, 1;"
        acc, *others = function.args
        places = [builder.gep(acc, [ir.Constant(I64, i)]) for i in range(count)]
        operands = [*others, *(builder.load(place) for place in places)]
        letters = ["r" if one is I32 else "l" for one in kinds]
        constraints = ["=f"] * count + letters + [str(i) for i in range(count)]
        returned = ir.LiteralStructType([F32] * count)
        found = asm(builder, returned, operands, text, ",".join(constraints))
        for i, place in enumerate(places):
            builder.store(builder.extract_value(found, i), place)
        builder.ret_void()

    return written_for(name, ir.FunctionType(VOID, [F32.as_pointer(), *kinds]), write)


@intrinsic
def wgmma(typing_context, columns, acc, first, shared, a, b):
    """The product of a warpgroup: acc[first:] += A (64 x k) @ B (columns x k)^T, two chunks of k.

    ``columns`` is a multiple of 8 from 8 to 256, and a thread holds columns / 2 elements of the sum,
    which is float32. A and B are float32 too, of which TF32's bits are read.
    """

    def codegen(context, builder, signature, arguments):
        columns, acc, first, _, a, b = arguments
        sums = builder.gep(pointer_to(context, builder, signature.args[1], acc), [first])
        _of_addresses(builder, columns, [sums, a, b])
        return context.get_dummy_value()

    arguments = (types.int64, acc, types.int64, shared, types.int64, types.int64)
    return types.void(*arguments), codegen


_of_addresses = _warpgroup_product("wgmma_tf32", "k8", "tf32", False)


def _fragment_product(shape, kind, transposed):
    """An intrinsic for the product of a warpgroup whose first operand is in registers."""
    call = _warpgroup_product(f"wgmma_fragment_{kind}", shape, kind, True, transposed)

    @intrinsic
    def product(typing_context, columns, acc, first, fragment, at, shared, b, add):
        def codegen(context, builder, signature, arguments):
            columns, acc, first, fragment, at, _, b, add = arguments
            sums = builder.gep(pointer_to(context, builder, signature.args[1], acc), [first])
            held = pointer_to(context, builder, signature.args[3], fragment)
            a = [
                builder.load(builder.gep(held, [builder.add(at, ir.Constant(I64, i))]))
                for i in range(4)
            ]
            a = [builder.bitcast(value, I32) for value in a]
            call(builder, columns, [sums, *a, b, builder.trunc(add, I32)])
            return context.get_dummy_value()

        integer = types.int64
        arguments = (integer, acc, integer, fragment, integer, shared, integer, integer)
        return types.void(*arguments), codegen

    return product


# As :func:`wgmma`, but A is in registers: fragment[at : at + 4] of each thread. They are rows lane // 4 and 8
# more of the warp's 16, at k lane % 4 and then both at 4 more: k's of 4 bytes, one of float32 or two of
# float16 or bfloat16. Where ``add`` is 0, what acc[first:] held is not added to.
wgmma_fragment = _fragment_product("k8", "tf32", "")

wgmma_fragment_float16 = _fragment_product("k16", "f16", ", 0")

wgmma_fragment_bfloat16 = _fragment_product("k16", "bf16", ", 0")

FRAGMENT_PRODUCTS = {  # by the name of the dtype that is multiplied
    "float32": wgmma_fragment,
    "float16": wgmma_fragment_float16,
    "bfloat16": wgmma_fragment_bfloat16,
}


def _warp_product(shape, kind):
    """An intrinsic for the product of a warp."""

    @intrinsic
    def product(typing_context, acc, first, a, a_first, b, b_first):
        text = (
            f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};"
        )
        constraints = "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3"

        def codegen(context, builder, signature, arguments):
            def places(which, count):
                data = pointer_to(context, builder, signature.args[which], arguments[which])
                first = arguments[which + 1]
                return [
                    builder.gep(data, [builder.add(first, ir.Constant(I64, i))])
                    for i in range(count)
                ]

            sums = places(0, 4)
            factors = [builder.load(place) for place in places(2, 4) + places(4, 2)]
            operands = [builder.bitcast(factor, I32) for factor in factors]
            operands += [builder.load(place) for place in sums]
            returned = ir.LiteralStructType([F32] * 4)
            results = asm(builder, returned, operands, text, constraints)
            for i, place in enumerate(sums):
                builder.store(builder.extract_value(results, i), place)
            return context.get_dummy_value()

        arguments = (acc, types.int64, a, types.int64, b, types.int64)
        return types.void(*arguments), codegen

    return product


# The product of a warp: acc[first:] += A (16 x 8) @ B (8 x 8), of local arrays of float32. k's have 4 bytes: one
# of float32, of which TF32's bits are read, or two of float16 or bfloat16.
# With t = lane % 4 and r = lane // 4, a[a_first:] is A[r, t], A[r + 8, t], A[r, t + 4] and A[r + 8, t + 4],
# b[b_first:] is B[t, r] and B[t + 4, r], and acc[first:] is the sum's [r, 2t], [r, 2t + 1], [r + 8, 2t] and
# [r + 8, 2t + 1].
mma = _warp_product("m16n8k8", "tf32")

WARP_PRODUCTS = {  # by the name of the dtype that is multiplied
    "float32": mma,
    "float16": _warp_product("m16n8k16", "f16"),
    "bfloat16": _warp_product("m16n8k16", "bf16"),
}


def _matrices(transposed):
    """An intrinsic that loads four matrices."""

    @intrinsic
    def load(typing_context, to, shared, address):
        text = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{$0, $1, $2, $3}}, [$4];"

        def codegen(context, builder, signature, arguments):
            target, _, _ = signature.args
            to, _, address = arguments
            address = builder.trunc(address, I32)
            returned = ir.LiteralStructType([F32] * 4)
            constraints = "=f,=f,=f,=f,r,~{memory}"
            loaded = asm(builder, returned, [address], text, constraints)
            data = pointer_to(context, builder, target, to)
            for i in range(4):
                element = builder.extract_value(loaded, i)
                builder.store(element, builder.gep(data, [ir.Constant(I64, i)]))
            return context.get_dummy_value()

        return types.void(to, shared, types.int64), codegen

    return load


# Four matrices of 8 rows of 16 bytes: a lane gives the shared address of a row, and to[:4] is, of each of them, the 4
# bytes lane % 4 of row lane // 4.
load_matrices = _matrices("")

# The same of elements of 2 bytes: of each matrix, those of rows 2 * (lane % 4) and the next, in column lane // 4.
load_matrices_transposed = _matrices(".trans")
