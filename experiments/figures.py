"""From the CSVs under ``experiments/results/`` to every figure and the README's tables, without a GPU.

``python -m experiments.figures`` draws what there are rows for, as PNG and SVG, and writes the
README's tables between their markers. The same CSVs give the same bytes.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from experiments.measuring import provenance, records
from experiments.measuring.refusal import Parser, Refusal
from experiments.measuring.tables import filled, marked, tables
from experiments.plots import draw_all
from experiments.plots.lines import FOLD
from experiments.plots.rows import EXPERIMENTS, distinct, load_all

PREDICTED = "-predicted"  # ends the name of a folder that holds no measurement
OUT = provenance.ROOT / "experiments" / "figures"
README = provenance.ROOT / "README.md"
_DESCRIPTION = """\
Draw every figure from the CSVs of one GPU, as PNG and SVG, and write the README's tables between
their markers. Needs no GPU. A figure without rows is skipped, with the command that makes them.
"""
_EPILOG = """\
exit status: 0 done, 2 an argument or a file cannot be used (nothing was written)
"""


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
    parser = make_parser()
    arguments = parser.parse_args(argv)
    try:
        folder = _choose(arguments.results, arguments.gpu)
        data = load_all(folder)
        _check_baseline(data, arguments.baseline)
        out, readme = targets(arguments, folder)
        contents = {readme: _new_readme(readme, tables(data))} if readme else {}
        _make_folder(out)
        files, skipped = draw_all(data, arguments.baseline)
        contents |= {out / name: content for name, content in files.items()}
        _write_all(contents)
    except (Refusal, records.ForeignFile) as refusal:
        parser.error(str(refusal))
    for line in skipped:
        print(line)
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
        help="where the figures go (default experiments/figures, for a prediction a folder of its "
        "name in it)",
    )
    readme = parser.add_mutually_exclusive_group()
    readme.add_argument(
        "--readme",
        metavar="FILE",
        type=Path,
        default=README,
        help="whose tables are written (default README.md, but not by a prediction)",
    )
    readme.add_argument(
        "--no-readme", dest="readme", action="store_const", const=None, help="leave it as it is"
    )
    add(
        "--baseline",
        metavar="ALGORITHM",
        default=FOLD,
        help=f"what is 1x in the speedups (default {FOLD})",
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
    readme : path or None
        None if no README is to be filled.
    """
    predicted = folder.name.endswith(PREDICTED)
    out = arguments.out or (OUT / folder.name if predicted else OUT)
    readme = None if predicted and arguments.readme == README else arguments.readme
    return out, readme


def _check_baseline(data, baseline):
    names = distinct(data["sweep"], "algorithm")
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
