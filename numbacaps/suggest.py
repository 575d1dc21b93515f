"""What an unknown name was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


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
        its letters; empty where none is.
    """
    if not isinstance(name, str):
        return ""
    known = {known.lower(): known for known in reversed(list(names))}
    close = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[close[0]]!r}?" if close else ""
