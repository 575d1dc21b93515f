"""What a call costs the host, counted: on a GPU that is only pretended, so that no time is measured."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
# Functions of the package a call.
_MOST = {"plan": 51, "plan.backward": 87, "into": 69, "capsule_conv2d": 71, "gradients": 114}
_MAIN = """
import sys
from contextlib import suppress
from experiments import ahead

ahead.pretend((9, 0), 132)
import numpy as np
import numbacaps
from numbacaps.device.target import cuda

package = numbacaps.__file__.removesuffix("__init__.py")

class Foreign:
    reads = 0

    def __init__(self, shape):
        self._owner = cuda.device_array(shape, np.float32)

    @property
    def __cuda_array_interface__(self):
        self.reads += 1
        data = self._owner.device_ctypes_pointer.value, False
        return {"shape": self._owner.shape, "typestr": "<f4", "data": data, "version": 2}

def interface(tensor):
    raise AssertionError("a tensor was asked for its interface, which it makes anew")

makers = [Foreign, lambda shape: cuda.device_array(shape, np.float32)]
with suppress(ImportError):
    import torch
    torch.Tensor.is_cuda, torch.Tensor.get_device = True, lambda tensor: 0
    torch.Tensor.__cuda_array_interface__ = property(interface)
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    makers.append(torch.ones)

shapes = (2, 4, 8, 8, 4, 4), (4, 4, 3, 3, 4, 4), (2, 4, 6, 6, 4, 4)
for precision in ("ieee", "tf32"):
    plan = numbacaps.plan(*shapes[:2], precision=precision)
    for make in makers:
        x, w, y, dx, dw = arrays = [make(shape) for shape in (*shapes, *shapes[:2])]
        runs = {
            "plan": (lambda: plan(x, w, y), 3),
            "plan.backward": (lambda: plan.backward(x, w, y, dx, dw), 5),
            "into": (lambda: numbacaps.capsule_conv2d(x, w, precision=precision, out=y), 3),
            "capsule_conv2d": (lambda: numbacaps.capsule_conv2d(x, w, precision=precision), 2),
            "gradients": (
                lambda: numbacaps.capsule_conv2d_backward(x, w, y, precision=precision), 3
            ),
        }
        for name, (run, operands) in runs.items():
            run()
            before, functions = sum(getattr(one, "reads", 0) for one in arrays), []

            def note(frame, event, _):
                if event == "call" and frame.f_code.co_filename.startswith(package):
                    functions.append(frame)

            sys.setprofile(note)
            run()
            sys.setprofile(None)
            read = sum(getattr(one, "reads", 0) for one in arrays) - before
            assert read == (operands if make is Foreign else 0), (name, read)
            print(name, len(functions))
"""


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_a_call_describes_each_array_once_and_does_little_else(tmp_path):
    where = {"PYTHONPATH": str(_ROOT), "NUMBA_CACHE_DIR": str(tmp_path), "NUMBACAPS_TARGET": "cuda"}
    how = {"env": {**os.environ, **where}, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", _MAIN], check=False, **how)
    assert done.returncode == 0, done.stderr
    counted = [line.split() for line in done.stdout.splitlines()]
    libraries = 3 if find_spec("torch") else 2
    assert len(counted) == 10 * libraries and all(int(count) > 10 for _, count in counted)
    assert all(int(count) <= _MOST[name] for name, count in counted), counted
