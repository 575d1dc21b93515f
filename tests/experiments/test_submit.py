"""Experiments as jobs: what each job runs, and the jobs themselves, by submitit's executor for one machine."""

import re
import shlex
import sys

import pytest

from experiments import submit, sweep
from experiments.measuring import provenance, records
from experiments.measuring.shard import Shard

_README = (provenance.ROOT / "experiments" / "README.md").read_text()
_PREDICTED = ["--predict", "H100-SXM", "--vary", "D2=1,2,3", "--algorithms", "fused"]


def _predictions(results):
    path = results / "H100-SXM-predicted" / "sweep.csv"
    return [row | {"timestamp": ""} for row in records.read(path)]


def test_each_job_has_a_shard():
    first, second = submit.commands("sweep", 2, ["--preset", "batch"])
    assert first[1:] == ["-m", "experiments.sweep", "--preset", "batch", "--shard", "1/2"]
    assert first[0] == sys.executable and second[-1] == str(Shard(2, 2))


@pytest.mark.slow
def test_jobs_here_are_the_whole(tmp_path, capsys):
    pytest.importorskip("submitit", reason="the extra 'cluster' is not installed")
    where = ["--results", str(tmp_path / "jobs")]
    logs = ["--logs", str(tmp_path / "logs")]
    assert submit.main(["sweep", "--shards", "3", *logs, *_PREDICTED, *where]) == 0
    assert "3 of 3 jobs are done" in capsys.readouterr().out
    assert sweep.main([*_PREDICTED, "--results", str(tmp_path / "whole")]) == 0
    assert _predictions(tmp_path / "jobs") == _predictions(tmp_path / "whole")
    assert len(_predictions(tmp_path / "jobs")) == 36


@pytest.mark.slow
def test_a_job_that_fails_is_named(tmp_path, capsys, monkeypatch):
    """Without a GPU a job measures nothing, and says so."""
    pytest.importorskip("submitit", reason="the extra 'cluster' is not installed")
    monkeypatch.setenv("NUMBACAPS_TARGET", "sim")
    arguments = ["stages", "--shards", "1", "--logs", str(tmp_path)]
    assert submit.main([*arguments, "--results", str(tmp_path)]) == 1
    assert re.search(r"^job \S+, shard 1/1: ", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such"], "invalid choice: 'no_such'"),
        (["sweep", "--shards", "0"], "--shards: got '0'; it takes a number of 1 or more"),
        (["sweep", "--preset", "none"], "invalid choice: 'none'"),
        (["sweep", "--shard", "1/2"], "--shard and --gpus stand alone"),
        (["sweep", "--gpus", "all"], "--shard and --gpus stand alone"),
        (["drawn_speed"], "--seed got nothing; it takes a number"),
        (["sweep", "--slurm"], "--slurm got no cluster here; it takes a machine with sbatch"),
    ],
)
def test_refusals(arguments, said, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit) as stop:
        submit.main(arguments)
    assert stop.value.code == 2 and said in capsys.readouterr().err


def test_ctrl_c_stops_the_jobs_here(monkeypatch, tmp_path, capsys):
    class Job:
        cancelled = False

        def exception(self):
            raise KeyboardInterrupt

        def cancel(self):
            self.cancelled = True

    jobs = [Job(), Job()]
    monkeypatch.setattr(submit, "submit", lambda *how: jobs)
    assert submit.main(["sweep"]) == 130 and all(job.cancelled for job in jobs)
    assert "interrupted; the same command goes on" in capsys.readouterr().err


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """What sbatch is given, by an sbatch that notes it: a function that reads it."""
    pytest.importorskip("submitit", reason="the extra 'cluster' is not installed")
    for name in ("sbatch", "srun"):
        script = f'#!/bin/sh\nfor last; do :; done\ncp "$last" {tmp_path}/given\n'
        (tmp_path / name).write_text(f'{script}echo "Submitted batch job 77"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return (tmp_path / "given").read_text


def test_a_cluster_gets_one_array(cluster, tmp_path, capsys):
    arguments = ["sweep", "--shards", "3", "--slurm", "--partition", "gpu", "--minutes", "9"]
    assert submit.main([*arguments, "--logs", str(tmp_path / "logs"), "--preset", "batch"]) == 0
    given = cluster()
    for line in ("--array=0-2", "--gpus-per-node=1", "--partition=gpu", "--time=9"):
        assert f"#SBATCH {line}" in given, given
    assert "3 jobs, 77; what they print is in" in capsys.readouterr().out


def test_jobs_here_have_a_gpu_each(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-x")
    options, _ = submit.make_parser().parse_known_args(["sweep"])
    found = submit.environments(options)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["0", "GPU-x"]
    assert all(one["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for one in found)  # as nvidia-smi counts
    options, _ = submit.make_parser().parse_known_args(["sweep", "--slurm"])
    assert submit.environments(options) == [None, None]
    with pytest.raises(SystemExit):
        submit.main(["sweep", "--shards", "3"])
    assert "--shards got 3; without --slurm it takes 2, a GPU each" in capsys.readouterr().err


# ---- the README's commands


def _told(module):
    """The arguments of each command of a module in the README's blocks."""
    blocks = re.findall(r"```\n(.*?)```", _README, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    found = (re.search(rf"-m {re.escape(module)}(.*)$", line) for line in lines)
    return [shlex.split(one[1], comments=True) for one in found if one]


def test_the_readme_s_sweeps(tmp_path, monkeypatch, capsys):
    """As far as there is no GPU: one refuses to measure without, the other predicts its shard of the rows."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    everywhere, shard = _told("experiments.sweep")
    with pytest.raises(SystemExit) as stop:
        sweep.main(everywhere)
    assert stop.value.code == 2 and "there is no GPU here" in capsys.readouterr().err
    where = ["--predict", "H100-SXM", "--results", str(tmp_path)]
    assert sweep.main([*shard, *where]) == 0
    assert _predictions(tmp_path) and sweep.make_parser().parse_args(shard).shard == Shard(2, 3)


def test_the_readme_s_jobs(cluster, tmp_path, capsys):
    (arguments,) = _told("experiments.submit")
    assert submit.main([*arguments, "--logs", str(tmp_path / "logs")]) == 0
    assert "#SBATCH --array=0-7" in cluster() and "--partition=gpu" in cluster()
    assert "8 jobs, 77; what they print is in" in capsys.readouterr().out
