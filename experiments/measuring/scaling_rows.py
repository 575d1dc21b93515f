"""The rows of the experiment scaling: their columns, and speed as it is told of them.

==========  ==================================================================================================
batch       "shared": its size is the same for any number of GPUs; "each": every GPU takes one of its own
precision   "default", float32 without TF32, or "tf32"
contestant  as of :mod:`experiments.measuring.torch_rows`: "modules", or plain PyTorch's "twin-..."
gpus        how many take the step together
images      of all of them
==========  ==================================================================================================
"""

from typing import NamedTuple

from experiments.measuring.torch_rows import MODULES, TWINS

NAME = "scaling"
KEYS = ("batch", "precision", "contestant", "gpus", "images")
VALUES = ("ms", "error", "note")
CONTESTANTS = (MODULES, *TWINS)
BATCHES = {"shared": 1024, "each": 128}  # images, of all GPUs and of one


def images_of(batch, gpus):
    """Images of a step by a number of GPUs."""
    return BATCHES[batch] * (gpus if batch == "each" else 1)


class Point(NamedTuple):
    """A measured step.

    Attributes
    ----------
    gpus : int
    rate : float
        Images a second.
    efficiency : float or None
        The rate over that of one GPU, over their number; None where one was not measured.
    """

    gpus: int
    rate: float
    efficiency: float | None


def curves(rows):
    """Points by (batch, precision, contestant), in the order of their GPUs."""
    found = {}
    for row in rows:
        if row["ms"]:
            rate = 1e3 * int(row["images"]) / float(row["ms"])
            key = row["batch"], row["precision"], row["contestant"]
            found.setdefault(key, {})[int(row["gpus"])] = rate
    return {key: _points(rates) for key, rates in found.items()}


def _points(rates):
    alone = rates.get(1)
    return [
        Point(gpus, rate, rate / alone / gpus if alone else None)
        for gpus, rate in sorted(rates.items())
    ]


def told(rows):
    """The lines of the printed table."""
    lines = [
        f"{'batch':8}{'precision':10}{'contestant':20}{'GPUs':>5}{'images/s':>11}{'efficiency':>11}"
    ]
    for (batch, precision, contestant), points in curves(rows).items():
        for point in points:
            last = "-" if point.efficiency is None else f"{point.efficiency:.2f}"
            lines.append(
                f"{batch:8}{precision:10}{contestant:20}{point.gpus:5}{point.rate:11.0f}{last:>11}"
            )
    return lines + [f"  {row['contestant']}: {row['note']}" for row in rows if row["note"]]
