"""The record of the gpu tier: what it says of a run that ended, and of one that a time limit ended."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from experiments.measuring import provenance
from tests import record_gpu
from tests.support.scripts import run_script

_SHARED = "created: 2/2 workers\n2 workers [4 items]\n"
_LINES = "[gw0] [ 25%] PASSED tests/a.py::b \n[gw1] [ 50%] FAILED tests/a.py::c[FAILED] \n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("=== 1 failed, 5 passed, 2 skipped, 1 error in 3.20s ===", (5, 2, 2, 0)),
        (_SHARED + _LINES, (1, 1, 0, 2)),
        (_SHARED + _LINES + "=== 1 failed, 1 passed in 3.20s ===", (1, 1, 0, 2)),
        (_SHARED, (0, 0, 0, 4)),
        ("", (0, 0, 0, 0)),
    ],
    ids=["ended", "broken off", "given up", "before the first", "nothing"],
)
def test_what_an_output_says(output, expected):
    assert tuple(record_gpu.counts(output).values()) == expected


def test_every_marked_test_has_a_case_under_every_tool():
    cases = [
        "a.py::b[primes-float32]",
        "a.py::b[primes-float16]",
        "a.py::c[x]",
        "a.py::c[y]",
        "d.py::e",
    ]
    found = {tool: record_gpu.chosen(cases, fits) for tool, fits in record_gpu.TOOLS.items()}
    assert found["memcheck"] == [*cases[:3], cases[4]]
    assert found["racecheck"] == [cases[0], *cases[2::2]]


def test_processes_share_the_cases_of_a_tool():
    clean = 0, "========= ERROR SUMMARY: 0 errors\n=== 5 passed in 3.20s ===", 3
    found = record_gpu.together([clean, clean])
    assert found["passed"] == 10 and found["status"] == 0 and found["seconds"] == 3
    assert found["summary"] == "ERROR SUMMARY: 0 errors"
    errors = 9, "========= ERROR SUMMARY: 2 errors\n=== 1 failed, 4 passed in 4.20s ===", 4
    killed = -9, "", 2
    found = record_gpu.together([clean, errors])
    assert (found["passed"], found["failed"], found["status"]) == (9, 1, 9)
    assert found["summary"] == "ERROR SUMMARY: 2 errors" and found["seconds"] == 4
    assert record_gpu.together([clean, killed])["status"] == -9


def test_errors_are_told_by_kernel():
    output = """
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x1a0 in one_kernel(int, float*)
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7f02 is out of bounds
========= Uninitialized __global__ memory read of size 4 bytes
=========     at one_kernel(int, float*)+0x1b0
========= Host API uninitialized memory access at host access to 0x7f02 of size 8 bytes
"""
    wanted = {"one_kernel(int, float*)": 4, "Host API uninitialized memory access": 2}
    assert record_gpu.places([output, output]) == wanted
    race = """
========= Error: Race reported between Write access at one_kernel(int, float*)+0x1b0
=========     and Read access at other_kernel(int)+0x2c0 in other.py:7 [4 hazards]
"""
    assert record_gpu.places([race]) == {"one_kernel(int, float*)": 1, "other_kernel(int)": 1}
    assert "where" not in record_gpu.together([(0, output, 1)])
    assert record_gpu.together([(9, output, 1)])["where"]["one_kernel(int, float*)"] == 2


_WITHOUT_BULK_COPIES = """
from types import SimpleNamespace

from tests.support import written_by_stores

written_by_stores.pytest_configure(None)
from numba import float32, int64, types
from numba.cuda import dispatcher
from numbacaps.device import gpu as devices
from numbacaps.device.target import cuda
from numbacaps.nn.resident.forward import make_resident_forward
from numbacaps.nn.resident.layout import layout_of
from tests.support.resident_networks import placed_layers

gpu = SimpleNamespace(compute_capability=(9, 0))
devices.current, dispatcher.get_current_device = lambda: devices.H100, lambda: gpu
placed = placed_layers("uneven", "tf32")
kernel = make_resident_forward(layout_of(placed).forward, placed[-1].layer.channels, False)
text, _ = cuda.compile_ptx(kernel, (types.Array(float32, 1, "C"),) * 6 + (int64,), cc=(9, 0))
assert "cp.async.bulk.shared::cluster" in text and "cp.async.bulk.global" not in text
assert "st.global.b32 [to], word;" in text
assert type(kernel._cache).__name__ == "NullCache", "the cache would hand it to other processes"
"""


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_initcheck_sees_what_networks_kernels_write(tmp_path):
    run_script(_WITHOUT_BULK_COPIES, tmp_path)


@pytest.mark.slow
def test_ctrl_c_ends_a_tool(monkeypatch, tmp_path):
    told = tmp_path / "told"
    words = f"open({str(told)!r}, 'w').close(); import time; time.sleep(60)"
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!{sys.executable}\n{words}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(record_gpu.shutil, "which", lambda name: str(tool))
    monkeypatch.setattr(record_gpu, "marked", lambda: ["a.py::b[primes-float32]"])

    def press():
        while not told.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begin, thread = time.monotonic(), threading.Thread(target=press)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            record_gpu.sanitized("memcheck")
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 30 and not record_gpu._running


@pytest.mark.slow
def test_marked_tests_are_found(monkeypatch):
    monkeypatch.setattr(record_gpu, "_MARKED", [*record_gpu._MARKED[:-1], "tests/routing"])
    cases = record_gpu.marked()
    assert len(cases) > 10 and all(case.startswith("tests/routing/") for case in cases)


@pytest.mark.slow
def test_a_time_limit_leaves_a_record(tmp_path, monkeypatch):
    # A process that it has begun hears no SIGTERM, as one that waits for a compiler, and holds on to the output.
    held = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    lines = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {held!r}]); "
    lines += f"print({_SHARED + _LINES!r}, flush=True); import time; time.sleep(60)"
    for module, name, value in (
        (record_gpu, "SIMULATED", False),
        (record_gpu, "TOOLS", {}),
        (record_gpu, "_PYTEST", [sys.executable, "-c", lines]),
        (provenance, "RESULTS", tmp_path),
        (provenance, "gpu_name", lambda: "a-gpu"),
        (provenance, "of_record", lambda: {"gpu": "a-gpu"}),
    ):
        monkeypatch.setattr(module, name, value)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of one that comes when all is done
    kill = os.kill, (os.getpid(), signal.SIGTERM)
    timers = [threading.Timer(1.5, *kill) for _ in range(2)]  # to the process, and to its group
    for timer in timers:
        timer.start()
    begin = time.monotonic()
    try:
        assert record_gpu.main([]) == 1
    finally:
        for timer in timers:
            timer.join()
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - begin < 30
    record = json.loads((tmp_path / "a-gpu" / "gpu_tests.json").read_text())
    assert (record["failed"], record["not_reached"]) == (1, 2)
