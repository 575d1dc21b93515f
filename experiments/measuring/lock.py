"""One writer of a file at a time: a lock that other processes see.

The operating system gives a lock back when its holder ends, however it ends. So a file that a killed process has
left behind locks nothing.
"""

import fcntl
import os
import time
from contextlib import contextmanager
from pathlib import Path

_ASKED_EVERY = 0.01  # seconds


class Taken(OSError):
    """Another process holds the lock."""


@contextmanager
def held(path, seconds=1.0):
    """Hold the lock of a file, whether the file exists or not; ``FILE.lock`` lies beside it for so long.

    Parameters
    ----------
    path : path
    seconds : float
        How long to wait for another holder.

    Raises
    ------
    Taken
        Another process holds it; the message names the process.
    OSError
        The folder cannot be made or written, or its file system has no locks.
    """
    beside, until = Path(f"{path}.lock"), time.monotonic() + seconds
    beside.parent.mkdir(parents=True, exist_ok=True)
    while (lock := _take(beside)) is None:
        if time.monotonic() > until:
            raise Taken(f"process {_holder(beside)} is writing it, which holds {beside}")
        time.sleep(_ASKED_EVERY)
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)  # first, while the lock is still held
        os.close(lock)


def _take(beside):
    """The descriptor of the locked file; None where another process holds it, or has just given it back."""
    lock = os.open(beside, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(beside)):
            os.ftruncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _holder(beside):
    """Number of the process that holds it, as far as it says."""
    try:
        return beside.read_text() or "unknown"
    except OSError:
        return "unknown"
