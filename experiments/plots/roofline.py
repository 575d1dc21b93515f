"""The roofline: what every pass of every workload achieves, under the ceilings measured with it."""

from collections import defaultdict

from matplotlib.lines import Line2D

from experiments.plots.canvas import QUIET, Sheet, limits, log_scale
from experiments.plots.lines import is_ours, line_of, variants
from experiments.plots.rows import PASSES, Lacking, digits, distinct, median

_MARKERS = dict(zip(PASSES, "o<v"))


def draw(rows):
    """Achieved TFLOP/s against arithmetic intensity, under the ceilings measured with them.

    Parameters
    ----------
    rows : list of dict

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No times, or no ceilings.
    """
    rows, copy, sgemm = selected(rows)
    sheet = Sheet(
        11.5,
        7.6,
        "Roofline: every pass of every workload",
        ("filled: ieee; hollow: on tensor cores, which the SGEMM ceiling does not bound",),
        rows,
    )
    axes = sheet.panel(0.9, 1.3, 7.6, 5.5)
    draw_into(axes, rows, copy, sgemm, size=26)
    axes.set_xlabel("arithmetic intensity (FLOP per byte that must move), log scale")
    axes.set_ylabel("achieved TFLOP/s, log scale")
    ceilings = f"ceilings: copy {digits(copy)} GB/s,\nSGEMM {digits(sgemm)} TFLOP/s"
    marks = [
        Line2D([], [], color=c, marker=m, ls="", ms=6, label=name) for name, c, m in keys(rows)
    ]
    handles = [*marks, Line2D([], [], color="black", label=ceilings)]
    look = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "frameon": False, "fontsize": 9.5}
    axes.legend(handles=handles, **look)
    return sheet.figure


def selected(rows):
    """The rows with times, and the two ceilings measured with them: GB/s of a copy, TFLOP/s of an SGEMM.

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
    return rows, copy, sgemm


def draw_into(axes, rows, copy, sgemm, size):
    """Draw ceilings and points; ``size`` is a point's, in square points."""
    points = _points(rows)
    xs, ys = zip(*(point for group in points.values() for point in group))
    low, high = limits(xs, 1.6)
    axes.set_xlim(low, high)
    axes.set_ylim(limits([*ys, sgemm], 1.8))
    ridge = sgemm * 1e3 / copy
    axes.plot([low, ridge], [low * copy / 1e3, sgemm], color="black", lw=1.6)
    axes.plot([ridge, max(ridge, high)], [sgemm, sgemm], color="black", lw=1.6)
    for (colour, name, filled), group in points.items():
        look = {"color": colour if filled else "none", "edgecolors": colour, "linewidths": 0.9}
        axes.scatter(*zip(*group), s=size, marker=_MARKERS[name], zorder=3, alpha=0.75, **look)
    log_scale(axes.xaxis)
    log_scale(axes.yaxis)


def _points(rows):
    """Lists of (FLOP per byte, TFLOP/s) by colour, pass, and whether in ieee; ours on top."""
    points = defaultdict(list)
    for row in sorted(rows, key=lambda row: is_ours(row["algorithm"])):
        point = row["gflop"] * 1e9 / row["min_bytes"], row["gflop"] / row["ms_p50"]
        points[line_of(row).colour, row["pass"], row["precision"] == "ieee"].append(point)
    return points


def keys(rows):
    """(name, colour, marker) of what the colours and the markers stand for."""
    algorithms = dict.fromkeys((line.algorithm, line.colour) for line in variants(rows))
    found = [(name, colour, "o") for name, colour in algorithms]
    return found + [(name, QUIET, _MARKERS[name]) for name in distinct(rows, "pass")]
