"""Tables of Markdown: made from the rows of the experiments, and put between their markers.

A table stands between ``<!-- table NAME -->`` and ``<!-- /table -->``. It is of one GPU, and of rows that are
no older than their kernels; where there are none it says so.
"""

import json
import math
import re
import statistics

from experiments.measuring import paper, routing_rows, torch_rows
from experiments.measuring.problem import NETWORK_PASSES
from experiments.plots.lines import FOLD, added, columns, is_ours, variants
from experiments.plots.rows import (
    DIRECTIONS,
    EXPERIMENTS,
    LAYERS,
    PASSES,
    at,
    digits,
    distinct,
    is_predicted,
    median,
    network,
    of_pass,
    reason,
    split_sweep,
)
from experiments.plots.stages import stage_rank

_MARKED = re.compile(r"(<!-- table ([^\n]*?) -->)(.*?)(<!-- /table -->)", re.DOTALL)
UNMEASURED = (
    "Nothing that is as new as its kernels has been measured; `make record` on a GPU measures it."
)
_DTYPE = "float32, ieee, unless the name says otherwise"


def tables(data):
    """The tables.

    Parameters
    ----------
    data : dict of str to list of dict
        Rows by experiment, as :func:`experiments.plots.rows.load_all` reads them.

    Returns
    -------
    dict of str to str
        Markdown by the name in the marker; without the tables that there are no rows for.
    """
    made = {name: make(data) for name, make in _TABLES.items()}
    return {name: text for name, text in made.items() if text}


def marked(text):
    """What stands between the markers of a text, by name.

    Raises
    ------
    ValueError
        A marker names no table of ours, or is not closed.
    """
    found = {name: body.strip("\n") for _, name, body, _ in _MARKED.findall(text)}
    for name in found:
        if name not in _TABLES:
            raise ValueError(f"a marker for the table {name!r}; there are {', '.join(_TABLES)}")
    opened, closed = text.count("<!-- table "), text.count("<!-- /table -->")
    if not opened == closed == len(_MARKED.findall(text)):
        raise ValueError(
            f"{opened} markers that open a table and {closed} that close one; each "
            "'<!-- table NAME -->' takes a '<!-- /table -->'"
        )
    return found


def filled(text, made, names=None):
    """A text with tables between its markers.

    Parameters
    ----------
    text : str
    made : dict of str to str
        As :func:`tables` makes them; a marker of another name gets :data:`UNMEASURED`.
    names : collection of str, optional
        Of the markers to fill; by default all. The others stay as they are.
    """

    def fill(match):
        opening, name, _, closing = match.groups()
        if names is not None and name not in names:
            return match[0]
        return f"{opening}\n\n{made.get(name, UNMEASURED)}\n\n{closing}"

    return _MARKED.sub(fill, text)


def _markdown(header, rows, words=1):
    """A table whose first columns are words, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    cells = [[str(cell).replace("|", r"\|") for cell in row] for row in (header, rule, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _heading(rows, words):
    """What stands above a table; of a prediction it says so."""
    return f"**PREDICTION, not measured.** {words}" if is_predicted(rows) else words


# ---- the tables; each is empty without rows


def _table1(data):
    rows = network(data["table1"])
    if not rows:
        return ""
    lines = [line for line in variants(rows) if is_ours(line.algorithm)]
    opponents = (
        (FOLD, "ieee", ("nchw", "channels_last")),
        (FOLD, "ieee", ("capsule",)),
        ("torch_unfold_einsum", "ieee", None),
        ("torch_extend_bmm", "ieee", None),
        (FOLD, "tf32", None),
    )
    lines += filter(None, (_quickest(rows, *opponent) for opponent in opponents))
    cells = []
    for line in lines:
        row = paper.ROWS.get(line.algorithm, "") if line.precision == "ieee" else ""
        theirs = ""
        if row:
            forward, backward = paper.TABLE_1[row]
            theirs = f"{forward} / {backward} / {forward + backward}"
        times = [added(line, rows, LAYERS, passes) for passes in (*DIRECTIONS.values(), PASSES)]
        cells.append((row, line.label, *times, theirs))
    header = ["paper's row", "algorithm", "forward ms", "backward ms", "total ms"]
    header.append("paper: forward / backward / total ms")
    words = f"Medians of the five layers added up, batch 128; backward is both gradients. {_DTYPE}."
    return "\n\n".join((_heading(rows, words), _markdown(header, cells, words=2), paper.CAVEAT))


def _network(data):
    rows = [row for row in data["table1"] if row["pass"] in NETWORK_PASSES]
    if not rows:
        return ""
    header, cells = ["algorithm"], []
    workloads = distinct(rows, "workload")
    for workload in workloads:
        batch = workload.removeprefix("network, ")
        header += [f"{batch}: forward ms", "gradients ms", "step ms", "host us of a step"]
    for line in variants(rows):
        cells.append([line.label])
        for workload in workloads:
            cells[-1] += [added(line, rows, [workload], [wanted]) for wanted in NETWORK_PASSES]
            steps = filter(line.fits, at(of_pass(rows, NETWORK_PASSES[-1]), workload=workload))
            cells[-1].append(next((digits(row["host_us"]) for row in steps if row["host_us"]), ""))
    words = f"The whole network, medians; gradients: forward, loss and backward; step: with Adam. {_DTYPE}."
    return "\n\n".join((_heading(rows, words), _markdown(header, cells)))


def _quickest(rows, algorithm, precision, layouts):
    """The line of the layout, of these or of any, whose network takes least; None without rows."""
    lines = [
        line
        for line in variants(rows)
        if line[1:3] == (algorithm, precision) and (layouts is None or line.layouts[0] in layouts)
    ]
    return min(
        lines, key=lambda line: added(line, rows, LAYERS, PASSES).ms or math.inf, default=None
    )


def _workloads(data):
    _, rows = split_sweep(data["sweep"])
    if not rows:
        return ""
    lines = [line for line in columns(rows) if line.precision != "float16"]
    titles = {"forward": "Forward", "backward": "Backward, both gradients"}
    parts = []
    for direction, passes in DIRECTIONS.items():
        if not any(of_pass(rows, wanted) for wanted in passes):
            continue
        cells = [
            (name, *(added(line, rows, [name], passes) for line in lines))
            for name in distinct(rows, "workload")
        ]
        parts.append(_heading(rows, f"{titles[direction]}, median ms. {_DTYPE}:"))
        parts.append(_markdown(["workload", *(line.label for line in lines)], cells))
    return "\n\n".join(parts)


def _stages(data):
    rows = [row for row in data["stages"] if row["stage"]]
    if not rows:
        return ""
    workloads = distinct(rows, "workload")
    cells = [
        (stage, *(_copy_percent(at(rows, stage=stage, workload=name)) for name in workloads))
        for stage in sorted(distinct(rows, "stage"), key=stage_rank)
    ]
    words = "Percent of copy bandwidth, by the bytes that each stage must move:"
    return "\n\n".join((_heading(rows, words), _markdown(["stage", *workloads], cells)))


def _copy_percent(rows):
    """Percent of copy bandwidth that a stage reached over all the passes it is part of."""
    timed = [row for row in rows if row["ms_p50"] and row["byte_fraction"]]
    if not timed:
        return reason(rows[0]) if rows else ""
    least = sum(row["ms_p50"] * row["byte_fraction"] for row in timed)
    return digits(100 * least / sum(row["ms_p50"] for row in timed))


def _memory(data):
    rows = of_pass(data["memory"], "forward")
    lines = variants(rows)
    parts = []
    for workload in distinct(rows, "workload"):
        group = at(rows, workload=workload)
        cells = []
        for batch in sorted(distinct(group, "N"), key=int):
            found = at(group, N=batch)
            cells.append((batch, *(_gigabytes(line, found) for line in lines)))
        parts.append(_heading(group, f"{workload}, forward, peak GB of device memory:"))
        parts.append(_markdown(["batch", *(line.label for line in lines)], cells))
    return "\n\n".join(parts)


def _gigabytes(line, rows):
    """Peak memory of a line, or the reason why there is none."""
    row = next(filter(line.fits, rows), None)
    if row is None:
        return "not measured"
    return digits(row["peak_bytes"] / 1e9) if row["peak_bytes"] else reason(row)


# Of "fused": what a class is called, our precisions in it, the library's.
_CLASSES = (
    ("fp32-grade", ("ieee", "tf32x3"), "ieee"),
    ("tf32", ("tf32",), "tf32"),
    ("float16", ("float16",), "float16"),
)


def _fused(data):
    parts = []
    for wanted in PASSES:
        rows = of_pass(data["fused"], wanted)
        words = (
            f"{wanted}, median ms; conv2d through the fold in its faster layout, operands in place"
        )
        parts.append(_beside_fold(rows, "capsule", f"{words}:"))
        if at(rows, layout="packed"):
            parts.append(_beside_fold(rows, "packed", f"{words}, and our kernel packed ahead:"))
    return "\n\n".join(filter(None, parts))


def _beside_fold(rows, layout, words):
    """A row for each workload: ours in that layout, the fold, and their ratio, in each class whose every precision was measured."""
    header, every, ratios = ["workload"], [], {}
    for name, _, _ in _CLASSES:
        header += [f"{name}: conv2d ms", "fused ms", "ratio"]
    for workload in distinct(rows, "workload"):
        every.append([workload])
        for name, ours, theirs in _CLASSES:
            group = at(rows, workload=workload)
            best = _least(group, FOLD, (theirs,), ("nchw", "channels_last"))
            times = [_least(group, "fused", (one,), (layout,)) for one in ours]
            if best and all(times):
                fused = min(times)
                ratios.setdefault(name, []).append(best / fused)
                every[-1] += [digits(best), digits(fused), digits(best / fused)]
            else:
                every[-1] += ["not measured"] * 3
    cells = [row for row in every if set(row[1:]) != {"not measured"}]
    if not cells:
        return ""
    means = ["geometric mean"]
    for name, _, _ in _CLASSES:
        found = ratios.get(name)
        means += ["", "", digits(statistics.geometric_mean(found)) if found else "not measured"]
    return f"{_heading(rows, words)}\n\n{_markdown(header, [*cells, means])}"


def _forward(data):
    """The forward pass of two classes, ours beside the library's, with GPU and dates: what README.md shows."""
    cells, shown, ratios = [], [], {name: [] for name in _SHOWN}
    for workload in distinct(data["fused"], "workload"):
        rows = at(of_pass(data["fused"], "forward"), workload=workload)
        times = [_times(rows, *words) for words in _SHOWN.values()]
        if None in times:
            continue
        columns_of = ("C", "P", "H", "W", "stride", "D1", "D2", "D3")
        C, P, H, W, stride, D1, D2, D3 = (rows[0][column] for column in columns_of)
        capsules = f"({D1} x {D2}) @ ({D2} x {D3})"
        cells.append((workload, rows[0]["N"], f"{C} to {P}", f"{H} x {W}", stride, capsules))
        for found, (theirs, ours) in zip(ratios.values(), times):
            cells[-1] += digits(theirs), digits(ours), digits(theirs / ours)
            found.append(theirs / ours)
        shown += [row for row in rows if row["layout"] in ("capsule", "nchw", "channels_last")]
    if not cells:
        return ""
    means = (digits(statistics.geometric_mean(found)) for found in ratios.values())
    cells.append(
        ("geometric mean", *[""] * 5, *(cell for mean in means for cell in ("", "", mean)))
    )
    dates = sorted(row["timestamp"][:10] for row in shown if row["algorithm"] == "fused")
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    words = f"{_listed(row['gpu'] for row in shown)}, {when}, forward, median ms:"
    header = ["layer", "batch", "channels", "grid", "stride", "capsules"]
    for name in _SHOWN:
        header += [f"{name}: `conv2d`", "ours", "times as fast"]
    return f"{_heading(shown, words)}\n\n{_markdown(header, cells, words=6)}"


_SHOWN = {  # classes: the library's precision, and ours; of several the first that was measured
    "float32": ("ieee", ("auto",), ("ieee", "tf32x3")),
    "TF32": ("tf32", ("tf32",)),
}


def _times(rows, theirs, *ours):
    """(the library's milliseconds, ours), each in its fastest way; None where one was not measured."""
    library = _least(rows, FOLD, (theirs,), ("nchw", "channels_last"))
    mine = next(filter(None, (_least(rows, "fused", some, ("capsule",)) for some in ours)), None)
    return library and mine and (library, mine)


def _rungs(data):
    parts = []
    for wanted in PASSES:
        rows = of_pass(data["rungs"], wanted)
        cells = [
            (row["stage"], row["precision"], digits(row["ms_p50"]), _rate(row, row["ms_p50"]))
            for row in rows
            if row["stage"] and row["ms_p50"]
        ]
        for precision in distinct(rows, "precision"):
            best = _least(rows, FOLD, (precision,), ("nchw", "channels_last"))
            if best:
                cells.append((f"{FOLD} best layout", precision, digits(best), _rate(rows[0], best)))
        if cells:
            header = ["rung", "precision", "median ms", "TFLOP/s"]
            where = _listed(row["workload"] for row in rows)
            parts += [_heading(rows, f"{where}, {wanted}:"), _markdown(header, cells)]
    return "\n\n".join(parts)


def _rate(row, ms):
    """TFLOP/s."""
    return digits(row["gflop"] / ms)


def _least(rows, algorithm, precisions, layouts):
    """The least median of an algorithm's rows at these precisions and layouts; None without one."""
    times = [
        row["ms_p50"]
        for row in at(rows, algorithm=algorithm)
        if row["precision"] in precisions and row["layout"] in layouts and row["ms_p50"]
    ]
    return min(times, default=None)


def _torch(data):
    """Layers for PyTorch: steps beside the twin's in its faster layout, and calls of the host."""
    found = torch_rows.steps(data["torch"])
    parts = []
    if found:
        header = [
            "workload",
            "class",
            "mode",
            "PyTorch ms",
            "ours ms",
            "ratio",
            "`numbacaps.nn` ms",
        ]
        header += ["PyTorch peak MB", "ours"]
        cells = []
        for step in found:
            rows = step.twin, step.modules, step.network
            theirs, ours, network = (torch_rows.number(row, "ms") for row in rows)
            peaks = (torch_rows.number(row, "peak_mb") for row in rows[:2])
            numbers = theirs, ours, step.ratio, network, *peaks
            cells.append((step.workload, step.precision, step.mode, *map(_or_nothing, numbers)))
        words = "A training step, median, 128 images (matrix-capsules 64); plain PyTorch in the faster of its layouts:"
        parts += [_heading(data["torch"], words), _markdown(header, cells, words=3)]
    found = torch_rows.calls(data["torch"])
    if found:
        header = ["layer", "class", "call", "operator us", "plan us", "ratio", "conv2d us", "ratio"]
        cells = []
        for call in found:
            operator, plan, conv2d = call.operator, call.plan, call.conv2d
            numbers = operator, plan, torch_rows.ratio(operator, plan)
            numbers += conv2d, torch_rows.ratio(operator, conv2d)
            cells.append((call.workload, call.precision, call.what, *map(_or_nothing, numbers)))
        words = (
            "What a call of a layer costs the host, median; training is forward and both gradients:"
        )
        parts += [_heading(data["torch"], words), _markdown(header, cells, words=3)]
    return "\n\n".join(parts)


def _routing(data):
    """Routing: our time as a CUDA graph beside stored votes."""
    cases = routing_rows.cases(data["routing"])
    if not cases:
        return ""
    header = ["workload", "pass", "PyTorch ms", "as a graph", "compiled", "ours ms", "ratio"]
    header += ["peak, PyTorch", "ours", "error"]
    cells = []
    for case in cases:
        ours = case.ours
        numbers = *map(case.ms, routing_rows.THEIRS), ours and float(ours["ms"]), case.ratio
        peaks = [case.peak("torch") if case.ms("torch") else None]
        peaks += [case.peak(ours["contestant"]) if ours else None]
        error = f"{float(ours['error']):.1e}" if ours else ""
        cells.append((case.workload, case.wanted, *map(_or_nothing, (*numbers, *peaks)), error))
    words = (
        "Median ms, ours as a CUDA graph; peak is the most memory over that of operands and results; "
        "the error is ours, from float64:"
    )
    return "\n\n".join((_heading(data["routing"], words), _markdown(header, cells, words=2)))


def _or_nothing(value):
    """A number's digits; nothing of None."""
    return "" if value is None else digits(value)


def _ceilings(data):
    rows = [row for name in EXPERIMENTS for row in data[name]]
    copy, sgemm = median(rows, "copy_gbs"), median(rows, "sgemm_tflops")
    if not copy:
        return ""
    drivers = _listed(row["driver"] for row in rows)
    versions = [_versions(row["versions"]) for row in rows]
    packages = {"numba-cuda": "numba-cuda", "torch": "torch", "cupy-cuda13x": "cupy"}
    found = {
        name: _listed(version.get(package, "") for version in versions)
        for package, name in packages.items()
    }
    dates = sorted(row["timestamp"][:10] for row in rows if row["timestamp"])
    parts = [
        _listed(row["gpu"] for row in rows),
        *([f"driver {drivers}"] if drivers else []),
        f"copy {digits(copy)} GB/s",
        f"SGEMM {digits(sgemm)} TFLOP/s" if sgemm else "SGEMM not measured",
        *(f"{name} {version}" for name, version in found.items() if version),
        "source " + _listed(row["source_sha256"][:12] for row in rows),
        " to ".join(dict.fromkeys((*dates[:1], *dates[-1:]))),
    ]
    return _heading(rows, "; ".join(parts) + ".")


def _listed(values):
    """Every value once, the empty ones left out."""
    return ", ".join(dict.fromkeys(filter(None, values)))


def _versions(cell):
    """Versions by package; none where the cell holds none."""
    try:
        return dict(json.loads(cell or "{}"))
    except (ValueError, TypeError):
        return {}


_TABLES = {
    "table1": _table1,
    "network": _network,
    "workloads": _workloads,
    "stages": _stages,
    "memory": _memory,
    "fused": _fused,
    "forward": _forward,
    "rungs": _rungs,
    "torch": _torch,
    "routing": _routing,
    "ceilings": _ceilings,
}
# Which file holds which tables; {gpu} is the folder of a GPU's results. A table whose marker a file lacks is left
# out, and so is a file that is not there.
HOLDERS = {
    "README.md": tuple(_TABLES),
    "experiments/results/README.md": tuple(_TABLES),
    "experiments/results/{gpu}/tables.md": tuple(_TABLES),
}
