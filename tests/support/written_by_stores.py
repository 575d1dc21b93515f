"""For compute-sanitizer's initcheck: bulk copies to global memory, made by ordinary stores.

initcheck does not see that ``cp.async.bulk`` writes to global memory, and reports whoever reads what such a copy wrote. With
``pytest -p tests.support.written_by_stores`` the thread that would begin the copy stores its words instead; so initcheck
reports reads of memory that nothing has written, and only these. Kernels that copy so are compiled anew: the cache on disk
knows kernels by their files.
"""

from unittest.mock import patch

import pytest

_STORES = """{ .reg .pred more; .reg .b64 to; .reg .b32 from, left, word;
    mov.b64 to, $0; mov.b32 from, $1; mov.b32 left, $2;
NEXT: ld.shared.b32 word, [from]; st.global.b32 [to], word;
    add.u64 to, to, 4; add.u32 from, from, 4; sub.u32 left, left, 4;
    setp.ne.u32 more, left, 0; @more bra NEXT; }"""


def _stores():
    """``bulk_store`` by stores: the words are in global memory when it ends."""
    from numba.core import types
    from numba.cuda.extending import intrinsic

    from numbacaps.device.instructions.ptx import inline

    @intrinsic
    def bulk_store(typing_context, array, index, shared, address, size):
        def codegen(context, builder, signature, arguments):
            array, index, _, address, size = arguments
            place = builder.gep(
                inline.pointer_to(context, builder, signature.args[0], array), [index]
            )
            operands = [
                builder.ptrtoint(place, inline.I64),
                builder.trunc(address, inline.I32),
                builder.trunc(size, inline.I32),
            ]
            inline.asm(builder, inline.VOID, operands, _STORES, "l,r,r,~{memory}")
            return context.get_dummy_value()

        arguments = (array, types.int64, shared, types.int64, types.int64)
        return types.void(*arguments), codegen

    return bulk_store


@pytest.hookimpl(trylast=True)  # the tier is chosen first
def pytest_configure(config):
    from numbacaps.device import instructions, kernel_cache

    instructions.bulk_store = _stores()
    with patch.object(kernel_cache, "kept_on_disk", lambda kernel: kernel):
        from numbacaps.nn.resident import backward, forward  # noqa: F401
