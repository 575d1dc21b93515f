"""PTX that moves memory: asynchronous copies, TMA, prefetches, loads and stores of several elements."""

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from numbacaps.device.instructions.ptx.inline import (
    F32,
    F64,
    I16,
    I32,
    I64,
    VOID,
    asm,
    instruction,
    pointer_to,
    with_number,
    written_for,
)

_BYTES = {I16: 2, I32: 4, I64: 8, F32: 4, F64: 8}  # of elements that a run is of

cp_async_commit = instruction("cp.async.commit_group;")

# Wait until at most N of this thread's groups of copies are pending.
cp_async_wait = with_number("cp.async.wait_group {};")


@intrinsic
def shared_address(typing_context, array):
    """Where a shared array begins in the block's shared memory, in bytes."""

    def codegen(context, builder, signature, arguments):
        data = pointer_to(context, builder, signature.args[0], arguments[0])
        pointer = builder.ptrtoint(data, I64)
        return asm(builder, I64, [pointer], "cvta.to.shared.u64 $0, $1;", "=l,l", False)

    return types.int64(array), codegen


@intrinsic
def prefetch(typing_context, array, index):
    """Have the :data:`~numbacaps.device.instructions.LINE` bytes around array[index] brought to the L2 cache.

    Nothing is read, so it may come before ``wait_for_last``, and what is written meanwhile is not missed.
    """

    def codegen(context, builder, signature, arguments):
        array, index = arguments
        place = builder.gep(pointer_to(context, builder, signature.args[0], array), [index])
        operands = [builder.ptrtoint(place, I64)]
        asm(builder, VOID, operands, "prefetch.global.L2 [$0];", "l,~{memory}")
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


def _cp_async(name, widest):
    """An intrinsic that copies while the thread goes on; ``widest`` says how 16 bytes are cached."""

    def write(builder, function, size):
        how = widest if size == 16 else "ca"
        address, source, valid = function.args
        read = builder.select(valid, ir.Constant(I32, size), ir.Constant(I32, 0))
        text = f"cp.async.{how}.shared.global [$0], [$1], {size}, $2;"
        asm(builder, VOID, [address, source, read], text, "r,l,r,~{memory}")
        builder.ret_void()

    call = written_for(name, ir.FunctionType(VOID, [I32, I64, ir.IntType(1)]), write)

    @intrinsic
    def copy(typing_context, size, shared, address, array, index, valid):
        def codegen(context, builder, signature, arguments):
            size, _, address, array, index, valid = arguments
            kind = signature.args[3]
            base = builder.ptrtoint(pointer_to(context, builder, kind, array), I64)
            itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            source = builder.add(base, builder.mul(index, ir.Constant(I64, itemsize)))
            call(builder, size, [builder.trunc(address, I32), source, valid])
            return context.get_dummy_value()

        integer = types.int64
        return types.void(integer, shared, integer, array, integer, types.boolean), codegen

    return copy


# Copy ``size`` (4, 8 or 16) bytes from array[index] to a shared address; zeros if not valid.
cp_async = _cp_async("cp_async", "cg")

# The same for what is soon read again by the same multiprocessor: its L1 cache keeps 16 bytes, too.
cp_async_cached = _cp_async("cp_async_cached", "ca")


@intrinsic
def bulk_copy(typing_context, shared, address, array, index, size, barrier):
    """Copy ``size`` bytes from array[index] to a shared address; the barrier counts them in.

    Both lie at multiples of 16 bytes.
    """

    def codegen(context, builder, signature, arguments):
        _, address, array, index, size, barrier = arguments
        source = builder.gep(pointer_to(context, builder, signature.args[2], array), [index])
        operands = [
            builder.trunc(address, I32),
            builder.ptrtoint(source, I64),
            builder.trunc(size, I32),
            builder.trunc(barrier, I32),
        ]
        text = (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[$0], [$1], $2, [$3];"
        )
        asm(builder, VOID, operands, text, "r,l,r,r,~{memory}")
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
        place = builder.gep(pointer_to(context, builder, signature.args[0], array), [index])
        operands = [
            builder.ptrtoint(place, I64),
            builder.trunc(address, I32),
            builder.trunc(size, I32),
        ]
        text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
        asm(builder, VOID, operands, text + " cp.async.bulk.commit_group;", "l,r,r,~{memory}")
        return context.get_dummy_value()

    arguments = (array, types.int64, shared, types.int64, types.int64)
    return types.void(*arguments), codegen


# What this thread copied out was read; and it was written.
bulk_store_read = instruction("cp.async.bulk.wait_group.read 0;")

bulk_store_wait = instruction("cp.async.bulk.wait_group 0;")

_BEFORE_MAPS = 14  # what the driver takes for two arrays


@intrinsic
def map_address(typing_context, words, which):
    """Where one of a kernel's tensor maps lies: ``words``, 16 of 64 bits each, the third argument.

    It is read from parameter space, so no memory is allocated for it. They lie from 48 bytes before a multiple
    of 64 on, and a map at a multiple of 64: so behind two arrays. Only for a kernel's own body.
    """
    if not isinstance(which, types.IntegerLiteral):
        return None
    first = _BEFORE_MAPS + 16 * which.literal_value

    def codegen(context, builder, signature, arguments):
        argument = f"{builder.function.name}_param_{first}"
        text = f"mov.b64 $0, {argument}; cvta.param.u64 $0, $0;"
        return asm(builder, I64, [], text, "=l", False)

    return types.int64(words, which), codegen


@intrinsic
def tensor_copy(typing_context, shared, address, map, first, second, third, fourth, fifth, barrier):
    """Copy the box of a tensor map (:mod:`numbacaps.device.tensor_map`) that begins at these coordinates.

    ``map`` is its address. What lies outside of the tensor is zero.
    """

    def codegen(context, builder, signature, arguments):
        _, address, map, *coordinates, barrier = arguments
        operands = [builder.trunc(address, I32), map]
        operands += [builder.trunc(value, I32) for value in (*coordinates, barrier)]
        text = (
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[$0], [$1, {$2, $3, $4, $5, $6}], [$7];"
        )
        asm(builder, VOID, operands, text, "r,l,r,r,r,r,r,r,~{memory}")
        return context.get_dummy_value()

    return types.void(shared, *[types.int64] * 8), codegen


def _run_functions(name, write):
    """For each type of elements what calls a function of a run's place and of another's: ``call(builder, length, places)``.

    ``write(builder, run, other, length)`` writes its body; ``run`` points to a vector, ``other`` to an element.
    """

    def of(element):
        def body(builder, function, length):
            place, other = function.args
            run = ir.VectorType(element, length).as_pointer()
            write(builder, builder.bitcast(place, run), other, length)
            builder.ret_void()

        pointer = element.as_pointer()
        return written_for(f"{name}_{element}", ir.FunctionType(VOID, [pointer, pointer]), body)

    return {element: of(element) for element in _BYTES}


def _write_load(builder, run, to, length):
    loaded = builder.load(run, align=_bytes_of(run))
    for i in range(length):
        element = builder.extract_element(loaded, ir.Constant(I32, i))
        builder.store(element, builder.gep(to, [ir.Constant(I64, i)]))


def _write_store(builder, run, values, length):
    together = ir.Constant(run.type.pointee, ir.Undefined)
    for i in range(length):
        element = builder.load(builder.gep(values, [ir.Constant(I64, i)]))
        together = builder.insert_element(together, element, ir.Constant(I32, i))
    builder.store(together, run, align=_bytes_of(run))


def _bytes_of(run):
    """Of the vector that it points to."""
    kind = run.type.pointee
    return kind.count * _BYTES[kind.element]


_load_of = _run_functions("load_run", _write_load)
_store_of = _run_functions("store_run", _write_store)


def _moves(functions, array, other):
    """Code that moves a run: at these places stand the array, followed by an index, and the array that the thread has."""

    def codegen(context, builder, signature, arguments):
        of_thread = pointer_to(context, builder, signature.args[other], arguments[other])
        begin = pointer_to(context, builder, signature.args[array], arguments[array])
        place = builder.gep(begin, [arguments[array + 1]])
        functions[place.type.pointee](builder, arguments[0], [place, of_thread])
        return context.get_dummy_value()

    return codegen


@intrinsic
def load_run(typing_context, count, to, array, index):
    """to[:count] = array[index : index + count] in one load; index is a multiple of count."""
    return types.void(types.int64, to, array, types.int64), _moves(_load_of, 2, 1)


def _store(context, builder, signature, arguments):
    """Two or four values in one store."""
    array, index, *values = arguments
    kind = signature.args[0]
    run = ir.VectorType(context.get_data_type(kind.dtype), len(values))
    together = ir.Constant(run, ir.Undefined)
    for i, value in enumerate(values):
        together = builder.insert_element(together, value, ir.Constant(I32, i))
    place = builder.gep(pointer_to(context, builder, kind, array), [index])
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
        place = builder.gep(pointer_to(context, builder, signature.args[1], array), [index])
        operands = [builder.zext(condition, I32), builder.ptrtoint(place, I64), *values]
        text = (
            "{ .reg .pred where; setp.ne.u32 where, $0, 0; "
            "@where st.global.v2.f32 [$1], {$2, $3}; }"
        )
        asm(builder, VOID, operands, text, "r,l,f,f,~{memory}")
        return context.get_dummy_value()

    kinds = types.boolean, array, types.int64, types.float32, types.float32
    return types.void(*kinds), codegen


@intrinsic
def store_quad(typing_context, array, index, first, second, third, fourth):
    """The same of four; index is a multiple of 4."""
    return types.void(array, types.int64, *[array.dtype] * 4), _store


@intrinsic
def store_run(typing_context, count, array, index, values):
    """array[index : index + count] = values[:count] in one store; index is a multiple of count."""
    return types.void(types.int64, array, types.int64, values), _moves(_store_of, 1, 3)


@intrinsic
def store_words(typing_context, array, index, first, second, third, fourth):
    """The same of 4 bytes each, whatever the array holds; it lies at a multiple of 16 bytes."""

    def codegen(context, builder, signature, arguments):
        array, index, *words = arguments
        run = ir.VectorType(F32, 4)
        together = ir.Constant(run, ir.Undefined)
        for i, word in enumerate(words):
            together = builder.insert_element(together, word, ir.Constant(I32, i))
        place = builder.gep(pointer_to(context, builder, signature.args[0], array), [index])
        builder.store(together, builder.bitcast(place, run.as_pointer()), align=16)
        return context.get_dummy_value()

    return types.void(array, types.int64, *[types.float32] * 4), codegen


@intrinsic
def copy_chunk(typing_context, source, begin, target, to):
    """The 16 bytes from source[begin] on to target[to] on, in one load and one store; both lie at multiples of 16."""

    def codegen(context, builder, signature, arguments):
        source, begin, target, to = arguments
        kinds, chunk = signature.args, ir.VectorType(F32, 4).as_pointer()
        place = builder.gep(pointer_to(context, builder, kinds[0], source), [begin])
        loaded = builder.load(builder.bitcast(place, chunk), align=16)
        place = builder.gep(pointer_to(context, builder, kinds[2], target), [to])
        builder.store(loaded, builder.bitcast(place, chunk), align=16)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), codegen
