"""How what runs for long is ended: by Ctrl-C, or by SIGTERM, which is what a time limit sends."""

import signal
from contextlib import contextmanager


@contextmanager
def terminated_as_by_ctrl_c():
    """SIGTERM raises KeyboardInterrupt, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
