"""The figures of a training run: curves, confusion matrix, wrong digits, first kernels."""

import numpy as np
from matplotlib import style
from matplotlib.ticker import MaxNLocator, PercentFormatter

from experiments.measuring import records
from experiments.plots.canvas import QUIET, STYLE, Sheet, file_bytes

COLOURS = {
    "numbacaps": "#009e73",
    "torch": "#d55e00",
    "torch-modules": "#0072b2",
    "sabour-modules": "#cc79a7",
    "sabour-torch": "#e69f00",
}
# A network with routing is trained by its modules or by its twin, whose names end so.
_ENDINGS = {"-modules": COLOURS["torch-modules"], "-torch": COLOURS["torch"]}
_MOST_WRONG = 30  # digits shown
_ACROSS = 10


def colour_of(by):
    """The colour of who trains."""
    ending = next((colour for end, colour in _ENDINGS.items() if by.endswith(end)), None)
    return COLOURS.get(by, ending)


def draw_all(rows, run, predicted, kernel):
    """Draw the four figures.

    Parameters
    ----------
    rows : list of dict
        Of the log.
    run : experiments.training.training.Run
        What the last three figures are of.
    predicted : ndarray (count,) of int
        Its class of each test digit.
    kernel : ndarray (P, C, KH, KW, *T2)
        Of its first layer.

    Returns
    -------
    dict of str to bytes
        By the file's name.
    """
    gpu = [{"gpu": row["gpu"], "note": ""} for row in rows]
    makers = {
        "training-curves": lambda: draw_curves(rows, len(run.digits.train), gpu),
        "training-confusion": lambda: draw_confusion(run, predicted, gpu),
        "training-wrong": lambda: draw_wrong(run, predicted, gpu),
        "training-kernels": lambda: draw_kernels(run, kernel, gpu),
    }
    files = {}
    with style.context(["default", STYLE]):
        for name, make in makers.items():
            made = file_bytes(make())
            files |= {f"{name}.{extension}": content for extension, content in made.items()}
    return files


def draw_curves(rows, images, gpu):
    """Loss and accuracy against the epoch, a curve for each run; testing solid, training dotted."""
    sheet = Sheet(
        11,
        4.9,
        f"Training on {images} digits",
        ("Solid: test; dotted: training. A curve a seed",),
        gpu,
    )
    panels = {
        "loss": sheet.panel(0.9, 1.4, 4.3, 2.7, "Loss"),
        "accuracy": sheet.panel(6.2, 1.4, 4.3, 2.7, "Classified rightly"),
    }
    for name, axes in panels.items():
        for key in dict.fromkeys(records.key(row, ("by", "seed")) for row in rows):
            of_run = [row for row in rows if records.key(row, ("by", "seed")) == key]
            epochs = [int(row["epoch"]) for row in of_run]
            for column, look in ((f"test_{name}", "-"), (name, ":")):
                values = [float(row[column]) for row in of_run]
                axes.plot(epochs, values, look, color=colour_of(key[0]), lw=1.3)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels["loss"].set_ylim(bottom=0)
    panels["accuracy"].yaxis.set_major_formatter(PercentFormatter(1))
    names = list(dict.fromkeys(row["by"] for row in rows))
    for at, by in enumerate(names):
        sheet.text(
            0.9 + min(2.9, 9.9 / len(names)) * at, 4.7, by, color=colour_of(by), weight="bold"
        )
    return sheet.figure


def draw_confusion(run, predicted, gpu):
    """How often digits of each class were taken for each class."""
    labels, classes = run.digits.test_labels, range(10)
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (labels, predicted), 1)
    right = int(np.trace(counts))
    sheet = Sheet(
        6.6,
        7.2,
        f"{right} of {len(labels)} test digits classified rightly",
        (f"{run.by}, seed {run.seed}",),
        gpu,
    )
    axes = sheet.panel(0.8, 1.3, 5.3, 5.3)
    wrong = counts * ~np.eye(10, dtype=bool)
    axes.imshow(wrong, cmap="Reds", vmin=0, vmax=max(1, 1.5 * wrong.max()))
    for label in classes:
        for found in classes:
            if counts[label, found]:
                axes.text(found, label, counts[label, found], ha="center", va="center", size=9)
    axes.set_xticks(classes)
    axes.set_yticks(classes)
    axes.set_xlabel("taken for")
    axes.set_ylabel("digit")
    axes.grid(False)
    return sheet.figure


def draw_wrong(run, predicted, gpu):
    """Some of the test digits that were classified wrongly."""
    wrong = np.flatnonzero(predicted != run.digits.test_labels)
    shown = wrong[:_MOST_WRONG]
    down = max(1, -(-len(shown) // _ACROSS))
    sheet = Sheet(
        0.6 + 1.05 * _ACROSS,
        1.4 + 1.35 * down,
        f"{len(shown)} of the {len(wrong)} test digits that were taken for another",
        (f"{run.by}, seed {run.seed}",),
        gpu,
    )
    for at, row in enumerate(shown):
        y, x = divmod(at, _ACROSS)
        words = f"{run.digits.test_labels[row]} as {predicted[row]}"
        axes = sheet.panel(0.3 + 1.05 * x, 1.45 + 1.35 * y, 0.95, 0.95)
        _picture(axes, words, run.digits.test[row], "gray_r")
    return sheet.figure


def draw_kernels(run, kernel, gpu):
    """The first layer's kernel: an image of the window for each element of a kernel capsule."""
    P, C, KH, KW = kernel.shape[:4]
    pictures = kernel.reshape(P, C, KH, KW, -1).transpose(0, 1, 4, 2, 3).reshape(-1, KH, KW)
    down = -(-len(pictures) // _ACROSS)
    largest = np.abs(pictures).max()
    sheet = Sheet(
        0.6 + 1.05 * _ACROSS,
        1.4 + 1.3 * down,
        f"The first layer's kernel: {KH} x {KW} for each of {len(pictures)} elements",
        (f"{run.by}, seed {run.seed}. Red adds, blue takes away; the strongest is {largest:.2f}",),
        gpu,
    )
    for at, picture in enumerate(pictures):
        y, x = divmod(at, _ACROSS)
        axes = sheet.panel(0.3 + 1.05 * x, 1.45 + 1.3 * y, 0.95, 0.95)
        _picture(axes, str(at), picture, "RdBu_r", vmin=-largest, vmax=largest)
    return sheet.figure


def _picture(axes, words, pixels, colours, **scale):
    axes.imshow(pixels, cmap=colours, **scale)
    axes.set_title(words, loc="left", size=9, color=QUIET)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
