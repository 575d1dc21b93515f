"""The figure of speed over geometries drawn at random: the share of them below each ratio to the library."""

import numpy as np

from experiments.measuring.ratios import CLASSES, ratios, summary
from experiments.plots.canvas import Sheet, limits, log_scale
from experiments.plots.rows import PASSES, Lacking, of_pass

COLOURS = {
    "default": "#009e73",
    "tf32": "#0072b2",
    "float16": "#e69f00",
    "bfloat16": "#cc79a7",
}
_FEWEST = 2  # geometries of a curve


def draw(rows):
    """A panel for each pass that has a curve, and in it a curve for each class of precision.

    Parameters
    ----------
    rows : list of dict
        Of the experiment drawn_speed.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No two geometries have times of ours and of the library.
    """
    found = found_ratios(rows)
    every = [value for some in found.values() for values in some.values() for value in values]
    counts = [len(values) for some in found.values() for values in some.values()]
    fewest, most, width = min(counts), max(counts), 3.9
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    sheet = Sheet(
        0.9 + len(found) * (width + 0.55),
        5.9,
        "Speed over geometries drawn at random",
        (
            f"{count} geometries a curve; the library: one conv2d through the fold,",
            "operands in place, its faster layout",
            "in the legend: 5th percentile / median of the library's time over ours",
        ),
        rows,
    )
    for i, wanted in enumerate(found):
        axes = sheet.panel(0.8 + i * (width + 0.55), 1.95, width, 3.2, wanted)
        axes.axvline(1, color="black", lw=1.3)
        for name, values in found[wanted].items():
            low, _, middle, _ = summary(values)
            shares = 100 * np.arange(1, len(values) + 1) / len(values)
            label = f"{name}  {low:.2f} / {middle:.2f}"
            axes.step(values, shares, where="post", color=COLOURS[name], lw=1.8, label=label)
        axes.set_xlim(limits(every, 1.2))
        axes.set_ylim(0, 100)
        log_scale(axes.xaxis, words=lambda value, _: f"{value:g}x")
        axes.set_xlabel("times as fast as the library")
        if i == 0:
            axes.set_ylabel("percent of the geometries at most as fast")
        axes.legend(loc="upper left", fontsize=8, frameon=False)
    return sheet.figure


def found_ratios(rows):
    """The library's time over ours by pass and class of precision, the least first; without those that have no curve.

    Raises
    ------
    Lacking
        No two geometries have times of ours and of the library.
    """
    passes = [name for name in PASSES if of_pass(rows, name)]
    found = {
        wanted: {
            name: [ratio.value for ratio in some]
            for name in CLASSES
            if len(some := ratios(rows, name, wanted)[0]) >= _FEWEST
        }
        for wanted in passes
    }
    if not any(found.values()):
        raise Lacking(f"no {_FEWEST} geometries with times of ours and of the library")
    return {wanted: some for wanted, some in found.items() if some}
