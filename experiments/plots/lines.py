"""What one curve, bar or table column shows: which rows, in which colour and dashes, and its time.

A variant is an algorithm in one precision and layout. An algorithm has one colour in every figure:
no two are alike to the colour-blind.
"""

import math
import zlib
from typing import NamedTuple

from experiments.plots.rows import at, digits, of_pass, reason

FOLD = "torch_fold"
COLOURS = {  # in the order in which algorithms are listed; told apart by the colour-blind, too
    "naive": "#d55e00",
    "staged": "#e69f00",
    "cublas": "#cc79a7",
    "indexed": "#0072b2",
    "fused": "#009e73",
    "torch_fold": "#3d3d3d",
    "torch_fold_nhwc": "#b8b8b8",
    "torch_unfold_einsum": "#56b4e9",
    "torch_extend_bmm": "#6b3a00",
    "reference": "#000000",
}
_OTHERS = ("#00838f", "#c2185b", "#6d8a00", "#4a3fb5", "#b0560f")  # for names not listed above
_DASHES = {
    "nchw": (0, (5, 1)),
    "channels_last": (0, (5, 1, 1, 1)),
    "capsule": (0, (1, 1)),
    "tf32x3": (0, (9, 2)),
    "tf32": (0, (7, 3)),
    "float16": (0, (7, 3, 1, 3)),
}


def is_ours(algorithm):
    """Whether an algorithm is the registry's, not an opponent or the reference."""
    return not algorithm.startswith("torch_") and algorithm != "reference"


def colour_of(algorithm):
    """The colour of an algorithm, in every figure the same."""
    fallback = _OTHERS[zlib.crc32(algorithm.encode()) % len(_OTHERS)]
    return COLOURS.get(algorithm, fallback)


class Line(NamedTuple):
    """What one curve, bar or table column shows: of the rows that fit, the fastest.

    Attributes
    ----------
    label : str
    algorithm, precision : str
    layouts : tuple of str
        Any of these fits.
    """

    label: str
    algorithm: str
    precision: str
    layouts: tuple

    @property
    def colour(self):
        return colour_of(self.algorithm)

    @property
    def dashes(self):
        if is_ours(self.algorithm):
            return "-" if self.precision == "ieee" else _DASHES.get(self.precision, "--")
        return _DASHES.get(self.precision) or _DASHES.get(self.layouts[0], "--")

    def fits(self, row):
        """Whether a row is one of those that the line may show."""
        return (row["algorithm"], row["precision"]) == self[1:3] and row["layout"] in self.layouts

    def best(self, rows):
        """The fastest row that fits; one that could not run if none did; None if none fits."""
        fitting = filter(self.fits, rows)
        return min(fitting, key=lambda row: row["ms_p50"] or math.inf, default=None)


def line_of(row):
    """The line of a row's own variant."""
    algorithm, layout, precision = row["algorithm"], row["layout"], row["precision"]
    words = [algorithm]
    if layout != "capsule" or algorithm == FOLD:
        words.append(layout)
    if precision != "ieee":
        words.append(precision)
    return Line(" ".join(words), algorithm, precision, (layout,))


def variants(rows):
    """A line for each variant, ours first, each algorithm in the order of :data:`COLOURS`."""
    order = {name: i for i, name in enumerate(COLOURS)}

    def rank(line):
        return not is_ours(line.algorithm), order.get(line.algorithm, len(order))

    return sorted(dict.fromkeys(map(line_of, rows)), key=rank)


def fastest(rows, algorithm, precision):
    """The line of an algorithm's fastest layout, as a list; empty if it has no rows."""
    layouts = [line for line in variants(rows) if line[1:3] == (algorithm, precision)]
    if len(layouts) < 2:
        return layouts
    words = [algorithm, *([] if precision == "ieee" else [precision]), "best layout"]
    names = tuple(name for line in layouts for name in line.layouts)
    return [Line(" ".join(words), algorithm, precision, names)]


def curves(rows):
    """Lines of a figure with room: ours, opponents in each layout, the best fold with less digits."""
    lines = [
        line
        for line in variants(rows)
        if is_ours(line.algorithm) or (line.algorithm != "reference" and line.precision == "ieee")
    ]
    return lines + fastest(rows, FOLD, "tf32") + fastest(rows, FOLD, "float16")


def columns(rows):
    """Lines of a table: ours, each opponent's best layout, the best fold with less digits."""
    every = variants(rows)
    lines = [line for line in every if is_ours(line.algorithm)]
    for algorithm in dict.fromkeys(line.algorithm for line in every):
        if algorithm.startswith("torch_"):
            lines += fastest(rows, algorithm, "ieee")
        if algorithm == FOLD:
            lines += fastest(rows, FOLD, "tf32") + fastest(rows, FOLD, "float16")
    return lines


class Time(NamedTuple):
    """Milliseconds, or None and the reason why."""

    ms: float | None
    reason: str = ""

    def __str__(self):
        return self.reason if self.ms is None else digits(self.ms)


def added(line, rows, workloads, passes):
    """A line's time of all these workloads and passes together.

    Parameters
    ----------
    line : Line
    rows : list of dict
    workloads, passes : iterable of str

    Returns
    -------
    Time
        Without milliseconds if any of them has none.
    """
    total = 0.0
    for workload in workloads:
        for name in passes:
            row = line.best(at(of_pass(rows, name), workload=workload))
            if row is None:
                return Time(None, "not measured")
            if row["ms_p50"] is None:
                return Time(None, reason(row))
            total += row["ms_p50"]
    return Time(total)
