"""From results folders to one page on which their rows can be explored, without a GPU.

``python -m experiments.explore --html explore.html`` takes all that is under ``experiments/results/``; folders
and CSVs of one's own can be named. The same CSVs and sources give the same bytes.
"""

import argparse
import sys
from pathlib import Path

from experiments.explore import gather, page
from experiments.measuring import provenance, records
from experiments.measuring.interruption import or_interrupted
from experiments.measuring.refusal import Parser, Refusal

_DESCRIPTION = """\
Write one page, which needs no network, of all rows of results: choose workload, axis, pass, precision and
algorithms; see speedup, time, fraction of the floor or memory; point at a mark for its row; compare two GPUs or two dates;
save the picture. Any CSV with the experiments' columns is taken. Rows that are older than their kernels
are drawn hollow.
"""


def main(argv=None):
    """Write the page.

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
        page.require_library()
        found = gather.rows(gather.csvs(arguments.folders))
        if not found:
            raise Refusal("FOLDER", ", ".join(map(str, arguments.folders)), "CSVs with rows")
        content = page.html(gather.contents(found))
        _check_size(content)
        provenance.write_text(arguments.html, content)
    except (Refusal, records.ForeignFile, ImportError) as refusal:
        parser.error(str(refusal))
    except OSError as failure:
        got = f"{arguments.html} ({failure.strerror or failure})"
        parser.error(str(Refusal("--html", got, "a file in a folder to write in")))
    older = sum(row["state"] == gather.OLDER for row in found)
    runs = len({row["run"] for row in found})
    print(f"{len(found)} rows of {runs} folders, {older} of them older than their kernels")
    print(f"{arguments.html}: {len(content.encode()) / 1e6:.1f} MB")
    return 0


def make_parser():
    """The command line's parser; what it refuses, it refuses in one line."""
    parser = Parser(
        prog="python -m experiments.explore",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done, 2 an argument or a file cannot be used, 130 after Ctrl-C",
    )
    add = parser.add_argument
    add(
        "folders",
        metavar="FOLDER",
        type=Path,
        nargs="*",
        default=[provenance.RESULTS],
        help="of CSVs, or of a folder for each GPU; a CSV by itself, too (default experiments/results)",
    )
    add(
        "--html",
        metavar="FILE",
        type=Path,
        default=Path("explore.html"),
        help="the page (default %(default)s)",
    )
    return parser


def _check_size(content):
    size = len(content.encode())
    if size > page.MOST_BYTES:
        takes = f"at most {page.MOST_BYTES:,}: name fewer of them"
        raise Refusal("FOLDER", f"rows that make a page of {size:,} bytes", takes)


if __name__ == "__main__":
    sys.exit(or_interrupted(main, "no page was written"))
