"""A GPU that is none: scripts run on a driver of our own, which computes nothing and finds what is freed too early.

Numba and cuda.core take ``driver.c`` for CUDA's driver. So all that the host does runs: compiling and loading, streams, captures, memory.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

COMPILER = shutil.which("cc")
_ROOT = Path(__file__).parents[3]
# CUDA's runtime library, which knows on which device an array lies, takes no driver but NVIDIA's.
_BEGIN = """
import faulthandler

import numpy as np
import numbacaps
from numbacaps import arrays
from numbacaps.device.target import cuda

faulthandler.enable()
arrays.Operand.device_ordinal = lambda operand: 0
"""


@cache
def _compile_driver(folder):
    """Compile the driver into a folder, once."""
    how = "-O1", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1")
    source = Path(__file__).parent / "driver.c"
    subprocess.run([COMPILER, *how, str(source), "-ldl", "-lpthread"], check=True)


def run_on_fake_gpu(script, folder, timeout=600):
    """(the script's exit code, how often the driver was asked for what, what was said) of a process of its own.

    The driver and kernels are kept in ``folder``.
    """
    _compile_driver(folder)
    where = {"LD_LIBRARY_PATH": str(folder), "NUMBA_CACHE_DIR": str(folder)}
    where |= {"NUMBACAPS_TARGET": "cuda", "PYTHONPATH": str(_ROOT)}
    how = {"env": {**os.environ, **where}, "capture_output": True, "text": True}
    command = [sys.executable, "-c", _BEGIN + script]
    done = subprocess.run(command, check=False, timeout=timeout, **how)
    said = done.stdout + done.stderr
    counts = re.findall(r"fake GPU: launches .*", said)
    pairs = re.findall(r"(\w+) (\d+)", counts[-1]) if counts else []
    return done.returncode, {name: int(count) for name, count in pairs}, said
