"""From the CSVs under ``experiments/results/`` to every figure and the README's tables, without a GPU.

``python -m experiments.figures`` draws what there are rows for, as PNG and SVG, and writes the
README's tables between their markers, ``<!-- table NAME -->`` and ``<!-- /table -->``. The same CSVs
give the same bytes.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from experiments import paper as paper_table
from experiments import plots, provenance, records
from experiments.walk.refusal import Refusal

EXPERIMENTS = ("table1", "sweep", "stages", "memory")
PREDICTED = "-predicted"  # ends the name of a folder that holds no measurement
_OUT = provenance.ROOT / "experiments" / "figures"
_README = provenance.ROOT / "README.md"
_MARKED = re.compile(r"(<!-- table ([^\n]*?) -->)(.*?)(<!-- /table -->)", re.DOTALL)
_DESCRIPTION = """\
Draw every figure from the CSVs of one GPU, as PNG and SVG, and write the README's tables between
their markers. Needs no GPU. A figure without rows is skipped, with the command that makes them.
"""
_EPILOG = """\
exit status: 0 done, 2 an argument or a file cannot be used (nothing was written)
"""


# ---- tables


def tables(folder):
    """The README's tables.

    Parameters
    ----------
    folder : path
        Holds the CSVs of one GPU.

    Returns
    -------
    dict of str to str
        Markdown by the name in the marker; without the tables that there are no rows for.

    Raises
    ------
    experiments.records.ForeignFile
        A CSV there is not one of ours.
    """
    return _tables(_load(folder))


def _load(folder):
    return {name: plots.load(Path(folder) / f"{name}.csv") for name in EXPERIMENTS}


def _tables(data):
    made = {name: make(data) for name, make in _TABLES.items()}
    return {name: text for name, text in made.items() if text}


def _markdown(header, rows, words=1):
    """A table whose first columns are words, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    cells = [[str(cell).replace("|", r"\|") for cell in row] for row in (header, rule, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _heading(rows, words):
    """What stands above a table; of a prediction it says so."""
    return f"**PREDICTION, not measured.** {words}" if plots.is_predicted(rows) else words


def _table1(data):
    rows = plots.network(data["table1"])
    if not rows:
        return ""
    lines = [line for line in plots.variants(rows) if plots.is_ours(line.algorithm)]
    opponents = (
        (plots.FOLD, "ieee", ("nchw", "channels_last")),
        (plots.FOLD, "ieee", ("capsule",)),
        ("torch_unfold_einsum", "ieee", None),
        ("torch_extend_bmm", "ieee", None),
        (plots.FOLD, "tf32", None),
    )
    lines += filter(None, (_quickest(rows, *opponent) for opponent in opponents))
    cells = []
    for line in lines:
        paper = paper_table.ROWS.get(line.algorithm, "") if line.precision == "ieee" else ""
        times = [plots.added(line, rows, plots.LAYERS, passes) for passes in _NETWORK_PASSES]
        theirs = ""
        if paper:
            forward, backward = paper_table.TABLE_1[paper]
            theirs = f"{forward} / {backward} / {forward + backward}"
        cells.append((paper, line.label, *times, theirs))
    header = ["paper's row", "algorithm", "forward ms", "backward ms", "total ms"]
    header.append("paper: forward / backward / total ms")
    words = f"Medians of the five layers added up, batch 128; backward is both gradients. {_DTYPE}."
    table = _markdown(header, cells, words=2)
    return "\n\n".join((_heading(rows, words), table, paper_table.CAVEAT))


_DTYPE = "float32, ieee, unless the name says otherwise"
_NETWORK_PASSES = (plots.PASSES[:1], plots.BACKWARD, plots.PASSES)


def _quickest(rows, algorithm, precision, layouts):
    """The line of the layout, of these or of any, whose network takes least; None without rows."""
    lines = [
        line
        for line in plots.variants(rows)
        if line[1:3] == (algorithm, precision) and (layouts is None or line.layouts[0] in layouts)
    ]

    def total(line):
        return plots.added(line, rows, plots.LAYERS, plots.PASSES).ms or float("inf")

    return min(lines, key=total, default=None)


def _workloads(data):
    _, rows = plots.split_sweep(data["sweep"])
    if not rows:
        return ""
    lines = [line for line in plots.columns(rows) if line.precision != "float16"]
    titles = {"forward": "Forward", "backward": "Backward, both gradients"}
    parts = []
    for direction, passes in (("forward", plots.PASSES[:1]), ("backward", plots.BACKWARD)):
        cells = [
            (name, *(plots.added(line, rows, [name], passes) for line in lines))
            for name in plots.distinct(rows, "workload")
        ]
        parts.append(_heading(rows, f"{titles[direction]}, median ms. {_DTYPE}:"))
        parts.append(_markdown(["workload", *(line.label for line in lines)], cells))
    return "\n\n".join(parts)


def _stages(data):
    rows = [row for row in data["stages"] if row["stage"]]
    if not rows:
        return ""
    workloads = plots.distinct(rows, "workload")
    named = sorted(plots.distinct(rows, "stage"), key=plots.stage_rank)
    cells = [
        (stage, *(_copy_percent(plots.at(rows, stage=stage, workload=name)) for name in workloads))
        for stage in named
    ]
    words = "Percent of copy bandwidth, by the bytes that each stage must move:"
    return "\n\n".join((_heading(rows, words), _markdown(["stage", *workloads], cells)))


def _copy_percent(rows):
    """Percent of copy bandwidth that a stage reached over all the passes it is part of."""
    timed = [row for row in rows if row["ms_p50"] and row["byte_fraction"]]
    if not timed:
        return plots.reason(rows[0]) if rows else ""
    least = sum(row["ms_p50"] * row["byte_fraction"] for row in timed)
    return plots.digits(100 * least / sum(row["ms_p50"] for row in timed))


def _memory(data):
    rows = plots.of_pass(data["memory"], "forward")
    if not rows:
        return ""
    lines = plots.variants(rows)
    parts = []
    for workload in plots.distinct(rows, "workload"):
        group = plots.at(rows, workload=workload)
        cells = []
        for batch in sorted(plots.distinct(group, "N"), key=int):
            found = plots.at(group, N=batch)
            cells.append((batch, *(_gigabytes(line, found) for line in lines)))
        parts.append(_heading(group, f"{workload}, forward, peak GB of device memory:"))
        parts.append(_markdown(["batch", *(line.label for line in lines)], cells))
    return "\n\n".join(parts)


def _gigabytes(line, rows):
    """Peak memory of a line, or the reason why there is none."""
    row = next(filter(line.fits, rows), None)
    if row is None:
        return "not measured"
    return plots.digits(row["peak_bytes"] / 1e9) if row["peak_bytes"] else plots.reason(row)


def _ceilings(data):
    rows = [row for name in EXPERIMENTS for row in data[name]]
    copy, sgemm = plots.median(rows, "copy_gbs"), plots.median(rows, "sgemm_tflops")
    if not copy:
        return ""

    def all_of(values):
        return ", ".join(dict.fromkeys(value for value in values if value))

    versions = [_versions(row["versions"]) for row in rows]
    packages = {
        package: all_of(found.get(name, "") for found in versions)
        for package, name in (("numba-cuda",) * 2, ("torch",) * 2, ("cupy", "cupy-cuda13x"))
    }
    dates = sorted({row["timestamp"][:10] for row in rows if row["timestamp"]})
    drivers = all_of(row["driver"] for row in rows)
    parts = [
        all_of(row["gpu"] for row in rows),
        *([f"driver {drivers}"] if drivers else []),
        f"copy {plots.digits(copy)} GB/s",
        f"SGEMM {plots.digits(sgemm)} TFLOP/s" if sgemm else "SGEMM not measured",
        *(f"{package} {version}" for package, version in packages.items() if version),
        "source " + all_of(row["source_sha256"][:12] for row in rows),
        " to ".join(dict.fromkeys((*dates[:1], *dates[-1:]))),
    ]
    return _heading(rows, "; ".join(parts) + ".")


def _versions(cell):
    """Versions by package; none where the cell holds none."""
    try:
        return dict(json.loads(cell or "{}"))
    except (ValueError, TypeError):
        return {}


_TABLES = {
    "table1": _table1,
    "workloads": _workloads,
    "stages": _stages,
    "memory": _memory,
    "ceilings": _ceilings,
}


# ---- README


def marked(text):
    """What stands between the markers of a README, by name.

    Raises
    ------
    ValueError
        A marker names no table of ours, or is not closed.
    """
    found = {name: body.strip("\n") for _, name, body, _ in _MARKED.findall(text)}
    for name in found:
        if name not in _TABLES:
            raise ValueError(f"a marker for the table {name!r}; there are {', '.join(_TABLES)}")
    opened, closed = text.count("<!-- table "), text.count("<!-- /table -->")
    if not opened == closed == len(_MARKED.findall(text)):
        raise ValueError(
            f"{opened} markers that open a table and {closed} that close one; each "
            "'<!-- table NAME -->' takes a '<!-- /table -->'"
        )
    return found


def filled(text, made):
    """A README with these tables between its markers; others stay as they are."""

    def fill(match):
        opening, name, _, closing = match.groups()
        return f"{opening}\n\n{made[name]}\n\n{closing}" if name in made else match[0]

    return _MARKED.sub(fill, text)


# ---- command line


def main(argv=None):
    """Draw, and fill the README.

    Parameters
    ----------
    argv : list of str, optional
        The command line's arguments; by default those of the process.

    Returns
    -------
    int
        0. An argument or a file that cannot be used exits with 2, and nothing is written.
    """
    parser = _make_parser()
    arguments = parser.parse_args(argv)
    try:
        folder = _choose(arguments.results, arguments.gpu)
        data = _load(folder)
        _check_baseline(data, arguments.baseline)
        out, readme = _targets(arguments, folder)
        contents = {readme: _new_readme(readme, _tables(data))} if readme else {}
        _make_folder(out)
        files, skipped = plots.draw_all(data, arguments.baseline)
        contents |= {out / name: content for name, content in files.items()}
        _write_all(contents)
    except (Refusal, records.ForeignFile) as refusal:
        parser.error(str(refusal))
    for line in skipped:
        print(line)
    print(f"{folder.name}: {len(files)} files in {out}")
    return 0


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, without the usage that --help gives."""

    def error(self, message):
        self.exit(2, f"figures: {message}\n")


def _make_parser():
    parser = _Parser(
        prog="python -m experiments.figures",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--gpu", metavar="NAME", help="folder of the results (default: the only one measured)")
    add(
        "--results",
        metavar="DIR",
        type=Path,
        default=provenance.RESULTS,
        help="where the GPUs' folders are (default experiments/results)",
    )
    add(
        "--out",
        metavar="DIR",
        type=Path,
        help="where the figures go (default experiments/figures, for a prediction a folder of its "
        "name in it)",
    )
    readme = parser.add_mutually_exclusive_group()
    readme.add_argument(
        "--readme",
        metavar="FILE",
        type=Path,
        default=_README,
        help="whose tables are written (default README.md, but not by a prediction)",
    )
    readme.add_argument(
        "--no-readme", dest="readme", action="store_const", const=None, help="leave it as it is"
    )
    add(
        "--baseline",
        metavar="ALGORITHM",
        default=plots.FOLD,
        help=f"what is 1x in the speedups (default {plots.FOLD})",
    )
    return parser


def _choose(results, gpu):
    """The folder of the GPU by that name, or of the only one that was measured."""
    folders = sorted(
        {path.parent for name in EXPERIMENTS for path in results.glob(f"*/{name}.csv")}
    )
    names = [folder.name for folder in folders]
    if not names:
        csvs = " or ".join(f"{name}.csv" for name in EXPERIMENTS)
        raise Refusal("--results", results, f"a folder that holds folders with {csvs}")
    likely = [name for name in names if not name.endswith(PREDICTED)] or names
    if gpu is None and len(likely) == 1:
        gpu = likely[0]
    if gpu not in names:
        raise Refusal(
            "--gpu", "nothing" if gpu is None else repr(gpu), "one of " + ", ".join(names)
        )
    return results / gpu


def _targets(arguments, folder):
    """Where the figures and the tables go: by default no prediction takes a measurement's place."""
    predicted = folder.name.endswith(PREDICTED)
    out = arguments.out or (_OUT / folder.name if predicted else _OUT)
    readme = None if predicted and arguments.readme == _README else arguments.readme
    return out, readme


def _check_baseline(data, baseline):
    names = plots.distinct(data["sweep"], "algorithm")
    if names and baseline not in names:
        raise Refusal("--baseline", repr(baseline), "one of " + ", ".join(names))


def _new_readme(path, made):
    """The README's bytes with the tables filled in."""
    try:
        text = path.read_bytes().decode()
        marked(text)
    except (OSError, ValueError) as failure:
        takes = "a text file that can be read, its markers in order"
        raise Refusal("--readme", f"{path} ({failure})", takes) from None
    return filled(text, made).encode()


def _make_folder(folder):
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as failure:
        raise Refusal("--out", f"{folder} ({failure.strerror})", "a folder to write in") from None


def _write_all(contents):
    """Write every file under a temporary name beside it, and only then rename them all."""
    temporary = {path: path.with_name(f"{path.name}.{os.getpid()}.tmp") for path in contents}
    try:
        for path, content in contents.items():
            temporary[path].write_bytes(content)
        for path in contents:
            os.replace(temporary[path], path)
    except OSError as failure:
        raise records.ForeignFile(
            f"{failure.filename} cannot be written: {failure.strerror}"
        ) from None
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
