"""The figure of routing: ours, which stores no votes, beside ours and PyTorch with them."""

from experiments.measuring import routing_rows
from experiments.measuring.routing_rows import CONTESTANTS
from experiments.plots.bars import draw_bar, name_bars, time_of, time_scale
from experiments.plots.canvas import Sheet
from experiments.plots.lines import FOLD, Line
from experiments.plots.rows import Lacking

LINES = {
    "graph": Line("numbacaps, CUDA graph", "fused", "ieee", ()),
    "fused": Line("numbacaps, eager", "indexed", "ieee", ()),
    "stored": Line("numbacaps, votes stored, CUDA graph", "staged", "ieee", ()),
    "torch": Line("PyTorch, votes stored", FOLD, "ieee", ()),
    "torch_graph": Line("PyTorch, CUDA graph", "torch_fold_nhwc", "ieee", ()),
    "compiled": Line("PyTorch, compiled", "torch_unfold_einsum", "ieee", ()),
}
TITLES = {"forward": "forward", "training": "forward and backward"}
_WIDTH, _LEFT, _GAP, _BAR = 3.9, 3.3, 0.6, 0.2  # inches


def draw(rows):
    """Bars: a panel for each pass, a group of bars for each workload.

    Parameters
    ----------
    rows : list of dict
        Of the experiment routing.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No rows.
    """
    cases = routing_rows.cases(rows)
    if not cases:
        raise Lacking("no rows of routing")
    passes = [wanted for wanted in TITLES if any(case.wanted == wanted for case in cases)]
    shown = [name for name in CONTESTANTS if any(name in case.rows for case in cases)]
    workloads = list(dict.fromkeys(case.workload for case in cases))
    height = _BAR * (len(shown) + 0.6) * len(workloads)
    sheet = Sheet(
        _LEFT + len(passes) * (_WIDTH + _GAP),
        2.2 + height,
        "Routing without stored votes beside PyTorch with them",
        (
            "medians, float32 without TF32; in brackets the most memory beside operands and results, MB",
        ),
        rows,
    )
    for i, wanted in enumerate(passes):
        place = _LEFT + i * (_WIDTH + _GAP), 1.5
        axes = sheet.panel(*place, _WIDTH, height, TITLES[wanted])
        own = {case.workload: case for case in cases if case.wanted == wanted}
        _draw_panel(axes, own, workloads, shown, named=i == 0)
    return sheet.figure


def _draw_panel(axes, cases, workloads, shown, named):
    """Bars at the same places in every panel; a contestant that was not measured leaves its place free."""
    rows = {
        (workload, name): cases[workload].rows[name]
        for workload in workloads
        for name in shown
        if workload in cases and name in cases[workload].rows
    }
    time_scale(axes, [time_of(row) for row in rows.values()], room=0.35)
    names, y = {}, 0.0
    for workload in workloads:
        for name in shown:
            if row := rows.get((workload, name)):
                draw_bar(axes, y, time_of(row), LINES[name], _memory(row))
            names[y] = f"{workload}, {LINES[name].label}"
            y += 1
        y += 0.6
    name_bars(axes, y - 0.6, names if named else {}, size=8)


def _memory(row):
    """What stands behind a bar."""
    if not row["extra_mb"]:
        return ""
    mb = float(row["extra_mb"])
    return f"  ({mb:,.0f})" if mb >= 100 else f"  ({mb:.3g})"
