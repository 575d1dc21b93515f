"""Steps on several GPUs: what is started, told and drawn, and the steps themselves in processes on the host."""

import subprocess

import pytest

from experiments.measuring import cards, command, listed, provenance, scaling_rows
from experiments.measuring.scaling_rows import KEYS
from experiments.plots.rows import Lacking

pytestmark = pytest.mark.tiers("simulator")


@pytest.fixture
def scaling():
    pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    from experiments import scaling

    return scaling


def row(batch, contestant, gpus, ms, precision="default"):
    key = batch, precision, contestant, str(gpus), str(scaling_rows.images_of(batch, gpus))
    return dict(zip(KEYS, key)) | {"ms": str(ms), "error": "1e-7", "note": "", "gpu": "a card"}


def test_a_point_is_compared_with_one_gpu():
    rows = [row("each", "modules", 2, 2.0), row("each", "modules", 1, 1.0)]
    (points,) = scaling_rows.curves(rows).values()
    assert points == [(1, 128e3, 1.0), (2, 128e3, 0.5)]
    (alone,) = scaling_rows.curves(rows[:1]).values()
    assert alone[0].efficiency is None
    assert scaling_rows.told(rows)[2].split() == "each default modules 2 128000 0.50".split()


def test_a_row_without_a_time_is_told():
    lost = row("each", "modules", 2, "") | {"note": "a process died"}
    assert scaling_rows.curves([lost]) == {}
    assert "a process died" in scaling_rows.told([lost])[-1]


def test_the_figure_has_a_panel_for_each_batch_and_class():
    from experiments.plots.scaling import draw

    rows = [
        row(batch, name, gpus, 1.5)
        for batch in scaling_rows.BATCHES
        for name in ("modules", "twin-nchw")
        for gpus in (1, 2)
    ]
    titles = [axes.get_title(loc="left") for axes in draw(rows).axes]
    assert titles == ["1024 images shared by all GPUs, default", "128 images for each GPU, default"]
    with pytest.raises(Lacking):
        draw([])


def test_processes_double_up_to_all_gpus(scaling, monkeypatch):
    assert [scaling.counts(gpus) for gpus in (1, 2, 3, 8)] == [[1], [1, 2], [1, 2], [1, 2, 4, 8]]
    monkeypatch.setattr(cards, "visible", lambda: ["0", "1"])
    monkeypatch.setattr(scaling.opponents, "torch_on_gpu", lambda: None)
    keys = [keys[0] for keys, _ in scaling.jobs(scaling.make_parser().parse_args([]))]
    assert ("shared", "tf32", "modules", 2, 1024) in keys and (
        "each",
        "tf32",
        "modules",
        2,
        256,
    ) in keys
    assert len(keys) == 8


def test_what_a_failed_process_says_is_its_rows_note(scaling, monkeypatch):
    failed = subprocess.CompletedProcess([], 3, stderr="nccl: no such device")
    monkeypatch.setattr(scaling.subprocess, "run", lambda *_, **__: failed)
    keys = [("each", "default", name, 2, 256) for name in ("modules", "twin-nchw")]
    assert [row["note"] for row in scaling.measure(keys)] == [
        "exit status 3: nccl: no such device"
    ] * 2


def test_every_row_is_measured_once(scaling, monkeypatch, tmp_path, capsys):
    now = {"gpu": "here", "driver": "1", "versions": "{}", "source_sha256": "now"}
    monkeypatch.setattr(command, "refuse_without_gpu", lambda name: None)
    monkeypatch.setattr(provenance, "gpu_name", lambda: "here")
    monkeypatch.setattr(listed, "of_machine", lambda: now)
    monkeypatch.setattr(cards, "visible", lambda: ["0", "1"])
    monkeypatch.setattr(cards, "busy_neighbours", lambda: 1)
    monkeypatch.setattr(scaling.opponents, "torch_on_gpu", lambda: None)
    measured = []

    def measure(keys):
        measured.append(keys)
        return [dict(zip(KEYS, key)) | {"ms": 2.0, "error": 1e-7} for key in keys]

    monkeypatch.setattr(scaling, "measure", measure)
    for _ in range(2):
        assert scaling.main(["--results", str(tmp_path)]) == 0
        assert len(measured) == 8
    assert len(scaling.listing(tmp_path / "here").rows) == 24
    assert "0.50" in capsys.readouterr().out  # two GPUs that take as long for the same batch as one


def test_gpus_are_chosen_by_their_variable(scaling, capsys):
    with pytest.raises(SystemExit):
        scaling.main(["--gpus", "all"])
    assert "CUDA_VISIBLE_DEVICES" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_steps_of_several_processes_are_those_of_the_whole_batch(scaling, processes):
    """Each contestant's loss and gradients are compared with float64's of the whole batch by the processes themselves."""
    keys = [("each", "default", name, processes, 4) for name in scaling.CONTESTANTS]
    on_host = "--device", "cpu", "--warm-ups", "1", "--turns", "1"
    rows = scaling.measure(keys, on_host)
    assert [row["contestant"] for row in rows] == list(scaling.CONTESTANTS)
    for row in rows:
        assert not row.get("note") and row["ms"] > 0 and row["error"] < 1e-4


@pytest.mark.slow
def test_a_batch_that_cannot_be_shared_is_refused(scaling, tmp_path):
    keys = [("each", "default", "modules", 2, 3)]
    (row,) = scaling.measure(keys, ("--device", "cpu"))
    assert "--images: got 3, a multiple of 2 is wanted" in row["note"]


# ---- rows beside busy neighbours


def _table(folder, times):
    from experiments.measuring import records

    rows = [
        dict.fromkeys(records.COLUMNS, "") | {"workload": name, "ms_p50": str(ms)}
        for name, ms in times.items()
    ]
    records.write(folder / "fused.csv", rows)
    return folder / "fused.csv"


def test_a_factor_counts_either_way_up(tmp_path):
    from experiments import neighbours

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    alone = neighbours.times(_table(tmp_path / "a", {"x": 1.0, "y": 2.0, "z": 3.0}))
    beside = neighbours.times(_table(tmp_path / "b", {"x": 1.1, "y": 1.0, "z": 3.0}))
    median, p95, most = neighbours.moved(alone, beside)
    assert (median, p95, most) == (pytest.approx(1.1), pytest.approx(1.1), 2.0)
    with pytest.raises(ValueError, match="3 rows alone, 0 beside"):
        neighbours.moved(alone, {})


def test_one_card_is_measured_beside_all(monkeypatch):
    from experiments import neighbours

    asked = []

    def run(experiment, arguments, gpus, folder):
        asked.append((experiment, *arguments, gpus))
        return {"row": 1.0 + (gpus == "all")}, 30.0 if gpus == "0" else 15.0

    monkeypatch.setattr(neighbours, "run", run)
    one, both = neighbours.measure("sweep", ["--preset", "batch"], 2)
    assert asked == [("sweep", "--preset", "batch", gpus) for gpus in ("all", "0", "all")]
    assert (one["gpus"], one["rows_per_minute"], both["rows_per_minute"]) == (1, 2.0, 4.0)
    assert "moved_most" not in one and both["moved_most"] == 2.0
