"""New arrays are what Numba's are, and lie where they should: on a GPU that is only pretended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_MAIN = """
import gc
import sys
import weakref
from types import SimpleNamespace
from experiments import ahead

ahead.pretend((9, 0), 132)
import numpy as np
import torch
from numbacaps.arrays import describe
from numbacaps.device.allocation import new_array
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.target import cuda

torch.Tensor.is_cuda, torch.Tensor.get_device = True, lambda tensor: 0
current = [0]
torch._C._cuda_getCurrentRawStream = lambda device: current[0]
tensor, made = torch.ones(2), []
new_empty = torch.Tensor.new_empty
torch.Tensor.new_empty = lambda self, *how, **more: made.append(new_empty(self, *how, **more)) or made[-1]

for dtype in map(dtype_of, ("float16", "bfloat16", "float32", "float64")):
    for shape in ((2, 3, 4), (1, 1), (5,), (), (0, 3)):
        for beside in (None, tensor):
            have, want = new_array(shape, dtype, 0, beside), cuda.device_array(shape, dtype)
            mine, theirs = vars(have).copy(), vars(want).copy()
            assert mine.pop("gpu_data").size == theirs.pop("gpu_data").size
            assert mine.pop("_dummy").__dict__.keys() == theirs.pop("_dummy").__dict__.keys()
            assert mine == theirs and have.is_c_contiguous(), (mine, theirs)
            assert describe("x", have).form is describe("x", want).form
            assert have.reshape(have.size).size == want.size
one, other = (new_array((8,), np.dtype(np.float32), 0) for _ in range(2))
assert describe("x", one).address != describe("x", other).address

def lies_in_the_pool(stream, beside):
    made.clear()
    array = new_array((8,), np.dtype(np.float32), stream, beside)
    assert array.stream == stream
    inside = bool(made) and describe("y", array).address == made[0].data_ptr()
    assert inside == bool(made) and (not made or made[0].numel() == 32)
    return inside

assert lies_in_the_pool(0, tensor) and not lies_in_the_pool(0, None)
assert not lies_in_the_pool(0, one) and not lies_in_the_pool(7, tensor)
current[0] = 7  # on another stream than PyTorch's the pool would hand memory on too early
assert lies_in_the_pool(7, tensor) and not lies_in_the_pool(0, tensor)

array = new_array((8,), np.dtype(np.float32), 7, tensor)
memory, part = weakref.ref(made.pop()), array[2:4]
del array
gc.collect()
assert memory() is not None  # a part of an array holds all of it
del part
gc.collect()
assert memory() is None


class Memory:
    def __init__(self, nbytes):
        self.ptr = 4096 * len(made) + 4096
        made.append((self.ptr, nbytes))


class Array:
    pass


class Default:  # Numba's object for the default stream is true, and 0 as an int
    def __int__(self):
        return 0


now = SimpleNamespace(ptr=0)  # CuPy's current stream; the default one is 0 or 1 to those who take it
of_cupy = SimpleNamespace(alloc=Memory, get_current_stream=lambda: now)
sys.modules["cupy"] = SimpleNamespace(ndarray=Array, cuda=of_cupy)
for theirs in (0, 7):
    now.ptr = theirs
    for ours in (0, Default(), 1, 7, 8):
        made.clear()
        array = new_array((8,), np.dtype(np.float32), ours, Array())
        assert made == ([(describe("y", array).address, 32)] if max(int(ours), 1) == max(theirs, 1) else [])
"""


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_new_arrays():
    pytest.importorskip("torch")
    where = {"PYTHONPATH": str(_ROOT), "NUMBACAPS_TARGET": "cuda"}
    how = {"env": {**os.environ, **where}, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", _MAIN], check=False, **how)
    assert done.returncode == 0, done.stderr
