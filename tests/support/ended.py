"""How what runs for long is ended: by Ctrl-C, or by SIGTERM, which is what a time limit sends."""

import signal
from contextlib import contextmanager


def _end(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def terminated_as_by_ctrl_c():
    """The first SIGTERM raises KeyboardInterrupt, too; a time limit may send another while that is seen to."""
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
