"""Kernels on disk: another process finds them, and processes that write at once keep out of each other's way."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from numbacaps.device import kernel_cache

_ROOT = Path(__file__).parents[2]
_KEYS = """
import numpy as np
from tests.support.kernels import (
    bulk_gradient_kernel, bulk_kernel, kernels, swapped_kernel, warpgroup_kernels
)
from tests.nn.test_resident import placed_layers
from numbacaps import Geometry
from numbacaps.fused import implicit_gemm
from numbacaps.fused.rung_4_wgmma import tile as warpgroup_tiles
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as bulk_reduction_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_6_swap_ab import tile as swapped_tiles
from numbacaps.nn.resident.layout import layout_of
from numbacaps.nn.resident.pack_network import make_pack_network
from numbacaps.nn.resident.packed_kernels import packings
from numbacaps.fused import precision

g = Geometry(128, 4, 8, 11, 11, 3, 3, 1, 4, 16, 8, (2, 2))
p = implicit_gemm.forward(g)
made = list(kernels(g, "float32").values())
tile = warpgroup_tiles.choose_tile(p, 128, 1, np.dtype("float32"), 132)[0]
made += warpgroup_kernels(p, tile, np.dtype("float32"))
for terms in (1, 3):
    made += [bulk_kernel(p, bulk_tiles.choose_tile(p, 128, 1, terms, 132)[0], terms)]
    tile = bulk_reduction_tiles.choose_tile(p, 128, 1, terms)[0]
    made += [bulk_gradient_kernel(p, tile, 128, terms)]
made += [swapped_kernel(p, swapped_tiles.choose_tile(p, 128, 1, 132)[0])]
precision.has_warpgroups = lambda: True
placed = placed_layers("published", "tf32")
found = packings(placed, layout_of(placed), True)
for kernel in [*(one.kernel for one in made), make_pack_network(found)]:
    files = kernel._cache._impl
    print(files.filename_base, files.locator.get_cache_path())
"""
_COMPILE = """
import numbacaps
for precision in ("ieee", "tf32", "tf32x3"):
    numbacaps.plan((128, 4, 11, 11, 4, 16), (8, 4, 3, 3, 16, 8), precision=precision)
"""


def _printed(script, checkout=_ROOT, **environment):
    """What a script of a process of its own prints."""
    paths = os.pathsep.join([str(checkout), str(_ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    command = [sys.executable, "-c", script]
    how = {"capture_output": True, "text": True, "timeout": 300}
    found = subprocess.run(command, env=environment, cwd=checkout, **how)
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
def test_sources_and_not_the_checkout_say_where_a_kernel_is(tmp_path):
    copy, folder = tmp_path / "copy", str(tmp_path / "kept")
    skipped = shutil.ignore_patterns("__pycache__")
    source, target = _ROOT / "numbacaps", copy / "numbacaps"
    shutil.copytree(source, target, ignore=skipped, copy_function=shutil.copyfile)  # not its times
    here = _printed(_KEYS, NUMBA_CACHE_DIR=folder)
    assert _printed(_KEYS, copy, NUMBA_CACHE_DIR=folder) == here
    here = set(here.splitlines())

    def moved():
        """Files of kernels that are not where they were."""
        lines = here - set(_printed(_KEYS, copy, NUMBA_CACHE_DIR=folder).splitlines())
        return {line.partition("-")[0] for line in lines}

    _change(target / "fused" / "rung_5_warp_specialized" / "producer.py")
    assert moved() == {"kernel.bulk_wgmma_kernel"}
    _change(
        target / "nn" / "resident" / "pack_taps.py"
    )  # of which a kernel has a device function that another module hands it
    assert moved() == {"kernel.bulk_wgmma_kernel", "pack_network.pack_network_kernel"}
    _change(target / "device" / "target.py")
    assert moved() == {line.partition("-")[0] for line in here}


def _change(path):
    """Leave another source that does the same."""
    with open(path, "a") as file:
        file.write("# another source\n")


@pytest.mark.tiers("ptx")
def test_instructions_that_one_function_makes_print_apart():
    from numbacaps.device.instructions import ptx

    made = {value for value in vars(ptx).values() if isinstance(value, type(ptx.wgmma))}
    assert len(made) > 20 and len(set(map(repr, made))) == len(made)


@pytest.mark.tiers("ptx")
def test_without_a_folder_to_write_a_kernel_is_a_kernel_still(monkeypatch):
    def function():
        pass

    def refuse(function):
        asked.append(function.__qualname__)
        raise RuntimeError("cannot cache function: no locator available")

    asked, name = [], function.__qualname__
    monkeypatch.setattr(kernel_cache, "_portable", lambda: refuse)
    kernel = SimpleNamespace(py_func=function)
    assert kernel_cache.kept_on_disk(kernel) is kernel and function.__qualname__ == name
    assert asked and asked[0] != name


@pytest.mark.tiers("gpu")
def test_a_second_process_compiles_nothing(tmp_path):
    def kept():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}

    _printed(_COMPILE, NUMBA_CACHE_DIR=str(tmp_path))
    before = kept()
    _printed(_COMPILE, NUMBA_CACHE_DIR=str(tmp_path))
    assert before and kept() == before
