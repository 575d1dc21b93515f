"""Several processes share an experiment's rows: by hand, and by a process for each GPU."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import (
    drawn_speed,
    first_call,
    host_cost,
    neighbours,
    record,
    routing,
    routing_curves,
    scaling,
    sweep,
    torch_layers,
    train_digits,
)
from experiments.measuring import cards, launcher, provenance, records, sources
from experiments.measuring.listing import Listing
from experiments.measuring.refusal import Refusal
from experiments.measuring.shard import WHOLE, Shard, shard
from experiments.training import training
from tests.support import stub_experiment

_MODULE = "tests.support.stub_experiment"
_SWEEP = ["--vary", "D2=1,2,3", "--fix", "N=1,C=2,P=2,H=4", "--algorithms", "naive,indexed"]


def _rows(results):
    """The rows of the stub's CSV, but for when and on which card they were measured."""
    rows = records.read(results / "stub" / "sweep.csv")
    return [row | {"timestamp": "", "gpu_uuid": ""} for row in rows]


def _stub(results, *more, **environment):
    """(exit status, output) of a process of the stub."""
    command = [sys.executable, "-m", _MODULE, *_SWEEP, "--results", str(results), *more]
    told = {"cwd": provenance.ROOT, "env": os.environ | environment, "text": True}
    done = subprocess.run(command, capture_output=True, **told)
    return done.returncode, done.stdout


def _heard(process, *words):
    """What a process says until it has said some words."""
    said = b""
    while not all(word in said for word in words):
        said += (piece := os.read(process.stderr.fileno(), 1 << 12))
        assert piece, said
    return said


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The rows of one process."""
    results = tmp_path_factory.mktemp("whole")
    assert _stub(results)[0] == 0
    return _rows(results)


# ---- shards


def test_parts_are_a_partition():
    keys = [("sweep", str(number), "forward") for number in range(300)]
    parts = [Shard(number, 3).part(keys, lambda key: key) for number in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(keys)
    assert all(60 < len(part) < 140 for part in parts)
    assert parts[0] == [key for key in keys if key in parts[0]]
    for part, of in zip(Shard(2, 3).split(2), ((2, 6), (5, 6))):
        assert (part.number, part.of) == of
        assert set(part.part(keys, lambda key: key)) < set(parts[1])


def test_a_key_falls_to_the_same_part_everywhere():
    """In every process and version: these parts are written down."""
    keys = [("sweep", letter, 1) for letter in "abcdefgh"]
    assert [next(n for n in (1, 2, 3) if Shard(n, 3).has(key)) for key in keys] == PARTS


PARTS = [3, 2, 1, 1, 3, 3, 2, 2]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_what_is_no_part_is_refused(text, capsys):
    with pytest.raises(argparse.ArgumentTypeError, match="it takes a part and their number"):
        shard(text)


def test_every_experiment_takes_them():
    for module in (*record.EXPERIMENTS.values(), *record.WHOLE.values()):
        options = module.make_parser().parse_args(["--shard", "2/3", "--gpus", "0,1"])
        assert (options.shard, options.gpus) == (Shard(2, 3), "0,1")
        assert module.make_parser().parse_args([]).shard == WHOLE


@pytest.mark.slow  # test_own_experiment has two shards, too
def test_two_shards_are_the_whole_row_for_row(tmp_path, whole):
    for number in (2, 1):
        assert _stub(tmp_path, "--shard", f"{number}/2")[0] == 0
        if number == 2:
            assert 0 < len(_rows(tmp_path)) < len(whole)
    assert _rows(tmp_path) == whole and len(whole) == 18


@pytest.mark.slow
def test_a_killed_shard_resumes(tmp_path, whole):
    killed = _stub(tmp_path, "--shard", "1/2", CUDA_VISIBLE_DEVICES="1", STUB="1:dies")
    assert killed == (-signal.SIGKILL, "")
    first = records.read(tmp_path / "stub" / "sweep.csv")
    assert len(first) == 2
    status, said = _stub(tmp_path, "--shard", "1/2")
    assert status == 0 and "1 of " in said and "groups of rows were measured before" in said
    assert _stub(tmp_path, "--shard", "2/2")[0] == 0
    rows = records.read(tmp_path / "stub" / "sweep.csv")
    assert all(row in rows for row in first) and _rows(tmp_path) == whole


@pytest.mark.slow
def test_who_shows_nothing_any_more_spoils_no_row(tmp_path, whole):
    """As when a launcher is killed: nobody reads of its processes how far they are."""
    command = [sys.executable, "-m", _MODULE, *_SWEEP, "--results", str(tmp_path)]
    told = {"cwd": provenance.ROOT, "stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "1", "STUB": "1:asks"}
    process = subprocess.Popen(command, env=environment | {"TQDM_MININTERVAL": "0"}, **told)
    _heard(process, b"waiting on 1")
    process.stderr.close()
    process.stdin.close()
    assert process.wait(60) != 0
    assert len(_rows(tmp_path)) == 2 and all(row in whole for row in _rows(tmp_path))
    assert _stub(tmp_path)[0] == 0 and _rows(tmp_path) == whole


def test_predictions_in_shards_are_the_whole(tmp_path):
    for results, shards in ((tmp_path / "whole", ["1/1"]), (tmp_path / "parts", ["2/2", "1/2"])):
        for part in shards:
            how = ["--predict", "H100-SXM", "--preset", "batch", "--shard", part]
            assert sweep.main([*how, "--results", str(results)]) == 0
    one, other = (
        [
            row | {"timestamp": ""}
            for row in records.read(tmp_path / name / "H100-SXM-predicted" / "sweep.csv")
        ]
        for name in ("whole", "parts")
    )
    assert one == other and one


# ---- merging


def _row(wanted, ms, timestamp, **cells):
    row = dict.fromkeys(records.COLUMNS, "") | stub_experiment.NOW
    return row | {"pass": wanted, "ms_p50": ms, "timestamp": timestamp} | cells


def test_the_newer_rows_of_a_group_are_taken(tmp_path, monkeypatch):
    table, part = tmp_path / "here" / "sweep.csv", tmp_path / "there" / "sweep.csv"
    records.write(
        table.parent.mkdir() or table, [_row("a", "1", "2026-02"), _row("b", "1", "2026-02")]
    )
    theirs = [
        _row("c", "2", "2026-01", kernel_sources="k"),
        _row("b", "2", "2026-01"),
        _row("a", "2", "2026-03"),
    ]
    records.write(part.parent.mkdir() or part, theirs)
    part.with_suffix(".sources.json").write_text('{"k": ["setup.cfg"]}')
    monkeypatch.setattr(sources, "_found", {})
    keys = [records.key(_row(name, "", ""), records.GROUP) for name in "cab"]
    records.merge(table, part, keys)
    records.merge(table, part, keys)
    assert [(row["pass"], row["ms_p50"]) for row in records.read(table)] == [
        ("c", "2"),
        ("a", "2"),
        ("b", "1"),
    ]
    assert "setup.cfg" in table.with_suffix(".sources.json").read_text()


@pytest.mark.parametrize("module", [host_cost, first_call, torch_layers])
def test_the_newer_rows_of_a_listing_are_taken(module, tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("table", "part")]
    for folder, when in zip(folders, ("2026-02", "2026-03")):
        monkeypatch.setattr(records, "now", lambda when=when: when)
        names = ("a", folder.name)
        rows = [dict.fromkeys(module.KEYS, name) | {"note": when} for name in names]
        module.listing(folder, stub_experiment.NOW).add(rows)
    table, part = (folder / f"{module.NAME}.csv" for folder in folders)
    module.merge(table, part)
    notes = {row[module.KEYS[0]]: row["note"] for row in module.listing(folders[0]).rows}
    assert notes == {"a": "2026-03", "table": "2026-02", "part": "2026-03"}


def test_files_without_the_later_columns_are_read(tmp_path):
    later = ("gpu_uuid", "busy_neighbours")
    for left_out in (later, (*later, "kernel_sources")):
        names = [name for name in records.COLUMNS if name not in left_out]
        path = tmp_path / "old.csv"
        path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
        (row,) = records.read(path)
        assert row["gpu"] == "1" and row["gpu_uuid"] == row["busy_neighbours"] == ""
    path.write_text(",".join(name for name in records.COLUMNS if name != "kernel_sources") + "\n")
    with pytest.raises(records.ForeignFile):
        records.read(path)
    listing = tmp_path / "short.csv"
    listing.write_text("what,us,gpu,driver,versions,source_sha256,timestamp\na,1,g,d,v,s,t\n")
    (row,) = Listing(listing, ("what",), ("us",)).rows
    assert row["us"] == "1" and row["gpu_uuid"] == ""


def test_recorded_files_are_read():
    own_columns = first_call, host_cost, neighbours, routing, routing_curves, scaling, torch_layers
    named = {experiment.NAME: experiment for experiment in own_columns}
    for path in provenance.RESULTS.glob("*/*.csv"):
        own = named.get(path.stem)
        assert Listing(path, own.KEYS, own.VALUES).rows if own else records.read(path), path


# ---- a process for each GPU


def _launch(tmp_path, gpus="0,1", more=(), **options):
    """The launcher with the stub."""
    told = SimpleNamespace(gpus=gpus, shard=WHOLE, results=tmp_path, **options)
    parser = sweep.make_parser()
    found = sweep.groups(parser, parser.parse_args(_SWEEP))
    merge = partial(records.merge, groups=[group.key for group in found])
    arguments = [*_SWEEP, *more, "--gpus", gpus, "--results", str(tmp_path)]
    return launcher.launch("sweep", arguments, told, merge, _MODULE)


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


@pytest.mark.slow
def test_two_processes_are_the_whole(two, tmp_path, whole, capsys):
    assert _launch(tmp_path, "all") == 0
    assert _rows(tmp_path) == whole
    by_card = Counter(row["gpu_uuid"] for row in records.read(tmp_path / "stub" / "sweep.csv"))
    assert set(by_card) == {"GPU-0", "GPU-1"} and all(
        row["busy_neighbours"] == "1" for row in whole
    )
    said = capsys.readouterr()
    assert "2 of 2 processes ended well" in said.out and "18/18" in said.err
    assert {path.name for path in tmp_path.iterdir()} == {"stub"}
    before = (tmp_path / "stub" / "sweep.csv").read_bytes()
    assert _launch(tmp_path) == 0
    assert (tmp_path / "stub" / "sweep.csv").read_bytes() == before


@pytest.mark.slow
def test_a_process_that_dies_is_named_and_the_next_run_goes_on(
    two, tmp_path, whole, capsys, monkeypatch
):
    monkeypatch.setenv("STUB", "1:dies")
    assert _launch(tmp_path) == 1
    said = capsys.readouterr().err
    assert "GPU 1: process " in said and "shard 2/2, ended by signal SIGKILL" in said
    left = _rows(tmp_path)
    assert 2 < len(left) < len(whole) and all(row in whole for row in left)
    monkeypatch.delenv("STUB")
    assert _launch(tmp_path) == 0 and _rows(tmp_path) == whole


@pytest.mark.slow
def test_what_a_killed_launcher_left_is_merged(two, tmp_path, whole):
    own = tmp_path / "shards" / "sweep" / "1-of-2"
    assert _stub(own, "--shard", "1/2")[0] == 0
    assert _launch(tmp_path, "0", more=["--workload", "D2=1,2,3"]) == 0
    assert _rows(tmp_path) == whole and not (tmp_path / "shards").exists()


_LAUNCH = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
from pathlib import Path
from types import SimpleNamespace
from experiments.measuring import launcher, records
from experiments.measuring.shard import WHOLE

told = SimpleNamespace(gpus="0,1", shard=WHOLE, results=Path(sys.argv[1]))
sys.exit(launcher.launch("sweep", sys.argv[2:], told, records.merge, "tests.support.stub_experiment"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["waits", "stays"])
def test_ctrl_c_merges_what_was_measured(fate, tmp_path, whole):
    """A second one kills who stays."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0,1", "STUB": f"0:waits,1:{fate}"}
    command = [sys.executable, "-c", _LAUNCH, str(tmp_path), *_SWEEP]
    told = {"cwd": provenance.ROOT, "env": environment, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **told)
    said = _heard(process, b"waiting on 0", b"waiting on 1")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    assert len(children.read_text().split()) == 2
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    if fate == "stays":
        said += _heard(process, b"interrupted; ")  # by the other, asked at the same time
        while (
            len(children.read_text().split()) > 1
        ):  # the second Ctrl-C kills every shard that still runs
            assert time.monotonic() - begun < 30
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
    said += process.communicate(timeout=30)[1]
    assert process.returncode == 130 and time.monotonic() - begun < 30
    assert b"interrupted; " in said and b"holds every finished row" in said
    assert (b"shard 2/2, ended by signal SIGKILL" in said) == (fate == "stays")
    assert b"Traceback" not in said and b"shard 1/2" not in said
    assert len(_rows(tmp_path)) == 4 and all(row in whole for row in _rows(tmp_path))
    assert not list(tmp_path.glob("shards/*/*"))


@pytest.mark.parametrize("asked", [True, False])
def test_who_was_not_asked_to_stop_has_died(asked):
    """Who was, may have had no time to say why it ends."""
    script = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_DFL); "  # a background job ignores it
        "print('here', file=sys.stderr, flush=True); time.sleep(60)"
    )
    worker = launcher.Worker("0", "shard 1/2", [sys.executable, "-c", script])
    while not worker.heard():
        time.sleep(0.01)
    if asked:
        worker.stop()
    else:
        worker.process.send_signal(signal.SIGINT)
    worker.process.wait()
    found = worker.epitaph()
    assert found is None if asked else "shard 1/2, ended by signal SIGINT" in found


@pytest.mark.parametrize("module", [sweep, drawn_speed, host_cost, train_digits])
def test_options_are_written_out(module, capsys):
    """Of ``--gpu all`` each process would begin others."""
    parse = module.make_parser if hasattr(module, "make_parser") else None
    with pytest.raises(SystemExit):
        parse().parse_args(["--gpu", "all"]) if parse else module.main(["--gpu", "all"])
    assert "unrecognized arguments: --gpu all" in capsys.readouterr().err


def test_a_launcher_of_one_folder_leaves_the_others(tmp_path, monkeypatch):
    """Another run may be writing there."""
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "training.csv").write_text(f"{name}\n")
    given, merged = [], []

    def run(name, gpus, shares, commands):
        given.extend(path.relative_to(tmp_path) for path in tmp_path.rglob("*-of-1/*/training.csv"))
        return [], False

    monkeypatch.setattr(launcher, "run", run)
    monkeypatch.setattr(launcher.cards, "chosen", lambda text: ["0"])
    options = SimpleNamespace(gpus="0", shard=WHOLE, results=tmp_path)
    merge = lambda table, part: merged.append(table)  # noqa: E731
    shares = [("--seeds", "0")]
    launcher.launch("training", [], options, merge, "module", shares, "mine")
    assert [path.as_posix() for path in given] == ["mine/shards/training/1-of-1/mine/training.csv"]
    assert merged == [tmp_path / "mine" / "training.csv"]
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"training.csv"}


@pytest.mark.slow
def test_a_second_launcher_is_refused(two, tmp_path):
    with records.alone(tmp_path / "shards" / "sweep"):
        with pytest.raises(records.ForeignFile, match=f"process {os.getpid()} is writing it"):
            _launch(tmp_path)


def test_geometries_are_drawn_by_one_seed(monkeypatch):
    told = _drawn(monkeypatch, "--gpus", "all")
    assert told[:3] == ["--gpus", "all", "--seed"] and told[3].isdecimal()


def test_drawn_rows_are_merged_as_one_process_leaves_them(tmp_path, monkeypatch):
    """In the order in which they are drawn, and without other seeds' older ones."""

    def rows(*names):
        stub = {"kernel_sources": sources.NO_KERNELS, "timestamp": "2026-01"}
        return [
            dict.fromkeys(records.COLUMNS, "")
            | records.of_geometry(geometry)
            | {"experiment": experiment, "workload": workload, "pass": wanted}
            | stub
            for experiment, workload, geometry, wanted in names
        ]

    def launch(name, arguments, options, merge, module):
        for part in parts:
            merge(tmp_path / "table" / "drawn_speed.csv", part)

    given = ["--gpus", "all", "--seed", "3", "--count", "2"]
    every = drawn_speed.cases(drawn_speed.make_parser().parse_args(given))
    older = rows(("drawn_speed", "seed 1, 0", *every[0][2:]))
    older[0] |= {"kernel_sources": "gone"}
    parts = [tmp_path / str(number) / "drawn_speed.csv" for number in (0, 1)]
    records.write(tmp_path / "table" / "drawn_speed.csv", older)
    for part, own in zip(parts, (every[1::2], every[::2])):
        records.write(part, older + rows(*own))
    _drawn(monkeypatch, *given, launch=launch)
    found = records.read(tmp_path / "table" / "drawn_speed.csv")
    assert [(row["workload"], row["pass"]) for row in found] == [one[1::2] for one in every]


def _drawn(monkeypatch, *arguments, launch=lambda name, arguments, *_: arguments):
    """What ``drawn_speed`` returns where ``launch`` stands for the launcher."""
    monkeypatch.setattr(cards, "visible", lambda: ["0"])
    monkeypatch.setattr(launcher, "launch", launch)
    return drawn_speed.main(list(arguments))


# ---- training


def _tiny(folder, *arguments):
    command = [sys.executable, "-m", "experiments.train_digits", "--tiny", "--epochs", "1"]
    command += ["--seeds", "0,1,2", "--results", str(folder), *arguments]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0,1", "NUMBACAPS_TARGET": "sim"}
    told = {"cwd": provenance.ROOT, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, check=False, timeout=300, **told)


def _runs(folder):
    varies = "images_per_s", "timestamp"
    rows = training.read(folder / "training.csv")
    return sorted([value for key, value in row.items() if key not in varies] for row in rows)


@pytest.mark.slow
def test_seeds_are_trained_on_a_gpu_each(tmp_path):
    pytest.importorskip("mlxtend", reason="the extra 'data' is not installed")
    alone, shared = _tiny(tmp_path / "alone"), _tiny(tmp_path / "shared", "--gpus", "all")
    assert alone.returncode == shared.returncode == 0, alone.stderr + shared.stderr
    assert _runs(tmp_path / "shared") == _runs(tmp_path / "alone")
    names = [{path.name for path in (tmp_path / name).iterdir()} for name in ("alone", "shared")]
    assert names[0] == names[1] and "numbacaps-seed2.npz" in names[0]
    assert "2 of 2 processes ended well" in shared.stdout and "mean of 3 seeds" in shared.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"alone", "shared"}


def _log(folder, **rows):
    """A log of runs by their names: their timestamps."""
    log = training.Log(folder / "training.csv", "gpu")
    for name, times in rows.items():
        run = SimpleNamespace(by=name, seed=0)
        cells = dict.fromkeys(training.COLUMNS, 0)
        new = [cells | {"by": name, "seed": 0, "timestamp": time} for time in times]
        cell = {key: str for key in training.COLUMNS}
        log.replace((run.by, "0"), [{key: cell[key](row[key]) for key in row} for row in new])
    return log.path


def test_logs_are_merged_by_their_runs(tmp_path):
    path = _log(tmp_path / "a", torch=["2", "3"], numbacaps=["5"])
    part = _log(tmp_path / "b", torch=["2", "3", "4"], numbacaps=["4", "4"])
    for folder, content, time_of in (("a", "old", 1), ("b", "new", 2)):
        for name in ("torch-seed0.npz", "numbacaps-seed0.npz"):
            (tmp_path / folder / name).write_text(content)
            os.utime(tmp_path / folder / name, (time_of, time_of))
    os.utime(tmp_path / "a" / "numbacaps-seed0.npz", (3, 3))
    training.merge(path, part)
    found = [(row["by"], row["timestamp"]) for row in training.read(path)]
    assert sorted(found) == [("numbacaps", "5"), ("torch", "2"), ("torch", "3"), ("torch", "4")]
    assert (tmp_path / "a" / "torch-seed0.npz").read_text() == "new"
    assert (tmp_path / "a" / "numbacaps-seed0.npz").read_text() == "old"


def test_a_log_without_cards_is_read(tmp_path):
    path = _log(tmp_path, torch=["2"])
    before = path.read_text().splitlines()
    path.write_text("".join(line.rsplit(",", 2)[0] + "\n" for line in before))
    (row,) = training.read(path)
    assert row["gpu_uuid"] == row["busy_neighbours"] == "" and row["timestamp"] == "2"


# ---- cards

_SMI = """#!/bin/sh
case "$1" in
*index*) echo 0; echo 1; echo 2 ;;
*) echo "GPU-a, 97"; echo "GPU-b, 80"; echo "GPU-c, {used}" ;;
esac
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A function that puts an nvidia-smi into the path, whose third card is used so much."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(cards, "gpu_uuid", lambda: "GPU-a")

    def install(used):
        (tmp_path / "nvidia-smi").write_text(_SMI.format(used=used))
        (tmp_path / "nvidia-smi").chmod(0o755)

    return install


def test_busy_neighbours_are_counted(smi):
    smi("0")
    assert cards.busy_neighbours() == 1
    smi("100")
    assert cards.busy_neighbours() == 2
    smi("[N/A]")
    assert cards.busy_neighbours() is None


def test_without_nvidia_smi_nothing_is_known(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cards.busy_neighbours() is None and cards.visible() == []


def test_processes_side_by_side_begin_with_another_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-x,2")
    turned = [cards.turned(process).get("CUDA_VISIBLE_DEVICES") for process in (0, 1, 5)]
    assert turned == ["0,GPU-x,2", "GPU-x,2,0", "2,0,GPU-x"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert cards.turned(3) == {}


def test_gpus_are_those_that_are_visible(smi, monkeypatch):
    smi("0")
    assert cards.chosen("all") == ["0", "1", "2"] and cards.chosen("2,0") == ["2", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-x,GPU-y")
    assert cards.chosen("all") == ["GPU-x", "GPU-y"] and cards.chosen("1") == ["GPU-y"]
    for text in ("2", "0,0", "a", "", "0,"):
        with pytest.raises(Refusal, match="--gpus got .*; it takes all, or numbers from 0 to 1"):
            cards.chosen(text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(Refusal, match="it takes a GPU"):
        cards.chosen("all")


@pytest.mark.parametrize("name", [*record.EXPERIMENTS, *record.WHOLE])
def test_all_of_no_gpus_says_what_works_without(name, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    module = __import__(f"experiments.{name}", fromlist=["main"])
    with pytest.raises(SystemExit) as stop:
        module.main(["--gpus", "all"])
    assert stop.value.code == 2 and "--predict" in capsys.readouterr().err


def test_a_gpu_that_there_is_not_is_refused_in_a_line(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(SystemExit) as stop:
        sweep.main(["--gpus", "0,3"])
    said = capsys.readouterr().err
    assert (
        stop.value.code == 2
        and said.startswith("sweep: --gpus got '0,3'")
        and said.count("\n") == 1
    )
