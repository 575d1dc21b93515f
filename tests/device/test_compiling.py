"""What makes Numba compile in less time leaves the code as it is."""

import pytest

from tests.support.scripts import run_script

pytestmark = pytest.mark.tiers("ptx")

_BEGIN = """
import copy
import gc
from experiments import ahead

ahead.pretend((9, 0), 132)
from numba.core import types
from numba.cuda.core import inline_closurecall
from numbacaps.device.target import cuda


def made():
    @cuda.jit(device=True, inline="always")
    def second(array, i):
        return array[i] * 2 if i > 3 else array[0]

    @cuda.jit(device=True, inline="always")
    def first(array, i):
        found = second(array, i) + second(array, i + 1)
        while found < 7:
            found += i
        return found

    @cuda.jit
    def kernel(array):
        array[1] = first(array, 5) + first(array, 2)

    return kernel


def text():
    kernel = made().compile((types.Array(types.float32, 1, "C"),))
    return kernel._codelibrary.get_llvm_str()
"""
_SAME = (
    _BEGIN
    + """
import re
deepcopy, scopes = inline_closurecall.copy.deepcopy, set()


def noted(block):
    found = deepcopy(block)
    scopes.add((id(block.scope), id(found.scope)))
    kept.append((block, found))  # so that no other takes their addresses
    return found


kept = []
inline_closurecall.copy.deepcopy = noted
with_one = text()
blocks = len(kept)
assert blocks > 2 * len(scopes), "a function's variables are copied with each block"
inline_closurecall.copy = copy  # as Numba has it
plain = text()


def unnumbered(text):  # functions, variables and blocks have numbers, which go on
    numbers = {}
    return re.sub(
        r'"[^"]+"|(?m:^B\\d+)', lambda found: numbers.setdefault(found[0], f"#{len(numbers)}"), text
    )


assert unnumbered(with_one) == unnumbered(plain)
"""
)
_COLLECTS = (
    _BEGIN
    + """
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from numba.cuda import dispatcher

compile_cuda, collected = dispatcher.compile_cuda, []


def noted(*arguments, **options):
    collected.append(gc.isenabled())
    return compile_cuda(*arguments, **options)


dispatcher.compile_cuda = noted
text()
assert collected == [False] and gc.isenabled()
gc.disable()
text()
assert not gc.isenabled(), "who had switched it off finds it on"
gc.enable()


def refuse(*arguments, **options):
    raise RuntimeError("refused")


dispatcher.compile_cuda = refuse
try:
    text()
except RuntimeError:
    pass
else:
    raise AssertionError("it was not compiled")
assert gc.isenabled()
begun, collected = threading.Barrier(2), []


def waiting(*arguments, **options):
    if not collected:
        begun.wait(60)
        time.sleep(0.3)  # in which the other thread comes to wait for this one
    collected.append(gc.isenabled())
    return compile_cuda(*arguments, **options)


dispatcher.compile_cuda = waiting
with ThreadPoolExecutor(2) as threads:
    first = threads.submit(text)
    begun.wait(60)
    second = threads.submit(text)
    assert first.result() and second.result()
assert collected == [False, False] and gc.isenabled()
"""
)
_LAYERED = (
    _BEGIN
    + """
import threading
from numba.cuda import dispatcher
from numba.cuda.cudadrv import driver
from numbacaps.nn import CapsNet, Layer
from tests.support.campaign.networks import compile_step

complete, linked = driver._Linker.complete, []


def noted(self):
    linked.append(threading.current_thread() is threading.main_thread())
    return complete(self)


driver._Linker.complete = noted
how = {"precision": "tf32", "squash": 6}
layers = Layer(2, (1, 24), capsule=(4, 6), **how), Layer(4, (6, 12), window=(5, 5), **how)
net = CapsNet(layers, (1, 7, 7, 1, 1))
linked.clear()
training = net._training(2)
assert "layer by layer" in training.forward.explain()
assert len(linked) >= 5 and not any(linked), "convolutions are linked in threads"
compiled, compile_kernel = [], dispatcher.CUDADispatcher.compile


def noted_name(self, kinds):
    compiled.append(self.py_func.__name__)
    return compile_kernel(self, kinds)


dispatcher.CUDADispatcher.compile = noted_name
compile_step(net, 2)
assert compiled and not [name for name in compiled if "mma" in name or "reduction" in name], compiled
"""
)


def test_code_is_the_same(tmp_path):
    run_script(_SAME, tmp_path)


def test_garbage_is_looked_for_as_before(tmp_path):
    run_script(_COLLECTS, tmp_path)


@pytest.mark.slow
def test_a_network_of_layers_is_linked_beside_each_other(tmp_path):
    run_script(_LAYERED, tmp_path)
