"""Files of compiled kernels: one file an entry, whole or not there, whoever writes or dies beside it.

An entry's file is named for its key, holds the key, and begins with a hash of all that follows. It is written under
a name of its own, then renamed. So processes that write at once leave one of their entries, all of which are alike,
and a reader never takes half a file, a damaged one, or another kernel's: it compiles, with a line of warning. What a
writer that was killed leaves is a file ``*.tmp`` that nobody reads.
"""

import pickle
import warnings
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

_HASHED = 32  # bytes of a SHA-256


class KernelFiles:
    """The entries of one function, each found by its key.

    Parameters
    ----------
    folder, name : str
        Where files are, and how their names begin.
    version : str
        Part of every key: an entry that another version wrote is another entry.
    dumps : callable
        Makes bytes of an entry, which ``pickle`` reads.
    """

    def __init__(self, folder, name, version, dumps):
        self._folder, self._name, self._version, self._dumps = Path(folder), name, version, dumps

    def path(self, key):
        """The file of an entry."""
        hashed = sha256(self._said(key).encode()).hexdigest()[:16]
        return self._folder / f"{self._name}.{hashed}.nbc"

    def load(self, key):
        """An entry, or None where there is none that is whole."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn(f"kernels cannot be read from {self._folder} ({error.strerror})")
            return None
        hashed, packed = content[:_HASHED], content[_HASHED:]
        if sha256(packed).digest() != hashed:
            _warn(f"{path} is damaged; its kernel is compiled anew")
            return None
        said, entry = pickle.loads(packed)
        if said != self._said(key):
            _warn(f"{path} holds another kernel; the one that was asked for is compiled")
            return None
        return entry

    def save(self, key, entry):
        """Write an entry, or warn that it could not be written."""
        packed = self._dumps((self._said(key), entry))
        try:
            self._write(self.path(key), sha256(packed).digest() + packed)
        except OSError as error:
            warn_unkept(self._folder, error)

    def _write(self, path, content):
        temporary = path.with_name(f"{path.stem}.{uuid4().hex}.tmp")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def flush(self):
        """Remove all entries."""
        for path in self._folder.glob(f"{self._name}.*.nbc"):
            path.unlink(missing_ok=True)

    def _said(self, key):
        """A key as text: types of Numba's are equal whose names are."""
        return repr((self._version, key))


def warn_unkept(folder, error):
    """Tell that kernels are not kept; the same words for all of them, so that Python says them once."""
    _warn(f"kernels are not kept in {folder} ({error.strerror}), so later processes compile them")


def _warn(said):
    warnings.warn(said, RuntimeWarning, stacklevel=2)
