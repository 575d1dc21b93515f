"""Threads that launch a kernel for the first time all get the one that the first of them loads."""

import pytest

from tests.support.scripts import run_script

_SCRIPT = """
import threading
import time
from experiments import ahead

ahead.pretend((9, 0), 132)
from numba.core import types
from numba.cuda.cudadrv import devices
from numba.cuda.utils import UniqueDict
from numbacaps.device.target import cuda


@cuda.jit
def kernel(out):
    out[0] = 1


library = kernel.compile((types.Array(types.float32, 1, "C"),))._codelibrary
library._cufunc_cache.clear()
context, loaded, found = devices.get_context(), UniqueDict(), []
load = context.create_module_image


def slowly(binary, *rest):
    time.sleep(0.1)
    loaded[id(binary)] = load(binary, *rest)  # as Numba does, with a dictionary that refuses what it has
    return loaded[id(binary)]


context.create_module_image = slowly
threads = [threading.Thread(target=lambda: found.append(library.get_cufunc())) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 4 and len(set(map(id, found))) == 1 and len(loaded) == 1, found
"""


@pytest.mark.tiers("ptx")
def test_threads_load_a_kernel_once(tmp_path):
    run_script(_SCRIPT, tmp_path)
