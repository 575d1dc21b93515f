"""How Ctrl-C ends a command: one line, and exit status 130."""

import sys


def or_interrupted(main, left):
    """The exit status of ``main()``; where Ctrl-C ends it, 130, and a line that says what is ``left``."""
    try:
        return main()
    except KeyboardInterrupt:
        print(f"interrupted; {left}", file=sys.stderr)
        return 130
