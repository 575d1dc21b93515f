"""Routing beside PyTorch's: what is computed, how rows are kept and told. Nothing is timed here."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments import record, routing
from experiments.measuring import (
    routed,
    routed_cells,
    routing_rows,
    tables,
)
from experiments.measuring.problem import WrongResult
from experiments.plots import routing as figure
from experiments.plots.rows import EXPERIMENTS, Lacking
from numbacaps import Geometry
from numbacaps.device.target import cuda
from numbacaps.routing.options import Options

torch = pytest.importorskip("torch")
SMALL = {
    "dynamic": routed.Workload(Geometry(3, 4, 3, 1, 1, 1, 1, 1, 1, 2, 4)),
    "em": routed.Workload(Geometry(3, 5, 3, 4, 4, 2, 2, 1, 2, 2, 2, (2, 2)), Options("em")),
    "sums": routed.Workload(Geometry(3, 4, 2, 3, 3, 3, 3, 1, 1, 2, 4), Options(votes="sum")),
}
NOW = {"gpu": "here", "driver": "1", "versions": "{}", "source_sha256": "now"}


@pytest.mark.parametrize("wanted", routed.PASSES)
@pytest.mark.parametrize("name", SMALL)
def test_contestants_agree_with_float64(name, wanted):
    for contestant in ("fused", "torch"):
        make = routed.CONTESTANTS[contestant]
        assert routed.error(make, SMALL[name], wanted, device="cpu") < 1e-4
        found = make(SMALL[name], SMALL[name].tensors(device="cpu"), wanted)()
        of_em, gradients = name == "em", wanted == "training"
        assert len(found) == (2 if of_em else 1) + gradients * (5 if of_em else 2)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", routed.PASSES)
@pytest.mark.parametrize(
    "name, contestant",
    [("dynamic", "graph"), ("em", "graph"), *((name, "stored") for name in SMALL)],
)
def test_what_a_graph_captures(name, contestant, wanted, monkeypatch):
    """On the simulator, whose arrays share the tensors' memory."""
    wrapped = type(cuda.to_device(np.zeros(1)))
    monkeypatch.setattr(cuda, "as_cuda_array", lambda one: wrapped(one.numpy()), raising=False)
    monkeypatch.setattr(cuda, "external_stream", lambda address: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    make = routed.CONTESTANTS[contestant]
    assert routed.error(make, SMALL[name], wanted, device="cpu") < 1e-4


def test_an_error_shows():
    def wrong(workload, tensors, wanted):
        return lambda: [
            1.5 * one for one in routed.CONTESTANTS["torch"](workload, tensors, wanted)()
        ]

    with pytest.raises(WrongResult, match="relative error 5.0e-01, at most"):
        routed.error(wrong, SMALL["dynamic"], "forward", device="cpu")


def test_published_sizes():
    g = routed.WORKLOADS["em-conv1-64"].geometry
    assert (g.OH, g.OW, g.Q) == (6, 6, 288)
    assert routed.WORKLOADS["em-conv1-64"].votes_nbytes == pytest.approx(64 * 21.2e6, 0.01)
    assert routed.WORKLOADS["em-conv1-128"].votes_nbytes == 2 * g.N * 21233664
    assert routed.WORKLOADS["em-conv2-8"].geometry.OH == 4
    assert routed.WORKLOADS["em-class-8"].geometry.L == 1
    assert routed.WORKLOADS["apple-conv-128"].geometry.OH == 7
    assert routed.WORKLOADS["digitcaps-128"].votes_nbytes == 128 * 1152 * 160 * 4
    assert routed.WORKLOADS["segcaps-r3-1"].votes_nbytes == 128 * 128 * 16 * 4 * 32 * 4


@pytest.fixture
def here(as_on_a_gpu, monkeypatch, tmp_path):
    """As on a GPU: no contestant runs, and a time is the length of its name."""
    monkeypatch.setattr(routed, "error", lambda *how: 1e-7)
    timed = []

    def fake(workload, wanted, contestant):
        timed.append((wanted, contestant))
        if contestant == "compiled":
            raise RuntimeError("no compiler")
        return {"ms": float(len(contestant)), "extra_mb": 1.0}

    monkeypatch.setattr(routed_cells, "_timed", fake)
    return ["--workloads", "digitcaps-128,em-conv1-8", "--results", str(tmp_path)], timed


def test_a_run_writes_every_row_once(here, tmp_path, capsys):
    arguments, timed = here
    assert routing.main(arguments) == 0
    assert len(timed) == 2 * 2 * 6
    rows = routing.listing(tmp_path / "here").rows
    assert len(rows) == 24 and {row["note"] for row in rows} >= {""}
    assert all("no compiler" in row["note"] for row in rows if row["contestant"] == "compiled")
    said = capsys.readouterr().out
    assert "digitcaps-128" in said and "1.0e-07" in said and "no compiler" in said
    assert routing.main(arguments) == 0 and len(timed) == 24, "rows are kept"
    routing.main([*arguments, "--passes", "forward", "--fresh"])
    assert len(timed) == 36


def test_shards_are_the_whole_and_who_is_compared_falls_to_one(here, tmp_path):
    arguments, timed = here
    arguments[1] = ",".join(routed.WORKLOADS)
    for part in ("1/3", "2/3", "3/3"):
        before = len(timed)
        assert routing.main([*arguments, "--shard", part]) == 0
        assert len(timed) > before and (len(timed) - before) % len(routed.CONTESTANTS) == 0
    keys = [
        tuple(row[key] for key in routing.KEYS) for row in routing.listing(tmp_path / "here").rows
    ]
    cases = routing.cases(routing.make_parser().parse_args([]))
    assert sorted(keys) == sorted(cases) and len(timed) == len(cases)


def test_the_ratio_is_to_the_best_opponent():
    rows = [
        dict.fromkeys(routing.VALUES, "")
        | {
            "workload": "digitcaps-1",
            "pass": "forward",
            "contestant": name,
            "ms": ms,
            "error": "1e-7",
        }
        | {"operands_mb": "2", "extra_mb": "1"}
        for name, ms in (
            *(("fused", "4"), ("graph", "2"), ("stored", "1")),
            *(("torch", "30"), ("torch_graph", "25"), ("compiled", "20")),
        )
    ]
    line = routing_rows.told(rows)[1].split()
    assert line[:2] == ["digitcaps-1", "forward"] and line[8:] == ["10.0", "1.50", "1.0e-07"]


def _measured():
    """Rows of which one failed."""
    row = dict.fromkeys(routing.VALUES, "") | {"workload": "em-class-8", "operands_mb": "2"}
    row |= NOW | {"error": "1e-7", "extra_mb": "1", "gpu_uuid": ""}
    times = {"graph": "0.25", "stored": "0.5", "torch": "2.5", "torch_graph": "1"}
    rows = [row | {"pass": "forward", "contestant": name, "ms": ms} for name, ms in times.items()]
    return [*rows, row | {"pass": "training", "contestant": "graph", "note": "RuntimeError: lost"}]


def test_the_figure_and_the_table():
    drawn = figure.draw(_measured())
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        "forward",
        "forward and backward",
    ]
    words = [text.get_text() for text in drawn.axes[0].texts]
    assert words == ["0.250  (1)", "0.500  (1)", "2.50  (1)", "1.00  (1)"]
    assert [text.get_text() for text in drawn.axes[1].texts] == ["× failed"]
    assert drawn.axes[0].get_ylim() == drawn.axes[1].get_ylim()
    names = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert names[0] == "em-class-8, numbacaps, CUDA graph"
    with pytest.raises(Lacking):
        figure.draw([])
    data = dict.fromkeys(EXPERIMENTS, ()) | {"torch": [], "routing": _measured()}
    made = tables.tables(data)["routing"]
    assert (
        "| em-class-8 | forward | 2.50 | 1.00 |  | 0.250 | 4.00 | 1.50 | 1.50 | 1.0e-07 |" in made
    )
    assert "| em-class-8 | training |  |  |  |  |  |  |  |  |" in made


def test_bad_names_are_refused(capsys):
    with pytest.raises(SystemExit) as exit:
        routing.main(["--workloads", "digits"])
    assert exit.value.code == 2 and "digits" in capsys.readouterr().err


def test_without_a_gpu_it_says_what_works(capsys):
    with pytest.raises(SystemExit) as exit:
        routing.main([])
    assert exit.value.code == 2 and "there is no GPU here" in capsys.readouterr().err


def test_the_record_knows_whose_file_it_is(monkeypatch, tmp_path):
    """The CSV has another name than the experiment."""
    folder = tmp_path / "here"
    monkeypatch.setattr(record.provenance, "measured", lambda results: ["here"])
    routing.listing(folder, NOW).add([dict.fromkeys(routing.KEYS, "a")])
    assert "here/routing.csv; python -m experiments.routing" in record.older(tmp_path)
