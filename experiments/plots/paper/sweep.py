"""Speedup over a baseline, or time, along a sweep, for print: a panel for each pass and setting of the other axes."""

from experiments.plots.canvas import log_height
from experiments.plots.lines import columns
from experiments.plots.paper.column import column, entry, mark
from experiments.plots.rows import PASSES, at, of_pass, swept
from experiments.plots.speedup import base_of, draw_curve, ones_of
from experiments.plots.sweep_axis import Scale, settings_of


def draw(workload, rows, baseline):
    """See :func:`experiments.plots.speedup.draw`; an opponent has its fastest layout at each point."""
    base = base_of(rows, baseline)
    axis, *others = swept(rows)
    scale = Scale(rows, axis)
    settings = settings_of(rows, [other[0] for other in others])
    lines = [
        line for line in columns(rows) if any(row["ms_p50"] for row in filter(line.fits, rows))
    ]
    panels = [(name, cells) for name in PASSES if of_pass(rows, name) for cells in settings]
    titles = [
        ", ".join([name, *(f"{c} = {v}" for c, v in cells.items())]) for name, cells in panels
    ]
    figure, found = column([1.45] * len(panels), titles, list(map(entry, lines)), rows)
    for axes, (name, cells) in zip(found, panels):
        parts = scale.split(at(of_pass(rows, name), **cells))
        ones = ones_of(base, parts)
        if base:
            axes.axhline(1, color="black", lw=0.8)
        for line in lines:
            shown = [line.best(part) for part in parts]
            draw_curve(axes, scale.places, shown, ones, line, "", mark(line))
        scale.apply(axes)
        log_height(axes, words=lambda value, _: f"{value:g}")
        axes.set_ylabel(f"times as fast as {baseline}" if base else "ms")
    return figure
