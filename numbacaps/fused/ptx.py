"""Inline PTX for a real GPU; :mod:`numbacaps.fused.intrinsics` says what the names mean.

Everything that leans on how Numba hands arrays to LLVM is here.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.extending import intrinsic

from numbacaps.target import cuda


_I32, _I64, _F32, _VOID = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VoidType()


def _data(context, builder, kind, value):
    """Pointer to an array's first element."""
    return context.make_array(kind)(context, builder, value).data


def _asm(builder, result, operands, text, constraints, side_effect=True):
    """Call inline PTX."""
    function = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect), operands)


def _instruction(text, since=(0, 0)):
    """An intrinsic without operands that nothing may be moved across; nothing on GPUs before ``since``."""

    @intrinsic
    def instruction(typing_context):
        def codegen(context, builder, signature, arguments):
            if ConfigStack().top().compute_capability >= since:
                _asm(builder, _VOID, [], text, "~{memory}")
            return context.get_dummy_value()

        return types.void(), codegen

    return instruction


cp_async_commit = _instruction("cp.async.commit_group;")
fence_proxy_async = _instruction("fence.proxy.async.shared::cta;")
wgmma_fence = _instruction("wgmma.fence.sync.aligned;")
wgmma_commit = _instruction("wgmma.commit_group.sync.aligned;")
wgmma_wait = _instruction("wgmma.wait_group.sync.aligned 0;")
# Kernels of a GPU that lacks them start when the one before has ended.
let_next_start = _instruction("griddepcontrol.launch_dependents;", since=(9, 0))
wait_for_last = _instruction("griddepcontrol.wait;", since=(9, 0))


def _with_number(text):
    """The same with one operand, a number that is known when the kernel is compiled."""

    @intrinsic
    def instruction(typing_context, number):
        if not isinstance(number, types.IntegerLiteral):
            return None
        whole = text.format(number.literal_value)

        def codegen(context, builder, signature, arguments):
            _asm(builder, _VOID, [], whole, "~{memory}")
            return context.get_dummy_value()

        return types.void(number), codegen

    return instruction


# A warpgroup takes up, or gives away, registers of its block's: so many a thread are its own then.
more_registers = _with_number("setmaxnreg.inc.sync.aligned.u32 {};")
fewer_registers = _with_number("setmaxnreg.dec.sync.aligned.u32 {};")
# So many threads of the block, a multiple of 32, wait for each other; others do not count.
meet = _with_number("bar.sync 1, {};")


@intrinsic
def meet_at(typing_context, barrier, number):
    """The same at one of the block's barriers, 2 to 15."""
    if not isinstance(number, types.IntegerLiteral):
        return None
    text = f"bar.sync $0, {number.literal_value};"

    def codegen(context, builder, signature, arguments):
        _asm(builder, _VOID, [builder.trunc(arguments[0], _I32)], text, "r,~{memory}")
        return context.get_dummy_value()

    return types.void(types.int64, number), codegen


# At most so many of this thread's groups of copies are still on their way.
cp_async_wait = _with_number("cp.async.wait_group {};")
# The same of a warpgroup's groups of products.
wgmma_wait_but = _with_number("wgmma.wait_group.sync.aligned {};")


@intrinsic
def shared_address(typing_context, array):
    """Where a shared array begins in the block's shared memory, in bytes."""

    def codegen(context, builder, signature, arguments):
        data = _data(context, builder, signature.args[0], arguments[0])
        pointer = builder.ptrtoint(data, _I64)
        return _asm(builder, _I64, [pointer], "cvta.to.shared.u64 $0, $1;", "=l,l", False)

    return types.int64(array), codegen


@intrinsic
def prefetch(typing_context, array, index):
    """Have the :data:`~numbacaps.fused.intrinsics.LINE` bytes around array[index] brought to the L2 cache.

    Nothing is read, so it may come before ``wait_for_last``, and what is written meanwhile is not missed.
    """

    def codegen(context, builder, signature, arguments):
        array, index = arguments
        place = builder.gep(_data(context, builder, signature.args[0], array), [index])
        operands = [builder.ptrtoint(place, _I64)]
        _asm(builder, _VOID, operands, "prefetch.global.L2 [$0];", "l,~{memory}")
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def cp_async(typing_context, size, shared, address, array, index, valid):
    """Copy ``size`` (4, 8 or 16) bytes from array[index] to a shared address; zeros if not valid."""
    if not isinstance(size, types.IntegerLiteral):
        return None
    count = size.literal_value
    how = "cg" if count == 16 else "ca"

    def codegen(context, builder, signature, arguments):
        _, _, address, array, index, valid = arguments
        kind = signature.args[3]
        base = builder.ptrtoint(_data(context, builder, kind, array), _I64)
        itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        source = builder.add(base, builder.mul(index, ir.Constant(_I64, itemsize)))
        read = builder.select(valid, ir.Constant(_I32, count), ir.Constant(_I32, 0))
        operands = [builder.trunc(address, _I32), source, read]
        text = f"cp.async.{how}.shared.global [$0], [$1], {count}, $2;"
        _asm(builder, _VOID, operands, text, "r,l,r,~{memory}")
        return context.get_dummy_value()

    return types.void(size, shared, types.int64, array, types.int64, types.boolean), codegen


@intrinsic
def wgmma(typing_context, columns, acc, first, shared, a, b):
    """The product of a warpgroup: acc[first:] += A (64 x k) @ B (columns x k)^T, two chunks of k.

    ``columns`` is a multiple of 8 from 8 to 256, and a thread holds columns / 2 elements of the sum,
    which is float32. A and B are float32 too, of which TF32's bits are read.
    """
    if not isinstance(columns, types.IntegerLiteral):
        return None
    count = columns.literal_value // 2
    sums = ", ".join(f"${i}" for i in range(count))
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{2 * count}k8.f32.tf32.tf32 "
        f"{{{sums}}}, ${2 * count}, ${2 * count + 1}, 1, 1, 1;"
    )
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)] + ["l", "l"])

    def codegen(context, builder, signature, arguments):
        _, acc, first, _, a, b = arguments
        data = _data(context, builder, signature.args[1], acc)
        places = [
            builder.gep(data, [builder.add(first, ir.Constant(_I64, i))]) for i in range(count)
        ]
        operands = [*(builder.load(place) for place in places), a, b]
        returned = ir.LiteralStructType([_F32] * count)
        sums = _asm(builder, returned, operands, text, constraints)
        for i, place in enumerate(places):
            builder.store(builder.extract_value(sums, i), place)
        return context.get_dummy_value()

    arguments = (columns, acc, types.int64, shared, types.int64, types.int64)
    return types.void(*arguments), codegen


def _on_barrier(text, values=0):
    """An intrinsic on a barrier in shared memory: its address, then 32-bit values."""

    def codegen(context, builder, signature, arguments):
        operands = [builder.trunc(argument, _I32) for argument in arguments[1:]]
        _asm(builder, _VOID, operands, text, ",".join(["r"] * len(operands)) + ",~{memory}")
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


@intrinsic
def bulk_copy(typing_context, shared, address, array, index, size, barrier):
    """Copy ``size`` bytes from array[index] to a shared address; the barrier counts them in.

    Both lie at multiples of 16 bytes.
    """

    def codegen(context, builder, signature, arguments):
        _, address, array, index, size, barrier = arguments
        source = builder.gep(_data(context, builder, signature.args[2], array), [index])
        operands = [
            builder.trunc(address, _I32),
            builder.ptrtoint(source, _I64),
            builder.trunc(size, _I32),
            builder.trunc(barrier, _I32),
        ]
        text = (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[$0], [$1], $2, [$3];"
        )
        _asm(builder, _VOID, operands, text, "r,l,r,r,~{memory}")
        return context.get_dummy_value()

    arguments = (shared, types.int64, array, types.int64, types.int64, types.int64)
    return types.void(*arguments), codegen


@intrinsic
def bulk_store(typing_context, array, index, shared, address, size):
    """Copy ``size`` bytes from a shared address to array[index], as a group of this thread's.

    Both lie at multiples of 16 bytes.
    """

    def codegen(context, builder, signature, arguments):
        array, index, _, address, size = arguments
        place = builder.gep(_data(context, builder, signature.args[0], array), [index])
        operands = [
            builder.ptrtoint(place, _I64),
            builder.trunc(address, _I32),
            builder.trunc(size, _I32),
        ]
        text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
        _asm(builder, _VOID, operands, text + " cp.async.bulk.commit_group;", "l,r,r,~{memory}")
        return context.get_dummy_value()

    arguments = (array, types.int64, shared, types.int64, types.int64)
    return types.void(*arguments), codegen


# What this thread copied out was read; and it was written.
bulk_store_read = _instruction("cp.async.bulk.wait_group.read 0;")
bulk_store_wait = _instruction("cp.async.bulk.wait_group 0;")


_BEFORE_MAPS = 14  # what the driver takes for two arrays


@intrinsic
def map_address(typing_context, words, which):
    """Where one of a kernel's tensor maps lies: ``words``, 16 of 64 bits each, the third argument.

    It is read where arguments lie, so nobody has to put it anywhere. They lie from 48 bytes before a multiple
    of 64 on, and a map at a multiple of 64: so behind two arrays. Only for a kernel's own body.
    """
    if not isinstance(which, types.IntegerLiteral):
        return None
    first = _BEFORE_MAPS + 16 * which.literal_value

    def codegen(context, builder, signature, arguments):
        argument = f"{builder.function.name}_param_{first}"
        text = f"mov.b64 $0, {argument}; cvta.param.u64 $0, $0;"
        return _asm(builder, _I64, [], text, "=l", False)

    return types.int64(words, which), codegen


@intrinsic
def tensor_copy(typing_context, shared, address, map, first, second, third, fourth, fifth, barrier):
    """Copy the box of a tensor map (:mod:`numbacaps.fused.tensor_map`) that begins at these coordinates.

    ``map`` is its address. What lies outside of the tensor is zero.
    """

    def codegen(context, builder, signature, arguments):
        _, address, map, *coordinates, barrier = arguments
        operands = [builder.trunc(address, _I32), map]
        operands += [builder.trunc(value, _I32) for value in (*coordinates, barrier)]
        text = (
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[$0], [$1, {$2, $3, $4, $5, $6}], [$7];"
        )
        _asm(builder, _VOID, operands, text, "r,l,r,r,r,r,r,r,~{memory}")
        return context.get_dummy_value()

    return types.void(shared, *[types.int64] * 8), codegen


def _fragment_product(shape, kind, transposed):
    """An intrinsic for the product of a warpgroup whose first operand is in registers."""

    @intrinsic
    def product(typing_context, columns, acc, first, fragment, at, shared, b, add):
        if not isinstance(columns, types.IntegerLiteral):
            return None
        count = columns.literal_value // 2
        sums = ", ".join(f"${i}" for i in range(count))
        a = ", ".join(f"${count + i}" for i in range(4))
        text = (
            f"{{ .reg .pred more; setp.ne.b32 more, ${count + 5}, 0; "
            f"wgmma.mma_async.sync.aligned.m64n{2 * count}{shape}.f32.{kind}.{kind} "
            f"{{{sums}}}, {{{a}}}, ${count + 4}, more, 1, 1{transposed}; }}"
        )
        constraints = ["=f"] * count + ["r"] * 4 + ["l", "r"] + [str(i) for i in range(count)]

        def codegen(context, builder, signature, arguments):
            _, acc, first, fragment, at, _, b, add = arguments
            data = _data(context, builder, signature.args[1], acc)
            places = [
                builder.gep(data, [builder.add(first, ir.Constant(_I64, i))]) for i in range(count)
            ]
            held = _data(context, builder, signature.args[3], fragment)
            a = [
                builder.load(builder.gep(held, [builder.add(at, ir.Constant(_I64, i))]))
                for i in range(4)
            ]
            operands = [
                *(builder.bitcast(value, _I32) for value in a),
                b,
                builder.trunc(add, _I32),
                *(builder.load(place) for place in places),
            ]
            returned = ir.LiteralStructType([_F32] * count)
            sums = _asm(builder, returned, operands, text, ",".join(constraints))
            for i, place in enumerate(places):
                builder.store(builder.extract_value(sums, i), place)
            return context.get_dummy_value()

        integer = types.int64
        arguments = (columns, acc, integer, fragment, integer, shared, integer, integer)
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


@intrinsic
def permuted_bytes(typing_context, one, other, selector):
    """Four of two words' 8 bytes, each named by 4 bits of ``selector``, the lowest first."""

    def codegen(context, builder, signature, arguments):
        words = [builder.bitcast(value, _I32) for value in arguments[:2]]
        words.append(builder.trunc(arguments[2], _I32))
        text = "prmt.b32 $0, $1, $2, $3;"
        return builder.bitcast(_asm(builder, _I32, words, text, "=r,r,r,r", False), _F32)

    return types.float32(types.float32, types.float32, types.int64), codegen


@intrinsic
def unforeseen(typing_context, value):
    """``value``, of which LLVM does not know that it is: a loop that counts so it does not unroll."""

    def codegen(context, builder, signature, arguments):
        return _asm(builder, _I32, arguments, "mov.b32 $0, $1;", "=r,r")

    return types.int32(types.int32), codegen


@intrinsic
def mma(typing_context, acc, first, a, a_first, b, b_first):
    """The product of a warp: acc[first:] += A (16 x 8) @ B (8 x 8), of local arrays of float32.

    With t = lane % 4 and r = lane // 4, a[a_first:] is A[r, t], A[r + 8, t], A[r, t + 4] and
    A[r + 8, t + 4], b[b_first:] is B[t, r] and B[t + 4, r], and acc[first:] is the sum's [r, 2t],
    [r, 2t + 1], [r + 8, 2t] and [r + 8, 2t + 1]. Of A and B TF32's bits are read.
    """
    text = (
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};"
    )
    constraints = "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3"

    def codegen(context, builder, signature, arguments):
        def places(which, count):
            data = _data(context, builder, signature.args[which], arguments[which])
            first = arguments[which + 1]
            return [
                builder.gep(data, [builder.add(first, ir.Constant(_I64, i))]) for i in range(count)
            ]

        sums = places(0, 4)
        factors = [builder.load(place) for place in places(2, 4) + places(4, 2)]
        operands = [builder.bitcast(factor, _I32) for factor in factors]
        operands += [builder.load(place) for place in sums]
        returned = ir.LiteralStructType([_F32] * 4)
        results = _asm(builder, returned, operands, text, constraints)
        for i, place in enumerate(sums):
            builder.store(builder.extract_value(results, i), place)
        return context.get_dummy_value()

    arguments = (acc, types.int64, a, types.int64, b, types.int64)
    return types.void(*arguments), codegen


@intrinsic
def load_matrices(typing_context, to, shared, address):
    """Four matrices of 8 rows of 16 bytes: a lane gives the shared address of a row, and to[:4] is, of each of them,
    element lane % 4 of row lane // 4."""
    text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"

    def codegen(context, builder, signature, arguments):
        target, _, _ = signature.args
        to, _, address = arguments
        address = builder.trunc(address, _I32)
        returned = ir.LiteralStructType([_F32] * 4)
        constraints = "=f,=f,=f,=f,r,~{memory}"
        loaded = _asm(builder, returned, [address], text, constraints)
        data = _data(context, builder, target, to)
        for i in range(4):
            element = builder.extract_value(loaded, i)
            builder.store(element, builder.gep(data, [ir.Constant(_I64, i)]))
        return context.get_dummy_value()

    return types.void(to, shared, types.int64), codegen


@cuda.jit(device=True, inline="always")
def shuffle(value, lane):
    """What a lane of the warp gives as ``value``; all of them take part."""
    return cuda.shfl_sync(0xFFFFFFFF, value, lane)


# exp(r) - 1 is r + r^2 q(r), with these coefficients of q from r^4 down: for |r| <= log(2) / 2 the relative
# error is 1.4e-8 (least squares, weights raised where it was largest).
_EXPM1 = (0x3AB6CCDD, 0x3C091440, 0x3D2AAA43, 0x3E2AAA57, 0x3F000000)
_EXPM1_TEXT = (
    "{ .reg .f32 x, k, r, q, s; "
    "max.f32 x, $1, 0fC2AE0000; "  # -87: below it the result is -1
    "mul.f32 k, x, 0f3FB8AA3B; cvt.rni.f32.f32 k, k; "  # x is k log(2) + r
    "fma.rn.f32 r, k, 0fBF317218, x; fma.rn.f32 r, k, 0f3102E308, r; "
    f"mov.f32 q, 0f{_EXPM1[0]:08X}; "
    + "".join(f"fma.rn.f32 q, q, r, 0f{number:08X}; " for number in _EXPM1[1:])
    + "mul.f32 q, q, r; fma.rn.f32 q, q, r, r; "
    "ex2.approx.ftz.f32 s, k; add.f32 x, s, 0fBF800000; fma.rn.f32 $0, s, q, x; }"
)


@intrinsic
def expm1(typing_context, value):
    """exp(value) - 1 of a number that is not positive; of float32 without the branches of the general function."""

    def codegen(context, builder, signature, arguments):
        if value == types.float32:
            return _asm(builder, _F32, arguments, _EXPM1_TEXT, "=f,f", False)
        return _library(builder, "__nv_expm1", arguments)

    return value(value), codegen


def _library(builder, name, arguments):
    """Call a function of CUDA's mathematical library, of one number."""
    kind = ir.FunctionType(arguments[0].type, [arguments[0].type])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def inverse_root(typing_context, value):
    """1 / sqrt(value) to a spacing or two, of a number that is neither 0 nor subnormal."""

    def codegen(context, builder, signature, arguments):
        if value == types.float32:
            return _asm(builder, _F32, arguments, "rsqrt.approx.ftz.f32 $0, $1;", "=f,f", False)
        return _library(builder, "__nv_rsqrt", arguments)

    return value(value), codegen


@intrinsic
def larger(typing_context, one, other):
    """The larger of two numbers; of a number and NaN the number."""

    def codegen(context, builder, signature, arguments):
        return _asm(builder, _F32, arguments, "max.f32 $0, $1, $2;", "=f,f,f", False)

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def load_run(typing_context, count, to, array, index):
    """to[:count] = array[index : index + count] in one load; index is a multiple of count (1, 2 or 4)."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    length = count.literal_value

    def codegen(context, builder, signature, arguments):
        _, to, array, index = arguments
        _, target, kind, _ = signature.args
        run = ir.VectorType(context.get_data_type(kind.dtype), length)
        place = builder.gep(_data(context, builder, kind, array), [index])
        loaded = builder.load(
            builder.bitcast(place, run.as_pointer()), align=length * kind.dtype.bitwidth // 8
        )
        first = _data(context, builder, target, to)
        for i in range(length):
            element = builder.extract_element(loaded, ir.Constant(_I32, i))
            builder.store(element, builder.gep(first, [ir.Constant(_I64, i)]))
        return context.get_dummy_value()

    return types.void(count, to, array, types.int64), codegen


@intrinsic
def cut_tf32(typing_context, value):
    """``value`` without the bits that TF32 has not."""

    def codegen(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], _I32)
        return builder.bitcast(builder.and_(bits, ir.Constant(_I32, 0xFFFFE000)), _F32)

    return types.float32(types.float32), codegen


@intrinsic
def to_tf32(typing_context, value):
    """``value`` rounded to TF32, to nearest, ties away from zero."""

    def codegen(context, builder, signature, arguments):
        bits = _asm(builder, _I32, [arguments[0]], "cvt.rna.tf32.f32 $0, $1;", "=r,f", False)
        return builder.bitcast(bits, _F32)

    return types.float32(types.float32), codegen


def _store(context, builder, signature, arguments):
    """Two or four values in one store."""
    array, index, *values = arguments
    kind = signature.args[0]
    run = ir.VectorType(context.get_data_type(kind.dtype), len(values))
    together = ir.Constant(run, ir.Undefined)
    for i, value in enumerate(values):
        together = builder.insert_element(together, value, ir.Constant(_I32, i))
    place = builder.gep(_data(context, builder, kind, array), [index])
    align = len(values) * kind.dtype.bitwidth // 8
    builder.store(together, builder.bitcast(place, run.as_pointer()), align=align)
    return context.get_dummy_value()


@intrinsic
def store_pair(typing_context, array, index, first, second):
    """array[index], array[index + 1] = first, second in one store; index is even."""
    return types.void(array, types.int64, array.dtype, array.dtype), _store


@intrinsic
def store_pair_where(typing_context, condition, array, index, first, second):
    """The same of float32 where a condition holds, without a branch, in global memory."""

    def codegen(context, builder, signature, arguments):
        condition, array, index, *values = arguments
        place = builder.gep(_data(context, builder, signature.args[1], array), [index])
        operands = [builder.zext(condition, _I32), builder.ptrtoint(place, _I64), *values]
        text = (
            "{ .reg .pred where; setp.ne.u32 where, $0, 0; "
            "@where st.global.v2.f32 [$1], {$2, $3}; }"
        )
        _asm(builder, _VOID, operands, text, "r,l,f,f,~{memory}")
        return context.get_dummy_value()

    kinds = types.boolean, array, types.int64, types.float32, types.float32
    return types.void(*kinds), codegen


@intrinsic
def store_quad(typing_context, array, index, first, second, third, fourth):
    """The same of four; index is a multiple of 4."""
    return types.void(array, types.int64, *[array.dtype] * 4), _store


@intrinsic
def store_run(typing_context, count, array, index, values):
    """array[index : index + count] = values[:count] in one store; index is a multiple of count (1, 2 or 4)."""
    if not isinstance(count, types.IntegerLiteral):
        return None

    def codegen(context, builder, signature, arguments):
        _, array, index, values = arguments
        held = _data(context, builder, signature.args[3], values)
        places = (
            builder.gep(held, [ir.Constant(_I64, i)])
            for i in range(signature.args[0].literal_value)
        )
        elements = [builder.load(place) for place in places]
        stored = types.void(signature.args[1], types.int64, *[types.float32] * len(elements))
        return _store(context, builder, stored, [array, index, *elements])

    return types.void(count, array, types.int64, values), codegen


@intrinsic
def store_words(typing_context, array, index, first, second, third, fourth):
    """The same of 4 bytes each, whatever the array holds; it lies at a multiple of 16 bytes."""

    def codegen(context, builder, signature, arguments):
        array, index, *words = arguments
        run = ir.VectorType(_F32, 4)
        together = ir.Constant(run, ir.Undefined)
        for i, word in enumerate(words):
            together = builder.insert_element(together, word, ir.Constant(_I32, i))
        place = builder.gep(_data(context, builder, signature.args[0], array), [index])
        builder.store(together, builder.bitcast(place, run.as_pointer()), align=16)
        return context.get_dummy_value()

    return types.void(array, types.int64, *[types.float32] * 4), codegen


def _halves(kind):
    """An intrinsic that rounds two numbers to two bytes each, and has them in 4."""

    @intrinsic
    def halves(typing_context, one, other):
        def codegen(context, builder, signature, arguments):
            text = f"cvt.rn.{kind}x2.f32 $0, $2, $1;"
            return builder.bitcast(_asm(builder, _I32, arguments, text, "=r,f,f", False), _F32)

        return types.float32(types.float32, types.float32), codegen

    return halves


halves_float16, halves_bfloat16 = _halves("f16"), _halves("bf16")
HALVES = {"float16": halves_float16, "bfloat16": halves_bfloat16}


@intrinsic
def from_bfloat16(typing_context, element):
    """The number that a bfloat16 is, of its bits."""

    def codegen(context, builder, signature, arguments):
        whole = builder.shl(builder.zext(arguments[0], _I32), ir.Constant(_I32, 16))
        return builder.bitcast(whole, _F32)

    return types.float32(types.uint16), codegen


@intrinsic
def to_bfloat16(typing_context, value):
    """The bits of the bfloat16 nearest to a number, of two the even one; from compute capability 8.0 on."""

    def codegen(context, builder, signature, arguments):
        half = ir.IntType(16)
        return _asm(builder, half, arguments, "cvt.rn.bf16.f32 $0, $1;", "=h,f", False)

    return types.uint16(types.float32), codegen


@intrinsic
def clock(typing_context):
    """Cycles that the multiprocessor has counted."""

    def codegen(context, builder, signature, arguments):
        return _asm(builder, _I64, [], "mov.u64 $0, %clock64;", "=l,~{memory}")

    return types.int64(), codegen


# A kernel on disk is named by what its values print as, and those that one function makes would print alike.
for _name, _made in list(globals().items()):
    if isinstance(_made, type(shared_address)):
        _made._name = _name
