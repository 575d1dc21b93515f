"""The figure of the paper's pipeline: the share of each stage, and how near it comes to a copy."""

from matplotlib.patches import Patch

from experiments.plots.bars import name_bars
from experiments.plots.canvas import Sheet
from experiments.plots.lines import Time, added, variants
from experiments.plots.rows import DIRECTIONS, Lacking, at, distinct

# In the pipeline's order; tints, by what is moved: input blue, kernel orange, products violet, output
# green.
STAGES = {
    "capsule_im2col": "#8fb8e8",
    "input_extend": "#bcd6f5",
    "kernel_extend": "#f9cf8f",
    "strided_batched_matmul": "#c9a6e4",
    "output_reduce": "#93d1ad",
    "output_extend": "#c5e8d2",
    "kernel_gradient_matmul": "#d9c0ec",
    "kernel_reduce": "#fbe2bb",
    "input_gradient_matmul": "#b48ad6",
    "input_reduce": "#a5c8ef",
    "capsule_col2im": "#7aa6dc",
}
_LEFT, _WIDTH, _COLUMN = 2.4, 7.0, 1.4  # inches: of the names, of the bars, of a column of times
_GAP = 0.4  # between workloads, in bars


def stage_rank(stage):
    """Where a stage stands in the pipelines; behind all of them if it is none of the paper's."""
    return list(STAGES).index(stage) if stage in STAGES else len(STAGES)


def draw(rows):
    """Where the paper's pipeline spends its time, stage by stage, and how near copy bandwidth.

    A bar is 100 percent of its own stages' time, so that a workload of 0.1 ms reads as well as one
    of 40 ms; the milliseconds stand beside it.

    Parameters
    ----------
    rows : list of dict

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No stage has a time.
    """
    bars, bottom = laid_out(rows)
    if not bars:
        raise Lacking("no times of stages")
    whole = at(rows, stage="")
    lines = [line for line in variants(whole) if line.precision == "ieee"]
    height = 0.36 * bottom
    sheet = Sheet(
        _LEFT + _WIDTH + _COLUMN * (1 + len(lines)) + 0.3,
        3.05 + height,
        "Algorithms 3 and 4, stage by stage",
        (
            "in a segment: percent of copy bandwidth, by the bytes that the stage must move",
            "backward: the stages of both gradients",
        ),
        rows,
    )
    axes = sheet.panel(_LEFT, 1.65, _WIDTH, height)
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the stages' time")
    name_bars(axes, bottom, {y: f"{name}, {way}" for y, (name, way, _) in bars.items()}, size=9)
    headings = [f"{line.label},\nwhole pass, ms" for line in lines]
    _write_columns(axes, -0.6, ["stages\nadded up, ms", *headings], va="bottom")
    for y, (workload, _, stages) in bars.items():
        total = sum(row["ms_p50"] for row in stages)
        _draw_bar(axes, y, stages, total)
        passes = distinct(stages, "pass")
        times = [added(line, whole, [workload], passes) for line in lines]
        _write_columns(axes, y, [Time(total), *times])
    shown = {row["stage"] for _, _, stages in bars.values() for row in stages}
    sheet.figure.legend(
        handles=[Patch(color=colour(name), label=name) for name in sorted(shown, key=stage_rank)],
        loc="lower left",
        bbox_to_anchor=(_LEFT / sheet.width, 0.15 / sheet.height),
        ncols=4,
        frameon=False,
        fontsize=9.5,
    )
    return sheet.figure


def laid_out(rows):
    """Each bar's (workload, direction, rows of its stages) by its place; and the bottom."""
    bars, y = {}, 0.0
    timed = [row for row in rows if row["stage"] and row["ms_p50"]]
    for workload in distinct(timed, "workload"):
        for direction, passes in DIRECTIONS.items():
            stages = [row for row in at(timed, workload=workload) if row["pass"] in passes]
            if stages:
                stages.sort(key=lambda row: stage_rank(row["stage"]))
                bars[y] = (workload, direction, stages)
                y += 1
        y += _GAP
    return bars, y - _GAP


def colour(stage):
    """Colour of a stage; grey if it is none of the paper's."""
    return STAGES.get(stage, "#d5d5d5")


def _draw_bar(axes, y, rows, total):
    """One bar of segments; a segment wide enough says its percent of copy bandwidth."""
    start = 0.0
    for row in rows:
        width = 100 * row["ms_p50"] / total
        look = {"color": colour(row["stage"]), "ec": "white", "lw": 0.6}
        axes.barh(y, width, left=start, height=0.82, **look)
        if row["byte_fraction"] and width > 4.4:
            words = f"{100 * row['byte_fraction']:.0f}%"
            axes.text(start + width / 2, y, words, size=8, ha="center", va="center")
        start += width


def _write_columns(axes, y, words, va="center"):
    """Write one row of the columns right of the panel."""
    for i, word in enumerate(words, start=1):
        x = 1 + i * _COLUMN / _WIDTH
        place = axes.get_yaxis_transform()
        axes.text(x, y, word, transform=place, size=9, ha="right", va=va)
