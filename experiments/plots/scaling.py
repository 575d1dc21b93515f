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


def draw(rows):
    """A panel for each way to share a batch and each class of precision.

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
        No rows with a time.
    """
    curves = scaling_rows.curves(rows)
    if not curves:
        raise Lacking("no rows of steps on several GPUs")
    shown = [name for name in PRECISIONS if any(key[1] == name for key in curves)]
    batches = [name for name in BATCHES if any(key[0] == name for key in curves)]
    sheet = Sheet(
        _LEFT + len(shown) * (_WIDTH + _GAP),
        1.6 + len(batches) * (_HEIGHT + 1.1),
        "The published network, trained on several GPUs by DistributedDataParallel",
        ("eager steps over NCCL; dotted: as many GPUs as ours alone would make",),
        rows,
    )
    for j, batch in enumerate(batches):
        for i, precision in enumerate(shown):
            place = _LEFT + i * (_WIDTH + _GAP), 1.6 + j * (_HEIGHT + 1.1)
            axes = sheet.panel(*place, _WIDTH, _HEIGHT, f"{_TITLES[batch]}, {precision}")
            _draw_panel(
                axes, {key[2]: curves[key] for key in curves if key[:2] == (batch, precision)}
            )
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
