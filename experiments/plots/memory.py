"""The figure of peak device memory against the batch, measured and as the geometry predicts it."""

import math

from matplotlib.ticker import NullFormatter

from experiments.plots.canvas import Sheet, cross, label_ends, label_room, limits, log_height
from experiments.plots.lines import variants
from experiments.plots.rows import Lacking, distinct, reason


def draw(rows):
    """Most device memory held at once, against the batch: a panel for each workload and pass.

    Parameters
    ----------
    rows : list of dict

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No row has any.
    """
    groups = groups_of(rows)
    if not groups:
        raise Lacking("no bytes")
    height = max(label_room(len(variants(group))) for group in groups.values())
    sheet = Sheet(
        10.5,
        1.4 + len(groups) * (height + 1.0),
        "Peak device memory against the batch",
        (
            "operands, result and intermediates. Solid: measured; dashed: predicted from the geometry",
        ),
        rows,
    )
    for i, ((workload, name), group) in enumerate(groups.items()):
        y = 1.5 + i * (height + 1.0)
        axes = sheet.panel(0.9, y, 6.6, height, f"{workload}, {name}")
        batches = sorted(map(int, distinct(group, "N")))
        ends = [draw_curves(axes, line, group, batches) for line in variants(group)]
        axes.set_xscale("log", base=2)
        axes.set_xlim(limits(batches, 1.1))
        axes.set_xticks(batches, map(str, batches))
        axes.xaxis.set_minor_formatter(NullFormatter())
        log_height(axes)
        axes.set_xlabel("N: batch (images), log scale")
        axes.set_ylabel("peak memory (GB), log scale")
        label_ends(axes, list(filter(None, ends)), height)
    return sheet.figure


def groups_of(rows):
    """Rows by workload and pass, of those that have any bytes."""
    groups = {}
    for row in rows:
        groups.setdefault((row["workload"], row["pass"]), []).append(row)
    return {
        name: group
        for name, group in groups.items()
        if any(row["peak_bytes"] or row["predicted_bytes"] for row in group)
    }


def draw_curves(axes, line, rows, batches):
    """Draw a line's measured and predicted bytes; return its end's label, None without bytes."""
    found = {int(row["N"]): row for row in rows if line.fits(row)}

    def gigabytes(column):
        cells = [found[n][column] if n in found else None for n in batches]
        return [cell / 1e9 if cell else math.nan for cell in cells]

    measured, predicted = gigabytes("peak_bytes"), gigabytes("predicted_bytes")
    axes.plot(batches, predicted, color=line.colour, lw=1.4, ls=(0, (4, 3)), alpha=0.8)
    axes.plot(batches, measured, color=line.colour, marker="o")
    known = [i for i, value in enumerate(measured) if math.isfinite(value)]
    guessed = [i for i, value in enumerate(predicted) if math.isfinite(value)]
    if not known and not guessed:
        return None
    last = known[-1] if known else guessed[0]
    x, y, label = batches[last], measured[last] if known else predicted[last], line.label
    failed = [n for n in batches if n in found and found[n]["peak_bytes"] is None and n >= x]
    if failed:
        x = failed[0]
        foreseen = predicted[batches.index(x)]
        y = foreseen if math.isfinite(foreseen) else y
        axes.plot([x], [y], color=line.colour, **cross())
        label = f"{label}  ×  {reason(found[x])}"
    return x, y, label, line.colour
