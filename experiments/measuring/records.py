"""The long-form CSV that every experiment writes: its columns, and how rows are kept and replaced.

One row is one variant of one pass of one workload. Rows of a workload and pass are measured together,
interleaved, so that they compare; they are the group that is kept, or measured again, as a whole.
"""

import csv
import datetime
import io
import json
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path

from experiments.measuring import cards, lock, provenance
from experiments.measuring.sources import Sources

GEOMETRY = (
    *("N", "C", "P", "H", "W", "KH", "KW"),
    *("stride", "padding", "dilation", "G", "D1", "D2", "D3"),
)
GROUP = ("experiment", "workload", *GEOMETRY, "pass")
VARIANT = ("algorithm", "stage", "layout", "precision", "dtype")
# column: what it holds
COLUMNS = {
    "experiment": "name of the experiment, and of the file",
    "workload": "name of the layer or of the sweep",
    "N": "batch",
    "C": "input channels",
    "P": "output channels",
    "H": "input height",
    "W": "input width",
    "KH": "window height",
    "KW": "window width",
    "stride": "vertical x horizontal, one number where they are the same",
    "padding": "likewise",
    "dilation": "likewise",
    "G": "batch axis of a rank-3 capsule",
    "D1": "rows of an input capsule",
    "D2": "columns of an input capsule, rows of a kernel capsule",
    "D3": "columns of a kernel capsule",
    "pass": "forward, backward_input, backward_kernel; net_forward, net_gradients, net_step",
    "algorithm": "a name of the registry, capsnet (_layers, _apart, _joined), a PyTorch opponent (torch_...) or reference",
    "layout": "capsule, nchw or channels_last: how the operands lie when the clock starts; packed: "
    "capsule, but that the kernel lies as the tensor cores read it",
    "precision": "ieee, tf32x3 or tf32 for float32 arrays, else the arrays' own",
    "dtype": "of the arrays",
    "ms_p20": "GPU milliseconds of one call, 20th percentile; empty where it could not run",
    "ms_p50": "median",
    "ms_p80": "80th percentile",
    "host_us": "host microseconds that one call takes to queue its work",
    "peak_bytes": "most device memory held at once: operands, result, intermediates",
    "gflop": "10^9 floating-point operations, by the geometry",
    "min_bytes": "fewest bytes to move, by the geometry",
    "rel_error": "largest error against float64, relative to the largest value",
    "gpu": "name of the GPU",
    "driver": "NVIDIA driver, CUDA version",
    "versions": "JSON: versions of Python and of the packages that matter",
    "source_sha256": "of numbacaps/**/*.py",
    "timestamp": "UTC, ISO 8601",
    "note": "why there is no time, or how this row's time was taken if not like the others",
    "stage": "stage of the paper's pipeline, where one was measured by itself",
    "cache": "how the L2 cache was kept cold, or that it was not",
    "copy_gbs": "ceiling measured in the same run: a large copy, 10^9 bytes/s read and written",
    "sgemm_tflops": "ceiling measured in the same run: a large SGEMM",
    "byte_fraction": "time of min_bytes at copy_gbs over ms_p50",
    "flop_fraction": "time of gflop at sgemm_tflops over ms_p50",
    "predicted_bytes": "peak_bytes as the geometry predicts it",
    "method_sha256": "of the modules that measure and check",
    "kernel_sources": "of the files that the kernels are made of which the call launches; NAME.sources.json "
    "lists them. Empty where none were noted",
    "gpu_uuid": "UUID of the GPU, which tells it from others of its name",
    "busy_neighbours": "how many other GPUs of the host were at work; empty where it is not known",
}
_GROUP_OF = itemgetter(*GROUP)  # the key of a row that has every cell as text
_WAIT = 60.0  # seconds for another run, which holds a CSV for as long as writing it takes
# Columns that older files lack, in the order in which they came, the last ones together; their cells are empty.
_LATER = (("gpu_uuid", "busy_neighbours"), ("kernel_sources",))


class ForeignFile(ValueError):
    """A file that is not one of ours, or cannot be read or written; nothing was changed."""


@contextmanager
def alone(path, seconds=_WAIT):
    """Be the only run that writes a file; see :func:`experiments.measuring.lock.held`.

    Raises
    ------
    ForeignFile
        Another run holds it, or it cannot be locked.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(lock.held(path, seconds))
        except OSError as failure:
            raise ForeignFile(f"{path} cannot be written: {failure}") from failure
        yield


@contextmanager
def named(path):
    """A ``with`` block whose OSErrors become a :class:`ForeignFile`. It names the file, or ``path`` if the error names none."""
    try:
        yield
    except BrokenPipeError:  # of what is printed
        raise
    except OSError as failure:
        said = failure.strerror or failure
        raise ForeignFile(f"{failure.filename or path} cannot be written: {said}") from failure


def write_text(path, text):
    """Write a file whole or not at all; ForeignFile if it cannot be written."""
    with named(path):
        provenance.write_text(path, text)


def read(path):
    """Rows of a CSV, each a dict of strings; none if there is no file.

    Raises
    ------
    ForeignFile
        It is no file, not text, or has other columns.
    """
    path = Path(path)
    try:
        if not path.exists():
            return []
        rows = csv.DictReader(io.StringIO(path.read_text("utf-8")))
        columns = rows.fieldnames or []
        rows = list(rows)
    except (OSError, UnicodeDecodeError, csv.Error) as failure:
        raise ForeignFile(f"{path} cannot be read: {failure}") from failure
    if not _known(columns):
        raise ForeignFile(
            f"{path} has the columns {', '.join(columns) or 'of an empty file'}; a CSV of ours has "
            f"{', '.join(COLUMNS)}. It was left as it is"
        )
    check_lengths(path, rows)
    return [{column: row.get(column, "") for column in COLUMNS} for row in rows]


def check_lengths(path, rows):
    """ForeignFile if rows, as ``csv.DictReader`` gives them, have other numbers of cells than their header."""
    if any(None in row or None in row.values() for row in rows):
        raise ForeignFile(f"{path} has rows of other lengths than its header. It was left as it is")


def read_record(path):
    """What a JSON record holds, as a dict.

    Raises
    ------
    ForeignFile
        It is damaged, no record, or cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as failure:
        raise ForeignFile(f"{path} is damaged, or cannot be read: {failure}") from failure
    if not isinstance(content, dict) or "source_sha256" not in content:
        raise ForeignFile(f"{path} is damaged, or no record. It was left as it is")
    return content


def _known(columns):
    """Whether these are a CSV's columns, now or before some came later."""
    known = list(COLUMNS)
    for later in ((), *_LATER):
        known = [name for name in known if name not in later]
        if list(columns) == known:
            return True
    return False


def is_ours(path):
    """Whether a file is a CSV with the columns."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            return _known(next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def sources(path):
    """What the rows of a CSV were measured of.

    Raises
    ------
    ForeignFile
        The file beside it cannot be read.
    """
    try:
        return Sources(path)
    except (OSError, ValueError) as failure:
        raise ForeignFile(f"the sources of {path} cannot be read: {failure}") from failure


def write(path, rows):
    """Write all rows, or on failure leave the file as it was.

    Raises
    ------
    ForeignFile
        The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([cell(row.get(column)) for column in COLUMNS] for row in rows)
    write_text(path, text.getvalue())


def pair(value):
    """A (vertical, horizontal) pair as a cell: ``2``, or ``2x1``."""
    vertical, horizontal = value
    return str(vertical) if vertical == horizontal else f"{vertical}x{horizontal}"


def of_geometry(geometry):
    """The cells of a geometry's dimensions."""
    cells = {name: getattr(geometry, name) for name in GEOMETRY}
    return {
        name: pair(value) if isinstance(value, tuple) else str(value)
        for name, value in cells.items()
    }


def of_machine():
    """The cells that say where and of what a row was measured."""
    return {
        "gpu": provenance.gpu_name(),
        "driver": provenance.driver(),
        "versions": json.dumps(provenance.versions()),
        "source_sha256": provenance.source_sha256(),
        "method_sha256": provenance.method_sha256(),
        "gpu_uuid": cards.gpu_uuid(),
    }


def now():
    """The timestamp cell."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def key(row, columns):
    """A row's cells in those columns."""
    return tuple([str(row.get(column, "")) for column in columns])


# What must be the same for a row to count as measured, besides its kernels; and the note of one that a
# package was missing for.
SAME = ("driver", "versions", "method_sha256")
ABSENT = "absent: "


class Table:
    """An experiment's CSV while it is being measured.

    Other runs may measure other groups into the same file meanwhile: what is written goes to the rows that the file
    then has. It is read again only where another run has put a file in its place: a file of a long run has thousands of rows.

    Parameters
    ----------
    path : path
    machine : dict
        Cells of :data:`SAME` as they are here and now.
    fresh : bool
        Measure every group again, whatever the file holds.
    same : collection of str
        What must be the same for a row to count as measured.

    Raises
    ------
    ForeignFile
        The file is not ours.
    """

    def __init__(self, path, machine, fresh=False, same=SAME):
        self.path, self._machine, self._fresh, self._same = Path(path), machine, fresh, same
        self._read()

    def _read(self):
        self._seen = _stamp(self.path)
        self.rows, self._sources = read(self.path), sources(self.path)
        self._groups = None

    def write(self, change=lambda rows: rows):
        """Write the files behind the rows' names, then the rows.

        Parameters
        ----------
        change : callable
            The rows that the file takes, of those that it has now.

        Raises
        ------
        ForeignFile
            One cannot be written, or is not ours any more.
        """
        with alone(self.path):
            if self._seen != _stamp(self.path):
                self._read()
            self.rows, self._groups = change(self.rows), None
            with named(self._sources.path):
                self._sources.write(self.rows)
            write(self.path, self.rows)
            self._seen = _stamp(self.path)

    def of_group(self, group):
        """The rows of a group, whose cells of :data:`GROUP` are given."""
        if self._groups is None:
            self._groups = {}
            for row in self.rows:
                self._groups.setdefault(_GROUP_OF(row), []).append(row)
        return self._groups.get(key(group, GROUP), [])

    def has(self, group, variants, absent=()):
        """Whether these variants of a group were all measured with everything as it is now.

        Parameters
        ----------
        group : dict
            Cells of :data:`GROUP`.
        variants : list of dict
            Cells of :data:`VARIANT`.
        absent : collection of str
            Algorithms whose packages are still missing; the others' rows that say so do not count.
        """
        found = {
            key(row, VARIANT)
            for row in self.of_group(group)
            if key(row, self._same) == key(self._machine, self._same)
            and self._sources.is_current(row)
            and (not row["note"].startswith(ABSENT) or row["algorithm"] in absent)
        }
        return not self._fresh and {key(variant, VARIANT) for variant in variants} <= found

    def replace(self, rows):
        """Put a group's new rows in the place of its old ones, and write the file."""
        self.write(lambda known: replaced(known, rows))


def _stamp(path):
    """What tells a file from one that another run puts in its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def replaced(rows, group_rows):
    """``rows`` with those of one group in the place of what there was of it, all cells as text."""
    group, groups = key(group_rows[0], GROUP), list(map(_GROUP_OF, rows))
    first = groups.index(group) if group in groups else len(rows)
    kept = [row for row, other in zip(rows, groups) if other != group]
    new = [{column: cell(row.get(column)) for column in COLUMNS} for row in group_rows]
    return kept[:first] + new + kept[first:]


def in_order(rows, groups):
    """``rows`` with those of some groups, given by their keys, in the groups' order; the others stay where they are."""
    places = {group: place for place, group in enumerate(groups)}
    mine = (row for row in rows if key(row, GROUP) in places)
    moved = iter(sorted(mine, key=lambda row: places[key(row, GROUP)]))
    return [next(moved) if key(row, GROUP) in places else row for row in rows]


def merge(table, part, groups=()):
    """Take those groups of a CSV into another that are no older than what that has of them.

    Parameters
    ----------
    table, part : path
        Of the CSV that is written, and of the other.
    groups : list of tuple
        Keys of groups in the order in which they are to stand.

    Raises
    ------
    ForeignFile
        One is not ours, or cannot be written.
    """
    found = {}
    for row in read(part):
        found.setdefault(key(row, GROUP), []).append(row)
    sources(part).learn()

    def change(rows):
        for group, new in found.items():
            old = [row["timestamp"] for row in rows if key(row, GROUP) == group]
            if max(old, default="") <= max(row["timestamp"] for row in new):
                rows = replaced(rows, new)
        return in_order(rows, groups)

    Table(table, {}).write(change)


def cell(value):
    """A value as text: numbers with six digits, nothing for None."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
