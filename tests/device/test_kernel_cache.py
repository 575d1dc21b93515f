"""Kernels on disk: another process finds them, and processes that write at once keep out of each other's way."""

import ast
import errno
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from numbacaps.device import kernel_cache
from numbacaps.device.kernel_files import KernelFiles

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
from numbacaps.nn.state import starts_of
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
precision.has_warpgroups = precision.has_tensor_cores = lambda: True
placed = placed_layers("published", "tf32")
found = packings(placed, layout_of(placed), True, starts_of(placed)[1:])
for kernel in [*(one.kernel for one in made), make_pack_network(found)]:
    files = kernel._cache._impl
    print(files.filename_base, files.locator.get_cache_path())
"""
_WRITE = """
import random, sys
from experiments import ahead

ahead.pretend((9, 0), 132)
import numpy as np
from numba import from_dtype
from numba.core import types
from numba.cuda.core.caching import NullCache
from numbacaps.device.strided_copy import make_gather

gather = make_gather()
kept, gather._cache = gather._cache, NullCache()
made = {}
for dtype in ("f2", "u2", "f4", "f8"):
    run = types.Array(from_dtype(np.dtype(dtype)), 1, "C")
    wanted = run, run, types.int64, *[types.UniTuple(types.int64, 2)] * 2
    made[wanted] = gather.compile(wanted)
print("begins", flush=True)
sys.stdin.readline()
chance = random.Random(sys.argv[1])
for entry in range(int(sys.argv[2])):
    kept.set_launch_config_key(entry)  # which is part of the entry's key
    for wanted in chance.sample(list(made), len(made)):
        kept.save_overload(wanted, made[wanted])
        loaded = kept.load_overload(wanted, gather.targetctx)
        assert loaded is not None and loaded.signature.args == wanted, f"{wanted} gave {loaded}"
"""
_FIND = """
from experiments import ahead

ahead.pretend((9, 0), 132)
from hashlib import sha256
import numpy as np
from numba import from_dtype
from numba.core import types
from numba.cuda.core.base import BaseContext
from numbacaps.device.strided_copy import make_gather

tables, refresh = [], BaseContext.refresh
BaseContext.refresh = lambda self: tables.append(refresh(self))


def find(dtype):
    run = types.Array(from_dtype(np.dtype(dtype)), 1, "C")
    wanted = run, run, types.int64, *[types.UniTuple(types.int64, 2)] * 2
    return make_gather().compile(wanted)._codelibrary.get_cubin().code


code = sha256(find("f4")).hexdigest()
print(f"{len(tables) > 0} {code}")
assert find("u1") and tables  # whose kernel is never there
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


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_every_process_looks_for_a_kernel_in_the_same_place():
    first, second = (_printed(_KEYS, PYTHONHASHSEED=seed) for seed in "12")
    assert first == second and first.count("\n") > 20


@pytest.mark.tiers("ptx")
def test_every_specialisation_has_a_file_of_its_own():
    files = [line.split()[0] for line in _printed(_KEYS).splitlines()]
    assert len(set(files)) == len(files)


@pytest.mark.slow
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


@pytest.mark.parametrize("path", sorted((_ROOT / "numbacaps").rglob("*.py")), ids=str)
def test_imports_are_found_as_python_finds_them(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    places = [_ROOT.joinpath(*name.split(".")) for name in names if name.startswith("numbacaps")]
    files = {file for at in places for file in (at.with_suffix(".py"), at / "__init__.py")}
    assert kernel_cache._imported(path) == {file for file in files if file.is_file()}


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

    def refuse(function, form, constants):
        asked.append(function.__qualname__)
        raise RuntimeError("cannot cache function: no locator available")

    asked, name = [], function.__qualname__
    monkeypatch.setattr(kernel_cache, "_portable", lambda: refuse)
    kernel = SimpleNamespace(py_func=function, targetoptions={})
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


@pytest.mark.tiers("ptx")
def test_a_kernel_that_is_found_is_the_same_and_takes_no_tables_of_types(tmp_path):
    first = _printed(_FIND, NUMBA_CACHE_DIR=str(tmp_path)).split()
    for path in tmp_path.rglob("*.nbc"):
        if b"uint8" in path.read_bytes():
            path.unlink()
    assert first[0] == "True"
    assert _printed(_FIND, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["False", first[1]]


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_processes_that_write_at_once_and_are_killed_leave_no_wrong_kernel(tmp_path):
    running = [_started(tmp_path, seed, 20) for seed in range(8)]
    for one in running:
        assert one.stdout.readline() == "begins\n", one.communicate()
    for one in running:
        one.stdin.write("write\n")
        one.stdin.flush()
    for delay, one in zip((0.05, 0.1, 0.1), running):
        time.sleep(delay)
        one.kill()
        one.communicate()
    for one in running[3:]:
        failed = one.communicate(timeout=300)[1]
        assert one.returncode == 0, failed
    assert len(list(tmp_path.rglob("*.nbc"))) == 4 * 20


def _started(folder, *arguments):
    """A process that keeps and loads the kernels of one function, in an order of its own; a warning ends it."""
    paths = os.pathsep.join([str(_ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", _WRITE, *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment, cwd=_ROOT, text=True, **pipes)


def _files(folder):
    return KernelFiles(folder, "kernel", "1", pickle.dumps)


def test_an_entry_is_found_by_its_key_alone(tmp_path):
    files = _files(tmp_path)
    files.save(("float32",), "a kernel")
    files.save(("float64",), "another")
    assert files.load(("float32",)) == "a kernel" and files.load(("float64",)) == "another"
    assert files.load(("float16",)) is None
    assert KernelFiles(tmp_path, "kernel", "2", pickle.dumps).load(("float32",)) is None
    files.flush()
    assert files.load(("float32",)) is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [0, 5, 40, -1])
def test_what_is_left_of_a_file_is_no_kernel(left, tmp_path):
    files = _files(tmp_path)
    files.save("key", "a kernel")
    path = files.path("key")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.warns(RuntimeWarning, match="is damaged; its kernel is compiled anew") as said:
        assert files.load("key") is None
    assert len(said) == 1 and "\n" not in str(said[0].message)
    files.save("key", "a kernel")
    assert files.load("key") == "a kernel"


def test_the_key_inside_a_file_is_what_counts(tmp_path):
    files = _files(tmp_path)
    files.save("key", "a kernel")
    files.path("key").rename(files.path("other"))
    with pytest.warns(RuntimeWarning, match="holds another kernel"):
        assert files.load("other") is None


def test_a_full_disk_costs_a_warning(tmp_path, monkeypatch):
    def full(path, content):
        with open(path, "wb") as file:
            file.write(content[:9])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = _files(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", full)
    for key in ("key", "other"):
        with pytest.warns(
            RuntimeWarning, match=r"not kept in .* \(No space left on device\)"
        ) as said:
            files.save(key, "a kernel")
        assert len(said) == 1 and files.load(key) is None
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_costs_a_warning(tmp_path):
    files = _files(tmp_path / "gone")
    with pytest.warns(RuntimeWarning, match="kernels are not kept in"):
        files.save("key", "a kernel")
    assert files.load("key") is None
