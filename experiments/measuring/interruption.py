"""How Ctrl-C ends a command: one line, and the exit status of all that it ends."""

import sys

STATUS = 130


def or_interrupted(main, left):
    """The exit status of a command; STATUS, and a line of what is ``left``, where Ctrl-C ended it."""
    try:
        return main()
    except KeyboardInterrupt:
        print(f"interrupted; {left}", file=sys.stderr)
        return STATUS
