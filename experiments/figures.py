"""From the CSVs under ``experiments/results/`` to every figure and table, without a GPU.

``python -m experiments.figures --gpu NAME`` draws what that GPU has rows for, as PNG and SVG; ``--style paper`` for one
column of print, as PDF and SVG; ``--readme`` writes the tables between their markers, too. Rows that are older than their kernels are left out. The same CSVs
and sources give the same bytes.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from experiments.measuring import provenance, records
from experiments.measuring.interruption import or_interrupted
from experiments.measuring.refusal import Parser, Refusal, make_folder
from experiments.measuring.tables import HOLDERS, filled, marked, tables
from experiments.plots import STYLES, draw_all
from experiments.plots.lines import FOLD
from experiments.plots.rows import ONE_CURVE, distinct, load_all, of_passes, split_sweep

PREDICTED = "-predicted"  # ends the name of a folder that holds no measurement
OUT = provenance.ROOT / "experiments" / "figures"
_DESCRIPTION = """\
Draw every figure from the CSVs of one GPU: the experiments' own, and of any other CSV
with their columns a curve for each sweep and bars of the rest. Rows that are older than their kernels are
left out. Needs no GPU. A figure without rows is skipped, with the command that makes them.
"""
_EPILOG = """\
exit status: 0 done, 1 there was nothing to draw, 2 an argument or a file cannot be used (nothing
was written), 130 after Ctrl-C
"""


def main(argv=None):
    """Draw, and fill tables if they are asked for.

    Parameters
    ----------
    argv : list of str, optional
        The command line's arguments; by default those of the process.

    Returns
    -------
    int
        0; 1 if there was nothing to draw and no table was asked for. An argument or a file that cannot be
        used exits with 2, and nothing is written.
    """
    parser = make_parser()
    arguments = parser.parse_args(argv)
    try:
        folder = _choose(arguments.results, arguments.gpu)
        data = load_all(folder)
        _check_baseline(of_passes(data), arguments.baseline)
        if not arguments.mixed_cards:
            _check_cards(of_passes(data))
        out, holders = targets(arguments, folder)
        made = tables(data) if holders else {}
        contents = {path: _with_tables(path, made, names) for path, names in holders.items()}
        files, skipped = draw_all(data, arguments.baseline, STYLES[arguments.style])
        if files:
            make_folder("--out", out)
        contents |= {out / name: content for name, content in files.items()}
        _write_all(contents)
        for line in skipped:
            print(line)
        for path in holders:
            print(f"{folder.name}: the tables of {path}")
        if not files:
            print(
                f"{folder.name}: nothing to draw; {_there_are(arguments.results)}", file=sys.stderr
            )
            return 0 if holders else 1
    except (Refusal, records.ForeignFile) as refusal:
        parser.error(str(refusal))
    print(f"{folder.name}: {len(files)} files in {out}")
    return 0


def make_parser():
    """The command line's parser; what it refuses, it refuses in one line."""
    parser = Parser(
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
        help="where the figures go (default: experiments/figures with --readme, whose pictures those "
        "are, else a folder of the GPU's name in it; for print the folder paper in that)",
    )
    add(
        "--style",
        choices=tuple(STYLES),
        default="screen",
        help="screen: PNG and SVG with titles and labelled curves; paper: one column, PDF and SVG, legends below "
        "(default %(default)s)",
    )
    add(
        "--readme",
        metavar="FILE",
        type=Path,
        nargs="?",
        const=True,
        help="write the tables between their markers, in FILE or, without it, in "
        + ", ".join(HOLDERS),
    )
    add(
        "--baseline",
        metavar="ALGORITHM",
        help=f"what is 1x in the speedups (default {FOLD}, or the first with times)",
    )
    add(
        "--mixed-cards",
        action="store_true",
        help="draw curves through rows of different cards, too, which may differ in clock and memory",
    )
    return parser


def _choose(results, gpu):
    """The folder of the GPU by that name, or of the only one that was measured."""
    names = provenance.measured(results)
    if not names:
        raise Refusal("--results", results, "a folder that holds a folder for each GPU, with CSVs")
    likely = [name for name in names if not name.endswith(PREDICTED)] or names
    if gpu is None and len(likely) == 1:
        gpu = likely[0]
    if gpu not in names:
        raise Refusal(
            "--gpu", "nothing" if gpu is None else repr(gpu), "one of " + ", ".join(names)
        )
    return results / gpu


def targets(arguments, folder):
    """Where the figures and the tables go: by default no prediction takes a measurement's place.

    Parameters
    ----------
    arguments : argparse.Namespace
    folder : path
        Of the results.

    Returns
    -------
    out : path
    holders : dict of path to tuple of str or None
        Files to fill, and the tables that each holds; None is all.
    """
    within = () if arguments.style == "screen" else (arguments.style,)
    if arguments.readme is True:
        if folder.name.endswith(PREDICTED):
            raise Refusal("--readme", f"predictions, {folder.name}", "measurements, or a FILE")
        found = {provenance.ROOT / name.format(gpu=folder.name): HOLDERS[name] for name in HOLDERS}
        holders = {path: names for path, names in found.items() if path.exists()}
        return arguments.out or OUT.joinpath(*within), holders
    holders = {arguments.readme: None} if arguments.readme else {}
    return arguments.out or OUT.joinpath(folder.name, *within), holders


def _check_baseline(data, baseline):
    names = distinct([row for rows in data.values() for row in rows], "algorithm")
    if baseline and names and baseline not in names:
        raise Refusal("--baseline", repr(baseline), "one of " + ", ".join(names))


def _check_cards(data):
    """Refuse curves through rows of more than one card; rows that name none are taken for one card's."""
    for experiment, rows in data.items():
        curves, _ = split_sweep(rows)
        if experiment in ONE_CURVE:
            curves = {experiment: rows}
        for workload, curve in curves.items():
            uuids = distinct(curve, "gpu_uuid")
            if len(uuids) > 1:
                named = " and ".join(uuid or "one that is not named" for uuid in uuids)
                got = f"rows of {len(uuids)} cards in {experiment}.csv, {workload}: {named}"
                takes = "rows of one card, or --mixed-cards"
                raise Refusal("--gpu", got, takes)


def _there_are(results):
    """In words: which results there are, and how many of their rows are as new as their kernels."""
    found = []
    for gpu in provenance.measured(results):
        for path in sorted((results / gpu).glob("*.csv")):
            if records.is_ours(path):
                rows, sources = records.read(path), records.sources(path)
                current = sum(map(sources.is_current, rows))
                found.append(f"{gpu}/{path.name} ({current} of {len(rows)} rows are current)")
    return f"there are {', '.join(found)}; make record on a GPU measures older rows again"


def _with_tables(path, made, names):
    """The bytes of a file with its tables filled in."""
    try:
        text = path.read_bytes().decode()
        marked(text)
    except (OSError, ValueError) as failure:
        takes = "a text file that can be read, its markers in order"
        raise Refusal("--readme", f"{path} ({failure})", takes) from None
    return filled(text, made, names).encode()


def _write_all(contents):
    """Write every file under another name, and only when all are on the disk let each take its place."""
    with records.named(next(iter(contents), None)), ExitStack() as stack:
        for path, content in contents.items():
            with records.named(path):
                file = stack.enter_context(provenance.written_whole(path))
                file.write(content)
                # Now, while none has its place yet: a disk that is full shows here.
                file.flush()
                os.fsync(file.fileno())


if __name__ == "__main__":
    sys.exit(or_interrupted(main, "files that were written are whole"))
