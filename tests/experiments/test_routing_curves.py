"""Routing over the batch and the iterations: what is computed, how rows are kept, told and drawn. Nothing is timed here."""

from dataclasses import replace

import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments import figures, record, routing_curves
from experiments.measuring import (
    provenance,
    routed,
    routed_cells,
    routing_curve_rows,
)
from experiments.measuring.problem import WrongResult
from experiments.plots import routing_curves as figure
from experiments.plots.canvas import STYLE, cross
from experiments.plots.rows import Lacking
from numbacaps import Geometry
from numbacaps.routing.options import Options
from tests.support.written import check_words

torch = pytest.importorskip("torch")
NOW = {"gpu": "here", "driver": "1", "versions": "{}", "source_sha256": "now"}
NETWORKS = {"digitcaps": "digitcaps-128", "em-conv1": "em-conv1-8"}
MARKER = cross()["marker"]


# ---- what is computed


def test_cases():
    every = routing_curves.cases(routing_curves.make_parser().parse_args([]))
    assert len(every) == len(set(every)) == (6 + 5 + 5 + 5) * 2 * 3
    for case in (
        ("digitcaps", "batch", 1024, "training", "torch"),
        ("em-conv1", "batch", 256, "forward", "graph"),
        ("em-conv1", "iterations", 8, "training", "torch_graph"),
    ):
        assert case in every
    assert ("em-conv1", "batch", 1024, "forward", "graph") not in every
    few = ["--networks", "em-conv1", "--axes", "iterations", "--passes", "forward"]
    few += ["--contestants", "graph"]
    some = routing_curves.cases(routing_curves.make_parser().parse_args(few))
    assert some == [("em-conv1", "iterations", at, "forward", "graph") for at in (1, 2, 3, 5, 8)]


@pytest.mark.parametrize("network", NETWORKS)
def test_workloads_of_the_batch(network):
    known = routed.WORKLOADS[NETWORKS[network]]
    for at in routing_curve_rows.PLACES["batch"][network]:
        made = routing_curves.workload_of(network, "batch", at)
        assert made.geometry == replace(known.geometry, N=at)
        assert made.options == known.options and made.options.iterations == 3


@pytest.mark.parametrize("network, images", [("digitcaps", 128), ("em-conv1", 16)])
def test_workloads_of_the_iterations(network, images):
    known = routed.WORKLOADS[NETWORKS[network]]
    for at in routing_curve_rows.PLACES["iterations"][network]:
        made = routing_curves.workload_of(network, "iterations", at)
        assert made.geometry == replace(known.geometry, N=images)
        assert made.options == replace(known.options, iterations=at)


def test_an_error_is_measured_by_that_of_stored_votes(monkeypatch):
    """More than 1e-4 is right only where PyTorch's float32 is a fourth as far off."""
    real, off = routed.plain, [0.0]

    def plain(workload, tensors):
        factor = 1 + (off[0] if tensors["x"].dtype == torch.float32 else 0.0)
        return [factor * one for one in real(workload, tensors)]

    monkeypatch.setattr(routed, "plain", plain)
    small = routed.Workload(Geometry(3, 5, 3, 4, 4, 2, 2, 1, 2, 2, 2, (2, 2)), Options("em"))

    def error(wrong):
        def make(*problem):
            exact = routed._by_torch(real)(*problem)
            return lambda: [(1 + wrong) * one for one in exact()]

        return routed.error(make, small, "forward", device="cpu")

    assert error(0.5e-4) < 1e-4
    for wrong in (2e-4, 3e-3):
        with pytest.raises(WrongResult, match="at most 1.0e-04"):
            error(wrong)
    off[0] = 1e-3
    assert 2e-3 < error(3e-3) < 4e-3
    for wrong in (5e-3, float("nan")):
        with pytest.raises(WrongResult, match="at most 4.0e-03"):
            error(wrong)


# ---- rows


@pytest.fixture
def here(as_on_a_gpu, monkeypatch, tmp_path):
    """As on a GPU: no contestant runs, and stored votes of more than 4 GB do not fit; (arguments, who was timed)."""
    monkeypatch.setattr(routed, "error", lambda *how: 1e-7)
    timed = []

    def fake(workload, wanted, contestant):
        timed.append((workload, wanted, contestant))
        if contestant != "graph" and workload.votes_nbytes > 4e9:
            raise torch.OutOfMemoryError("no room")
        ms = workload.geometry.N * workload.options.iterations * len(contestant)
        return {"ms": float(ms), "extra_mb": 1.0} if contestant != "torch_graph" else {"ms": 2.0}

    monkeypatch.setattr(routed_cells, "_timed", fake)
    return ["--results", str(tmp_path)], timed


def _rows(tmp_path):
    return routing_curves.listing(tmp_path / "here").rows


def test_a_run_writes_every_row_once_and_goes_on(here, tmp_path, capsys):
    arguments, timed = here
    few = [*arguments, "--networks", "em-conv1", "--axes", "iterations"]
    assert routing_curves.main(few) == 0
    assert len(timed) == len(_rows(tmp_path)) == 5 * 2 * 3
    assert routing_curves.main(arguments) == 0
    assert len(timed) == len(set(timed)) + 6 == 126  # 3 iterations of 16 images are on both axes
    rows = {tuple(row[key] for key in routing_curves.KEYS): row for row in _rows(tmp_path)}
    assert len(rows) == 126
    row = rows["digitcaps", "iterations", "8", "forward", "torch"]
    assert float(row["ms"]) == 128 * 8 * 5 and float(row["votes_mb"]) == pytest.approx(94.3718)
    assert row["error"] == "1e-07" and float(row["extra_mb"]) == 1
    lacking = rows["em-conv1", "batch", "256", "training", "torch"]
    assert lacking["note"] == "out of memory: no room" and lacking["ms"] == ""
    assert sum(bool(row["note"]) for row in rows.values()) == 2 * 2
    assert "torch: out of memory: no room" in capsys.readouterr().out
    assert routing_curves.main(arguments) == 0 and len(timed) == 126, "rows are kept"


def test_a_curve_falls_to_one_shard(here, tmp_path):
    arguments, timed = here
    for part in ("1/3", "2/3", "3/3"):
        before = {_curve(row) for row in _rows(tmp_path)}
        assert routing_curves.main([*arguments, "--shard", part]) == 0
        after = [_curve(row) for row in _rows(tmp_path)]
        assert before < set(after)
        assert all(after.count(curve) == _length(curve) for curve in set(after))
    assert len(timed) == 126


def _curve(row):
    return row["network"], row["axis"], row["pass"]


def _length(curve):
    return 3 * len(routing_curve_rows.PLACES[curve[1]][curve[0]])


def test_the_record_knows_whose_file_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(record.provenance, "measured", lambda results: ["here"])
    routing_curves.listing(tmp_path / "here", NOW).add([dict.fromkeys(routing_curves.KEYS, "a")])
    (line,) = record.older(tmp_path)
    assert line == "here/routing_curves.csv; python -m experiments.routing_curves"
    assert record.WHOLE["routing_curves"] is routing_curves


def test_bad_names_are_refused(capsys):
    for option, name in (
        ("--networks", "digits"),
        ("--axes", "images"),
        ("--contestants", "fused"),
    ):
        with pytest.raises(SystemExit) as exit:
            routing_curves.main([option, name])
        assert exit.value.code == 2 and name in capsys.readouterr().err


# ---- told and drawn


def _row(at, contestant, ms="", extra_mb="", **more):
    """A row of DigitCaps over the batch."""
    where = {"network": "digitcaps", "axis": "batch", "at": at, "pass": "forward"}
    row = dict.fromkeys(routing_curves.VALUES, "") | NOW | {"gpu_uuid": ""} | where
    return row | {"contestant": contestant, "ms": ms, "extra_mb": extra_mb} | more


def _measured(last):
    """Rows of three batches, not in their order; at the last PyTorch has these cells."""
    return [
        *(_row("64", "graph", "1", "2"), _row("64", "torch", **last)),
        *(_row("4", "graph", "0.25", "0.5"), _row("4", "torch", "3", "10")),
        *(_row("16", "graph", "0.5", "1"), _row("16", "torch", "6", "40")),
        *(_row("16", "torch_graph", "4"), _row("4", "torch_graph", "2")),
    ]


FITS = {"ms": "24", "extra_mb": "160"}
LACKS = {"note": "out of memory: no room"}


def test_the_table():
    header, *lines = routing_curve_rows.told(_measured(LACKS))
    assert header.split() == [
        *("ms", "axis", "at", "pass", "graph", "torch_graph", "torch"),
        *("ratio", "MB,", "ours", "PyTorch"),
    ]
    assert [line.split() for line in lines[:3]] == [
        ["digitcaps", "batch", "4", "forward", "0.25", "2", "3", "8.0", "0.50", "10.00"],
        ["digitcaps", "batch", "16", "forward", "0.5", "4", "6", "8.0", "1.00", "40.00"],
        ["digitcaps", "batch", "64", "forward", "1", "-", "-", "-", "2.00", "-"],
    ]
    assert lines[3:] == ["  torch: out of memory: no room"]


def _curves(axes):
    """The points of each curve, without the dots and crosses behind their ends."""
    lines = [line for line in axes.lines if line.get_marker() == "o"]
    return {
        line.get_color(): list(zip(map(int, line.get_xdata()), map(float, line.get_ydata())))
        for line in lines
    }


def _crosses(axes):
    return [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_marker() == MARKER
    ]


def _legend(drawn):
    return [text.get_text() for text in drawn.legends[0].get_texts()]


def _colour(name):
    return figure.LINES[name].colour


def test_the_figure_of_rows_that_all_fit():
    drawn = figure.draw(_measured(FITS))
    time, memory = drawn.axes
    assert time.get_title(loc="left") == "digitcaps, time, 3 iterations"
    assert memory.get_title(loc="left") == "digitcaps, extra memory, 3 iterations"
    assert _curves(time) == {
        _colour("graph"): [(4, 0.25), (16, 0.5), (64, 1)],
        _colour("torch_graph"): [(4, 2), (16, 4)],
        _colour("torch"): [(4, 3), (16, 6), (64, 24)],
    }
    assert _curves(memory) == {
        _colour("graph"): [(4, 0.5), (16, 1), (64, 2)],
        _colour("torch"): [(4, 10), (16, 40), (64, 160)],
    }
    assert (time.get_xscale(), time.get_yscale()) == ("log", "log")
    assert _crosses(time) == _crosses(memory) == []
    assert "out of memory" not in _legend(drawn)


def test_the_figure_says_where_memory_ran_out():
    drawn = figure.draw(_measured(LACKS))
    time, memory = drawn.axes
    assert _crosses(time) == [(64, 6)] and _crosses(memory) == [(64, 40)]
    last = _curves(time)[_colour("torch")][-1]
    assert last[0] == 64 and last[1] != last[1], "no time is invented"
    assert _legend(drawn) == [
        *("numbacaps, CUDA graph", "PyTorch, CUDA graph", "PyTorch, votes stored"),
        *("forward", "forward and backward", "out of memory"),
    ]


def test_passes_and_iterations_of_the_figure():
    several = [
        _row(at, "graph", ms, axis="iterations", **{"pass": wanted})
        for wanted, ms in (("forward", "1"), ("training", "3"))
        for at in ("1", "8")
    ]
    (axes,) = figure.draw(several).axes
    assert axes.get_title(loc="left") == "digitcaps, time, 128 images"
    assert (axes.get_xscale(), axes.get_xlabel()) == ("linear", "iterations")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8"]
    forward, training = axes.lines
    assert list(forward.get_ydata()) == [1, 1] and forward.get_linestyle() == "-"
    assert list(training.get_ydata()) == [3, 3] and training.get_linestyle() == "--"


def test_a_figure_takes_times():
    for rows in ([], [_row("4", "torch", **LACKS)]):
        with pytest.raises(Lacking):
            figure.draw(rows)


def test_no_words_of_the_full_figure_collide(here, tmp_path):
    """Two networks, all panels, and a cross in the legend."""
    routing_curves.main(here[0])
    with style.context(["default", STYLE]):
        drawn = figure.draw(_rows(tmp_path))
        assert len(drawn.axes) == 6 and "out of memory" in _legend(drawn)
        renderer = FigureCanvasAgg(drawn).get_renderer()
        drawn.draw(renderer)
        check_words(drawn, renderer)


def test_current_rows_are_drawn(tmp_path, capsys):
    results, out = tmp_path / "results", tmp_path / "out"
    where = ["--results", str(results), "--out", str(out)]
    routing_curves.listing(results / "here", NOW).add(_measured(LACKS))
    assert figures.main(where) == 1  # of other sources
    said = capsys.readouterr().out
    assert "routing-curves skipped: routing_curves.csv has no times of routing; " in said
    assert "python -m experiments.routing_curves makes it" in said
    now = {"source_sha256": provenance.source_sha256()}
    routing_curves.listing(results / "here", NOW | now).add([row | now for row in _measured(LACKS)])
    assert figures.main(where) == 0
    assert {path.name for path in out.iterdir()} == {"routing-curves.png", "routing-curves.svg"}
