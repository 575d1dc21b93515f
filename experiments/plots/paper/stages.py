"""Where the paper's pipeline spends its time, stage by stage, for print."""

from matplotlib.lines import Line2D

from experiments.plots.paper.column import column, short
from experiments.plots.rows import Lacking
from experiments.plots.stages import colour, laid_out, stage_rank

_ROW, _LETTER, _MOST = 0.17, 0.052, 30  # inches of a bar, of a letter of its name; letters


def draw(rows):
    """See :func:`experiments.plots.stages.draw`; how near a stage comes to a copy is left to the table."""
    bars, bottom = laid_out(rows)
    if not bars:
        raise Lacking("no times of stages")
    names = {y: short(f"{workload}, {way}", _MOST) for y, (workload, way, _) in bars.items()}
    shown = {row["stage"] for _, _, stages in bars.values() for row in stages}
    entries = [
        Line2D([], [], color=colour(name), lw=5, label=name)
        for name in sorted(shown, key=stage_rank)
    ]
    room = 0.2 + _LETTER * max(map(len, names.values()))
    figure, (axes,) = column([_ROW * (bottom + 0.6)], [""], entries, rows, room)
    for y, (_, _, stages) in bars.items():
        total, start = sum(row["ms_p50"] for row in stages), 0.0
        for row in stages:
            width = 100 * row["ms_p50"] / total
            look = {"color": colour(row["stage"]), "ec": "white", "lw": 0.4}
            axes.barh(y, width, left=start, height=0.8, **look)
            start += width
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 100, 20))  # 100 would leave the column
    axes.set_ylim(bottom - 0.4, -0.6)
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set_xlabel("percent of the stages' time")
    return figure
