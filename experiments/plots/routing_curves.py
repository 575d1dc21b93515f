"""The figure of routing over the batch and over the iterations: time and memory, beside PyTorch with stored votes."""

import math

from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from experiments.measuring import routing_curve_rows
from experiments.measuring.routing_curve_rows import CONTESTANTS, IMAGES, ITERATIONS
from experiments.plots.canvas import QUIET, Sheet, cross, end_in_cross, limits, log_height
from experiments.plots.routing import LINES, TITLES
from experiments.plots.rows import Lacking, reason

_PANELS = (("batch", "ms"), ("batch", "extra_mb"), ("iterations", "ms"))
_WORDS = {"ms": ("time", "ms, log scale"), "extra_mb": ("extra memory", "MB, log scale")}
_AXES = {"batch": "N: batch (images), log scale", "iterations": "iterations"}
_DASHES = {"forward": "-", "training": (0, (4, 2))}
_WIDTH, _HEIGHT, _LEFT, _GAP, _TOP, _BELOW = 3.2, 2.8, 0.9, 1.0, 1.9, 1.1  # inches


def draw(rows):
    """A row of panels for each network: time and memory over the batch, time over the iterations.

    Parameters
    ----------
    rows : list of dict
        Of the experiment routing_curves.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No row has a time.
    """
    cases = routing_curve_rows.cases([row for row in rows if row["ms"] or row["note"]])
    networks = dict.fromkeys(key[0] for key, case in cases.items() if _has(case, "ms"))
    if not networks:
        raise Lacking("no times of routing")
    sheet = Sheet(
        _LEFT + len(_PANELS) * (_WIDTH + _GAP) - 0.6,
        _TOP + len(networks) * (_HEIGHT + _BELOW),
        "Routing without stored votes beside PyTorch with them, as batch and iterations grow",
        (
            "medians, float32 without TF32. Extra memory: the most beside operands and results, PyTorch's without a graph",
        ),
        rows,
    )
    for i, network in enumerate(networks):
        for j, (axis, column) in enumerate(_PANELS):
            own = {key[2:]: case for key, case in cases.items() if key[:2] == (network, axis)}
            if any(_has(case, column) for case in own.values()):
                place = _LEFT + j * (_WIDTH + _GAP), _TOP + i * (_HEIGHT + _BELOW)
                axes = sheet.panel(*place, _WIDTH, _HEIGHT, _title(network, axis, column))
                _draw_panel(axes, axis, column, own)
    _add_legend(sheet, cases.values())
    return sheet.figure


def _has(case, column):
    return any(case.number(name, column) for name in case.rows)


def _title(network, axis, column):
    fixed = f"{ITERATIONS} iterations" if axis == "batch" else f"{IMAGES[network]} images"
    return f"{network}, {_WORDS[column][0]}, {fixed}"


def _draw_panel(axes, axis, column, cases):
    """The curves of an axis, whose cases are given by place and pass."""
    places = sorted({at for at, _ in cases})
    for name in CONTESTANTS[::-1]:  # ours in front
        for wanted, dashes in _DASHES.items():
            own = {
                at: case for (at, of), case in cases.items() if of == wanted and name in case.rows
            }
            _draw_curve(axes, own, name, column, dashes)
    if axis == "batch":
        axes.set_xscale("log", base=2)
        axes.set_xlim(limits(places, 1.3))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(places, map(str, places))
    axes.set_xlabel(_AXES[axis])
    axes.set_ylabel(_WORDS[column][1])
    log_height(axes)


def _draw_curve(axes, cases, name, column, dashes):
    """A contestant's curve through its cases, by place; behind its last point the first that failed."""
    places, colour = list(cases), LINES[name].colour
    values = [case.number(name, column) or math.nan for case in cases.values()]
    drawn = [i for i, value in enumerate(values) if math.isfinite(value)]
    if not drawn:
        return
    axes.plot(places, values, color=colour, linestyle=dashes, marker="o")
    last = drawn[-1]
    if last + 1 < len(places) and cases[places[last + 1]].rows[name]["note"]:
        end_in_cross(axes, places[last], places[last + 1], values[last], colour)


def _add_legend(sheet, cases):
    """Colours, dashes and, where something failed, the cross, above the panels."""
    rows = [row for case in cases for row in case.rows.values()]
    shown = {row["contestant"] for row in rows}
    marks = [
        Line2D([], [], color=LINES[name].colour, marker="o")
        for name in CONTESTANTS
        if name in shown
    ]
    words = [LINES[name].label for name in CONTESTANTS if name in shown]
    marks += [Line2D([], [], color=QUIET, linestyle=dashes) for dashes in _DASHES.values()]
    words += [TITLES[wanted] for wanted in _DASHES]
    if reasons := dict.fromkeys(reason(row) for row in rows if row["note"]):
        marks.append(Line2D([], [], color=QUIET, linestyle=":", lw=0.8, **cross()))
        words.append(", ".join(reasons))
    sheet.figure.legend(
        marks,
        words,
        loc="center left",
        bbox_to_anchor=(0.2 / sheet.width, 1 - 1.25 / sheet.height),
        ncols=len(marks),
        frameon=False,
        fontsize=9,
    )
