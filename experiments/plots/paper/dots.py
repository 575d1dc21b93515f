"""Times as dots, for print: a row for each workload, or for each variant of the published network."""

from experiments.measuring import paper
from experiments.plots.canvas import limits, log_scale
from experiments.plots.lines import added, columns
from experiments.plots.paper.column import column, dot, mark, name, short
from experiments.plots.rows import DIRECTIONS, LAYERS, PASSES, Lacking, distinct, network, of_pass

_ROW, _LETTER = 0.13, 0.052  # inches: a row, a letter of its name
_MOST = 28  # letters of a row's name
_SPREAD = 0.3  # of a row, up and down, over which its dots lie


def draw_workloads(rows):
    """See :func:`experiments.plots.workloads.draw`."""
    if not rows:
        raise Lacking("no workload that keeps one geometry")
    lines = [line for line in columns(rows) if line.algorithm != "reference"]
    passes = [wanted for wanted in PASSES if of_pass(rows, wanted)]
    workloads = distinct(rows, "workload")
    entries = [dot(name(line), line.colour, mark(line)) for line in lines]
    heights = [0.22 * len(workloads)] * len(passes)
    names = [short(workload, _MOST) for workload in workloads]
    figure, panels = column(heights, passes, entries, rows, _room(names))
    for axes, wanted in zip(panels, passes):
        for i, line in enumerate(lines):
            shift = _SPREAD * (2 * i / max(1, len(lines) - 1) - 1)
            for y, workload in enumerate(workloads):
                ms = added(line, rows, [workload], [wanted]).ms
                if ms:
                    axes.plot([ms], [y + shift], color=line.colour, marker=mark(line), ls="")
        _finish(axes, names)
    return figure


def draw_table1(rows):
    """See :func:`experiments.plots.table1.draw`; opponents in their best layout, the paper's own times hollow."""
    rows = network(rows)
    if not rows:
        raise Lacking("no layers")
    lines = columns(rows)
    names = [short(name(line), _MOST) for line in lines]
    entries = [dot("measured, ieee", "black", "o"), dot("measured, tensor cores", "black", "s")]
    entries += [dot(f"the paper's: {paper.GPU}", "black", "o", fillstyle="none")]
    heights = [_ROW * len(lines)] * len(DIRECTIONS)
    figure, panels = column(heights, list(DIRECTIONS), entries, rows, _room(names))
    for i, (axes, passes) in enumerate(zip(panels, DIRECTIONS.values())):
        for y, line in enumerate(lines):
            ms, look = added(line, rows, LAYERS, passes).ms, {"color": line.colour, "ls": ""}
            if ms:
                axes.plot([ms], [y], marker="o" if line.precision == "ieee" else "s", **look)
            if line.algorithm in paper.ROWS and line.precision == "ieee":
                theirs = paper.TABLE_1[paper.ROWS[line.algorithm]][i]
                axes.plot([theirs], [y], marker="o", fillstyle="none", **look)
        _finish(axes, names)
    return figure


def _room(names):
    """Inches left of the panels for the rows' names."""
    return 0.2 + _LETTER * max(map(len, names))


def _finish(axes, names):
    """Rows with their names, the first on top, and milliseconds on a logarithmic axis."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    values = [x for curve in axes.lines for x in curve.get_xdata()]
    axes.set_xlim(limits(values or [1], 1.4))
    log_scale(axes.xaxis)
    axes.set_xlabel("ms")
