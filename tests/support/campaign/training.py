"""Training that Ctrl-C, SIGTERM and SIGKILL break off at random moments; resumed, it ends with the same weights."""

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from experiments.measuring import provenance
from experiments.training import training
from numbacaps.device.target import SIMULATED
from tests.support.campaign.part import Part

_EPOCHS = 3 if SIMULATED else 40
_SEEDS = 1 if SIMULATED else 3  # of networks, each trained once undisturbed
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_MOST = 3 if SIMULATED else 8  # signals to one run
_folders = []  # of undisturbed runs; they go with this process
_LONG = 600  # seconds for a process that was asked to stop, or was not disturbed
# By which a process may end: done, stopped, killed by a signal.
_ENDS = {0, 130, *(-sent for sent in _SIGNALS)}


def _start(folder, seed):
    module = "tests.support.campaign.learner"
    command = [sys.executable, "-m", module, str(folder), str(seed), str(_EPOCHS)]
    target = {"NUMBACAPS_TARGET": "sim" if SIMULATED else "cuda"}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    how = {"cwd": provenance.ROOT, "env": os.environ | target, "start_new_session": True}
    return subprocess.Popen(command, **streams, **how)


def _end(process):
    """The exit status, and the last line that it said."""
    try:
        _, said = process.communicate(timeout=_LONG)
    except BaseException:  # Ctrl-C here too
        process.kill()
        process.wait()
        raise
    lines = said.decode(errors="replace").replace("\r", "\n").split("\n")
    return process.returncode, ([""] + [line for line in lines if line.strip()])[-1]


@cache
def undisturbed(seed):
    """(folder, seconds) of a run that nothing broke off."""
    made, begun = TemporaryDirectory(prefix="campaign-"), time.monotonic()
    _folders.append(made)
    folder = Path(made.name)
    status, said = _end(_start(folder, seed))
    assert status == 0, f"an undisturbed run ended by {status}: {said}"
    return folder, time.monotonic() - begun


def check(seed, number):
    """Break a run off a few times, and compare its file and log with those of an undisturbed one."""
    rng, which = np.random.default_rng((seed, number)), number % _SEEDS
    wanted, seconds = undisturbed(which)
    kinds, left = [], int(rng.integers(1, _MOST + 1))
    with TemporaryDirectory(prefix="campaign-") as folder:
        while True:
            process = _start(folder, which)
            if left:
                kinds += _disturb(process, rng, 1.1 * seconds)
                left -= 1
            status, said = _end(process)
            if status == 0:
                break
            broken_off = status in _ENDS or said.startswith("KeyboardInterrupt")
            assert broken_off, f"a process ended by {status}: {said}"
        compare(Path(folder), wanted, which)
    return *kinds, "run to its end"


def _disturb(process, rng, most):
    """Send a drawn signal at a drawn moment, if the process still runs; the kinds of that."""
    sent = _SIGNALS[int(rng.integers(len(_SIGNALS)))]
    try:
        process.wait(rng.uniform(0, most))
        return []
    except subprocess.TimeoutExpired:
        process.send_signal(sent)
        return [sent.name]


def compare(folder, wanted, seed):
    """The same file, and each epoch in the log once."""
    name = f"numbacaps-seed{seed}.npz"
    with np.load(folder / name) as have, np.load(wanted / name) as want:
        assert have.files == want.files
        for key in want.files:
            assert np.array_equal(have[key], want[key]), f"{key} differs from an undisturbed run's"
    epochs = [
        [
            (row["epoch"], row["step"], row["test_loss"])
            for row in training.read(of / "training.csv")
        ]
        for of in (folder, wanted)
    ]
    assert epochs[0] == epochs[1], "the log's epochs differ from an undisturbed run's"
    left = {path.name for path in folder.iterdir()} - {name, "training.csv", "training.csv.lock"}
    left = {path for path in left if not path.endswith(".tmp")}  # of killed processes
    assert not left, f"files were left: {sorted(left)}"


PART = Part(
    summary="training broken off by Ctrl-C, SIGTERM and SIGKILL, against an undisturbed run",
    unit="run",
    check=check,
    amount=60,
    few=0.05,
    timed=True,
    shared=True,
)
