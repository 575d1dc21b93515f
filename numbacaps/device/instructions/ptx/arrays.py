"""Arrays of a thread's own, and of a block's, whose sizes may be specialization constants."""

from itertools import count

from llvmlite import ir
from numba.core import cgutils, types
from numba.cuda.extending import intrinsic

_SHARED = 3  # the address space
_made = count()


class _Array(ir.ArrayType):
    """LLVM's type of an array whose size may be a specialization constant."""

    def _to_string(self):
        return f"[{self.count} x {self.element}]"


def _array(place):
    """An intrinsic for an array that ``place(builder, type)`` makes room for."""

    @intrinsic
    def array(typing_context, size, dtype):
        def codegen(context, builder, signature, arguments):
            kind, size = signature.return_type, arguments[0]
            element = context.get_data_type(kind.dtype)
            bytes_of = context.get_abi_sizeof(element)
            data = place(builder, _Array(element, size.constant), bytes_of)
            made = context.make_array(kind)(context, builder)
            integer, one = size.type, ir.ArrayType(size.type, 1)
            context.populate_array(
                made,
                data=builder.bitcast(data, element.as_pointer()),
                shape=builder.insert_value(ir.Constant(one, ir.Undefined), size, 0),
                strides=ir.Constant(one, [ir.Constant(integer, bytes_of)]),
                itemsize=ir.Constant(integer, bytes_of),
                meminfo=None,
            )
            return made._getvalue()

        return types.Array(dtype.dtype, 1, "C")(types.int64, dtype), codegen

    return array


def _local(builder, kind, bytes_of):
    return cgutils.alloca_once(builder, kind)


def _shared(builder, kind, bytes_of):
    name = f"shared_array_{next(_made)}"
    place = cgutils.add_global_variable(builder.module, kind, name, _SHARED)
    place.align = 16  # so that copies of any length may begin there
    place.initializer = ir.Constant(kind, ir.Undefined)
    return builder.addrspacecast(place, ir.IntType(8).as_pointer(), "generic")


# As ``cuda.local.array`` and ``cuda.shared.array`` in one dimension: ``array(size, dtype)``.
local_array, shared_array = _array(_local), _array(_shared)
