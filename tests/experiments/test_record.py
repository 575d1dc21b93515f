"""Which rows are older than their kernels, and in which order they are measured again."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from experiments import drawn_speed, first_call, host_cost, record
from experiments.measuring import command, contestants, device_memory, provenance, records, sources
from experiments.measuring.problem import NETWORK_PASSES
from experiments.measuring.shard import WHOLE
from experiments.measuring.workloads import square

GPU = "NVIDIA-Test-1"
SMALL = square(2, 2, 3, 6, 3, 1, 2, 4, 3)
NOW = {"driver": "1", "versions": "{}", "source_sha256": "before", "method_sha256": "now"}
_LAUNCHED = """
from experiments import ahead
from numbacaps.device.kernel_cache import launched

if __name__ == "__main__":
    options = ahead._parser().parse_args(
        ["--experiments=table1", "--workload=layer 5", "--passes=backward_kernel"]
    )
    ahead._begin(options)
    for number, (*_, variant) in enumerate(ahead._cases):
        if str(variant) in ("naive capsule ieee", "fused capsule tf32"):
            with launched() as kernels:
                ahead._compile(number)
            print(*sorted(kernel.py_func.__name__ for kernel in kernels))
    with launched() as kernels:
        pass
    assert not kernels
"""


@pytest.fixture
def machine(monkeypatch):
    """A machine on which nothing is looked for, and no device memory is given back."""
    monkeypatch.setattr(records, "of_machine", lambda: NOW)
    monkeypatch.setattr(contestants, "absent", list)
    monkeypatch.setattr(device_memory, "release", lambda: None)
    monkeypatch.setattr(record, "_compile", lambda jobs, processes: None)


def _group(experiment, wanted, measured):
    variants = contestants.choose(("indexed",))
    return command.Group(experiment, "small", SMALL, wanted, variants, measured)


def _module(*groups):
    parser = SimpleNamespace(parse_args=lambda arguments: None)
    return SimpleNamespace(make_parser=lambda: parser, groups=lambda parser, options: list(groups))


def _right(problem, wanted, variants, tick):
    name = {"kernel_sources": sources.NO_KERNELS}
    return [NOW | variant.cells | {"ms_p50": 1.0} | name for variant in variants]


def _two(monkeypatch, first, second):
    """Two experiments with a group each."""
    fused, rungs = _group("fused", "forward", first), _group("rungs", "forward", second)
    experiments = {"rungs": _module(rungs), "fused": _module(fused)}
    monkeypatch.setattr(record, "EXPERIMENTS", experiments)


def test_the_most_important_comes_first(machine, tmp_path):
    jobs = record.missing(tmp_path)
    ranks = [record.rank(group.experiment, group.wanted) for _, group in jobs]
    assert ranks == sorted(ranks) and set(ranks) == set(range(9)) - {3}
    first, last = (
        jobs[0][1],
        [group for _, group in jobs if record.rank(group.experiment, group.wanted) < 3],
    )
    assert (first.experiment, first.wanted) == ("fused", "forward")
    assert last[-1].experiment == "table1" and last[-1].wanted in NETWORK_PASSES
    assert not list(tmp_path.iterdir())


def test_what_is_recorded_is_read():
    """Of every CSV here it is known what it holds, and by which command."""
    told = record.older(provenance.RESULTS)
    assert all(line.startswith(tuple(provenance.measured(provenance.RESULTS))) for line in told)


def test_shards_are_the_whole(machine, tmp_path):
    keys = [[group.key for _, group in record.missing(tmp_path, part)] for part in WHOLE.split(2)]
    whole = [group.key for _, group in record.missing(tmp_path)]
    assert sorted(keys[0] + keys[1]) == sorted(whole) and all(keys)


def test_a_shard_leaves_what_is_run_as_a_whole(machine, tmp_path, monkeypatch):
    whole = {"a": _whole()}
    monkeypatch.setattr(record, "WHOLE", whole)
    monkeypatch.setattr(record, "EXPERIMENTS", {})
    assert record.measure(tmp_path / GPU, 5, 1, WHOLE.split(2)[0]) == 0 and not whole["a"].ran
    assert record.measure(tmp_path / GPU, 5, 1) == 0 and whole["a"].ran


def test_a_process_for_each_gpu(monkeypatch, capsys):
    told = []
    monkeypatch.setattr(record.cards, "visible", lambda: ["4", "7"])
    monkeypatch.setattr(record.launcher, "run", lambda *about: told.append(about) or ([], False))
    assert record.main(["--gpus", "all", "--minutes", "3", "--processes", "9"]) == 0
    ((name, gpus, shares, commands),) = told
    assert name == "record" and gpus == ["4", "7"] and shares == ["shard 1/2", "shard 2/2"]
    same = [
        "experiments.record",
        "--minutes",
        "3",
        "--processes",
        "9",
        "--processes",
        "4",
        "--shard",
    ]
    assert commands == [[*same, "1/2"], [*same, "2/2"]]
    with pytest.raises(SystemExit) as stop:
        record.main(["--gpus", "0,2"])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.startswith("record: --gpus got '0,2'")


def test_batches_have_one_rank():
    groups = [("fused", "forward")] * 3 + [("fused", "backward_input")]
    jobs = [(None, _group(*one, None)) for one in groups]
    assert [len(batch) for batch in record.batches(jobs, 2)] == [2, 1, 1]
    assert sum(record.batches(jobs, 2), []) == jobs


def test_only_what_is_older_is_measured(machine, tmp_path, monkeypatch, capsys):
    _two(monkeypatch, _right, _right)
    assert record.measure(tmp_path, 1, 1) == 0
    assert "2 of 2 groups" in capsys.readouterr().out
    path = tmp_path / "fused.csv"
    rows = records.read(path)
    assert [row["ms_p50"] for row in rows] == ["1"]
    records.write(path, [rows[0] | {"kernel_sources": "gone", "ms_p50": 7}])
    assert record.measure(tmp_path, 1, 1) == 0
    assert "1 of 1 groups" in capsys.readouterr().out
    assert [row["ms_p50"] for row in records.read(path)] == ["1"]


def test_time_runs_out_between_groups(machine, tmp_path, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(*arguments):
        now[0] += 40.0
        return _right(*arguments)

    _two(monkeypatch, slow, slow)
    assert record.measure(tmp_path, 1, 1) == 0
    said = capsys.readouterr().out
    assert "1 of 2 groups" in said and "next: rungs.csv, small, forward" in said
    assert not (tmp_path / "rungs.csv").exists()


def test_no_group_is_begun_that_would_end_too_late(machine, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(*arguments):
        now[0] += 40.0
        return _right(*arguments)

    table = records.Table(tmp_path / "fused.csv", NOW)
    passes = ("forward", "backward_input", "backward_kernel")
    jobs = [(table, _group("fused", wanted, slow)) for wanted in passes]
    assert command.measure_groups(jobs, until=100.0) == (2, 40.0)
    assert [row["pass"] for row in records.read(table.path)] == [*passes[:2]]


def _whole(status=0, minutes=1, current=False):
    """An experiment that is run as a whole, and the arguments that it was run with."""
    ran = []

    def main(arguments):
        ran.append(arguments)
        return status

    return SimpleNamespace(main=main, MINUTES=minutes, is_current=lambda folder: current, ran=ran)


def test_experiments_that_are_run_as_a_whole_come_last(machine, tmp_path, monkeypatch, capsys):
    whole = {"a": _whole(current=True), "b": _whole(minutes=9), "c": _whole(), "d": _whole(130)}
    whole["e"] = _whole()
    monkeypatch.setattr(record, "WHOLE", whole)
    monkeypatch.setattr(record, "EXPERIMENTS", {})
    assert record.measure(tmp_path / GPU, 5, 1) == 130
    assert [len(one.ran) for one in whole.values()] == [0, 0, 1, 1, 0]
    assert whole["c"].ran == [["--results", str(tmp_path)]]
    assert "left: b.csv, which takes about 9 minutes" in capsys.readouterr().out


def test_whole_experiments_that_are_older_are_listed(tmp_path):
    folder = tmp_path / GPU
    host_cost.listing(folder, NOW).add([{"what": "plan"}])
    first = first_call.listing(folder, NOW | {"source_sha256": provenance.source_sha256()})
    first.add([{"what": "import"}])
    drawn = _row(experiment="drawn_speed", kernel_sources=sources.NO_KERNELS)
    records.write(folder / "drawn_speed.csv", [drawn])
    assert record.older(tmp_path) == [f"{GPU}/host_cost.csv; python -m experiments.host_cost"]
    records.write(folder / "drawn_speed.csv", [drawn | {"kernel_sources": "gone"}])
    assert f"{GPU}/drawn_speed.csv; python -m experiments.drawn_speed" in record.older(tmp_path)
    assert not drawn_speed.is_current(tmp_path)  # where there are no rows


@pytest.mark.parametrize("results", ["gone", "file", "."])
def test_a_folder_without_results_is_refused(results, tmp_path, capsys):
    """Else a misspelt one would read as one in which nothing is older."""
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stop:
        record.main(["--list", "--results", str(tmp_path / results)])
    assert stop.value.code == 2
    assert "it takes a folder that holds one with CSVs" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(machine, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    _two(monkeypatch, _right, interrupted)
    assert record.measure(tmp_path, 1, 1) == 130
    assert len(records.read(tmp_path / "fused.csv")) == 1
    assert "every finished group" in capsys.readouterr().err


def _row(**cells):
    variant = {"algorithm": "indexed", "layout": "capsule", "precision": "ieee", "dtype": "float32"}
    group = {"experiment": "fused", "workload": "small", "pass": "forward"}
    return records.of_geometry(SMALL) | group | variant | NOW | cells


def test_what_is_older_is_listed(tmp_path, capsys):
    folder = tmp_path / GPU
    new = {"kernel_sources": sources.NO_KERNELS}
    records.write(
        folder / "fused.csv", [_row(**new), _row(algorithm="fused"), _row(workload="b", **new)]
    )
    records.write(folder / "rungs.csv", [_row(experiment="rungs", **new)])
    for name, of in (("gpu_tests", "before"), ("gpu_drawn", provenance.source_sha256())):
        said = json.dumps({"date": "2026-01-02", "source_sha256": of})
        (folder / f"{name}.json").write_text(said)
    assert record.older(tmp_path) == [
        f"{GPU}/fused.csv: small, forward: 1 of 2 rows",
        f"{GPU}/gpu_tests.json: of 2026-01-02; python -m tests.record_gpu",
    ]
    assert record.main(["--list", "--results", str(tmp_path)]) == 0
    assert "2 in all" in capsys.readouterr().out
    (folder / "fused.csv").unlink()
    (folder / "gpu_tests.json").unlink()
    assert record.main(["--list", "--results", str(tmp_path)]) == 0
    assert "is older than its kernels" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_damaged_record_is_refused_in_a_line(content, tmp_path, capsys):
    folder = tmp_path / GPU
    records.write(folder / "fused.csv", [_row(kernel_sources=sources.NO_KERNELS)])
    (folder / "gpu_tests.json").write_text(content)
    with pytest.raises(SystemExit) as stop:
        record.main(["--list", "--results", str(tmp_path)])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and "gpu_tests.json is damaged" in said and said.count("\n") == 1


def test_measuring_takes_a_gpu(capsys):
    with pytest.raises(SystemExit) as stop:
        record.main([])
    assert stop.value.code == 2 and "--list says what is older" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_launched_kernels_are_known(tmp_path):
    """Numba's launches and those of compiled kernels, without a GPU."""
    script = tmp_path / "script.py"
    script.write_text(_LAUNCHED)
    where = {"PYTHONPATH": str(provenance.ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script],
        env={**record.os.environ, **where, "NUMBACAPS_TARGET": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "fill_kernel naive_backward_kernel_kernel",
        "add_splits_kernel mma_sync_split_k_kernel",
    ], done.stderr


@pytest.mark.tiers("simulator", "ptx")
def test_sources_of_a_kernel_are_its_own():
    from numbacaps.device.kernel_cache import sources_of
    from numbacaps.stages.input_extend import make_input_extend

    kernel = make_input_extend(SMALL.P)
    kernel = SimpleNamespace(py_func=getattr(kernel, "py_func", None) or kernel.fn)
    names = {path.relative_to(provenance.ROOT).as_posix() for path in sources_of(kernel)}
    assert {"numbacaps/stages/input_extend.py", "numbacaps/device/launch.py"} <= names
    assert not any(name.startswith(("numbacaps/fused", "numbacaps/nn")) for name in names)
