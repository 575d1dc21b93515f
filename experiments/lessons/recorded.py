"""Rows that were recorded on a real GPU and lie in ``experiments/results/``."""

from experiments.lessons.course import FOLDER
from experiments.measuring import records
from experiments.plots.rows import NUMBERS

RESULTS = FOLDER.parent / "results"
GPU = "NVIDIA-H100-80GB-HBM3"
_NUMBERS = (*NUMBERS, "flop_fraction")


def rows(experiment, **cells):
    """The rows of an experiment that have these cells, as they were measured, whatever has changed since.

    Parameters
    ----------
    experiment : str
        Name of a CSV of :data:`GPU`.
    cells : str
        By column, ``pass_`` for "pass".

    Returns
    -------
    list of dict
        Measured numbers are floats, None where the cell is empty; the rest is text.
    """
    wanted = {name.rstrip("_"): value for name, value in cells.items()}
    found = []
    for row in records.read(RESULTS / GPU / f"{experiment}.csv"):
        if all(row[name] == value for name, value in wanted.items()):
            found.append(row | {name: float(row[name]) if row[name] else None for name in _NUMBERS})
    return found
