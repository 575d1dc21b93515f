"""The figures and the README's tables: made from CSVs alone, the same every time, nothing hidden."""

import json
import os
import subprocess
import sys
from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from experiments import figures, plots
from experiments.measuring import provenance, records, sources
from experiments.measuring.problem import NETWORK_PASSES
from experiments.measuring.tables import HOLDERS, UNMEASURED, filled, marked, tables
from experiments.plots import training
from experiments.plots.paper import column
from experiments.plots.rows import PASSES, Lacking, digits, load, load_all, split_sweep
from numbacaps import stages as pipeline
from tests.support.written import check_words, words_of

GPU = "NVIDIA-Test-1"
PNG = b"\x89PNG\r\n\x1a\n"
LAYERS = {  # C, P, H, stride, D1, D2, D3
    "layer 1": (1, 1, 28, 2, 1, 1, 32),
    "layer 2": (1, 4, 13, 1, 4, 8, 16),
    "layer 3": (4, 8, 11, 2, 4, 16, 8),
    "layer 4": (8, 4, 5, 1, 4, 8, 16),
    "layer 5": (4, 10, 3, 1, 4, 16, 8),
}
WIDE = {  # N, C, P, H, stride, D1, D2, D3
    "em": (128, 32, 32, 14, 1, 4, 4, 4),
    "em-wide": (128, 32, 32, 28, 1, 4, 4, 4),
    "caps16": (32, 16, 16, 32, 1, 16, 16, 16),
}
# milliseconds per GFLOP
OURS = {"naive": 4.1, "staged": 0.9, "cublas": 0.7, "indexed": 0.2}
OPPONENTS = {
    ("torch_fold", "nchw"): 0.015,
    ("torch_fold", "channels_last"): 0.018,
    ("torch_fold", "capsule"): 0.02,
    ("torch_fold_nhwc", "capsule"): 0.022,
    ("torch_unfold_einsum", "capsule"): 0.043,
    ("torch_extend_bmm", "capsule"): 15.0,
}
PRECISIONS = {"ieee": 1, "tf32": 0.25, "float16": 0.14}


def geometry(N, C, P, H, stride, D1, D2, D3, window=3):
    """The geometry's cells, and what it must compute and move."""
    OH = (H - window) // stride + 1
    values = (N, C, P, H, H, window, window, stride, 0, 1, 1, D1, D2, D3)
    flop = 2 * N * P * OH * OH * C * window * window * D1 * D2 * D3
    least = 4 * (
        N * C * H * H * D1 * D2 + P * C * window * window * D2 * D3 + N * P * OH * OH * D1 * D3
    )
    return dict(zip(records.GEOMETRY, values)) | {"gflop": flop / 1e9, "min_bytes": least}


def row(experiment, workload, cells, ms=None, **others):
    """A row; of a time its percentiles too."""
    common = {
        "experiment": experiment,
        "workload": workload,
        "pass": "forward",
        "layout": "capsule",
        "precision": "ieee",
        "dtype": "float32",
        "gpu": "NVIDIA Test 1",
        "driver": "580.1, CUDA 13.0",
        "versions": json.dumps({"numba-cuda": "0.30", "torch": "2.11", "cupy-cuda13x": "14.0"}),
        "source_sha256": "0123456789abcdef" * 4,
        "kernel_sources": sources.NO_KERNELS,
        "timestamp": "2026-01-02T03:04:05+00:00",
        "copy_gbs": 3000,
        "sgemm_tflops": 51.6,
    }
    times = {"ms_p20": 0.97 * ms, "ms_p50": ms, "ms_p80": 1.05 * ms} if ms else {}
    return common | cells | times | others


def variants(experiment, workload, cells):
    """Rows of every variant and pass."""
    rows = []
    for i, name in enumerate(PASSES):
        work = (0.01 + cells["gflop"]) * (1 + 0.3 * i)
        for algorithm, rate in OURS.items():
            ours = {"pass": name, "algorithm": algorithm}
            rows.append(row(experiment, workload, cells, rate * work, **ours))
        for (algorithm, layout), rate in OPPONENTS.items():
            for precision, factor in PRECISIONS.items():
                dtype = "float16" if precision == "float16" else "float32"
                theirs = {"pass": name, "algorithm": algorithm, "layout": layout, "dtype": dtype}
                ms, note = rate * factor * work, ""
                if algorithm == "torch_extend_bmm" and cells["gflop"] > 60:
                    ms, note = None, "out of memory: 153 GB asked for"
                how = {"precision": precision, "note": note}
                rows.append(row(experiment, workload, cells, ms, **theirs, **how))
    return rows


def stage_rows(workload, cells):
    """Rows of every stage, and of the whole passes."""
    rows = []
    for name, stages in pipeline.PASSES.items():
        for i, stage in enumerate(stages):
            how = {"pass": name, "algorithm": "staged", "stage": stage}
            ms = cells["gflop"] * (0.02 + 0.03 * i)
            rows.append(row("stages", workload, cells, ms, byte_fraction=0.9 - 0.1 * i, **how))
        for algorithm, rate in (("staged", 0.6), ("torch_extend_bmm", 15.0)):
            how = {"pass": name, "algorithm": algorithm}
            rows.append(row("stages", workload, cells, rate * cells["gflop"], **how))
    return rows


def memory_rows():
    rows = []
    for N in (8, 32, 128, 512):
        cells = geometry(N, *WIDE["em"][1:])
        needs = {"naive": 1.0, "staged": 40.0, "cublas": 44.0, "indexed": 1.0}
        for algorithm, times in needs.items():
            count = times * cells["min_bytes"]
            how = {"algorithm": algorithm, "predicted_bytes": count}
            failed = count > 8e9
            how |= {"note": "out of memory: too much"} if failed else {"peak_bytes": 1.03 * count}
            rows.append(row("memory", "em", cells, **how))
        how = {"algorithm": "torch_fold", "layout": "nchw", "peak_bytes": 2.2 * cells["min_bytes"]}
        rows.append(row("memory", "em", cells, **how))
    return rows


def everything():
    """Rows of all experiments."""
    table1 = []
    for workload, sizes in LAYERS.items():
        table1 += variants("table1", workload, geometry(128, *sizes))
    one = geometry(1, *LAYERS["layer 5"])
    table1 += variants("table1", "layer 5, one image", one)
    table1.append(row("table1", "layer 5, one image", one, 900.0, algorithm="reference"))
    sweep = []
    for D in (1, 4, 16):
        sweep += variants("sweep", "capsule-dims", geometry(128, 16, 16, 14, 1, D, D, D))
    for D2 in (1, 2, 4, 8):
        for D3 in (2, 8):
            cells = geometry(128, 16, 16, 14, 1, 4, D2, D3)
            sweep += variants("sweep", "D2=1,2,4,8 D3=2,8", cells)
    for workload, sizes in WIDE.items():
        sweep += variants("sweep", workload, geometry(*sizes))
    stages = [line for name in ("em", "caps16") for line in stage_rows(name, geometry(*WIDE[name]))]
    return {"table1": table1, "sweep": sweep, "stages": stages, "memory": memory_rows()}


def write(results, data, gpu=GPU):
    """Write the CSVs; return their folder."""
    for experiment, rows in data.items():
        records.write(results / gpu / f"{experiment}.csv", rows)
    return results / gpu


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A folder with results and what the command made of them."""
    folder = tmp_path_factory.mktemp("drawn")
    write(folder / "results", everything())
    assert command(folder) == 0
    return folder


def command(folder, *arguments):
    folders = ("--results", str(folder / "results"), "--out", str(folder / "out"))
    return figures.main([*folders, *arguments])


def loaded(folder, rows):
    """Rows as they are read back."""
    experiment = rows[0]["experiment"]
    return load(write(folder, {experiment: rows}) / f"{experiment}.csv")


def svg(folder, name):
    return (folder / "out" / f"{name}.svg").read_text()


NAMES = (
    *("table1", "sweep-capsule-dims", "sweep-d2-1-2-4-8-d3-2-8"),
    *("workloads", "roofline", "stages", "memory"),
)


@pytest.mark.slow
def test_every_figure_appears(drawn):
    found = {path.name for path in (drawn / "out").iterdir()}
    assert found == {f"{name}.{extension}" for name in NAMES for extension in ("png", "svg")}
    for name in NAMES:
        assert (drawn / "out" / f"{name}.png").read_bytes()[:8] == PNG
        assert svg(drawn, name).lstrip().startswith("<?xml") and "<svg" in svg(drawn, name)
        assert "PREDICTION" not in svg(drawn, name) and "NVIDIA Test 1" in svg(drawn, name)


@pytest.mark.slow
def test_the_same_bytes_again(tmp_path):
    write(tmp_path / "results", {"memory": memory_rows()})
    found = []
    for _ in range(2):
        assert command(tmp_path) == 0
        found.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert found[0] == found[1] and set(found[0]) == {"memory.png", "memory.svg"}


@pytest.mark.slow
def test_speedup_says_what_it_shows(drawn):
    text = svg(drawn, "sweep-capsule-dims")
    for words in ("D1 = D2 = D3", "1x", "N = 128", *PASSES, *OURS):
        assert f">{words}" in text or f"{words}," in text, words
    assert "torch_extend_bmm  ×  out of memory" in text
    assert "torch_fold tf32 best layout" in text and "torch_fold float16 best layout" in text
    assert "torch_unfold_einsum tf32" not in text
    two_axes = svg(drawn, "sweep-d2-1-2-4-8-d3-2-8")
    assert "D2: columns of an input capsule" in two_axes
    assert "indexed, D3 = 2" in two_axes and "indexed, D3 = 8" in two_axes


@pytest.mark.slow
def test_other_figures_say_what_they_show(drawn):
    assert "× out of memory" in svg(drawn, "workloads") and "em-wide" in svg(drawn, "workloads")
    text = svg(drawn, "table1")
    assert "paper, GPU: TITAN X Pascal" in text and "no batch size" in text and ">1570<" in text
    assert "copy 3000 GB/s" in svg(drawn, "roofline") and "51.6 TFLOP/s" in svg(drawn, "roofline")
    text = svg(drawn, "stages")
    assert "80%" in text and "strided_batched_matmul" in text and "em, backward" in text
    assert ">torch_extend_bmm,<" in text and ">whole pass, ms<" in text
    assert "staged  ×  out of memory" in svg(drawn, "memory")


def test_stages_say_their_time(tmp_path):
    """By hand: a bar is all of its stages' time, and its milliseconds stand beside it."""
    timed = (("forward", "kernel_extend", 1.0), ("forward", "output_reduce", 3.0))
    timed += (("forward", "", 4.5), ("backward_input", "kernel_extend", 0.02))
    cells = geometry(*WIDE["em"])
    rows = [
        row("stages", "em", cells, ms, algorithm="staged", stage=stage, **{"pass": name})
        for name, stage, ms in timed
    ]
    axes = plots.stages.draw(loaded(tmp_path, rows)).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [25, 75, 100]
    words = [text.get_text() for text in axes.texts]
    assert words[2:] == ["4.00", "4.50", "0.0200", "not measured"]  # after the columns' names


def test_speedup_is_over_the_fastest_layout(tmp_path):
    """By hand: the slower layout is 1.5/3 of the faster, whichever that is at a point."""
    rows = []
    for C, nchw, channels_last in ((1, 1.5, 3.0), (4, 6.0, 3.0)):
        cells = geometry(8, C, 4, 8, 1, 2, 2, 2)
        for layout, ms in (("nchw", nchw), ("channels_last", channels_last)):
            rows.append(row("sweep", "channels", cells, ms, algorithm="torch_fold", layout=layout))
        rows.append(row("sweep", "channels", cells, 12.0, algorithm="indexed"))
    axes = plots.speedup.draw("channels", loaded(tmp_path, rows), "torch_fold").axes[0]
    curves = {line.get_color(): [] for line in axes.lines}
    for line in axes.lines:
        curves[line.get_color()].append(list(line.get_ydata()))
    assert curves[plots.lines.COLOURS["indexed"]] == [[1.5 / 12, 3 / 12]]
    assert curves[plots.lines.COLOURS["torch_fold"]] == [[1, 0.5], [0.5, 1]]
    assert list(axes.get_xticks()) == [0, 2]  # the logarithms of 1 and 4
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]


def test_a_point_without_baseline_is_said(tmp_path):
    rows = [
        row("sweep", "batch", geometry(N, 1, 4, 8, 1, 2, 2, 2), ms, algorithm=algorithm)
        for N, algorithm, ms in ((1, "torch_fold", 1.0), (1, "indexed", 2.0), (4, "indexed", 8.0))
    ]
    rows = loaded(tmp_path, rows)
    axes = plots.speedup.draw("batch", rows, "torch_fold").axes[0]
    words = [text.get_text() for text in axes.texts]
    assert "no torch_fold at 4" in words
    with pytest.raises(plots.rows.Lacking, match="no times of naive"):
        plots.speedup.draw("batch", rows, "naive")


def test_axes_that_have_no_logarithm_stand_evenly(tmp_path):
    rows = [
        row("sweep", "padding", geometry(8, 1, 4, 8, 1, 2, 2, 2) | {"padding": padding}, 1.0)
        | {"algorithm": "torch_fold"}
        for padding in ("0", "1x0", "1")
    ]
    axes = plots.speedup.draw("padding", loaded(tmp_path, rows), "torch_fold").axes[0]
    assert list(axes.get_xticks()) == [0, 1, 2]


@pytest.mark.slow
def test_predictions_say_so(tmp_path):
    data = everything()
    for rows in data.values():
        rows[0]["note"] = "prediction from the bytes and the FLOP"
    data = {name: loaded(tmp_path, rows) for name, rows in data.items()}
    sweeps, single = split_sweep(data["sweep"])
    made = [
        plots.table1.draw(data["table1"]),
        plots.roofline.draw(data["table1"]),
        plots.speedup.draw("capsule-dims", sweeps["capsule-dims"], "torch_fold"),
        plots.stages.draw(data["stages"]),
        plots.memory.draw(data["memory"]),
    ]
    for figure in made:
        words = [text.get_text() for text in figure.texts]
        assert "PREDICTION" in words and any("PREDICTION, not measured: " in text for text in words)
    words = [text.get_text() for text in plots.workloads.draw(single).texts]
    assert not any("PREDICTION" in text for text in words)  # all of these were measured


# ---- for print


def paper(draw, *given):
    """A figure for print, as it is when it is written: with its renderer, in its style."""
    with style.context(["default", column.STYLE]):
        figure = draw(*given)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return figure, canvas.get_renderer()


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Every figure for print by its name, with its renderer."""
    folder = tmp_path_factory.mktemp("printed")
    data = {name: loaded(folder, rows) for name, rows in everything().items()}
    data["drawn_speed"] = loaded(folder, drawn_speed_rows())
    sweeps, single = split_sweep(data["sweep"])
    look = plots.STYLES["paper"]
    jobs = {name: (look.sweep, name, rows, "torch_fold") for name, rows in sweeps.items()}
    jobs |= {"workloads": (look.workloads, single), "table1": (look.table1, data["table1"])}
    jobs |= {"memory": (look.memory, data["memory"]), "drawn": (look.drawn, data["drawn_speed"])}
    jobs |= {"roofline": (look.roofline, data["table1"])}
    jobs |= {"stages": (look.stages, data["stages"])}
    own = [line | {"workload": f"a layer of a user's own, {line['workload']}"} for line in single]
    for line in own:
        line["algorithm"] = f"an_algorithm_of_their_own_called_{line['algorithm']}"
    jobs["long names"] = look.workloads, own
    return {name: paper(*job) for name, job in jobs.items()}


def drawn_speed_rows():
    """Three geometries by ours and by the library, in two classes."""
    return [
        row("drawn_speed", f"seed 1, {N}", geometry(N, *WIDE["em"][1:]), ms * N, **how)
        | {"precision": precision}
        for N in (1, 2, 4)
        for precision in ("ieee", "tf32")
        for ms, how in (
            (1.0, {"algorithm": "fused"}),
            (1.5, {"algorithm": "torch_fold", "layout": "nchw"}),
        )
    ]


@pytest.mark.slow
def test_in_print_no_words_collide_or_leave_the_column(printed):
    for name, (figure, renderer) in printed.items():
        assert figure.get_figwidth() == column.WIDTH
        assert len(words_of(figure, renderer)) > 8, name
        check_words(figure, renderer, name)


@pytest.mark.slow
def test_in_print_every_curve_has_its_entry_in_the_legend(printed):
    for name in ("capsule-dims", "D2=1,2,4,8 D3=2,8"):
        figure, _ = printed[name]
        (legend,) = figure.legends
        told = {look_of(line) for line in legend.get_lines()}
        curves = {
            look_of(line)
            for axes in figure.axes
            for line in axes.lines
            if line.get_marker() not in ("None", "x") and line.get_linestyle() != "None"
        }
        assert curves == told and len(told) == len(legend.get_texts())


def look_of(line):
    return line.get_color(), str(line._unscaled_dash_pattern), line.get_marker()


@pytest.mark.slow
def test_in_print_panels_are_of_pass_and_setting(printed):
    """By hand: speedups as on the screen, one panel for each value of the second axis."""
    figure, _ = printed["D2=1,2,4,8 D3=2,8"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [f"{name}, D3 = {d}" for name in PASSES for d in (2, 8)]
    axes = figure.axes[0]
    ours = next(line for line in axes.lines if line.get_color() == plots.lines.COLOURS["indexed"])
    assert list(ours.get_ydata()) == pytest.approx([0.015 / 0.2] * 4, rel=1e-4)


@pytest.mark.slow
def test_print_is_vectors_and_the_same_again(tmp_path, capsys):
    stages = stage_rows("em", geometry(*WIDE["em"]))
    write(tmp_path / "results", {"memory": memory_rows(), "stages": stages})
    found = []
    for _ in range(2):
        assert command(tmp_path, "--style", "paper") == 0
        found.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert found[0] == found[1] and set(found[0]) == {
        f"{name}.{extension}" for name in ("memory", "stages") for extension in ("pdf", "svg")
    }
    assert found[0]["memory.pdf"][:5] == b"%PDF-" and found[0]["memory.svg"][:5] == b"<?xml"
    assert b"/Subtype /Image" not in found[0]["memory.pdf"]
    assert b"<image" not in found[0]["memory.svg"]


def test_predictions_in_print_say_so(tmp_path):
    rows = memory_rows()
    for line in rows:
        line["note"] = "prediction: by bytes"
    figure, _ = paper(plots.STYLES["paper"].memory, loaded(tmp_path, rows))
    words = [text.get_text() for text in figure.texts]
    assert "PREDICTION" in words and any("PREDICTION, not measured" in text for text in words)


# Linear RGB as the colour-blind see it: Machado et al. 2009, severity 1.
SEEN = {
    "by most": np.eye(3),
    "without red cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "without green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def lab(linear):
    """CIE L*a*b* of linear sRGB."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(linear, 0, 1) / (0.9505, 1, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize(
    "colours", [plots.lines.COLOURS, plots.distribution.COLOURS, training.COLOURS]
)
def test_no_two_colours_are_alike(eyes, colours):
    places = {}
    for name, colour in colours.items():
        c = np.array(to_rgb(colour))
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        places[name] = lab(np.array(SEEN[eyes]) @ linear)
    for one, other in combinations(places, 2):
        assert np.linalg.norm(places[one] - places[other]) > 13, (one, other)


# ---- labels


def test_labels_do_not_overlap():
    places = [0.5, 0.5, 0.52, 0.99, 1.3, 0.0, -0.2]
    moved = plots.canvas.spread(places, 0.1, 0, 1)
    ordered = sorted(moved)
    assert all(b - a > 0.1 - 1e-12 for a, b in pairwise(ordered))
    assert 0 <= ordered[0] and ordered[-1] <= 1 + 1e-12
    assert [places[moved.index(place)] for place in ordered] == sorted(places)
    assert plots.canvas.spread([0.2, 0.8], 0.1, 0, 1) == pytest.approx([0.2, 0.8])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1540, "1540"),
        (1544.4, "1540"),
        (0.0355, "0.0355"),
        (2.5, "2.50"),
        (9.996, "10.0"),
        (99.96, "100"),
    ],
)
def test_three_digits(value, words):
    assert digits(value) == words


def test_tables_by_hand(tmp_path):
    cells = {name: geometry(128, *sizes) for name, sizes in LAYERS.items()}
    table1 = []
    for i, workload in enumerate(LAYERS, start=1):
        for j, name in enumerate(PASSES):
            how = {"pass": name, "algorithm": "naive"}
            table1.append(row("table1", workload, cells[workload], float(i * 10**j), **how))
            how = {"pass": name, "algorithm": "torch_fold", "layout": "nchw"}
            table1.append(row("table1", workload, cells[workload], 0.1 * i, **how))
            how |= {"layout": "channels_last"}
            table1.append(row("table1", workload, cells[workload], 0.3 * i, **how))
    sweep = [
        row("sweep", "em", geometry(*WIDE["em"]), ms, algorithm="naive", **{"pass": name})
        for name, ms in zip(PASSES, (3.0, 4.0, 5.5))
    ]
    gone = {"algorithm": "torch_extend_bmm", "note": "out of memory: 153 GB asked for"}
    sweep += [
        row("sweep", "em", geometry(*WIDE["em"]), **gone, **{"pass": name}) for name in PASSES
    ]
    data = {"table1": table1, "sweep": sweep, "memory": memory_rows(), "stages": []}
    made = tables(load_all(write(tmp_path, data)))
    assert set(made) == {"table1", "workloads", "memory", "ceilings"}
    lines = made["table1"].splitlines()
    assert "| GPU | naive | 15.0 | 1650 | 1660 | 650 / 1570 / 2220 |" in lines
    assert "|  | torch_fold nchw | 1.50 | 3.00 | 4.50 |  |" in lines  # the best in place
    assert "no batch size and no repeat count" in lines[-1]
    assert "| em | 3.00 | out of memory |" in made["workloads"].splitlines()
    assert "| em | 9.50 | out of memory |" in made["workloads"].splitlines()
    assert made["memory"].splitlines()[-1].startswith("| 512 | 0.368 | out of memory |")
    for words in (
        "NVIDIA Test 1",
        "3000 GB/s",
        "51.6",
        "torch 2.11",
        "0123456789ab;",
        "2026-01-02",
    ):
        assert words in made["ceilings"]


def test_network_table_by_hand(tmp_path):
    """A line for each variant; the layers' table and figures do not see these rows."""
    rows = []
    for N in (128, 1024):
        cells, workload = geometry(N, *LAYERS["layer 1"]), f"network, batch {N}"
        for i, wanted in enumerate(NETWORK_PASSES):
            how = {"pass": wanted, "algorithm": "capsnet", "host_us": 12.5}
            rows.append(row("table1", workload, cells, N / 128 * 10**i, **how))
            how = {"pass": wanted, "algorithm": "torch_net_compile", "layout": "nchw"}
            note = "RuntimeError: no compiler"
            rows.append(row("table1", workload, cells, precision="tf32", note=note, **how))
    data = load_all(write(tmp_path, {"table1": rows}))
    made = tables(data)
    assert set(made) == {"network", "ceilings"}
    lines = made["network"].splitlines()
    assert "| capsnet | 1.00 | 10.0 | 100 | 12.5 | 8.00 | 80.0 | 800 | 12.5 |" in lines
    failed = "failed | failed | failed | "
    assert f"| torch_net_compile nchw tf32 | {failed} | {failed} |" in lines
    for draw in (plots.table1.draw, plots.roofline.draw):
        with pytest.raises(Lacking):
            draw(data["table1"])


def test_fused_table_by_hand(tmp_path):
    """The faster of the layouts in place, over ours at the same class of precision."""
    cells, rows = geometry(*WIDE["em"]), []
    for workload, times in {
        "em": ((("ieee", "nchw"), 0.4), (("ieee", "channels_last"), 0.3), (("tf32", "nchw"), 0.1)),
        "caps2": ((("ieee", "nchw"), 0.8),),
    }.items():
        for (precision, layout), ms in times:
            how = {"algorithm": "torch_fold", "precision": precision, "layout": layout}
            rows.append(row("fused", workload, cells, ms, **how))
        how = {"algorithm": "torch_fold", "precision": "ieee", "layout": "capsule"}
        rows.append(row("fused", workload, cells, 0.01, **how))  # not in place: not compared
        rows.append(row("fused", workload, cells, 0.1, algorithm="fused"))
        rows.append(row("fused", workload, cells, 0.2, algorithm="fused", precision="tf32x3"))
    rows.append(row("fused", "em", cells, 0.2, algorithm="fused", precision="tf32"))
    half = {"precision": "float16", "dtype": "float16"}
    rows.append(row("fused", "em", cells, 0.015, algorithm="fused", **half))
    rows.append(row("fused", "em", cells, 0.03, algorithm="torch_fold", layout="nchw", **half))
    found = tables(load_all(write(tmp_path, {"fused": rows})))
    short = found["forward"].splitlines()
    assert short[0] == "NVIDIA Test 1, 2026-01-02, forward, median ms:"
    assert [line.rsplit(" | ", 6)[1:] for line in short[4:]] == [
        ["0.300", "0.100", "3.00", "0.100", "0.200", "0.500 |"],
        ["", "", "3.00", "", "", "0.500 |"],
    ]
    default = row("fused", "em", cells, 0.15, algorithm="fused", precision="auto")
    with_default = tables(load_all(write(tmp_path / "auto", {"fused": [*rows, default]})))
    assert "| 0.300 | 0.150 | 2.00 | 0.100 |" in with_default["forward"]  # not the faster "ieee"
    made = found["fused"].splitlines()
    assert "| em | 0.300 | 0.100 | 3.00 | 0.100 | 0.200 | 0.500 | 0.0300 | 0.0150 | 2.00 |" in made
    unmeasured = " | ".join(["not measured"] * 6)
    assert f"| caps2 | 0.800 | 0.100 | 8.00 | {unmeasured} |" in made
    assert "| geometric mean |  |  | 4.90 |  |  | 0.500 |  |  | 2.00 |" in made
    without = [one for one in rows if (one["workload"], one["precision"]) != ("em", "tf32x3")]
    without = [one for one in without if one["workload"] == "em" or one["algorithm"] != "fused"]
    made = tables(load_all(write(tmp_path / "without", {"fused": without})))["fused"].splitlines()
    em = "| em | not measured | not measured | not measured | 0.100 | 0.200 | 0.500 | 0.0300 | 0.0150 | 2.00 |"
    assert em in made and not any("caps2" in line for line in made)


def test_rungs_table_by_hand(tmp_path):
    cells = geometry(*WIDE["em"]) | {"gflop": 20}
    how = {"algorithm": "torch_fold", "layout": "nchw"}
    rows = [
        row("rungs", "em", cells, 2.0, algorithm="fused", stage="direct"),
        row("rungs", "em", cells, 0.1, algorithm="fused", stage="wgmma", precision="tf32"),
        row("rungs", "em", cells, 0.5, **how),
        row("rungs", "em", cells, 0.4, **how | {"layout": "channels_last"}),
    ]
    made = tables(load_all(write(tmp_path, {"rungs": rows})))["rungs"].splitlines()
    assert made[0].startswith("em, forward:")
    assert made[-3:] == [
        "| direct | ieee | 2.00 | 10.0 |",
        "| wgmma | tf32 | 0.100 | 200 |",
        "| torch_fold best layout | ieee | 0.400 | 50.0 |",
    ]


def test_stage_table_by_hand(tmp_path):
    cells = geometry(*WIDE["em"])
    rows = [
        row(
            "stages",
            "em",
            cells,
            ms,
            stage="kernel_extend",
            byte_fraction=fraction,
            **{"pass": name},
        )
        for name, ms, fraction in (("forward", 1.0, 0.9), ("backward_input", 3.0, 0.5))
    ]
    made = tables(load_all(write(tmp_path, {"stages": rows})))
    assert made["stages"].splitlines()[-1] == "| kernel_extend | 60.0 |"  # (1*0.9 + 3*0.5) / 4


README = """# Title

<!-- table memory -->
old
<!-- /table -->

text
<!-- table table1 -->
older
<!-- /table -->
"""


def drifted(text, folders):
    """Names of the tables in a README that no one of these folders gives; the fewest."""
    found = marked(text)

    def wrong(folder):
        made = tables(load_all(folder))
        return [name for name, body in found.items() if body != made.get(name, UNMEASURED)]

    return min(map(wrong, folders), key=len, default=list(found))


@pytest.mark.slow
def test_readme_is_filled(tmp_path, capsys):
    folder = write(tmp_path / "results", {"memory": memory_rows()})
    readme = tmp_path / "README.md"
    readme.write_text(README)
    assert command(tmp_path, "--readme", str(readme)) == 0
    text = readme.read_text()
    assert marked(text)["memory"] == tables(load_all(folder))["memory"]
    assert marked(text)["table1"] == UNMEASURED and text.startswith("# Title\n\n<!-- table")
    out = capsys.readouterr().out
    assert "table1 skipped" in out and "python -m experiments.table1" in out
    assert command(tmp_path, "--readme", str(readme)) == 0 and readme.read_text() == text
    plain = tmp_path / "plain.md"
    plain.write_bytes(b"no markers\r\n")
    assert command(tmp_path, "--readme", str(plain)) == 0
    assert plain.read_bytes() == b"no markers\r\n"


def test_a_drifted_number_is_found(tmp_path):
    folder = write(tmp_path, {"memory": memory_rows()})
    text = filled(README, tables(load_all(folder)))
    assert drifted(text, [folder]) == []
    assert drifted(text.replace("0.368", "0.369", 1), [folder]) == ["memory"]
    assert drifted(README, [folder]) == ["memory", "table1"]
    assert drifted(text, []) == ["memory", "table1"]


def test_only_the_named_tables_are_filled():
    text = filled(README, {"memory": "new"}, ["memory"])
    assert marked(text) == {"memory": "new", "table1": "older"}


@pytest.mark.parametrize("name", HOLDERS)
def test_committed_tables_are_those_of_one_gpu(name):
    """With rows that are as new as their kernels only."""
    for gpu in provenance.measured() if "{gpu}" in name else [None]:
        path = provenance.ROOT / name.format(gpu=gpu)
        gpus = [gpu] if gpu else provenance.measured()
        if path.exists():
            folders = [provenance.RESULTS / one for one in gpus]
            again = f"python -m experiments.figures --gpu NAME --readme {path}"
            assert drifted(path.read_text(), folders) == [], again


# ---- what is older than its kernels


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one file of a kernel, whose name rows can carry."""
    (tmp_path / "numbacaps").mkdir()
    (tmp_path / "numbacaps" / "kernel.py").write_text("1")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    name = provenance.sources_name([tmp_path / "numbacaps" / "kernel.py"])
    monkeypatch.setitem(sources._found, name, ["numbacaps/kernel.py"])
    return tmp_path, name


def measured(folder, name, **cells):
    """A table that was measured, with one row of that kernel; its path."""
    table = records.Table(folder / GPU / "memory.csv", {})
    rows = memory_rows()[:5]
    table.replace([one | {"kernel_sources": name} | cells for one in rows])
    return table.path


def test_a_row_is_older_once_its_kernel_changes(checkout, monkeypatch):
    root, name = checkout
    path = measured(root / "results", name)
    monkeypatch.delitem(sources._found, name)  # as in another process
    assert len(load(path)) == 5
    kernel = root / "numbacaps" / "kernel.py"
    kernel.write_text("2")
    assert load(path) == [] and len(records.read(path)) == 5
    kernel.write_text("1  # a comment\n\n# and one more\n")
    assert len(load(path)) == 5
    kernel.write_text('"1  # no comment"\n')
    assert load(path) == []
    kernel.unlink()
    assert load(path) == []


def test_a_row_without_names_is_as_new_as_the_package(checkout):
    root, _ = checkout
    now = provenance.source_sha256()
    for of, rows in ((now, 5), ("before", 0)):
        assert len(load(measured(root / of[:6], "", source_sha256=of))) == rows


def test_a_file_of_before_the_columns_is_read(checkout):
    root, _ = checkout
    path = measured(root / "results", "")
    header, *lines = path.read_text().splitlines()
    old = [line.rsplit(",", 3)[0] for line in (header, *lines)]
    assert header.endswith(",kernel_sources,gpu_uuid,busy_neighbours")
    path.write_text("\n".join(old) + "\n")
    rows = records.read(path)
    assert [row["kernel_sources"] for row in rows] == [""] * 5 and list(rows[0]) == [
        *records.COLUMNS
    ]


def test_only_names_in_use_are_kept(checkout):
    root, name = checkout
    path = measured(root / "results", name)
    beside = path.with_suffix(".sources.json")
    assert json.loads(beside.read_text()) == {name: ["numbacaps/kernel.py"]}
    measured(root / "results", sources.NO_KERNELS)
    assert json.loads(beside.read_text()) == {}


def test_nothing_to_draw_is_an_error_that_says_what_there_is(checkout, capsys):
    root, name = checkout
    measured(root / "results", name)
    (root / "numbacaps" / "kernel.py").write_text("2")
    assert command(root) == 1
    assert f"{GPU}/memory.csv (0 of 5 rows are current)" in capsys.readouterr().err
    assert not (root / "out").exists()
    readme = root / "README.md"
    readme.write_text(README)
    assert command(root, "--readme", str(readme)) == 0
    assert set(marked(readme.read_text()).values()) == {UNMEASURED}


def test_any_csv_with_the_columns_is_drawn(tmp_path):
    """By its name: a curve for what is swept, over the first algorithm where the fold has no times."""
    rows = [
        row("mine", "batch", geometry(N, 1, 4, 8, 1, 2, 2, 2), ms * N, algorithm=algorithm)
        for N in (1, 4)
        for algorithm, ms in (("indexed", 1.0), ("naive", 2.0))
    ]
    rows += [row("mine", "one", geometry(*WIDE["em"]), 3.0, algorithm="indexed")]
    folder = write(tmp_path / "results", {"mine": rows})
    (folder / "other.csv").write_text("a,b\n1,2\n")
    assert command(tmp_path) == 0
    assert {path.name for path in (tmp_path / "out").glob("*.svg")} == {
        "mine-batch.svg",
        "mine.svg",
    }
    assert "Speedup over indexed along batch" in svg(tmp_path, "mine-batch")


def test_times_are_drawn_of_one_algorithm_alone(tmp_path):
    """It has nothing to be faster than; a baseline that is asked for is taken all the same."""
    rows = [
        row("mine", "batch", geometry(N, 1, 4, 8, 1, 2, 2, 2), 2.0 * N, algorithm="indexed")
        for N in (1, 4)
    ]
    write(tmp_path / "results", {"mine": rows})
    assert command(tmp_path) == 0
    assert "Milliseconds along batch" in svg(tmp_path, "mine-batch")
    for make in (plots.STYLES["screen"].sweep, plots.STYLES["paper"].sweep):
        axes = make("batch", loaded(tmp_path, rows), None).axes[0]
        assert axes.get_ylabel() == "ms" and list(axes.lines[0].get_ydata()) == [2, 8]
    assert command(tmp_path, "--baseline", "indexed") == 0
    assert "Speedup over indexed" in svg(tmp_path, "mine-batch")


def refused(capsys, folder, *arguments):
    """The message of a command that is refused, and left everything as it was."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as exit:
        command(folder, *arguments)
    assert exit.value.code == 2
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return capsys.readouterr().err


def test_no_curve_is_of_two_cards_unasked(tmp_path, capsys):
    rows = memory_rows()
    for row_ in rows:
        row_["gpu_uuid"] = f"GPU-{row_['N'] == 8}"
    write(tmp_path / "results", {"memory": rows})
    with pytest.raises(SystemExit) as stop:
        command(tmp_path)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and not (tmp_path / "out").exists()
    assert "rows of 2 cards in memory.csv, em: GPU-True and GPU-False" in said
    assert "it takes rows of one card, or --mixed-cards" in said
    assert command(tmp_path, "--mixed-cards") == 0
    assert "NVIDIA Test 1, 2 cards" in svg(tmp_path, "memory")


def test_a_card_without_a_name_is_not_taken_for_one_with_a_name(tmp_path, capsys):
    """In any CSV, as rows of before the column have none."""
    rows = [
        row(
            "mine",
            "batch",
            geometry(N, 1, 4, 8, 1, 2, 2, 2),
            1.0,
            algorithm="indexed",
            gpu_uuid=uuid,
        )
        for N, uuid in ((1, ""), (4, "GPU-1"))
    ]
    write(tmp_path / "results", {"mine": rows})
    message = refused(capsys, tmp_path)
    assert "2 cards in mine.csv, batch: one that is not named and GPU-1" in message


def test_rows_without_a_curve_may_be_of_two_cards(tmp_path):
    rows = stage_rows("em", geometry(*WIDE["em"])) + stage_rows("caps16", geometry(*WIDE["caps16"]))
    for row_ in rows:
        row_["gpu_uuid"] = f"GPU-{row_['workload']}"
    write(tmp_path / "results", {"stages": rows})
    assert command(tmp_path) == 0


def test_drawn_geometries_are_one_curve(tmp_path, capsys):
    cells = [geometry(N, *WIDE["em"][1:]) for N in (8, 16)]
    rows = [
        row("drawn_speed", f"seed 1, {i}", size, 1.0, algorithm="fused", gpu_uuid=f"GPU-{i}")
        for i, size in enumerate(cells)
    ]
    write(tmp_path / "results", {"drawn_speed": rows})
    with pytest.raises(SystemExit):
        command(tmp_path)
    assert "rows of 2 cards in drawn_speed.csv" in capsys.readouterr().err


def test_bad_arguments(tmp_path, capsys):
    assert "--results" in refused(capsys, tmp_path)
    write(tmp_path / "results", {"memory": memory_rows()})
    message = refused(capsys, tmp_path, "--gpu", "other")
    assert "--gpu got 'other'" in message and GPU in message
    write(tmp_path / "results", {"memory": memory_rows()}, "NVIDIA-Test-2")
    message = refused(capsys, tmp_path)
    assert "--gpu" in message and GPU in message and "NVIDIA-Test-2" in message
    chosen = ("--gpu", GPU)
    assert "--readme" in refused(capsys, tmp_path, *chosen, "--readme", str(tmp_path / "none.md"))
    (tmp_path / "file").write_text("")
    assert "--out" in refused(capsys, tmp_path, *chosen, "--out", str(tmp_path / "file"))
    assert "unrecognized" in refused(capsys, tmp_path, "--frobnicate")
    sweep = variants("sweep", "em", geometry(*WIDE["em"]))
    write(tmp_path / "results", {"sweep": sweep})
    message = refused(capsys, tmp_path, *chosen, "--baseline", "torch_flod")
    assert "--baseline got 'torch_flod'" in message and "torch_fold" in message


@pytest.mark.slow
def test_predicted_folder_is_not_the_default(tmp_path):
    write(tmp_path / "results", {"memory": memory_rows()})
    rows = memory_rows()
    for line in rows:
        line["note"] = f"prediction: {line.get('note', '')}"
    predicted = write(tmp_path / "results", {"memory": rows}, GPU + "-predicted")
    assert command(tmp_path) == 0
    assert "PREDICTION" not in svg(tmp_path, "memory")
    assert command(tmp_path, "--gpu", predicted.name) == 0
    assert "PREDICTION" in svg(tmp_path, "memory")
    assert "**PREDICTION, not measured.**" in tables(load_all(predicted))["memory"]


def test_readme_and_its_pictures_are_written_when_asked_for(tmp_path):
    parse = figures.make_parser().parse_args
    for name in (GPU, f"{GPU}-predicted"):
        folder = tmp_path / name
        assert figures.targets(parse([]), folder) == (figures.OUT / name, {})
        print_ = figures.targets(parse(["--style", "paper"]), folder)
        assert print_ == (figures.OUT / name / "paper", {})
        out, holders = figures.targets(parse(["--out", "a", "--readme", "b"]), folder)
        assert (out, holders) == (figures.Path("a"), {figures.Path("b"): None})
    out, holders = figures.targets(parse(["--readme"]), tmp_path / GPU)
    assert out == figures.OUT and provenance.ROOT / "README.md" in holders
    with pytest.raises(figures.Refusal, match="--readme got predictions"):
        figures.targets(parse(["--readme"]), folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (README.replace("table memory", "table memroy"), "memroy"),
        (README.replace("<!-- /table -->", "", 1), "close"),
        (README + "<!-- /table -->\n", "close"),
    ],
)
def test_bad_markers(tmp_path, capsys, text, words):
    write(tmp_path / "results", {"memory": memory_rows()})
    readme = tmp_path / "README.md"
    readme.write_text(text)
    message = refused(capsys, tmp_path, "--readme", str(readme))
    assert "--readme" in message and words in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("peak_bytes", "bytes", 1), "columns"),
        (lambda text: text.replace(",em,8,", ",em,eight,", 1), "column N"),
        (lambda text: text.replace(",3000,", ",fast,", 1), "column copy_gbs"),
        (lambda text: text.replace(",3000,", ",nan,", 1), "column copy_gbs"),
        (lambda text: text + "one,cell\n", "lengths"),
    ],
)
def test_foreign_csv(tmp_path, capsys, change, words):
    path = write(tmp_path / "results", {"memory": memory_rows()}) / "memory.csv"
    path.write_text(change(path.read_text()))
    readme = tmp_path / "README.md"
    readme.write_text(README)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "memory.png").write_text("older")
    message = refused(capsys, tmp_path, "--readme", str(readme))
    assert "memory.csv" in message and words in message


@pytest.mark.slow
def test_a_stopped_write_leaves_the_old_files(tmp_path, capsys, monkeypatch):
    write(tmp_path / "results", {"memory": memory_rows()})
    assert command(tmp_path) == 0
    capsys.readouterr()

    sync, files = os.fsync, []

    def full(descriptor):
        files.append(descriptor)
        if len(files) > 1:  # one has been written by now
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert "cannot be written: No space left on device" in refused(capsys, tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_needs_neither_numba_nor_pyplot():
    script = (
        "import sys, experiments.figures; "
        "print([m for m in ('numba', 'numbacaps', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=provenance.ROOT,
        check=True,
    )
    assert done.stdout.strip() == "[]"
