"""Kernels are not compiled to PTX on their way to code, and whoever asks for PTX gets it."""

import pytest

from tests.support.scripts import run_script

_SCRIPT = """
from experiments import ahead

ahead.pretend((9, 0), 132)
from numba.core import types
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import cuda


def make():
    @kept_on_disk
    @cuda.jit
    def kernel(out):
        out[0] = 1

    return kernel


made = make().compile((types.Array(types.float32, 1, "C"),))
library = made._codelibrary
assert library._lto, "nvJitLink is not here"
assert library.get_cubin() and not library._ptx_cache
assert "st.global" in made.inspect_asm((9, 0, "a"))
"""


@pytest.mark.tiers("ptx")
def test_a_kernel_is_compiled_without_ptx(tmp_path):
    run_script(_SCRIPT, tmp_path)
