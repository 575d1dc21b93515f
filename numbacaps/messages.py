"""What error messages say of a value that was given, and of the names that were meant."""

import reprlib
from difflib import get_close_matches

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shown(value):
    """A value as a message shows it: never long, and of an array its type, shape and dtype."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a {type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"
    return _short.repr(value)


def did_you_mean(name, names):
    """ "; did you mean 'fused'?", or nothing where no name is close."""
    close = get_close_matches(name, names, 1) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""
