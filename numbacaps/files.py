"""Files that are written whole or not at all: checkpoints, and what experiments record."""

import os
import secrets
import stat
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path):
    """A ``with`` block that gives a file to write bytes to. At its end the file takes the path's place.

    Until then it lies beside that under another name. Links are followed, and a file that is replaced keeps its mode. If the
    block fails, what was there stays as it was.

    Parameters
    ----------
    path : path

    Yields
    ------
    file

    Raises
    ------
    OSError
        The path leads to what is no regular file, or its folder cannot be written.
    """
    target, mode = _target(path)
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _target(path):
    """(the file that a path leads to, its mode or None where there is none); OSError if it is no regular file."""
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target, None
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is no regular file; it takes one, or a name that is not there yet")
    return target, stat.S_IMODE(mode)
