"""The figures that :mod:`experiments.figures` makes, and what the rows of a CSV mean to them.

A figure is a :class:`matplotlib.figure.Figure` made from rows alone. Lengths are inches from the top
left. An algorithm has one colour in all of them: ours saturated, PyTorch's grey and brown.
"""

import io
import math
import re
import statistics
import textwrap
import zlib
from collections import defaultdict
from functools import partial
from typing import NamedTuple

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments import paper as paper_table
from experiments import records

PASSES = ("forward", "backward_input", "backward_kernel")
BACKWARD = PASSES[1:]
DIRECTIONS = {"forward": PASSES[:1], "backward": ("backward", *BACKWARD)}
LAYERS = tuple(f"layer {i}" for i in range(1, 6))
FOLD = "torch_fold"
COLOURS = {
    "naive": "#d62839",
    "staged": "#f08c00",
    "cublas": "#8e2fc0",
    "indexed": "#1565c8",
    "fused": "#0b8a4b",
    "torch_fold": "#3d3d3d",
    "torch_fold_nhwc": "#8a8a8a",
    "torch_unfold_einsum": "#8b5a2b",
    "torch_extend_bmm": "#c09a6b",
    "reference": "#000000",
}
_OTHERS = ("#00838f", "#c2185b", "#6d8a00", "#4a3fb5", "#b0560f")  # for names not listed above
# In the pipeline's order; tints, by what is moved: input blue, kernel orange, products violet, output
# green.
STAGES = {
    "capsule_im2col": "#8fb8e8",
    "input_extend": "#bcd6f5",
    "kernel_extend": "#f9cf8f",
    "strided_batched_matmul": "#c9a6e4",
    "output_reduce": "#93d1ad",
    "output_extend": "#c5e8d2",
    "kernel_gradient_matmul": "#d9c0ec",
    "kernel_reduce": "#fbe2bb",
    "input_gradient_matmul": "#b48ad6",
    "input_reduce": "#a5c8ef",
    "capsule_col2im": "#7aa6dc",
}
_DASHES = {
    "nchw": (0, (5, 1)),
    "channels_last": (0, (5, 1, 1, 1)),
    "capsule": (0, (1, 1)),
    "tf32": (0, (7, 3)),
    "float16": (0, (7, 3, 1, 3)),
}
_QUIET = "#666666"
_STYLE = {
    "svg.hashsalt": "numbacaps",  # the same ids, so the same bytes, every time
    "svg.fonttype": "none",  # text stays text
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e4e4e4",
    "axes.edgecolor": "#888888",
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a workload's name is whatever its user wrote
}
_NUMBERS = (
    *("ms_p20", "ms_p50", "ms_p80", "peak_bytes", "predicted_bytes", "gflop", "min_bytes"),
    *("copy_gbs", "sgemm_tflops", "byte_fraction"),
)


# ---- rows


def load(path):
    """Rows of a CSV, each a dict; the columns drawn are positive numbers, or None where empty.

    Raises
    ------
    experiments.records.ForeignFile
        The file is not one of ours.
    """
    rows = records.read(path)
    for line, row in enumerate(rows, start=2):
        for column in _NUMBERS:
            row[column] = _number(row[column], f"{path}, row {line}, column {column}")
        if not row["N"].isdecimal() or int(row["N"]) == 0:
            raise records.ForeignFile(
                f"{path}, row {line}, column N is {row['N']!r}; it takes an integer from 1"
            )
    return rows


def _number(cell, where):
    if cell == "":
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise records.ForeignFile(f"{where} is {cell!r}; it takes a number, or nothing")
    return value or None  # a time or size of 0 is none, and has no logarithm


def is_ours(algorithm):
    """Whether an algorithm is the registry's, not an opponent or the reference."""
    return not algorithm.startswith("torch_") and algorithm != "reference"


def is_predicted(rows):
    """Whether any of the rows is a prediction, not a measurement."""
    return any(row["note"].startswith("prediction") for row in rows)


def distinct(rows, column):
    """A column's values in the order of first appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def median(rows, column):
    """Median of a column's numbers; None if it has none."""
    numbers = [row[column] for row in rows if row[column] is not None]
    return statistics.median(numbers) if numbers else None


def reason(row):
    """Why a row has no number, in short."""
    known = [words for words in ("out of memory", "unsupported") if words in row["note"]]
    return known[0] if known else "failed" if row["note"] else "not measured"


def digits(value):
    """A number with three significant digits and no exponent."""
    exponent = int(f"{value:.2e}".split("e")[1])
    return f"{round(value, 2 - exponent):.{max(0, 2 - exponent)}f}"


class Line(NamedTuple):
    """What one curve, bar or table column shows: of the rows that fit, the fastest.

    Attributes
    ----------
    label : str
    algorithm, precision : str
    layouts : tuple of str
        Any of these fits.
    """

    label: str
    algorithm: str
    precision: str
    layouts: tuple

    @property
    def colour(self):
        fallback = _OTHERS[zlib.crc32(self.algorithm.encode()) % len(_OTHERS)]
        return COLOURS.get(self.algorithm, fallback)

    @property
    def dashes(self):
        if is_ours(self.algorithm):
            return "-" if self.precision == "ieee" else _DASHES.get(self.precision, "--")
        return _DASHES.get(self.precision) or _DASHES.get(self.layouts[0], "--")

    def fits(self, row):
        """Whether a row is one of those that the line may show."""
        return (row["algorithm"], row["precision"]) == self[1:3] and row["layout"] in self.layouts

    def best(self, rows):
        """The fastest row that fits; one that could not run if none did; None if none fits."""
        fitting = [row for row in rows if self.fits(row)]
        return min(fitting, key=lambda row: row["ms_p50"] or math.inf, default=None)


def line_of(row):
    """The line of a row's own variant."""
    algorithm, layout, precision = row["algorithm"], row["layout"], row["precision"]
    words = [algorithm]
    if layout != "capsule" or algorithm == FOLD:
        words.append(layout)
    if precision != "ieee":
        words.append(precision)
    return Line(" ".join(words), algorithm, precision, (layout,))


def variants(rows):
    """A line for each variant, ours first, each algorithm in the order of :data:`COLOURS`."""
    names = list(COLOURS)

    def rank(line):
        known = line.algorithm in COLOURS
        return not is_ours(line.algorithm), names.index(line.algorithm) if known else len(names)

    return sorted(dict.fromkeys(map(line_of, rows)), key=rank)


def fastest(rows, algorithm, precision):
    """The line of an algorithm's fastest layout, as a list; empty if it has no rows."""
    fitting = [
        line for line in variants(rows) if line[1:3] == (algorithm, precision)
    ]  # layouts of one algorithm
    if len(fitting) < 2:
        return fitting
    words = [algorithm, *([] if precision == "ieee" else [precision]), "best layout"]
    layouts = tuple(layout for line in fitting for layout in line.layouts)
    return [Line(" ".join(words), algorithm, precision, layouts)]


def curves(rows):
    """Lines of a figure with room: ours, opponents in each layout, the best fold with less digits."""
    full = [line for line in variants(rows) if _is_ours_or_ieee(line)]
    return full + fastest(rows, FOLD, "tf32") + fastest(rows, FOLD, "float16")


def columns(rows):
    """Lines of a table: ours, each opponent's best layout, the best fold with less digits."""
    lines = [line for line in variants(rows) if is_ours(line.algorithm)]
    for algorithm in dict.fromkeys(line.algorithm for line in variants(rows)):
        if algorithm.startswith("torch_"):
            lines += fastest(rows, algorithm, "ieee")
        if algorithm == FOLD:
            lines += fastest(rows, FOLD, "tf32") + fastest(rows, FOLD, "float16")
    return lines


def _is_ours_or_ieee(line):
    if line.algorithm == "reference":
        return False
    return is_ours(line.algorithm) or line.precision == "ieee"


class Time(NamedTuple):
    """Milliseconds, or None and the reason why."""

    ms: float | None
    reason: str

    def __str__(self):
        return self.words()

    def words(self, *unit):
        """The number and its unit, or the reason."""
        return self.reason if self.ms is None else " ".join((digits(self.ms), *unit))


def added(line, rows, workloads, passes):
    """A line's time of all these workloads and passes together."""
    total = 0.0
    for workload in workloads:
        for name in passes:
            row = line.best(at(of_pass(rows, name), workload=workload))
            if row is None:
                return Time(None, "not measured")
            if row["ms_p50"] is None:
                return Time(None, reason(row))
            total += row["ms_p50"]
    return Time(total, "")


def at(rows, **cells):
    """The rows that have these cells."""
    return [row for row in rows if all(row[name] == value for name, value in cells.items())]


def network(rows):
    """The rows of the published network's layers, on the GPU."""
    return [row for row in rows if row["workload"] in LAYERS and row["algorithm"] != "reference"]


def of_pass(rows, name):
    """The rows of a pass."""
    return [row for row in rows if row["pass"] == name]


def swept(rows):
    """The axes of a sweep: lists of the geometry's columns that vary as one, most values first."""
    together = defaultdict(list)
    for column in records.GEOMETRY:
        values = distinct(rows, column)
        if len(values) > 1:
            together[tuple(values.index(row[column]) for row in rows)].append(column)
    return sorted(together.values(), key=lambda axis: -len(distinct(rows, axis[0])))


def split_sweep(rows):
    """Rows of the workloads that sweep something, and of those with one geometry each."""
    groups = {name: at(rows, workload=name) for name in distinct(rows, "workload")}
    sweeps = {name: group for name, group in groups.items() if swept(group)}
    single = [row for name, group in groups.items() if name not in sweeps for row in group]
    return sweeps, single


def slug(text):
    """A workload's name, fit for a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class Lacking(ValueError):
    """There are no rows to draw a figure from; the message says which."""


# ---- parts of figures


class Sheet:
    """A figure with a title, on which panels are placed in inches from the top left."""

    def __init__(self, width, height, title, notes, rows):
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), facecolor="white")
        predicted = is_predicted(rows)
        if predicted:
            words, middle = "PREDICTION", (0.5, 0.5)
            look = {"size": 64, "color": "#c00000", "alpha": 0.13, "weight": "bold"}
            self.figure.text(*middle, words, rotation=28, ha="center", va="center", **look)
            title = f"PREDICTION, not measured: {title}"
        self.text(0.3, 0.35, title, size=14, weight="bold")
        gpus = ", ".join(distinct(rows, "gpu"))
        dtypes = "float32 unless a label says otherwise"
        for i, note in enumerate([f"{gpus}; {dtypes}", *notes]):
            self.text(0.3, 0.66 + 0.23 * i, note, color=_QUIET)

    def text(self, x, y, words, **look):
        """Words that begin at a place of the sheet."""
        look = {"size": 10, "ha": "left", "va": "center"} | look
        self.figure.text(x / self.width, 1 - y / self.height, words, **look)

    def panel(self, x, y, width, height, title=""):
        """Axes whose corner is at a place of the sheet."""
        bottom = 1 - (y + height) / self.height
        box = (x / self.width, bottom, width / self.width, height / self.height)
        axes = self.figure.add_axes(box)
        axes.set_title(title, loc="left", size=11, weight="bold")
        axes.grid(True, which="major")
        return axes


def spread(places, gap, low, high):
    """Places moved as little as can be so that they are ``gap`` apart, inside low to high.

    Least squares: in sorted order, places less their share of gaps must not decrease, and runs that
    do are pooled at their mean.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    pools = []  # mean, count
    for rank, i in enumerate(order):
        mean, count = places[i] - rank * gap, 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean = (mean * count + before * more) / (count + more)
            count += more
        pools.append((mean, count))
    levels = [mean for mean, count in pools for _ in range(count)]
    top = high - gap * (len(places) - 1)
    moved = [0.0] * len(places)
    for rank, i in enumerate(order):
        moved[i] = max(low, min(levels[rank], top)) + rank * gap
    return moved


def _label_ends(axes, ends, height):
    """Write each (x, y, words, colour) right of the panel, beside the curve's end if it can be."""
    places = [
        axes.transAxes.inverted().transform(axes.transData.transform(end[:2]))[1] for end in ends
    ]
    gap = 0.17 / height
    for (x, y, words, colour), place in zip(ends, spread(places, gap, 0, 1)):
        axes.annotate(
            words,
            (x, y),
            (1.03, place),
            textcoords="axes fraction",
            size=9,
            color=colour,
            va="center",
            annotation_clip=False,
            # ends left of the words, so that it strikes none through
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "lw": 0.6,
                "ls": ":",
                "relpos": (0, 0.5),
            },
        )


def _label_room(lines):
    """Height that the labels of so many lines need."""
    return max(2.9, 0.18 * lines)


def _log(axis, words=lambda value, _: f"{value:g}"):
    """Make an axis logarithmic, with ticks at 1, 2 and 5 where it spans little."""
    axes, name = axis.axes, axis.axis_name
    getattr(axes, f"set_{name}scale")("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    axis.set_major_formatter(FuncFormatter(words))
    axis.set_minor_formatter(NullFormatter())


def _limits(values, factor):
    return min(values) / factor, max(values) * factor


# ---- speedup along a sweep


class _Scale:
    """Where the values of a sweep's axis stand: at their logarithms, or evenly if they have none."""

    def __init__(self, rows, axis):
        self.column = axis[0]
        values = distinct(rows, self.column)
        numbers = all(re.fullmatch(r"[1-9]\d*", value) for value in values)
        self.values = sorted(values, key=int) if numbers else values
        self.places = [math.log2(int(v)) for v in self.values] if numbers else range(len(values))
        same = [c for c in axis if all(row[c] == row[self.column] for row in rows)]
        self.label = " = ".join(same)
        if len(same) == 1:
            self.label += f": {records.COLUMNS[self.column]}"
        for column in axis:
            if column not in same:
                cells = [at(rows, **{self.column: v})[0][column] for v in self.values]
                self.label += f"   ({column} = {', '.join(cells)})"

    def apply(self, axes):
        """Ticks, label and limits of the horizontal axis."""
        axes.set_xticks(self.places, self.values)
        axes.set_xlabel(self.label)
        span = self.places[-1] - self.places[0]
        axes.set_xlim(self.places[0] - 0.03 * span, self.places[-1] + 0.03 * span)


def speedup(workload, rows, baseline):
    """Speedup over the baseline along a sweep: a panel for each pass, a curve for each line.

    Parameters
    ----------
    workload : str
    rows : list of dict
        Of this workload, which sweeps at least one axis.
    baseline : str
        Algorithm whose fastest float32 layout, at each point, is 1x.

    Raises
    ------
    Lacking
        The baseline has no times here.
    """
    base = Line(baseline, baseline, "ieee", tuple(distinct(rows, "layout")))
    if not any(row["ms_p50"] for row in rows if base.fits(row)):
        raise Lacking(f"no times of {baseline}, ieee, for it")
    axis, *others = swept(rows)
    scale = _Scale(rows, axis)
    settings = list(dict.fromkeys(records.key(row, [other[0] for other in others]) for row in rows))
    passes = [name for name in PASSES if of_pass(rows, name)]
    height = _label_room(len(curves(rows)) * len(settings))
    fixed = [
        f"{name} = {rows[0][name]}"
        for name in records.GEOMETRY
        if not any(name in varied for varied in (axis, *others))
    ]
    sheet = Sheet(
        11.5,
        1.55 + len(passes) * (height + 1.0),
        f"Speedup over {baseline} along {workload}",
        (
            f"1x: {baseline}, ieee, its fastest layout at each point; bands: 20th to 80th percentile",
            ", ".join(fixed),
        ),
        rows,
    )
    for i, name in enumerate(passes):
        axes = sheet.panel(0.9, 1.7 + i * (height + 1.0), 7.0, height, name)
        ends, missing = [], []
        axes.axhline(1, color="black", lw=1.3)
        for setting, marker in zip(settings, "os^Dv<>pPX" * len(settings)):
            cells = {other[0]: value for other, value in zip(others, setting)}
            part = at(of_pass(rows, name), **cells)
            suffix = "".join(f", {column} = {value}" for column, value in cells.items())
            missing += _baseline_gaps(base, part, scale, suffix)
            for line in curves(rows):
                label = line.label + suffix
                end, gaps = _draw_curve(axes, line, label, base, part, scale, marker)
                ends += end
                missing += gaps
        scale.apply(axes)
        axes.set_ylabel(f"speedup over {baseline} (x)")
        values = [
            value for drawn in axes.lines for value in drawn.get_ydata() if math.isfinite(value)
        ]
        axes.set_ylim(_limits(values, 1.5))
        _log(axes.yaxis, lambda value, _: f"{value:g}x")
        axes.text(
            0.008, 1, "1x", transform=axes.get_yaxis_transform(), size=9, weight="bold", va="bottom"
        )
        _label_ends(axes, ends, height)
        if missing:
            look = {"size": 8.5, "color": _QUIET, "ha": "right", "va": "bottom"}
            words = textwrap.fill("; ".join(missing), 90)
            axes.text(1, 1.02, words, transform=axes.transAxes, **look)
    return sheet.figure


def _baseline_gaps(base, rows, scale, suffix):
    """Words on the points where there is nothing to compare with."""
    parts = {value: at(rows, **{scale.column: value}) for value in scale.values}
    gaps = [
        value
        for value, part in parts.items()
        if any(row["ms_p50"] for row in part)
        and not any(row["ms_p50"] for row in part if base.fits(row))
    ]
    return [f"no {base.label} at {', '.join(gaps)}{suffix}"] if gaps else []


def _draw_curve(axes, line, label, base, rows, scale, marker):
    """Draw a curve with its band; return its end's label, and words if there is nothing to draw."""
    shown = [line.best(at(rows, **{scale.column: value})) for value in scale.values]
    ones = [base.best(at(rows, **{scale.column: value})) for value in scale.values]
    if not any(shown):
        return [], []

    def speedups(column):
        return [
            one["ms_p50"] / row[column]
            if row and one and one["ms_p50"] and row[column]
            else math.nan
            for row, one in zip(shown, ones)
        ]

    middle, colour = speedups("ms_p50"), line.colour
    drawn = [i for i, value in enumerate(middle) if math.isfinite(value)]
    if not drawn:
        failed = [row for row in shown if row and row["ms_p50"] is None]
        return [], [f"{label}: {reason(row)}" for row in failed[:1]]
    axes.plot(scale.places, middle, color=colour, ls=line.dashes, lw=1.8, marker=marker, ms=4)
    bounds = speedups("ms_p80"), speedups("ms_p20")
    axes.fill_between(scale.places, *bounds, color=colour, alpha=0.15, lw=0)
    last = drawn[-1]
    x, y = scale.places[last], middle[last]
    after = shown[last + 1] if last + 1 < len(shown) else None
    if after and after["ms_p50"] is None:
        x = scale.places[last + 1]
        axes.plot([scale.places[last], x], [y, y], color=colour, lw=0.8, ls=":")
        axes.plot([x], [y], color=colour, marker="x", ms=8, mew=2)
        label = f"{label}  ×  {reason(after)}"
    return [(x, y, label, colour)], []


# ---- bars


def _bar_rows(groups):
    """Heights of bars, one below the other, with a gap and a place for a name above each group."""
    places, y = [], 0.0
    for group in groups:
        places.append([y + 1 + i for i in range(len(group))])
        y += len(group) + 1.6
    return places, y


def workload_times(rows):
    """Times of the workloads that have one geometry each: a panel for each pass.

    Raises
    ------
    Lacking
        No rows.
    """
    if not rows:
        raise Lacking("no workload that keeps one geometry")
    names = distinct(rows, "workload")
    groups = [columns(at(rows, workload=name)) for name in names]
    places, count = _bar_rows(groups)
    passes = [name for name in PASSES if of_pass(rows, name)]
    height, width = 0.17 * count, 3.5
    sheet = Sheet(
        2.7 + len(passes) * (width + 0.5),
        2.1 + height,
        "Milliseconds of one call, per workload",
        ("median; where an opponent runs in several layouts, the fastest",),
        rows,
    )
    for i, name in enumerate(passes):
        axes = sheet.panel(2.4 + i * (width + 0.5), 1.5, width, height, name)
        times = [
            [added(line, rows, [workload], [name]) for line in lines]
            for workload, lines in zip(names, groups)
        ]
        known = [time.ms for group in times for time in group if time.ms]
        low, high = _limits(known or [1], 1.6)
        axes.set_xlim(
            low, high * (high / low) ** 0.13
        )  # room for the number beside the longest bar
        axes.set_ylim(count - 0.4, -0.6)
        _log(axes.xaxis)
        axes.set_xlabel("ms, log scale")
        axes.grid(False, axis="y")
        for workload, lines, ys, group in zip(names, groups, places, times):
            axes.axhline(ys[0] - 1.4, color="#bbbbbb", lw=0.8)
            for line, y, time in zip(lines, ys, group):
                _bar(axes, y, time, line)
            if i == 0:
                look = {"size": 10, "weight": "bold", "ha": "right", "va": "center"}
                axes.text(
                    -0.02, ys[0] - 0.85, workload, transform=axes.get_yaxis_transform(), **look
                )
        labels = [line.label for lines in groups for line in lines] if i == 0 else []
        ticks = [y for ys in places for y in ys] if i == 0 else []
        axes.set_yticks(ticks, labels, size=8)
        axes.tick_params(axis="y", length=0)
    return sheet.figure


def _bar(axes, y, time, line, **look):
    """One bar from the axis, with its number; or in its place the reason why there is none."""
    low = axes.get_xlim()[0]
    words = {"size": 8, "va": "center", "xytext": (4, 0), "textcoords": "offset points"}
    if time.ms is None:
        axes.annotate(f"× {time.reason}", (low, y), color=line.colour, **words)
        return
    hatch = {"ieee": "", "tf32": "...", "float16": "..."}.get(line.precision, "")
    look = {"color": line.colour, "hatch": hatch, "edgecolor": "white", "lw": 0} | look
    face = look.pop("color")
    axes.barh(y, time.ms - low, left=low, height=0.82, facecolor=face, **look)
    axes.annotate(str(time), (time.ms, y), **words)


def table1(rows):
    """Time of the published network, forward and backward, beside the paper's own.

    Raises
    ------
    Lacking
        No layer was measured.
    """
    rows = network(rows)
    if not rows:
        raise Lacking("no layers")
    bars = []  # line, name, paper's row
    for line in variants(rows):
        bars.append((line, line.label, None))
        paper = paper_table.ROWS.get(line.algorithm)
        if paper and line.precision == "ieee":
            bars.append((line, f"paper, {paper}: {paper_table.GPU}", paper))
    height, width = 0.23 * len(bars), 5.2
    sheet = Sheet(
        3.3 + 2 * (width + 0.4),
        2.75 + height,
        "The published network at batch 128, all five layers (Table 1)",
        ("medians added up over the layers; backward is both gradients. Dotted: tf32 and float16",),
        rows,
    )
    for i, (title, passes) in enumerate((("forward", PASSES[:1]), ("backward", BACKWARD))):
        axes = sheet.panel(3.0 + i * (width + 0.4), 1.5, width, height, title)
        times = [
            Time(paper_table.TABLE_1[paper][i], "") if paper else added(line, rows, LAYERS, passes)
            for line, _, paper in bars
        ]
        low, high = _limits([time.ms for time in times if time.ms] or [1], 1.6)
        axes.set_xlim(low, high * (high / low) ** 0.1)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        _log(axes.xaxis)
        axes.set_xlabel("ms, log scale")
        axes.grid(False, axis="y")
        for y, ((line, _, paper), time) in enumerate(zip(bars, times)):
            look = {"color": "white", "hatch": "////", "edgecolor": line.colour, "lw": 0.8}
            _bar(axes, y, time, line, **(look if paper else {}))
        names = [name for _, name, _ in bars] if i == 0 else []
        axes.set_yticks(range(len(names)), names, size=8.5)
        axes.tick_params(axis="y", length=0)
    first, second = paper_table.CAVEAT.split(": ", 1)
    sheet.text(0.3, sheet.height - 0.48, first + ":", size=9.5, style="italic")
    sheet.text(0.3, sheet.height - 0.25, second, size=9.5, style="italic")
    return sheet.figure


# ---- roofline


def roofline(rows):
    """Achieved TFLOP/s against arithmetic intensity, under the ceilings measured with them.

    Raises
    ------
    Lacking
        No times, or no ceilings.
    """
    rows = [row for row in rows if row["algorithm"] != "reference" and row["pass"] in PASSES]
    rows = [row for row in rows if row["ms_p50"] and row["gflop"] and row["min_bytes"]]
    copy, sgemm = median(rows, "copy_gbs"), median(rows, "sgemm_tflops")
    if not copy or not sgemm:
        raise Lacking("no times with both ceilings")
    sheet = Sheet(
        11.5,
        7.6,
        "Roofline: every pass of every workload",
        ("filled: ieee; hollow: tf32 and float16, which the SGEMM ceiling does not bound",),
        rows,
    )
    axes = sheet.panel(0.9, 1.3, 7.6, 5.5)
    points = defaultdict(list)
    for row in sorted(rows, key=lambda row: is_ours(row["algorithm"])):  # ours on top
        point = row["gflop"] * 1e9 / row["min_bytes"], row["gflop"] / row["ms_p50"]
        points[line_of(row).colour, row["pass"], row["precision"] == "ieee"].append(point)
    xs, ys = zip(*(point for group in points.values() for point in group))
    x_low, x_high = _limits(xs, 1.6)
    axes.set_xlim(x_low, x_high)
    axes.set_ylim(_limits([*ys, sgemm], 1.8))
    ridge = sgemm * 1e3 / copy
    look = {"color": "black", "lw": 1.6}
    axes.plot([x_low, ridge], [x_low * copy / 1e3, sgemm], **look)
    axes.plot([ridge, max(ridge, x_high)], [sgemm, sgemm], **look)
    markers = dict(zip(PASSES, "o<v"))
    for (colour, name, filled), group in points.items():
        face = colour if filled else "none"
        look = {"color": face, "edgecolors": colour, "linewidths": 0.9, "alpha": 0.75}
        axes.scatter(*zip(*group), s=26, marker=markers[name], zorder=3, **look)
    _log(axes.xaxis)
    _log(axes.yaxis)
    axes.set_xlabel("arithmetic intensity (FLOP per byte that must move), log scale")
    axes.set_ylabel("achieved TFLOP/s, log scale")
    algorithms = dict.fromkeys((line.algorithm, line.colour) for line in variants(rows))
    handles = [Line2D([], [], color=c, marker="o", ls="", label=a) for a, c in algorithms]
    handles += [
        Line2D([], [], color=_QUIET, marker=markers[name], ls="", label=name)
        for name in distinct(rows, "pass")
    ]
    ceilings = f"ceilings: copy {digits(copy)} GB/s,\nSGEMM {digits(sgemm)} TFLOP/s"
    handles.append(Line2D([], [], color="black", label=ceilings))
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False, fontsize=9.5
    )
    return sheet.figure


# ---- stages


def stage_bars(rows):
    """Where the paper's pipeline spends its time, stage by stage, and how near copy bandwidth.

    Raises
    ------
    Lacking
        No stage has a time.
    """
    bars = []  # name, rows of the stages
    for workload in distinct(rows, "workload"):
        for direction, passes in DIRECTIONS.items():
            group = [row for row in at(rows, workload=workload) if row["pass"] in passes]
            stages = [row for row in group if row["stage"] and row["ms_p50"]]
            stages.sort(key=lambda row: stage_rank(row["stage"]))
            if stages:
                whole = _whole_passes([row for row in group if not row["stage"]])
                bars.append((f"{workload}, {direction}{whole}", stages))
    if not bars:
        raise Lacking("no times of stages")
    height, width = 0.58 * len(bars), 5.4
    sheet = Sheet(
        3.2 + 2 * (width + 0.35),
        3.5 + height,
        "Algorithms 3 and 4, stage by stage",
        (
            "in a segment: percent of copy bandwidth, by the bytes that the stage must move",
            "backward: the stages of both gradients; under each name: the whole pass",
        ),
        rows,
    )
    left = sheet.panel(2.9, 1.75, width, height, "time")
    right = sheet.panel(2.9 + width + 0.35, 1.75, width, height, "share of time")
    totals = [sum(row["ms_p50"] for row in stages) for _, stages in bars]
    for y, ((_, stages), total) in enumerate(zip(bars, totals)):
        _stack(left, y, stages, 1, max(totals))
        _stack(right, y, stages, 100 / total, 100)
    for axes in (left, right):
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.grid(False, axis="y")
        axes.set_yticks([])
        axes.tick_params(axis="y", length=0)
    left.set_yticks(range(len(bars)), [name for name, _ in bars], size=8.5)
    left.set_xlabel("ms, stages added up")
    right.set_xlabel("percent of the stages' time")
    right.set_xlim(0, 100)
    found = {row["stage"]: stage_colour(row["stage"]) for _, stages in bars for row in stages}
    named = sorted(found, key=stage_rank)
    handles = [Patch(color=found[stage], label=stage) for stage in named]
    corner = (2.9 / sheet.width, 0.15 / sheet.height)
    sheet.figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=corner,
        ncols=4,
        frameon=False,
        fontsize=9.5,
    )
    return sheet.figure


def stage_colour(stage):
    """Colour of a stage; grey if it is none of the paper's."""
    return STAGES.get(stage, "#d5d5d5")


def stage_rank(stage):
    """Where a stage stands in the pipelines; behind all of them if it is none of the paper's."""
    return list(STAGES).index(stage) if stage in STAGES else len(STAGES)


def _whole_passes(rows):
    """A second line of a bar's name: what the passes take when nothing is timed in between."""
    passes, workloads = distinct(rows, "pass"), distinct(rows, "workload")
    words = [
        f"{line.label} {added(line, rows, workloads, passes).words('ms')}"
        for line in variants(rows)
        if line.precision == "ieee"
    ]
    return "".join(f"\n{text}" for text in words)


def _stack(axes, y, rows, unit, widest):
    """One bar of segments; a segment wide enough says its percent of copy bandwidth."""
    start = 0.0
    for row in rows:
        width = row["ms_p50"] * unit
        look = {"color": stage_colour(row["stage"]), "ec": "white", "lw": 0.6}
        axes.barh(y, width, left=start, height=0.74, **look)
        if row["byte_fraction"] and width > 0.055 * widest:
            words = f"{100 * row['byte_fraction']:.0f}%"
            axes.text(start + width / 2, y, words, size=8, ha="center", va="center")
        start += width


# ---- memory


def memory(rows):
    """Most device memory held at once, against the batch: a panel for each workload and pass.

    Raises
    ------
    Lacking
        No row has any.
    """
    groups = {}
    for row in rows:
        groups.setdefault((row["workload"], row["pass"]), []).append(row)
    groups = {
        name: group
        for name, group in groups.items()
        if any(row["peak_bytes"] or row["predicted_bytes"] for row in group)
    }
    if not groups:
        raise Lacking("no bytes")
    height = max(_label_room(len(variants(group))) for group in groups.values())
    sheet = Sheet(
        10.5,
        1.4 + len(groups) * (height + 1.0),
        "Peak device memory against the batch",
        (
            "operands, result and intermediates. Solid: measured; dashed: predicted from the geometry",
        ),
        rows,
    )
    for i, ((workload, name), group) in enumerate(groups.items()):
        title = f"{workload}, {name}"
        axes = sheet.panel(0.9, 1.5 + i * (height + 1.0), 6.6, height, title)
        batches = sorted(map(int, distinct(group, "N")))
        ends = [end for line in variants(group) for end in _draw_memory(axes, line, group, batches)]
        gigabytes = [
            value for drawn in axes.lines for value in drawn.get_ydata() if math.isfinite(value)
        ]
        axes.set_xscale("log", base=2)
        axes.set_xlim(_limits(batches, 1.1))
        axes.set_xticks(batches, map(str, batches))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(_limits(gigabytes, 1.5))
        _log(axes.yaxis)
        axes.set_xlabel("N: batch (images), log scale")
        axes.set_ylabel("peak memory (GB), log scale")
        _label_ends(axes, ends, height)
    return sheet.figure


def _draw_memory(axes, line, rows, batches):
    """Draw a line's measured and predicted bytes; return its end's label."""
    found = {int(row["N"]): row for row in rows if line.fits(row)}

    def gigabytes(column):
        cells = [found[n][column] if n in found else None for n in batches]
        return [cell / 1e9 if cell else math.nan for cell in cells]

    measured, predicted = gigabytes("peak_bytes"), gigabytes("predicted_bytes")
    axes.plot(batches, predicted, color=line.colour, lw=1.4, ls=(0, (4, 3)), alpha=0.8)
    axes.plot(batches, measured, color=line.colour, lw=1.8, marker="o", ms=4)
    known = [i for i, value in enumerate(measured) if math.isfinite(value)]
    guessed = [i for i, value in enumerate(predicted) if math.isfinite(value)]
    if not known and not guessed:
        return []
    last = known[-1] if known else guessed[0]
    x, y, label = batches[last], measured[last] if known else predicted[last], line.label
    failed = [n for n in batches if n in found and found[n]["peak_bytes"] is None and n >= x]
    if failed:
        x = failed[0]
        foreseen = predicted[batches.index(x)]
        y = foreseen if math.isfinite(foreseen) else y
        axes.plot([x], [y], color=line.colour, marker="x", ms=8, mew=2)
        label = f"{label}  ×  {reason(found[x])}"
    return [(x, y, label, line.colour)]


# ---- all of them


def draw_all(data, baseline):
    """Draw every figure that there are rows for.

    Parameters
    ----------
    data : dict of str to list of dict
        Rows by experiment, as :func:`load` reads them; no rows where there is no file.
    baseline : str
        Algorithm that the speedups are over.

    Returns
    -------
    files : dict of str to bytes
        By the file's name.
    skipped : list of str
        One line for each figure that could not be drawn, and why.
    """
    sweeps, single = split_sweep(data["sweep"])
    jobs = [("table1", "table1", partial(table1, data["table1"]))]
    for workload, rows in sweeps.items():
        make = partial(speedup, workload, rows, baseline)
        jobs.append((f"sweep-{slug(workload)}", "sweep", make))
    jobs += [
        ("workloads", "sweep", partial(workload_times, single)),
        ("roofline", "table1", partial(roofline, data["table1"] + data["sweep"])),
        ("stages", "stages", partial(stage_bars, data["stages"])),
        ("memory", "memory", partial(memory, data["memory"])),
    ]
    files, skipped = {}, []
    if not sweeps:
        skipped.append(_skipped("sweep-...", "sweep", "no workload that sweeps an axis"))
    with style.context(["default", _STYLE]):
        for name, experiment, make in jobs:
            try:
                files |= _render(name, make())
            except Lacking as lack:
                skipped.append(_skipped(name, experiment, lack))
    return files, skipped


def _skipped(name, experiment, lack):
    return (
        f"{name} skipped: {experiment}.csv has {lack}; python -m experiments.{experiment} makes it"
    )


def _render(name, figure):
    """The bytes of a figure's two files; nothing in them tells when or by what they were made."""
    formats = {"png": {"Software": None}, "svg": {"Date": None}}
    files = {}
    for extension, metadata in formats.items():
        stream = io.BytesIO()
        figure.savefig(stream, format=extension, dpi=150, metadata=metadata)
        files[f"{name}.{extension}"] = stream.getvalue()
    return files
