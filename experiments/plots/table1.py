"""The figure of the published network: its time by every variant, beside the paper's own."""

from experiments.measuring import paper
from experiments.plots.bars import draw_bar, name_bars, time_scale
from experiments.plots.canvas import Sheet
from experiments.plots.lines import Time, added, variants
from experiments.plots.rows import DIRECTIONS, LAYERS, Lacking, network


def draw(rows):
    """Time of the published network, forward and backward, beside the paper's own.

    Parameters
    ----------
    rows : list of dict

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No layer was measured.
    """
    rows = network(rows)
    if not rows:
        raise Lacking("no layers")
    bars = []  # line, the paper's row if the bar is the paper's
    for line in variants(rows):
        bars.append((line, None))
        if line.algorithm in paper.ROWS and line.precision == "ieee":
            bars.append((line, paper.ROWS[line.algorithm]))
    names = [f"paper, {row}: {paper.GPU}" if row else line.label for line, row in bars]
    height, width = 0.23 * len(bars), 5.2
    sheet = Sheet(
        3.3 + 2 * (width + 0.4),
        2.75 + height,
        "The published network at batch 128, all five layers (Table 1)",
        ("medians added up over the layers; backward is both gradients. Dotted: on tensor cores",),
        rows,
    )
    for i, (direction, passes) in enumerate(DIRECTIONS.items()):
        axes = sheet.panel(3.0 + i * (width + 0.4), 1.5, width, height, direction)
        times = [
            Time(paper.TABLE_1[row][i]) if row else added(line, rows, LAYERS, passes)
            for line, row in bars
        ]
        time_scale(axes, times, room=0.1)
        for y, ((line, row), time) in enumerate(zip(bars, times)):
            look = {"facecolor": "white", "hatch": "////", "edgecolor": line.colour, "lw": 0.8}
            draw_bar(axes, y, time, line, **(look if row else {}))
        name_bars(axes, len(bars), {} if i else dict(enumerate(names)), size=8.5)
    first, second = paper.CAVEAT.split(": ", 1)
    sheet.text(0.3, sheet.height - 0.48, first + ":", size=9.5, style="italic")
    sheet.text(0.3, sheet.height - 0.25, second, size=9.5, style="italic")
    return sheet.figure
