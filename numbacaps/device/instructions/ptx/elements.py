"""An array of memory from one of its elements on."""

from numba.core import types
from numba.cuda.extending import intrinsic

from numbacaps.device.instructions.ptx.inline import I64, asm

_GLOBAL = 1  # the address space


@intrinsic
def from_element(typing_context, array, first):
    """A C-contiguous array in one dimension from element ``first`` on.

    The address of that element is computed once. In a slice, LLVM would compute it anew for every index.
    """

    def codegen(context, builder, signature, arguments):
        kind, (array, first) = signature.args[0], arguments
        made = context.make_array(kind)(context, builder, array)
        element = made.data.type.pointee
        place = builder.ptrtoint(builder.gep(made.data, [first]), I64)
        place = asm(builder, I64, [place], "cvta.to.global.u64 $0, $1;", "=l,l", False)
        pointer = builder.inttoptr(place, element.as_pointer(_GLOBAL))
        made.data = builder.addrspacecast(pointer, element.as_pointer(), "generic")
        return made._getvalue()

    return array(array, types.int64), codegen
