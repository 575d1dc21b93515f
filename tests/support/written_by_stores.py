"""For compute-sanitizer's initcheck: bulk copies to global memory, made by ordinary stores.

initcheck does not see that ``cp.async.bulk`` writes to global memory, and reports whoever reads what such a copy wrote. With
``pytest -p tests.support.written_by_stores`` the thread that would begin the copy stores its words instead; so initcheck
reports reads of memory that nothing has written, and only these. Kernels that copy so are compiled anew: the cache on disk
knows kernels by their files.
"""

from unittest.mock import patch

import pytest

_COPY = "cp.async.bulk.global.shared::cta"  # to $0, from $1 in shared memory, $2 bytes
_STORES = """{ .reg .pred more; .reg .b64 to; .reg .b32 from, left, word;
    mov.b64 to, $0; mov.b32 from, $1; mov.b32 left, $2;
NEXT: ld.shared.b32 word, [from]; st.global.b32 [to], word;
    add.u64 to, to, 4; add.u32 from, from, 4; sub.u32 left, left, 4;
    setp.ne.u32 more, left, 0; @more bra NEXT; }"""


@pytest.hookimpl(trylast=True)  # the tier is chosen first
def pytest_configure(config):
    from numbacaps.device import kernel_cache
    from numbacaps.device.instructions.ptx import copies

    asm = copies.asm

    def by_stores(builder, result, operands, text, *more):
        text = _STORES if text.startswith(_COPY) else text
        return asm(builder, result, operands, text, *more)

    copies.asm = by_stores
    with patch.object(kernel_cache, "kept_on_disk", lambda kernel: kernel):
        from numbacaps.nn.resident import backward, forward  # noqa: F401
