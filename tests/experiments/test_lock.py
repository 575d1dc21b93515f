"""Two runs on one file: neither loses the other's rows, and a killed one holds up nobody."""

import csv
import json
import os
import stat
import subprocess
import sys

import pytest

from experiments import train_digits
from experiments.measuring import lock, provenance, records
from experiments.measuring.listing import Listing
from experiments.measuring.workloads import square

SMALL = square(2, 2, 3, 6, 3, 1, 2, 4, 3)
NOW = {"gpu": "here", "driver": "1", "versions": "{}", "method_sha256": "now"}
NOW |= {"source_sha256": "now"}
_COUNT = """
import sys
from pathlib import Path
from experiments.measuring.lock import held

path = Path(sys.argv[1])
for _ in range(100):
    with held(path, 60):
        path.write_text(str(int(path.read_text()) + 1))
"""
_HOLD = """
import sys
import time
from experiments.measuring.lock import held

with held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def _start(script, path):
    """A process of its own, in this checkout."""
    command = [sys.executable, "-c", script, str(path)]
    return subprocess.Popen(command, cwd=provenance.ROOT, stdout=subprocess.PIPE)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of a log of training."""
    (tmp_path / "run").mkdir()
    with _start(_HOLD, tmp_path / "run" / "training.csv") as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def _row(wanted, **cells):
    row = {"experiment": "sweep", "workload": "some", "pass": wanted, "algorithm": "indexed"}
    return records.of_geometry(SMALL) | NOW | row | cells


# ---- the lock


def test_processes_take_turns(tmp_path):
    path = tmp_path / "count"
    path.write_text("0")
    processes = [_start(_COUNT, path) for _ in range(4)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert path.read_text() == "400"
    assert [file.name for file in tmp_path.iterdir()] == ["count"]


def test_who_holds_it_is_named(holder, tmp_path):
    path = tmp_path / "run" / "training.csv"
    with pytest.raises(lock.Taken, match=f"process {holder.pid} is writing it"):
        with lock.held(path, 0.05):
            pass
    with pytest.raises(
        records.ForeignFile, match=f"{path} cannot be written: process {holder.pid}"
    ):
        with records.alone(path, 0.05):
            pass


def test_a_killed_holder_locks_nobody_out(holder, tmp_path):
    path = tmp_path / "run" / "training.csv"
    holder.kill()
    holder.wait()
    assert path.with_name("training.csv.lock").exists()
    with lock.held(path, 0):
        pass
    assert not list(path.parent.iterdir())


def test_a_failure_gives_it_back(tmp_path):
    with pytest.raises(ZeroDivisionError), lock.held(tmp_path / "a"):
        raise ZeroDivisionError
    with lock.held(tmp_path / "a", 0):
        pass


# ---- the files


def test_a_table_keeps_what_another_run_measured(tmp_path):
    path = tmp_path / "sweep.csv"
    one, other = records.Table(path, NOW), records.Table(path, NOW)
    one.replace([_row("forward", kernel_sources="one")])
    other.replace([_row("backward_input", kernel_sources="other")])
    one.replace([_row("backward_kernel")])
    other.write()
    passes = ["forward", "backward_input", "backward_kernel"]
    assert [row["pass"] for row in records.read(path)] == passes
    assert [row["pass"] for row in other.rows] == passes


def test_a_table_is_read_again_only_behind_another_run(tmp_path, monkeypatch):
    path, read, times = tmp_path / "sweep.csv", records.read, []
    monkeypatch.setattr(records, "read", lambda path: times.append(path) or read(path))
    table = records.Table(path, NOW)
    for wanted in ("forward", "backward_input"):
        table.replace([_row(wanted)])
        assert [row["pass"] for row in table.of_group(_row(wanted))] == [wanted]
    table.write()
    assert len(times) == 1
    records.Table(path, NOW).replace([_row("backward_kernel")])
    table.write()
    assert len(times) == 3 and len(table.rows) == 3  # the other run's, and this one's again


def test_a_table_keeps_the_sources_of_another_run_s_rows(tmp_path, monkeypatch):
    path = tmp_path / "sweep.csv"
    files = {"one": ["setup.cfg"], "other": ["pyproject.toml"]}
    tables = {name: records.Table(path, NOW) for name in files}
    for name, table in tables.items():  # each knows its own kernels alone, as a process does
        monkeypatch.setattr("experiments.measuring.sources._found", {name: files[name]})
        table.replace([_row(name, kernel_sources=name)])
    assert json.loads(path.with_suffix(".sources.json").read_text()) == files


def test_a_listing_keeps_what_another_run_measured(tmp_path):
    path = tmp_path / "host_cost.csv"
    one, other = (Listing(path, ("what",), ("us",), NOW) for _ in range(2))
    one.add([{"what": "a", "us": 1}])
    other.add([{"what": "b", "us": 2}])
    one.add([{"what": "a", "us": 3}])
    with open(path) as file:
        assert [(row["what"], row["us"]) for row in csv.DictReader(file)] == [
            ("b", "2"),
            ("a", "3"),
        ]


def test_a_second_training_is_refused_by_name(holder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_digits, "SIMULATED", True)
    monkeypatch.setattr(train_digits, "_WAIT", 0.05)
    network = tmp_path / "run" / "numbacaps-seed0.npz"
    network.write_bytes(b"of the other")
    with pytest.raises(SystemExit) as end:
        train_digits.main(["--tiny", "--results", str(tmp_path / "run")])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "run" / "training.csv") in said and str(holder.pid) in said
    assert said.startswith("train_digits: ") and said.count("\n") == 1
    assert network.read_bytes() == b"of the other"


def test_what_fails_under_a_lock_is_not_the_lock_s(tmp_path):
    """Else a full disk under figures would be told of the CSV."""
    with pytest.raises(OSError, match="^no space left$") as failure:
        with records.alone(tmp_path / "rows.csv"):
            raise OSError("no space left")
    assert not isinstance(failure.value, records.ForeignFile)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_where_its_name_leads(tmp_path):
    """A link is followed, a file's mode is kept, and what is no regular file is left."""
    file, link, fifo = tmp_path / "file", tmp_path / "link", tmp_path / "fifo"
    file.write_text("old"), file.chmod(0o600), link.symlink_to(file), os.mkfifo(fifo)
    provenance.write_text(link, "new: \u00b5")
    assert link.is_symlink() and file.read_text(encoding="utf-8") == "new: \u00b5"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(records.ForeignFile, match="fifo is no regular file"):
        records.write_text(fifo, "new")
    assert fifo.is_fifo() and len(list(tmp_path.iterdir())) == 3


def test_a_listing_refuses_damaged_rows(tmp_path):
    path = tmp_path / "host_cost.csv"
    listing = Listing(path, ("what",), ("us",))
    listing.write({("a",): {"what": "a", "us": 1}})
    text = path.read_text()
    for damaged in (text[:-3].rsplit(",", 2)[0], text.rstrip() + ",more\n"):
        path.write_text(damaged)
        with pytest.raises(records.ForeignFile, match="rows of other lengths than its header"):
            Listing(path, ("what",), ("us",))
        assert path.read_text() == damaged
