"""What is compiled ahead, without a GPU, is found by processes of another checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import ahead
from numbacaps.device.target import cuda
from tests import ahead as tests_ahead

_ROOT = Path(__file__).parents[2]
_ONE = ["--experiments=table1", "--workload=layer 5", "--passes=forward", "--precisions=tf32"]
_AGAIN = f"""
from numba.cuda import dispatcher
from experiments import ahead

if __name__ == "__main__":
    dispatcher._Kernel.__init__ = None  # which compiles
    options = ahead._parser().parse_args({_ONE})
    ahead._begin(options)
    ahead._compile(0)
"""


def _run(checkout, folder, *command):
    """Whether a Python process in a checkout succeeds, and what it says."""
    path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
    where = {"PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder)}
    environment = {**os.environ, **where, "NUMBACAPS_TARGET": "cuda"}
    how = {"env": environment, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, *command], cwd=checkout, check=False, **how)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_another_checkout_compiles_nothing(tmp_path):
    made, copied, copy = tmp_path / "made", tmp_path / "copied", tmp_path / "checkout"
    compiled, said = _run(_ROOT, made, "-m", "experiments.ahead", "--processes=1", *_ONE)
    assert compiled and "1 of 1 cases" in said
    made.rename(copied)
    for package in ("numbacaps", "experiments", "reference"):
        how = {"ignore": shutil.ignore_patterns("__pycache__", "results", "figures", "*.html")}
        shutil.copytree(_ROOT / package, copy / package, copy_function=shutil.copyfile, **how)
    found, said = _run(copy, copied, "-c", _AGAIN)
    assert found, said
    bare, how = tmp_path / "bare", ("--processes=1", "--bare", str(tmp_path / "bare"), *_ONE)
    kept, said = _run(_ROOT, copied, "-m", "experiments.ahead", *how)
    assert kept and "kernels are in" in said, said
    found, said = _run(copy, bare, "-c", _AGAIN)
    assert found, said
    small, large = (sum(one.stat().st_size for one in of.rglob("*.nbc")) for of in (bare, copied))
    assert small < large / 3
    found, said = _run(copy, tmp_path / "empty", "-c", _AGAIN)
    assert not found and "NoneType" in said


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_what_the_gpu_tier_runs(tmp_path):
    """A test of results fails at nothing, and its kernels are there."""
    how = ["--processes", "1", "--bare", str(tmp_path / "bare"), "tests/stages/test_stages.py"]
    done, said = _run(
        _ROOT, tmp_path, "-m", "tests.ahead", *how, "-k", "test_kernel_reduce and matrix"
    )
    assert done and "passed" in said and "failed" not in said, said
    assert list((tmp_path / "bare").rglob("kernel_reduce*.nbc"))


@pytest.mark.tiers("gpu")
def test_the_gpu_that_was_pretended_compiles_nothing(tmp_path):
    this = cuda.get_current_device()
    capability = ".".join(map(str, this.compute_capability))
    how = [f"--compute-capability={capability}", f"--multiprocessors={this.MULTIPROCESSOR_COUNT}"]
    compiled, said = _run(_ROOT, tmp_path, "-m", "experiments.ahead", "--processes=1", *_ONE, *how)
    assert compiled, said
    listed = "ahead._cases.extend(ahead.chosen(ahead.listed(options.experiments), options))"
    found, said = _run(_ROOT, tmp_path, "-c", _AGAIN.replace("ahead._begin(options)", listed))
    assert found, said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes=0"], "--processes: got '0'; it takes a number of 1 or more"),
        (["--compute-capability=9"], "--compute-capability: got '9'; it takes two numbers"),
        (["--passes=up"], "got 'up'; it takes forward, "),
        ([], "NUMBACAPS_TARGET=cuda only"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        ahead.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kernels", "bare", "message"),
    [
        (None, "bare", "--bare copies what NUMBA_CACHE_DIR names, which is not set"),
        ("kernels", "file", "which is no folder; it takes a folder"),
        ("kernels", "kernels", "which is NUMBA_CACHE_DIR; it takes another folder"),
    ],
)
@pytest.mark.parametrize("tool", [ahead, tests_ahead], ids=["experiments", "tests"])
def test_where_machine_code_cannot_go(tool, kernels, bare, message, tmp_path, monkeypatch, capsys):
    """It is refused before anything is compiled."""
    monkeypatch.setattr(tool, "SIMULATED", False)
    monkeypatch.setattr(tool, "pretend" if tool is ahead else "subprocess", None)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    if kernels:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / kernels))
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        tool.main(["--bare", str(tmp_path / bare)])
    assert stop.value.code == 2 and message in capsys.readouterr().err
