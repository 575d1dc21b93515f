"""Specialization constants: what Numba compiles once serves all their values, and gives each the code that is its own."""

import pytest

from numbacaps.device.specialization import Constant, specialized
from numbacaps.device.target import SIMULATED
from tests.support.scripts import run_script

_BEGIN = """
import re
from experiments import ahead

ahead.pretend((9, 0), 132)
import numpy as np
from numba.core import types
from numba.cuda.core.caching import NullCache
from numba.cuda.dispatcher import _Kernel
from numbacaps.device.instructions import FRAGMENT_PRODUCTS, local_array, map_address
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda

SIGNATURE = types.Array(types.float32, 1, "C"), types.int64
multiply = FRAGMENT_PRODUCTS["float32"]
typed = []
begin = _Kernel.__init__


def noted(self, *arguments, **options):
    typed.append(self)
    begin(self, *arguments, **options)


_Kernel.__init__ = noted


def make_scale(factor):
    FACTOR = specialized(factor)

    @cuda.jit(device=True, forceinline=True)
    def scale(value):
        return value * np.float32(FACTOR)

    return scale


def make(count, factor, columns):
    COUNT, COLUMNS, SUMS, EVEN = map(specialized, (count, columns, columns // 2, count % 2 == 0))
    OTHER, THREADS = map(specialized, (min(columns, 24), 32 * count))
    scale = make_scale(factor)

    @kept_on_disk
    @cuda.jit(launch_bounds=(THREADS, 1))
    def kernel(out, at):
        values = local_array(COUNT, np.float32)
        sums = local_array(SUMS, np.float32)
        fragment = local_array(4, np.float32)
        for i in range(SUMS):
            sums[i] = out[i]
        for i in range(4):
            fragment[i] = out[at + i]
        multiply(COLUMNS, sums, 0, fragment, 0, out, at, 1)
        multiply(OTHER, sums, 0, fragment, 0, out, at, 1)
        for i in range(COUNT):
            values[i] = scale(out[i])
        for i in range(COUNT):
            out[i] = values[COUNT - 1 - i]
        if EVEN == 1:
            out[at] = sums[SUMS - 1]

    return kernel


def text(kernel):
    said = "".join(kernel.compile(SIGNATURE)._codelibrary.get_asm_strs())
    return re.sub(r"_Z\\w+", "name", said)  # names have a count of what was compiled before


def text_without_a_form(kernel):
    kernel._cache = NullCache()
    return text(kernel)
"""
_VALUES = (
    _BEGIN
    + """
CASES = (4, 3, 16), (7, 5, 24), (16, 2, 128)
texts = [text(make(*case)) for case in CASES]
assert len(typed) == 1, f"Numba has typed {len(typed)} kernels"
assert texts == [text_without_a_form(make(*case)) for case in CASES]
assert len(typed) == 4
for (count, _, columns), said in zip(CASES, texts):
    assert f"m64n{columns}k8" in said and f".maxntid {32 * count}" in said.replace(", 1, 1", "")
    assert f"m64n{min(columns, 24)}k8" in said and ".local" not in said and "_of_" not in said
    assert (said.count("st.global") > count) == (count % 2 == 0)
"""
)
_SHARED = (
    _BEGIN
    + """
def make_two(first, second):
    @kept_on_disk
    @cuda.jit
    def kernel(out, at):
        out[at] = np.float32(first)
        out[at + 1] = np.float32(second)

    return kernel


once = specialized(3)
wanted = text_without_a_form(make_two(specialized(5), specialized(7)))
text(make_two(once, once))  # whose form has one number in both places
assert text(make_two(specialized(5), specialized(7))) == wanted
"""
)
_TUPLES = (
    _BEGIN
    + """
def make_add(numbers):
    NUMBERS = tuple(map(specialized, numbers))

    @cuda.jit(device=True, forceinline=True)
    def add(value):
        first, second = NUMBERS
        return value * first + second

    return add


def make_tuples(one, other, more):
    add, MORE = make_add((one, other)), (specialized(more), (2,))

    @kept_on_disk
    @cuda.jit
    def kernel(out, at):
        number, (plain,) = MORE
        out[at] = np.float32(add(at) + number * plain)

    return kernel


CASES = (3, 5, 7), (11, 13, 17), (4, 4, 4)
texts = [text(make_tuples(*case)) for case in CASES]
assert len(typed) == 1, f"Numba has typed {len(typed)} kernels"
assert texts == [text_without_a_form(make_tuples(*case)) for case in CASES]
"""
)


@pytest.mark.tiers("ptx")
@pytest.mark.parametrize(
    "script",
    (_VALUES, _SHARED, _TUPLES),
    ids=("values", "one number twice", "numbers in tuples"),
)
def test_a_form_serves_all_numbers(script, tmp_path):
    run_script(script, tmp_path)


@pytest.mark.tiers("simulator", "ptx")
def test_what_python_may_do_with_one():
    one = specialized(3)
    if SIMULATED:
        assert one == 3
        return
    assert isinstance(one, Constant) and one == one and {one: 1}[one] == 1
    for wrong in (lambda: one == 3, lambda: bool(one), lambda: one + 1, lambda: one < 3):
        with pytest.raises(TypeError):
            wrong()
