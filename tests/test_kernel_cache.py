"""Kernels on disk: another process finds them, and processes that write at once keep out of each other's way."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from numbacaps.kernel_cache import kept_on_disk

_HERE = Path(__file__).parent
_KEYS = """
from hashlib import sha256
import numpy as np
from kernels import bulk_gradient_kernel, bulk_kernel, kernels, warpgroup_kernels
from numba.cuda.core.caching import dumps
from numbacaps import Geometry
from numbacaps.fused import bulk_reduction_tiles, bulk_tiles, implicit_gemm, warpgroup_tiles

g = Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2))
p = implicit_gemm.forward(g)
made = list(kernels(g, "float32").values())
tile = warpgroup_tiles.choose_tile(p, 128, 1, np.dtype("float32"), 132)[0]
made += warpgroup_kernels(p, tile, np.dtype("float32"))
for terms in (1, 3):
    made += [bulk_kernel(p, bulk_tiles.choose_tile(p, 128, 1, terms, 132)[0], terms)]
    tile = bulk_reduction_tiles.choose_tile(p, 128, 1, terms)[0]
    made += [bulk_gradient_kernel(p, tile, 128, terms)]
for kernel in made:
    cells = [cell.cell_contents for cell in kernel.kernel.py_func.__closure__ or ()]
    print(kernel.kernel._cache._impl.filename_base, sha256(dumps(tuple(cells))).hexdigest())
"""
_COMPILE = """
import numbacaps
for precision in ("ieee", "tf32", "tf32x3"):
    numbacaps.plan((128, 4, 11, 11, 4, 16), (8, 4, 3, 3, 16, 8), precision=precision)
"""


def _printed(script, **environment):
    """What a script of a process of its own prints."""
    paths = os.pathsep.join([str(_HERE), str(_HERE.parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.tiers("ptx")
def test_every_process_looks_for_a_kernel_in_the_same_place():
    first, second = (_printed(_KEYS, PYTHONHASHSEED=seed) for seed in "12")
    assert first == second and first.count("\n") > 20


@pytest.mark.tiers("ptx")
def test_every_specialisation_has_a_file_of_its_own():
    files = [line.split()[0] for line in _printed(_KEYS).splitlines()]
    assert len(set(files)) == len(files)


@pytest.mark.tiers("ptx")
def test_without_a_folder_to_write_a_kernel_is_a_kernel_still():
    def function():
        asked.append(function.__qualname__)
        raise RuntimeError("cannot cache function: no locator available")

    asked, name = [], function.__qualname__
    kernel = SimpleNamespace(py_func=function, enable_caching=function)
    assert kept_on_disk(kernel) is kernel and function.__qualname__ == name
    assert asked and asked[0] != name


@pytest.mark.tiers("gpu")
def test_a_second_process_compiles_nothing(tmp_path):
    def kept():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}

    _printed(_COMPILE, NUMBA_CACHE_DIR=str(tmp_path))
    before = kept()
    _printed(_COMPILE, NUMBA_CACHE_DIR=str(tmp_path))
    assert before and kept() == before
