"""Speed over geometries drawn at random, for print."""

import numpy as np
from matplotlib.lines import Line2D

from experiments.plots.canvas import limits, log_scale
from experiments.plots.distribution import COLOURS, found_ratios
from experiments.plots.paper.column import column

_DASHES = dict(zip(COLOURS, ("-", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))))


def draw(rows):
    """See :func:`experiments.plots.distribution.draw`."""
    found = found_ratios(rows)
    every = [value for some in found.values() for values in some.values() for value in values]
    names = [name for name in COLOURS if any(name in some for some in found.values())]
    looks = {name: {"color": COLOURS[name], "ls": _DASHES[name]} for name in names}
    entries = [Line2D([], [], label=name, **looks[name]) for name in names]
    figure, panels = column([1.2] * len(found), list(found), entries, rows)
    for axes, some in zip(panels, found.values()):
        axes.axvline(1, color="black", lw=0.8)
        for name, values in some.items():
            shares = 100 * np.arange(1, len(values) + 1) / len(values)
            axes.step(values, shares, where="post", **looks[name])
        axes.set_xlim(limits(every, 1.2))
        axes.set_ylim(0, 100)
        log_scale(axes.xaxis)
        axes.set_xlabel("times as fast as the library")
        axes.set_ylabel("% at most as fast")
    return figure
