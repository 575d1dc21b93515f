"""The figure of a sweep: speedup over a baseline, or time, along the axis that has most values."""

import math
import textwrap
from itertools import cycle

from experiments.measuring import records
from experiments.plots.canvas import QUIET, Sheet, end_in_cross, label_ends, label_room, log_height
from experiments.plots.lines import Line, curves
from experiments.plots.rows import PASSES, Lacking, at, distinct, of_pass, reason, swept
from experiments.plots.sweep_axis import Scale, settings_of


def draw(workload, rows, baseline):
    """Speedup over the baseline, or time, along a sweep: a panel for each pass, a curve for each line.

    Parameters
    ----------
    workload : str
    rows : list of dict
        Of this workload, which sweeps at least one axis; further axes give further curves.
    baseline : str or None
        Algorithm whose fastest float32 layout, at each point, is 1x; None for milliseconds.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        The baseline, or without one every algorithm, has no times here.
    """
    base = base_of(rows, baseline)
    axis, *others = swept(rows)
    scale = Scale(rows, axis)
    settings = settings_of(rows, [other[0] for other in others])
    lines = curves(rows)
    varied = {name for columns in (axis, *others) for name in columns}
    fixed = [f"{name} = {rows[0][name]}" for name in records.GEOMETRY if name not in varied]
    passes = [name for name in PASSES if of_pass(rows, name)]
    height = label_room(len(lines) * len(settings))
    bands = "bands: 20th to 80th percentile"
    sheet = Sheet(
        11.5,
        1.55 + len(passes) * (height + 1.0),
        f"Speedup over {baseline} along {workload}" if base else f"Milliseconds along {workload}",
        (
            f"1x: {baseline}, ieee, its fastest layout at each point; {bands}" if base else bands,
            ", ".join(fixed),
        ),
        rows,
    )
    for i, name in enumerate(passes):
        axes = sheet.panel(0.9, 1.7 + i * (height + 1.0), 7.0, height, name)
        ends, missing = _draw_curves(axes, of_pass(rows, name), lines, base, scale, settings)
        scale.apply(axes)
        if base:
            axes.axhline(1, color="black", lw=1.3)
            axes.set_ylabel(f"speedup over {baseline} (x)")
            log_height(axes, words=lambda value, _: f"{value:g}x")
            look = {"size": 9, "weight": "bold", "va": "bottom"}
            axes.text(0.008, 1, "1x", transform=axes.get_yaxis_transform(), **look)
        else:
            axes.set_ylabel("ms")
            log_height(axes)
        label_ends(axes, ends, height)
        if missing:
            look = {"size": 8.5, "color": QUIET, "ha": "right", "va": "bottom"}
            words = textwrap.fill("; ".join(missing), 90)
            axes.text(1, 1.02, words, transform=axes.transAxes, **look)
    return sheet.figure


def base_of(rows, baseline):
    """The line of the baseline in any layout, at ieee; None without one.

    Raises
    ------
    Lacking
        It, or without one every algorithm, has no times here.
    """
    base = baseline and Line(baseline, baseline, "ieee", tuple(distinct(rows, "layout")))
    if not any(row["ms_p50"] for row in rows if not base or base.fits(row)):
        raise Lacking(f"no times of {f'{baseline}, ieee,' if base else 'anything'} for it")
    return base


def ones_of(base, parts):
    """The milliseconds that are 1x at each point: the baseline's, NaN where it has none; None without one."""
    return [time_of(base.best(part), "ms_p50") if base else None for part in parts]


def _draw_curves(axes, rows, lines, base, scale, settings):
    """Draw the curves of a pass; return the labels of their ends, and words on what is missing."""
    ends, missing = [], []
    for cells, marker in zip(settings, cycle("os^Dv<>pPX")):
        parts = scale.split(at(rows, **cells))
        suffix = "".join(f", {column} = {value}" for column, value in cells.items())
        ones = ones_of(base, parts)
        alone = [
            value
            for value, part, one in zip(scale.values, parts, ones)
            if base and math.isnan(one) and any(row["ms_p50"] for row in part)
        ]
        if alone:
            missing.append(f"no {base.label} at {', '.join(alone)}{suffix}")
        for line in lines:
            label = line.label + suffix
            shown = [line.best(part) for part in parts]
            end = draw_curve(axes, scale.places, shown, ones, line, label, marker)
            if end:
                ends.append(end)
            else:
                failed = [row for row in shown if row and row["ms_p50"] is None]
                missing += [f"{label}: {reason(row)}" for row in failed[:1]]
    return ends, missing


def time_of(row, column):
    """Milliseconds; NaN, which no curve is drawn through, where there are none."""
    return row[column] if row and row[column] else math.nan


def draw_curve(axes, places, shown, ones, line, label, marker):
    """Draw a curve with its band; return its end's label, None if there is nothing to draw.

    ``ones`` are as :func:`ones_of` gives them, ``shown`` the line's rows at the same points.
    """

    def values(column):
        times = [time_of(row, column) for row in shown]
        return [ms if one is None else one / ms for ms, one in zip(times, ones)]

    middle, colour = values("ms_p50"), line.colour
    drawn = [i for i, value in enumerate(middle) if math.isfinite(value)]
    if not drawn:
        return None
    axes.plot(places, middle, color=colour, ls=line.dashes, marker=marker)
    bounds = values("ms_p80"), values("ms_p20")
    axes.fill_between(places, *bounds, color=colour, alpha=0.15, lw=0)
    last = drawn[-1]
    x, y = places[last], middle[last]
    after = shown[last + 1] if last + 1 < len(shown) else None
    if after and after["ms_p50"] is None:
        x = places[last + 1]
        end_in_cross(axes, places[last], x, y, colour)
        label = f"{label}  ×  {reason(after)}"
    return x, y, label, colour
