"""How inline PTX is written into a kernel: all that leans on how Numba hands values to LLVM."""

from llvmlite import ir
from numba.core import cgutils, types
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.extending import intrinsic

from numbacaps.device.specialization import WRITTEN

I16, I32, I64 = map(ir.IntType, (16, 32, 64))
F32, F64, VOID = ir.FloatType(), ir.DoubleType(), ir.VoidType()


def pointer_to(context, builder, kind, value):
    """Pointer to an array's first element."""
    return context.make_array(kind)(context, builder, value).data


def asm(builder, result, operands, text, constraints, side_effect=True):
    """Call inline PTX."""
    function = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect), operands)


def instruction(text, since=(0, 0)):
    """An intrinsic without operands that nothing may be moved across; nothing on GPUs before ``since``."""

    @intrinsic
    def made(typing_context):
        def codegen(context, builder, signature, arguments):
            if ConfigStack().top().compute_capability >= since:
                asm(builder, VOID, [], text, "~{memory}")
            return context.get_dummy_value()

        return types.void(), codegen

    return made


def with_number(text):
    """The same with one operand, a number that is known when the kernel is compiled."""

    @intrinsic
    def made(typing_context, number):
        def codegen(context, builder, signature, arguments):
            asm(builder, VOID, [], text.format(arguments[0].constant), "~{memory}")
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return made


def library(builder, name, arguments):
    """Call a function of CUDA's mathematical library, of one number."""
    kind = ir.FunctionType(arguments[0].type, [arguments[0].type])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def written_for(name, kind, write):
    """What calls a function that is written when a number is known: ``call(builder, number, operands)``.

    Parameters
    ----------
    name : str
        Letters, digits and underscores; the number is put behind it.
    kind : llvmlite.ir.FunctionType
    write : callable
        ``write(builder, function, number)`` writes the body.
    """

    def text(whole, number):
        function = ir.Function(ir.Module(), kind, whole)
        function.linkage = "linkonce_odr"
        function.attributes.add("alwaysinline")
        write(ir.IRBuilder(function.append_basic_block()), function, number)
        return str(function)

    def call(builder, number, operands):
        whole = f"{name}_of_{number.constant}"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, whole), operands)

    WRITTEN[name] = text
    return call
