"""Which sources a row is a result of, and whether they are still as they were.

A row's cell ``kernel_sources`` names the code of the files, but for comments, that the kernels are made of which its call
launches. Beside ``NAME.csv`` lies ``NAME.sources.json``: the files of every name. So checking takes no GPU
and no kernel, only the files. Files of the simulator are left out: no GPU runs them. A row without the cell counts as current as long as no file of
``numbacaps/`` differs from those that it was measured with.
"""

import json
from pathlib import Path

from experiments.measuring import provenance

NO_KERNELS = provenance.sources_name(())  # of a row whose call launches no kernel of ours
_SIMULATOR = (
    "numbacaps/device/instructions/simulated/",
    "numbacaps/device/simulator.py",
    "numbacaps/device/turns.py",
)
_found = {NO_KERNELS: []}  # by name: the files, relative to the checkout


def name_of(kernels):
    """The cell of a row whose call launches these kernels."""
    from numbacaps.device.kernel_cache import sources_of

    paths = (path.resolve() for path in frozenset().union(*map(sources_of, kernels)))
    files = sorted(path.relative_to(provenance.ROOT).as_posix() for path in paths)
    files = [file for file in files if not file.startswith(_SIMULATOR)]
    name = _name_now(files)
    _found[name] = files
    return name


class Sources:
    """The files behind the names in a CSV's cells.

    Parameters
    ----------
    table : path
        The CSV, whether it exists or not.

    Raises
    ------
    ValueError
        What lies beside it is not such a file.
    OSError
        It cannot be read.
    """

    def __init__(self, table):
        self.path = Path(table).with_suffix(".sources.json")
        self._files = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        if not isinstance(self._files, dict):
            raise ValueError(f"{self.path} holds no object")
        self._current = {NO_KERNELS: True}

    def is_current(self, row):
        """Whether a row is no older than its kernels."""
        name = row["kernel_sources"]
        if not name:
            return provenance.is_current(row)
        if name not in self._current:
            files = self._files.get(name, _found.get(name))
            self._current[name] = files is not None and _name_now(files) == name
        return self._current[name]

    def learn(self):
        """Know the files behind these names for other CSVs, too."""
        _found.update(self._files)

    def write(self, rows):
        """Write the file, with the names that these rows have."""
        names = dict.fromkeys(row["kernel_sources"] for row in rows)
        known = self._files | _found
        self._files = {name: known[name] for name in names if name in known and name != NO_KERNELS}
        if self._files or self.path.exists():
            lines = (f"{json.dumps(n)}: {json.dumps(files)}" for n, files in self._files.items())
            provenance.write_text(self.path, "{\n" + ",\n".join(lines) + "\n}\n")


def _name_now(files):
    """The name that the files have now; None where one is gone."""
    paths = [provenance.ROOT / name for name in files]
    return provenance.sources_name(paths) if all(path.is_file() for path in paths) else None
