"""The figure of the workloads that sweep nothing: milliseconds of one call by every algorithm."""

from experiments.plots.bars import draw_bar, name_bars, time_scale
from experiments.plots.canvas import Sheet
from experiments.plots.lines import added, columns
from experiments.plots.rows import PASSES, Lacking, at, distinct, of_pass


def draw(rows):
    """Times of the workloads that have one geometry each: a panel for each pass.

    Parameters
    ----------
    rows : list of dict

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No rows.
    """
    if not rows:
        raise Lacking("no workload that keeps one geometry")
    groups, bottom = _laid_out(rows)
    labels = {y: line.label for bars in groups.values() for y, line in bars.items()}
    passes = [name for name in PASSES if of_pass(rows, name)]
    height, width = 0.17 * bottom, 3.5
    sheet = Sheet(
        2.7 + len(passes) * (width + 0.5),
        2.1 + height,
        "Milliseconds of one call, per workload",
        ("median; where an opponent runs in several layouts, the fastest",),
        rows,
    )
    for i, name in enumerate(passes):
        axes = sheet.panel(2.4 + i * (width + 0.5), 1.5, width, height, name)
        times = {
            y: added(line, rows, [workload], [name])
            for workload, bars in groups.items()
            for y, line in bars.items()
        }
        time_scale(axes, times.values(), room=0.13)
        name_bars(axes, bottom, {} if i else labels, size=8)
        for workload, bars in groups.items():
            top = min(bars)
            axes.axhline(top - 1.4, color="#bbbbbb", lw=0.8)
            for y, line in bars.items():
                draw_bar(axes, y, times[y], line)
            if i == 0:
                look = {"size": 10, "weight": "bold", "ha": "right", "va": "center"}
                place = axes.get_yaxis_transform()
                axes.text(-0.02, top - 0.85, workload, transform=place, **look)
    return sheet.figure


def _laid_out(rows):
    """Each workload's lines by their place, with room for its name above them; and the bottom."""
    groups, y = {}, 0.0
    for workload in distinct(rows, "workload"):
        lines = columns(at(rows, workload=workload))
        groups[workload] = {y + 1 + i: line for i, line in enumerate(lines)}
        y += len(lines) + 1.6
    return groups, y
