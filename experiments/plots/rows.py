"""The rows of the experiments' CSVs: read, selected, put into words.

A row is a dict by column; those in :data:`NUMBERS` are floats, None where empty, the others text.
Rows keep the order of their file.
"""

import math
import statistics
from collections import defaultdict
from pathlib import Path

from experiments.measuring import (
    listing,
    records,
    routing_curve_rows,
    routing_rows,
    scaling_rows,
    torch_rows,
)
from experiments.measuring.problem import PASSES

EXPERIMENTS = ("table1", "sweep", "stages", "memory", "fused", "rungs", "drawn_speed")
LISTED = {
    torch_rows.NAME: "torch_layers",
    scaling_rows.NAME: "scaling",
    routing_rows.NAME: "routing",
    routing_curve_rows.NAME: "routing_curves",
}  # short CSVs with columns of their own, and who makes them
ONE_CURVE = ("drawn_speed",)  # experiments whose rows all go into each of their curves
DIRECTIONS = {"forward": PASSES[:1], "backward": PASSES[1:]}
LAYERS = tuple(f"layer {i}" for i in range(1, 6))  # of the published network
NUMBERS = (
    *("ms_p20", "ms_p50", "ms_p80", "peak_bytes", "predicted_bytes", "gflop", "min_bytes"),
    *("copy_gbs", "sgemm_tflops", "byte_fraction", "host_us"),
)


class Lacking(ValueError):
    """There are no rows to draw a figure from; the message says which."""


# ---- read


def load_all(folder):
    """The rows of every experiment that are no older than their kernels.

    Parameters
    ----------
    folder : path
        Holds the CSVs of one GPU.

    Returns
    -------
    dict of str to list of dict
        Rows by experiment; none where there is no file. Behind :data:`EXPERIMENTS` come the folder's other CSVs that
        have the columns, by their names, and those of :data:`LISTED`.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        A CSV there is not one of ours.
    """
    data = {name: load(Path(folder) / f"{name}.csv") for name in EXPERIMENTS}
    for path in sorted(Path(folder).glob("*.csv")):
        if path.stem not in data and records.is_ours(path):
            data[path.stem] = load(path)
    listed = torch_rows, scaling_rows, routing_rows, routing_curve_rows
    return data | {of.NAME: listing.current(folder, of) for of in listed}


def of_passes(data):
    """The rows by experiment, without those of :data:`LISTED`."""
    return {name: rows for name, rows in data.items() if name not in LISTED}


def load(path):
    """The rows of one CSV that are no older than their kernels; none if there is no file.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        The file is not one of ours.
    """
    rows, sources = records.read(path), records.sources(path)
    for line, row in enumerate(rows, start=2):
        for column in NUMBERS:
            row[column] = number(row[column], f"{path}, row {line}, column {column}")
        if not row["N"].isdecimal() or int(row["N"]) == 0:
            raise records.ForeignFile(
                f"{path}, row {line}, column N is {row['N']!r}; it takes an integer from 1"
            )
    return [row for row in rows if sources.is_current(row)]


def number(cell, where):
    """A cell as a number; None where it is empty or 0, which no logarithm takes.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        It is neither; the message says where.
    """
    if cell == "":
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise records.ForeignFile(f"{where} is {cell!r}; it takes a number, or nothing")
    return value or None


# ---- selected


def at(rows, **cells):
    """The rows that have these cells."""
    return [row for row in rows if all(row[name] == value for name, value in cells.items())]


def of_pass(rows, name):
    """The rows of a pass."""
    return at(rows, **{"pass": name})


def network(rows):
    """The rows of the published network's layers, on the GPU."""
    return [row for row in rows if row["workload"] in LAYERS and row["algorithm"] != "reference"]


def distinct(rows, column):
    """A column's values in the order of first appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def swept(rows):
    """The axes of a sweep: lists of the geometry's columns that vary as one, most values first."""
    together = defaultdict(list)
    for column in records.GEOMETRY:
        values = distinct(rows, column)
        if len(values) > 1:
            together[tuple(values.index(row[column]) for row in rows)].append(column)
    return sorted(together.values(), key=lambda axis: -len(distinct(rows, axis[0])))


def split_sweep(rows):
    """Part the workloads that sweep something from those with one geometry each.

    Returns
    -------
    sweeps : dict of str to list of dict
        Rows by workload.
    single : list of dict
        Rows of all the others.
    """
    groups = {name: at(rows, workload=name) for name in distinct(rows, "workload")}
    sweeps = {name: group for name, group in groups.items() if swept(group)}
    single = [row for name, group in groups.items() if name not in sweeps for row in group]
    return sweeps, single


# ---- put into words


def is_predicted(rows):
    """Whether any of the rows is a prediction, not a measurement."""
    return any(row["note"].startswith("prediction") for row in rows)


def median(rows, column):
    """Median of a column's numbers; None if it has none."""
    numbers = [row[column] for row in rows if row[column] is not None]
    return statistics.median(numbers) if numbers else None


def reason(row):
    """Why a row has no number, in short."""
    for words in ("out of memory", "unsupported"):
        if words in row["note"]:
            return words
    return "failed" if row["note"] else "not measured"


def digits(value):
    """A number with three significant digits and no exponent."""
    exponent = int(f"{value:.2e}".split("e")[1])
    return f"{round(value, 2 - exponent):.{max(0, 2 - exponent)}f}"
