"""What refusals share: how a message shows a given value, which known name was probably meant, what has elements."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches

import numpy as np

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
_short.maxlevel = 2
_MEANT = {"fp32": "ieee", "float32": "ieee", "single": "ieee", "highest": "ieee"}


def shown(value: object) -> str:
    """A value as a message shows it: never long, and of an array its type, shape and dtype."""
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    if is_array and not isinstance(value, (np.generic, type)):
        return f"a {type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"
    return _short.repr(value)


def is_iterable(value: object) -> bool:
    """Whether a value has elements; an array of no axes has none."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """The end of a message that refuses a name.

    Parameters
    ----------
    name : object
        What was given; only a string can resemble a name.
    names : iterable of str
        The names that are known.

    Returns
    -------
    str
        ``"; did you mean 'fused'?"`` with the known name that is most like it, whatever the case of
        its letters, or that other libraries call so; empty where there is none.
    """
    if not isinstance(name, str):
        return ""
    known = {known.lower(): known for known in reversed(list(names))}
    meant = _MEANT.get(name.lower())
    close = [meant] if meant in known else get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[close[0]]!r}?" if close else ""
