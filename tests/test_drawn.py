"""Drawn convolutions by ``"fused"``: a few here, thousands by ``tests.record_drawn``."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.measuring.problem import PASSES
from numbacaps.device.target import SIMULATED
from numbacaps.plan import Plan
from tests import record_drawn
from tests.support import drawn

_ROOT = Path(__file__).parent.parent
_FEW = 18 if SIMULATED else 36  # of all kinds, and twice on a GPU


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("number", range(_FEW))
def test_a_few(number):
    drawn.convolution(number).check()


def test_they_are_of_every_kind():
    few = [drawn.convolution(number) for number in range(_FEW)]
    assert few == [drawn.convolution(number) for number in range(_FEW)]
    assert {(one.wanted, one.dtype, one.precision) for one in few} == set(drawn.kinds())
    many = {drawn.convolution(number).geometry for number in range(300)}
    assert len(many) == 300
    for axis in ("C", "P", "G", "D1", "D2", "D3"):
        assert {1, 2, 3} <= {getattr(geometry, axis) for geometry in many}


def _wrong(monkeypatch, change):
    """Have the passes leave results that are changed."""
    right_forward, right_backward = Plan.launch_forward, Plan.launch_backward

    def forward(plan, x, w, out, stream):
        right_forward(plan, x, w, out, stream)
        change(out)

    def backward(plan, x, w, dy, dx, dw, stream):
        right_backward(plan, x, w, dy, dx, dw, stream)
        change(dw if dx is None else dx)

    monkeypatch.setattr(Plan, "launch_forward", forward)
    monkeypatch.setattr(Plan, "launch_backward", backward)


@pytest.mark.parametrize("wanted", PASSES)
def test_one_wrong_element_is_found(wanted, monkeypatch):
    def change(result):
        flat = result.reshape(result.size)
        flat[result.size // 2] += np.float32(1e-3)

    _wrong(monkeypatch, change)
    first = drawn.kinds().index((wanted, "float32", "ieee"))
    few = [drawn.convolution(first + i * len(drawn.kinds())) for i in range(3)]
    found = record_drawn.check(few)
    assert len(found["failed"]) == found["checked"] == 3
    assert all("above the tolerance" in text for text in found["failed"])


def test_an_error_ends_the_check(monkeypatch):
    def change(result):
        raise RuntimeError("as of a device")

    few = [drawn.convolution(number) for number in range(3)]
    right = record_drawn.check(few)
    assert right["checked"] == 3 and not right["failed"]
    assert sum(right["of_each_kind"].values()) == 3 and right["of_each_kernel"]
    _wrong(monkeypatch, change)
    found = record_drawn.check(few)
    assert found["checked"] == 0 and len(found["failed"]) == 1
    assert "as of a device" in found["failed"][0] and str(few[0]) in found["failed"][0]


_MAIN = """
from experiments import ahead
from experiments.measuring import provenance
from tests import record_drawn

if __name__ == "__main__":
    ahead.pretend((9, 0), 132)
    provenance.gpu_name, provenance.driver = lambda: "gpu", lambda: "driver"
    provenance.RESULTS = provenance.Path("results").resolve()
    record_drawn.drawn.Convolution.check = lambda one: None
    raise SystemExit(record_drawn.main(["--count=4", "--processes=2"]))
"""


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_what_processes_compile_is_recorded(tmp_path):
    (tmp_path / "main.py").write_text(_MAIN)
    where = {"PYTHONPATH": str(_ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    environment = {**os.environ, **where, "NUMBACAPS_TARGET": "cuda"}
    how = {"env": environment, "cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "main.py"], check=False, timeout=300, **how)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "results" / "gpu" / "gpu_drawn.json").read_text()
    assert text == done.stdout and '"checked": 4' in text and '"failed": []' in text
    assert list((tmp_path / "kernels").rglob("*.nbc"))


def test_commands(capsys):
    assert record_drawn.main(["--count=1"]) == 2
    assert "no GPU was found" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        record_drawn.main(["--count=0"])
    assert (
        stop.value.code == 2
        and "--count: got '0'; it takes a number of 1 or more" in capsys.readouterr().err
    )
