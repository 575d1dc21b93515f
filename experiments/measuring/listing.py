"""A short CSV with columns of its own: times that are the host's or a process's, not those of a pass on the GPU.

A row counts as measured as long as machine, packages and the sources of numbacaps are those that it names.
"""

import csv
import io
from pathlib import Path

from experiments.measuring import cards, provenance, records

MACHINE = ("gpu", "driver", "versions", "source_sha256", "timestamp")
CARD = ("gpu_uuid", "busy_neighbours")  # as in experiments.measuring.records; older files lack them
_SAME = ("gpu", "driver", "versions", "source_sha256")


class Listing:
    """The CSV while it is being measured; other runs may write other rows of it meanwhile.

    Parameters
    ----------
    path : path
    keys : tuple of str
        Columns that name a row.
    values : tuple of str
        Columns that were measured; :data:`MACHINE` and :data:`CARD` come behind.
    machine : dict, optional
        Cells of :data:`MACHINE` as they are here and now.
    fresh : bool
        Measure every row again.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        The file is not such a CSV.
    """

    def __init__(self, path, keys, values, machine=None, fresh=False):
        self.path, self.keys = Path(path), keys
        self.columns = (*keys, *values, *MACHINE, *CARD)
        self._machine, self._fresh = machine or {}, fresh
        self.rows = self._read()

    def _read(self):
        try:
            if not self.path.exists():
                return []
            rows = csv.DictReader(io.StringIO(self.path.read_text("utf-8")))
            found = list(rows)
        except (OSError, UnicodeDecodeError, csv.Error) as failure:
            raise records.ForeignFile(f"{self.path} cannot be read: {failure}") from failure
        if tuple(rows.fieldnames or ()) not in (self.columns, self.columns[: -len(CARD)]):
            raise records.ForeignFile(
                f"{self.path} has other columns than {', '.join(self.columns)}. It was left as it is"
            )
        records.check_lengths(self.path, found)
        return [{column: row.get(column, "") for column in self.columns} for row in found]

    def has(self, key):
        """Whether the row of a key, a tuple, was measured with everything as it is now."""
        return not self._fresh and any(
            records.key(row, self.keys) == tuple(map(str, key))
            and records.key(row, _SAME) == records.key(self._machine, _SAME)
            for row in self.rows
        )

    def add(self, rows):
        """Put rows, dicts of keys and values, in the place of those of the same keys, and write the file."""
        now = {"timestamp": records.now(), "busy_neighbours": cards.busy_neighbours()}
        self.write({records.key(row, self.keys): row | self._machine | now for row in rows})

    def merge(self, other):
        """Take those rows of another such listing that are no older than the ones of their keys here."""
        times = {records.key(row, self.keys): row["timestamp"] for row in self.rows}
        rows = {records.key(row, self.keys): row for row in other.rows}
        self.write(
            {key: row for key, row in rows.items() if times.get(key, "") <= row["timestamp"]}
        )

    def write(self, new=()):
        """Write the file with the rows that it has now, but for new ones, by their keys; ForeignFile."""
        with records.alone(self.path):
            kept = [row for row in self._read() if records.key(row, self.keys) not in new]
            self.rows = kept + [
                {column: records.cell(row.get(column)) for column in self.columns}
                for row in dict(new).values()
            ]
            text = io.StringIO()
            writer = csv.DictWriter(text, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
            records.write_text(self.path, text.getvalue())

    @property
    def current(self):
        """The rows of the package as it is now."""
        return list(filter(provenance.is_current, self.rows))

    @property
    def is_current(self):
        """Whether there are rows, and all of the package as it is now."""
        return bool(self.rows) and self.current == self.rows


def current(folder, of):
    """The rows of a GPU's folder that are of the package as it is now.

    Parameters
    ----------
    folder : path
    of : module
        What the rows are: its ``NAME``, ``KEYS`` and ``VALUES``.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        The CSV is not one of these.
    """
    return Listing(Path(folder) / f"{of.NAME}.csv", of.KEYS, of.VALUES).current


def of_machine():
    """The cells of :data:`MACHINE` and :data:`CARD` that do not change from row to row."""
    return {name: cell for name, cell in records.of_machine().items() if name in MACHINE + CARD}


def cells_of(numbers, forms):
    """Numbers in the columns of a printed table, a dash where there is none.

    Parameters
    ----------
    numbers : iterable of float or None
    forms : iterable of str
        Of each its width, a point and the rest of its format: "9.1f".

    Returns
    -------
    str
    """
    pairs = zip(numbers, forms)
    return "".join(
        f"{'-':>{form.split('.')[0]}}" if one is None else f"{one:{form}}" for one, form in pairs
    )
