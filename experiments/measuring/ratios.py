"""How many times as fast as the library's ours is, over many geometries: from rows to a distribution."""

import statistics
from typing import NamedTuple

import numpy as np

OURS, FOLD = "fused", "torch_fold"
# Of each class our precisions, of which the fastest counts, and the library's.
CLASSES = {
    "default": (("auto", "ieee", "tf32x3"), "ieee"),
    "tf32": (("tf32",), "tf32"),
    "float16": (("float16",), "float16"),
    "bfloat16": (("bfloat16",), "bfloat16"),
}


class Ratio(NamedTuple):
    """One geometry in one class and pass.

    Attributes
    ----------
    value : float
        The library's time over ours.
    ours, theirs : dict
        The fastest row of each.
    """

    value: float
    ours: dict
    theirs: dict


def ratios(rows, name, wanted):
    """The ratios of a class and pass, the least first, and the rows of ours for want of which others lack.

    Parameters
    ----------
    rows : list of dict
        Of a CSV; times as text or numbers.
    name : str
        Of :data:`CLASSES`.
    wanted : str
        The pass.

    Returns
    -------
    found : list of Ratio
    failed : list of dict
        A row of ours for each geometry that the library alone has a time of.
    """
    ours, theirs = CLASSES[name]
    by_geometry = {}
    for row in rows:
        if row["pass"] == wanted:
            by_geometry.setdefault(row["workload"], []).append(row)
    found, failed = [], []
    for group in by_geometry.values():
        mine = [row for row in group if row["algorithm"] == OURS and row["precision"] in ours]
        library = [row for row in group if row["algorithm"] == FOLD and row["precision"] == theirs]
        best = {
            who: min(filter(_time, some), key=_time, default=None)
            for who, some in (("ours", mine), ("theirs", library))
        }
        if best["ours"] and best["theirs"]:
            found.append(Ratio(_time(best["theirs"]) / _time(best["ours"]), **best))
        elif best["theirs"] and mine:
            failed.append(mine[0])
    return sorted(found, key=lambda ratio: ratio.value), failed


def _time(row):
    """Milliseconds; 0 where there are none."""
    return float(row["ms_p50"] or 0)


def summary(values):
    """(5th percentile, 25th, median, geometric mean) of some ratios."""
    return (*map(float, np.percentile(values, (5, 25, 50))), statistics.geometric_mean(values))
