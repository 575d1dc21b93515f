"""Seconds until a first result: which processes are started, and what becomes of what they say."""

import os
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from experiments import first_call
from experiments.measuring import command, first, listed
from experiments.measuring.workloads import square

SMALL = square(1, 1, 1, 3, 2, 1, 1, 2, 1)
NOW = {"gpu": "here", "driver": "1", "versions": "{}", "source_sha256": "now"}
_HOW = {"dtype": "float32", "precision": "ieee"}


# ---- a process


@pytest.mark.slow
def test_a_process_says_how_long_it_took(tmp_path):
    case = first_call._of_passes(SMALL, first.PASSES, _HOW)
    found = first_call.run(case, tmp_path)
    assert set(found) == set(first.PASSES) and min(found.values()) > 0
    assert first_call.run({"what": "import"}, tmp_path)["import"] > 0.05


@pytest.mark.slow
def test_nothing_is_imported_before_the_clock_starts():
    script = "import sys, experiments.measuring.first; print('numbacaps' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_a_process_that_fails_says_why(tmp_path):
    case = {"what": "passes", "geometry": asdict(SMALL), "names": ["forward"], **_HOW}
    with pytest.raises(RuntimeError, match="precision is 'none'"):
        first_call.run(case | {"precision": "none"}, tmp_path)


def test_passes_are_told_apart():
    (name,) = first.passes(asdict(SMALL), ["backward_kernel"], "float16", "ieee")
    assert name == "backward_kernel"


def test_networks_are_told_apart(monkeypatch):
    from numbacaps import nn

    ran = []

    class Net:
        input_shape = (1, 28, 28, 1, 1)

        def __init__(self, layers=(), shape=()):
            self.kind = "another" if layers else "published"

        @classmethod
        def published(cls, precision):
            return cls()

        def step(self, x, labels):
            ran.append((self.kind, "step", x.shape[0], int(labels.max())))

        def history(self):
            pass

        def forward(self, x):
            ran.append((self.kind, "inference"))

    monkeypatch.setattr(nn, "CapsNet", Net)
    found = first.network("tf32", ["inference", "step"], batch=16)
    assert list(found) == [
        *("network, inference", "network, step"),
        *("another network, inference", "another network, step"),
    ]
    assert [one[:2] for one in ran] == [
        *(("published", "inference"), ("published", "step")),
        *(("another", "inference"), ("another", "step")),
    ]
    assert ran[1][2:] == (16, 9)


# ---- the command


@pytest.fixture
def machine(monkeypatch):
    """A machine that says it has a GPU, and whose processes are noted."""
    started = []

    def run(case, kernels):
        kept = sorted(os.listdir(kernels))
        started.append(SimpleNamespace(kept=kept, kernels=kernels, **case))
        if case["what"] == "import":
            return {"import": 0.5}
        if case["what"] == "warmup":
            (kernels / "warm").touch()
            return {"warmup": 9.0}
        if case["what"] == "routing":
            (kernels / str(case["geometry"]["C"])).touch()
            return {"forward": 4.0, "gradients": 5.0}
        if case["what"] == "network":
            names = ("network", "another network")
            return {f"{name}, {what}": 3.0 for name in names for what in case["order"]}
        (kernels / str(case["geometry"]["C"])).touch()
        return dict.fromkeys(case["names"], 2.0)

    monkeypatch.setattr(command, "refuse_without_gpu", lambda name: None)
    monkeypatch.setattr(listed.provenance, "gpu_name", lambda: "here")
    monkeypatch.setattr(listed, "of_machine", lambda: NOW)
    monkeypatch.setattr(first_call, "run", run)
    return started


def _main(tmp_path, *arguments):
    precisions = () if "--precisions" in arguments else ("--precisions", "tf32")
    return first_call.main([*precisions, *arguments, "--results", str(tmp_path)])


def test_each_row_has_a_process_and_a_folder_of_its_own(machine, tmp_path, capsys):
    assert _main(tmp_path) == 0
    rows = {
        tuple(row[name] for name in first_call.KEYS): row["seconds"]
        for row in first_call.listing(tmp_path / "here").rows
    }
    assert len(rows) == 1 + 1 + 3 * 4 + 3 * 4
    assert rows["import", "", "", "empty"] == "0.5"
    assert rows["geometry", "forward", "tf32", "other"] == "2"
    assert rows["geometry", "all passes", "tf32", "empty"] == "6"
    assert rows["network", "inference after step", "tf32", "empty"] == "3"
    assert rows["another network", "step", "tf32", "other"] == "3"
    assert rows["warm-up", "", "tf32", "empty"] == "9"
    assert rows["network", "inference after step", "tf32", "warm"] == "3"
    others = {str(g.C) for g in first_call.OTHERS}
    new = [one for one in machine if getattr(one, "geometry", {}).get("C") == first_call.NEW.C]
    assert [set(one.kept) for one in new] == [set()] * 4 + [others] * 4 + [{"warm"}] * 4
    assert len({one.kernels for one in new}) == len(new) and all(
        one.precision == "tf32" for one in new
    )
    assert "0.50" in capsys.readouterr().out


def test_routing_has_rows_of_its_own(machine, tmp_path):
    """At the default precision."""
    how = "--precisions", "default", "--passes", "forward", "--without-network"
    assert _main(tmp_path, *how) == 0
    rows = {
        tuple(row[name] for name in first_call.KEYS): row["seconds"]
        for row in first_call.listing(tmp_path / "here").rows
    }
    assert len(rows) == 1 + 1 + 3 * (1 + 2 * 2)
    assert rows["routing, em", "forward", "default", "other"] == "4"
    assert rows["routing, dynamic", "gradients", "default", "warm"] == "5"
    new = [
        one for one in machine if one.what == "routing" and one.geometry["C"] == first_call.NEW.C
    ]
    others = {str(g.C) for g in first_call.OTHERS}
    kept = [set(one.kept) for one in new]
    assert kept == [kind for kind in (set(), others, {"warm"}) for _ in range(2)]


@pytest.mark.slow
def test_a_process_routes(tmp_path):
    for form in first_call.ROUTINGS:
        found = first_call.run(first_call._of_routing(SMALL, form), tmp_path)
        assert set(found) == {"forward", "gradients"} and min(found.values()) > 0


def test_what_was_measured_is_not_measured_again(machine, tmp_path):
    few = ("--passes", "forward", "--kernels", "empty", "--without-network")
    assert _main(tmp_path, *few) == 0
    count = len(machine)
    assert _main(tmp_path, *few) == 0
    assert len(machine) == count
    assert _main(tmp_path, *few, "--fresh") == 0
    assert len(machine) == 2 * count
    assert not first_call.is_current(tmp_path / "here")  # of other sources


def test_what_fails_is_noted(machine, tmp_path, monkeypatch, capsys):
    def fails(case, kernels):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(first_call, "run", fails)
    assert _main(tmp_path, "--kernels", "other") == 0
    rows = first_call.listing(tmp_path / "here").rows
    assert {row["note"] for row in rows} == {"RuntimeError: no such kernel"}
    assert "no such kernel" in capsys.readouterr().out


def test_ctrl_c_keeps_finished_rows(machine, tmp_path, monkeypatch):
    whole = first_call.run

    def interrupted(case, kernels):
        if case["what"] != "import":
            raise KeyboardInterrupt
        return whole(case, kernels)

    monkeypatch.setattr(first_call, "run", interrupted)
    assert _main(tmp_path) == 130
    assert [row["what"] for row in first_call.listing(tmp_path / "here").rows] == ["import"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--passes", "up"], "got 'up'; it takes forward, "),
        (["--kernels", "some"], "got 'some'; it takes empty, other, warm"),
        (["--precisions", "ieee"], "got 'ieee'; it takes default, tf32, float16, bfloat16"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        first_call.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.tiers("gpu")
@pytest.mark.slow
def test_first_calls_are_measured(tmp_path):
    few = ("--passes", "forward", "--kernels", "other", "--without-network")
    assert _main(tmp_path, *few) == 0
    rows = first_call.listing(next(tmp_path.iterdir())).rows
    assert len(rows) == 2 and all(float(row["seconds"]) > 0 for row in rows)
