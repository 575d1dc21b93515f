"""The roofline, for print."""

from matplotlib.lines import Line2D

from experiments.plots.paper.column import column, dot
from experiments.plots.roofline import draw_into, keys, selected
from experiments.plots.rows import digits


def draw(rows):
    """See :func:`experiments.plots.roofline.draw`."""
    rows, copy, sgemm = selected(rows)
    entries = [dot(name, colour, marker) for name, colour, marker in keys(rows)]
    entries.append(Line2D([], [], color="black", label=f"copy {digits(copy)} GB/s"))
    entries.append(Line2D([], [], color="black", label=f"SGEMM {digits(sgemm)} TFLOP/s"))
    figure, (axes,) = column([2.4], ["filled: ieee; hollow: tensor cores"], entries, rows)
    draw_into(axes, rows, copy, sgemm, size=9)
    axes.set_xlabel("FLOP per byte that must move")
    axes.set_ylabel("TFLOP/s")
    return figure
