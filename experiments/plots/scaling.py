"""The figure of training on several GPUs: images a second as GPUs are added, beside what as many alone would make."""

from experiments.measuring import scaling_rows
from experiments.measuring.scaling_rows import BATCHES
from experiments.measuring.torch_rows import PRECISIONS
from experiments.plots.canvas import QUIET, Sheet
from experiments.plots.lines import FOLD, colour_of
from experiments.plots.rows import Lacking

_LOOKS = {  # of a contestant: label, colour, dashes
    "modules": ("numbacaps.torch", colour_of("fused"), "-"),
    "twin-nchw": ("plain PyTorch, nchw", colour_of(FOLD), (0, (5, 1))),
    "twin-channels_last": ("plain PyTorch, channels_last", colour_of(FOLD), (0, (5, 1, 1, 1))),
}
_TITLES = {
    "shared": f"{BATCHES['shared']} images shared by all GPUs",
    "each": f"{BATCHES['each']} images for each GPU",
}
_WIDTH, _HEIGHT, _LEFT, _GAP = 3.9, 2.6, 0.9, 1.0  # inches
_NARROWEST = 7.5  # inches, which the lines above the panels take


def draw(rows):
    """A panel for each way to share a batch and each class of precision with times of several numbers of GPUs.

    Parameters
    ----------
    rows : list of dict
        Of the experiment scaling.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No such rows.
    """
    curves = scaling_rows.curves(rows)
    panels = [
        (batch, precision)
        for batch in BATCHES
        for precision in PRECISIONS
        if any(key[:2] == (batch, precision) and len(curves[key]) > 1 for key in curves)
    ]
    if not panels:
        raise Lacking("no rows of steps on several GPUs")
    columns = [name for name in BATCHES if name in {batch for batch, _ in panels}]
    lines = [name for name in PRECISIONS if name in {precision for _, precision in panels}]
    sheet = Sheet(
        max(_LEFT + len(columns) * (_WIDTH + _GAP), _NARROWEST),
        1.6 + len(lines) * (_HEIGHT + 1.1),
        "Training steps on several GPUs",
        (
            "the published network by DistributedDataParallel, eager; dotted: ours on one, times their number",
        ),
        rows,
    )
    for batch, precision in panels:
        i, j = columns.index(batch), lines.index(precision)
        place = _LEFT + i * (_WIDTH + _GAP), 1.6 + j * (_HEIGHT + 1.1)
        axes = sheet.panel(*place, _WIDTH, _HEIGHT, f"{_TITLES[batch]}, {precision}")
        _draw_panel(axes, {key[2]: curves[key] for key in curves if key[:2] == (batch, precision)})
    return sheet.figure


def _draw_panel(axes, curves):
    for name, (label, colour, dashes) in _LOOKS.items():
        if points := curves.get(name):
            gpus = [point.gpus for point in points]
            rates = [point.rate for point in points]
            axes.plot(gpus, rates, color=colour, linestyle=dashes, marker="o", label=label)
            if name == "modules" and gpus[0] == 1:
                axes.plot(gpus, [rates[0] * n for n in gpus], color=QUIET, linestyle=":")
    every = sorted({point.gpus for points in curves.values() for point in points})
    axes.set_xticks(every, [str(n) for n in every])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("images/s")
    axes.legend(frameon=False, fontsize=8)
