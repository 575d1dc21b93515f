"""Peak device memory against the batch, for print."""

from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from experiments.plots.canvas import QUIET, limits, log_height
from experiments.plots.lines import columns
from experiments.plots.memory import draw_curves, groups_of
from experiments.plots.paper.column import column, dot, name
from experiments.plots.rows import Lacking, distinct


def draw(rows):
    """See :func:`experiments.plots.memory.draw`."""
    groups = groups_of(rows)
    if not groups:
        raise Lacking("no bytes")
    lines = columns([row for group in groups.values() for row in group])
    entries = [dot(name(line), line.colour, "o") for line in lines]
    look = {"color": QUIET, "lw": 1.0}
    entries += [Line2D([], [], label="measured", marker="o", **look)]
    entries += [Line2D([], [], label="predicted", ls=(0, (4, 3)), **look)]
    titles = [", ".join(key) for key in groups]
    figure, panels = column([1.6] * len(groups), titles, entries, rows)
    for axes, group in zip(panels, groups.values()):
        batches = sorted(map(int, distinct(group, "N")))
        for line in lines:
            draw_curves(axes, line, group, batches)
        axes.set_xscale("log", base=2)
        axes.set_xlim(limits(batches, 1.1))
        axes.set_xticks(batches, map(str, batches))
        axes.xaxis.set_minor_formatter(NullFormatter())
        log_height(axes)
        axes.set_xlabel("batch (images)")
        axes.set_ylabel("peak memory (GB)")
    return figure
