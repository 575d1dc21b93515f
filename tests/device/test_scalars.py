"""Scalars reach a kernel: on the simulator by their values, on a GPU that is only pretended in what is launched."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numbacaps.device.scalars import CompiledWithScalars
from numbacaps.device.target import cuda

_ROOT = Path(__file__).parents[2]
_MAIN = """
from experiments import ahead

ahead.pretend((9, 0), 132)
import numpy as np
from numba import float32, float64, int64
from numbacaps.device import compiled
from numbacaps.device.scalars import CompiledWithScalars
from numbacaps.device.target import cuda
from tests.device.test_scalars import add

launched = []
compiled.launch = lambda stream, config, kernel, *arguments: launched.append(arguments)
array, scalars = cuda.device_array(4, np.float32), (np.float32(0.5), np.float64(0.25))
kernel = CompiledWithScalars(add, (array.dtype,), 1, tuple(one.dtype for one in scalars))
kernel.launch(1, 32, 0, (array, 3), scalars)
(signature,) = add.overloads
assert signature[1:] == (int64, float32, float64), signature
((*_, count, one, other),) = launched
assert count == 3 and (one, other) == scalars and type(one) is np.float32
"""


@cuda.jit
def add(array, count, one, other):
    i = cuda.grid(1)
    if i < count:
        array[i] += one + other


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scalars_have_their_values(dtype):
    array, scalars = cuda.to_device(np.arange(4, dtype=dtype)), (np.float32(0.5), np.float64(0.25))
    kernel = CompiledWithScalars(add, (array.dtype,), 1, tuple(one.dtype for one in scalars))
    kernel.launch(1, 32, 0, (array, 3), scalars)
    assert array.copy_to_host().tolist() == [0.75, 1.75, 2.75, 3]


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_scalars_are_launched_in_their_types():
    where = {"PYTHONPATH": str(_ROOT), "NUMBACAPS_TARGET": "cuda"}
    how = {"env": {**os.environ, **where}, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", _MAIN], check=False, **how)
    assert done.returncode == 0, done.stderr
