"""The rows of results folders, each with its run, its date and whether it is older than its kernels."""

from pathlib import Path

from experiments.measuring import records
from experiments.measuring.problem import NETWORK_PASSES, PASSES
from experiments.measuring.ratios import CLASSES
from experiments.measuring.refusal import Refusal
from experiments.plots.lines import colour_of
from experiments.plots.rows import NUMBERS, distinct, is_predicted, number

CURRENT, OLDER, PREDICTION = "current", "older", "prediction"  # what a row's state is
_MEASURED = (*NUMBERS, "rel_error", "flop_fraction")
_LEFT = ("experiment", "source_sha256", "method_sha256", "kernel_sources")


def csvs(folders):
    """The CSVs of folders, which hold them or hold a folder for each GPU.

    Parameters
    ----------
    folders : list of path
        Or of CSVs themselves.

    Returns
    -------
    dict of path to str
        By path the name of the run: the folder's, with the folder above where two have one name.

    Raises
    ------
    Refusal
        One holds no CSV with the columns.
    """
    found = []
    for folder in map(Path, folders):
        paths = [folder] if folder.is_file() else sorted(folder.glob("*.csv"))
        paths += sorted(folder.glob("*/*.csv"))
        ours = [path for path in paths if records.is_ours(path)]
        if not ours:
            takes = "a folder with CSVs that have the columns of experiments/measuring/records.py"
            raise Refusal("FOLDER", repr(str(folder)), takes)
        found += [path.resolve() for path in ours]
    parents = dict.fromkeys(path.parent for path in found)
    names = [parent.name for parent in parents]
    runs = {
        parent: parent.name if names.count(parent.name) == 1 else str(parent) for parent in parents
    }
    return {path: runs[path.parent] for path in dict.fromkeys(found)}


def rows(paths):
    """The rows of CSVs, as the page takes them.

    Parameters
    ----------
    paths : dict of path to str
        See :func:`csvs`.

    Returns
    -------
    list of dict
        The columns of :data:`experiments.measuring.records.COLUMNS`, numbers as numbers; and ``file``, ``run``,
        ``date``, ``state`` and ``source``, which names the sources that the row is a result of.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        A CSV is not one of ours.
    """
    found = []
    for path, run in paths.items():
        sources = records.sources(path)
        for line, row in enumerate(records.read(path), start=2):
            state = CURRENT if sources.is_current(row) else OLDER
            of = {"file": path.stem, "run": run, "date": row["timestamp"][:10]}
            of["state"] = PREDICTION if is_predicted([row]) else state
            of["source"] = row["kernel_sources"] or row["source_sha256"][:16]
            for column in _MEASURED:
                row[column] = number(row[column], f"{path}, row {line}, column {column}")
            found.append(of | {name: row[name] for name in row if name not in _LEFT})
    return found


def contents(found):
    """What the page holds: rows by column, and what its scripts must know of algorithms and axes.

    Parameters
    ----------
    found : list of dict
        See :func:`rows`; at least one.

    Returns
    -------
    dict
        Of ``columns`` each is a list of numbers, or distinct ``words`` and the place ``at`` which a row's is.
    """
    return {
        "count": len(found),
        "columns": {column: _column(found, column) for column in found[0]},
        "passes": sorted(distinct(found, "pass"), key=_pass_rank),
        "geometry": records.GEOMETRY,
        "meaning": {name: records.COLUMNS[name] for name in records.GEOMETRY},
        "classes": {ours: theirs for some, theirs in CLASSES.values() for ours in some},
        "colours": {name: colour_of(name) for name in distinct(found, "algorithm")},
    }


def _pass_rank(name):
    passes = (*PASSES, *NETWORK_PASSES)
    return passes.index(name) if name in passes else len(passes)


def _column(found, column):
    if column in _MEASURED:
        return [row[column] for row in found]
    words = distinct(found, column)
    places = {word: at for at, word in enumerate(words)}
    return {"words": words, "at": [places[row[column]] for row in found]}
