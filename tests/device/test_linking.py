"""Kernels that are linked beside each other: the same code, kept and loaded behind the block, and errors for the caller."""

import pytest

from tests.support.scripts import run_script

_BEGIN = """
import threading
from pathlib import Path
from experiments import ahead

ahead.pretend((9, 0), 132)
import numpy as np
from numba.core import types
from numba.cuda.core.caching import NullCache
from numba.cuda.cudadrv import driver
from numbacaps.device.compiled import Compiled
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.linking import linked_side_by_side
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda

linked, complete = [], driver._Linker.complete


def noted(self):
    linked.append(threading.current_thread() is threading.main_thread())
    return complete(self)


driver._Linker.complete = noted


def make(count):
    COUNT = specialized(count)

    @kept_on_disk
    @cuda.jit
    def kernel(out):
        for i in range(COUNT):
            out[i] += i

    return kernel


def compiled(count):
    return Compiled(make(count), [np.float32], 0)


def code(one):
    return one._made._codelibrary.get_cubin().code


def finished():
    return [path for path in Path(__file__).parent.rglob("*.nbc") if "-form-" not in path.name]
"""
_SAME = (
    _BEGIN
    + """
with linked_side_by_side():
    made = [compiled(count) for count in (3, 4, 500)]
    assert not finished() and not any(one._of_devices for one in made)
    prepared = [one.on(1, 1) for one in made]
    assert not any(one._of_devices for one in made)
    prepared[1](0, ())  # who launches one in the block waits for it
    assert made[1]._of_devices
assert linked == [False] * 3 and len(finished()) == 3 and all(one._of_devices for one in made)
codes = [code(one) for one in made]
for path in finished():
    path.unlink()
assert [code(compiled(count)) for count in (3, 4, 500)] == codes
assert linked == [False] * 3 + [True] * 3
"""
)
_REFUSED = (
    _BEGIN
    + """
def refuse(self):
    raise RuntimeError("the linker refuses")


driver._Linker.complete = refuse
said = ""
try:
    with linked_side_by_side():
        made = compiled(3)
except RuntimeError as error:
    said = str(error)
assert said == "the linker refuses" and not finished()
driver._Linker.complete = noted
assert code(made) and linked == [True]
"""
)


@pytest.mark.tiers("ptx")
@pytest.mark.parametrize("script", (_SAME, _REFUSED), ids=("the same code", "an error"))
def test_kernels_are_linked_beside_each_other(script, tmp_path):
    run_script(script, tmp_path)
