"""An experiment of one's own: measured without a GPU, drawn and explored without being told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import figures, own_experiment
from experiments.explore import gather
from experiments.measuring import on_host, own, provenance, records
from experiments.measuring.problem import PASSES, WrongResult
from experiments.sweep import points
from numbacaps.product import parse_product

NAME = "mine"
LAYERS = points([("windows", ("KH",), (1, 3))], [("N", 1), ("C", 1), ("P", 2), ("H", 4), ("D1", 2)])


def measure(folder, *arguments, layers=LAYERS):
    """The rows of an experiment on the host, after it ended well."""
    given = ["--results", str(folder), *(arguments or ("--algorithms", "numpy,reference"))]
    assert own.main(NAME, "A test.", layers, given) == 0
    return records.read(folder / on_host.processor() / f"{NAME}.csv")


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        own.main(NAME, "A test.", LAYERS, list(arguments))
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_every_layer_pass_and_algorithm_has_a_row(tmp_path):
    rows = measure(tmp_path)
    found = [(row["KH"], row["pass"], row["algorithm"]) for row in rows]
    assert found == [
        (window, wanted, name)
        for window in ("1", "3")
        for wanted in PASSES
        for name in ("numpy", "reference")
    ]
    for row in rows:
        assert 0 < float(row["ms_p20"]) <= float(row["ms_p50"]) <= float(row["ms_p80"])
        assert float(row["rel_error"]) < 1e-5 and row["gpu"] == on_host.processor()
        assert row["source_sha256"] == provenance.source_sha256() and not row["note"]


@pytest.mark.slow
def test_figures_and_explore_take_it_untold(tmp_path):
    measure(tmp_path / "results", "--algorithms", "numpy")
    given = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "out")]
    for style, extension in (("screen", "png"), ("paper", "pdf")):
        assert figures.main([*given, "--style", style]) == 0
        assert (tmp_path / "out" / f"mine-windows.{extension}").exists()
    rows = gather.rows(gather.csvs([tmp_path / "results"]))
    assert {(row["file"], row["state"]) for row in rows} == {(NAME, gather.CURRENT)}


def test_any_product_and_axes_that_move_together(tmp_path):
    layers = points(
        [("groups", ("g",), (1, 2)), ("channels", ("C", "P"), (1, 2))],
        [("N", 1), ("H", 3), ("a", 2), ("b", 1), ("c", 3)],
        parse_product("gab,gbc->gac"),
    )
    rows = measure(tmp_path, "--algorithms", "numpy", "--passes", "forward", layers=layers)
    sizes = [tuple(row[axis] for axis in ("G", "C", "P", "D1", "D2", "D3")) for row in rows]
    assert sizes == [(g, c, c, "2", "1", "3") for g in "12" for c in "12"]


def test_what_was_measured_is_kept(tmp_path, monkeypatch):
    before = measure(tmp_path)
    monkeypatch.setattr(on_host, "rows", None)
    assert measure(tmp_path) == before
    assert measure(tmp_path, "--algorithms", "numpy") == before


def test_two_shards_are_the_whole_row_for_row(tmp_path):
    given = "--algorithms", "numpy"
    for part in ("2/2", "1/2"):
        rows = measure(tmp_path / "parts", *given, "--shard", part)
        assert 0 < len(rows) and (part == "1/2" or len(rows) < 2 * len(PASSES))
    names = records.GROUP + records.VARIANT
    whole = measure(tmp_path / "whole", *given)
    assert [records.key(row, names) for row in rows] == [records.key(row, names) for row in whole]


def test_a_wrong_result_is_not_timed(tmp_path, monkeypatch):
    def wrong(problem, wanted, result, precision):
        raise WrongResult("wrong result: far off")

    monkeypatch.setattr(on_host.Problem, "check", wrong)
    for row in measure(tmp_path, "--algorithms", "numpy"):
        assert not row["ms_p50"] and "wrong result: far off" in row["note"]


def test_clocks_are_not_mixed(capsys):
    message = refused(capsys, "--algorithms", "numpy,fused")
    assert "--algorithms got fused,numpy" in message and "the host's clock" in message
    assert "--gpus got 'all'" in refused(capsys, "--algorithms", "numpy", "--gpus", "all")
    assert "got 'nunpy'" in refused(capsys, "--algorithms", "nunpy")
    message = refused(capsys, "--algorithms", "numpy", "--precisions", "tf32")
    assert "--precisions got tf32; what runs on the host takes ieee" in message


def test_a_layer_that_there_is_not_leaves_no_file(tmp_path, capsys):
    where = "--results", str(tmp_path), "--algorithms", "numpy", "--workload", "typo"
    assert "--workload got 'typo'" in refused(capsys, *where)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    rows, done = on_host.rows, []

    def until(*given):
        done.append(1)
        if len(done) > 1:
            raise KeyboardInterrupt
        return rows(*given)

    monkeypatch.setattr(on_host, "rows", until)
    where = ["--results", str(tmp_path), "--algorithms", "numpy"]
    assert own.main(NAME, "A test.", LAYERS, where) == 130
    assert "interrupted" in capsys.readouterr().err
    assert len(records.read(tmp_path / on_host.processor() / f"{NAME}.csv")) == 1


def test_without_a_gpu_its_algorithms_are_refused(capsys):
    assert "there is no GPU here" in refused(capsys)


@pytest.mark.slow
def test_the_example_as_a_command(tmp_path):
    """As its user runs it; it is short, and stays so."""
    code = Path(own_experiment.__file__).read_text()
    assert len(list(filter(str.strip, code.split('"""')[2].splitlines()))) <= 15
    command = [sys.executable, "-m", "experiments.own_experiment", "--results", str(tmp_path)]
    command += ["--algorithms", "numpy", "--passes", "forward"]
    subprocess.run(command, cwd=provenance.ROOT, env=os.environ, check=True, capture_output=True)
    rows = records.read(tmp_path / on_host.processor() / "own_experiment.csv")
    assert {(row["KH"], row["D1"]) for row in rows} == {(k, d) for k in "135" for d in "24"}
    assert len(rows) == len(own_experiment.LAYERS) and all(row["ms_p50"] for row in rows)
