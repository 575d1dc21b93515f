"""Tests that passed are left out when the same command goes on, whichever process ran them."""

import os
import subprocess
import sys

import pytest

from experiments.measuring.provenance import ROOT

_TWO = """
import pytest


def test_plain():
    pass


@pytest.mark.parametrize("address", ["a@b"])
def test_alone(address):
    pass
"""
_NONE_LEFT = 5  # pytest's exit status


@pytest.mark.slow
def test_nothing_is_left_behind_a_pass(tmp_path):
    (tmp_path / "test_two.py").write_text(_TWO)
    words = [
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "--dist",
        "worksteal",
    ]
    words += [f"--rootdir={tmp_path}", "--passed", "passed", "test_two.py"]
    command = [sys.executable, "-m", "pytest", *words]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "NUMBACAPS_TARGET": "sim"}
    for status in (0, _NONE_LEFT):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == status, done.stdout + done.stderr
    noted = (tmp_path / "passed").read_text().split()
    assert sorted(noted) == ["test_two.py::test_alone[a@b]", "test_two.py::test_plain"]
