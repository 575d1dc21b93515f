"""Device functions that differ in specialization constants alone: Numba types one of them, and each does what is its own."""

import pytest

from tests.support.scripts import run_script

_SCRIPT = r"""
import re
from experiments import ahead

ahead.pretend((9, 0), 132)
import numpy as np
from numba.core import types
from numba.cuda import dispatcher
from numbacaps.device import device_forms
from numbacaps.device.instructions import FRAGMENT_PRODUCTS, local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda

SIGNATURE = types.Array(types.float32, 1, "C"), types.int64
typed = []
compile_cuda = dispatcher.compile_cuda


def noted(function, *arguments, **options):
    typed.append(function.__name__)
    return compile_cuda(function, *arguments, **options)


dispatcher.compile_cuda = noted


def make_scale(factor, offset):
    FACTOR, OFFSET = specialized(factor), offset

    @cuda.jit(device=True, forceinline=True)
    def scale(value):
        return value * np.float32(FACTOR) + OFFSET

    return scale


def make_layer(columns, factor, offset, how):
    COLUMNS, SUMS = map(specialized, (columns, columns // 2))
    scale, multiply = make_scale(factor, offset), FRAGMENT_PRODUCTS[how]

    @cuda.jit(device=True, inline="always")
    def scaled(value):
        return scale(value)

    @cuda.jit(device=True, forceinline=True)
    def layer(out, at):
        sums = local_array(SUMS, np.float32)
        fragment = local_array(4, np.float32)
        for i in range(SUMS):
            sums[i] = out[i]
        for i in range(4):
            fragment[i] = out[at + i]
        multiply(COLUMNS, sums, 0, fragment, 0, out, at, 1)
        for i in range(SUMS):
            out[i] = scaled(scale(sums[i]))

    return layer


def make_staged(count):
    COUNT = specialized(count)

    @cuda.jit(device=True, forceinline=True)
    def staged(out, at):
        held = cuda.shared.array(32, np.float32)
        held[cuda.threadIdx.x] = out[at]
        cuda.syncthreads()
        out[at + COUNT] = held[31 - cuda.threadIdx.x]

    return staged


ZERO = np.float32(0)
LAYERS = (16, 3, ZERO, "float32"), (128, 5, ZERO, "float32"), (8, 7, np.float32(1), "float32"), (24, 9, ZERO, "float16")


def make():
    one, other, offset, halves = (make_layer(*of) for of in LAYERS)
    first, second = map(make_staged, (1, 2))

    @cuda.jit
    def kernel(out, at):
        one(out, at)
        other(out, at)
        offset(out, at)
        halves(out, at)
        first(out, at)
        second(out, at)

    return kernel


def text(kernel):
    library = kernel.compile(SIGNATURE)._codelibrary
    library.get_cubin()
    return "".join(library.get_asm_strs())


def instructions(text):
    # Each as often as it is there: names, which have a count of what was compiled before, decide their order.
    return sorted(re.findall(r"^\t([a-z][\w.]+)", text, re.M))


said = text(make())
# A layer of another offset or other elements is no other number alone, and memory of a block's is not shared.
assert sorted(typed) == ["kernel", *["layer"] * 3, *["scale"] * 2, *["staged"] * 2], typed
for columns, _, _, how in LAYERS:
    assert f"m64n{columns}" + ("k8" if how == "float32" else "k16") in said
device_forms._form = lambda function: ((object(),), [])  # of which there is only one
typed.clear()
assert instructions(text(make())) == instructions(said)
assert typed.count("layer") == typed.count("scale") == 4
"""


@pytest.mark.tiers("ptx")
def test_a_form_is_typed_once(tmp_path):
    run_script(_SCRIPT, tmp_path)
