"""The explorer's one file: template, style, scripts, the drawing library and the rows put together."""

import json
from html import escape
from pathlib import Path

from numbacaps.extras import require

MOST_BYTES = 5_000_000
_HERE = Path(__file__).resolve().parent
_SCRIPTS = (
    *("rows.js", "axes.js", "points.js", "words.js"),
    *("chart.js", "choices.js", "form.js", "tip.js", "page.js"),
)


def require_library():
    """The package that the drawing library comes from.

    Raises
    ------
    ImportError
        It is absent; the message names it and its extra.
    """
    return require("vl_convert", "explore", "experiments.explore")


def html(contents):
    """The page.

    Parameters
    ----------
    contents : dict
        See :func:`experiments.explore.gather.contents`.

    Returns
    -------
    str

    Raises
    ------
    ImportError
        As :func:`require_library`.
    """
    vl_convert = require_library()
    # "</" would end the script that holds it, whatever stands around it.
    data = json.dumps(contents, separators=(",", ":")).replace("</", "<\\/")
    parts = {
        "style": _read("page.css"),
        "library": vl_convert.javascript_bundle().replace("</script", "<\\/script"),
        "licences": escape(_read("licences.txt")),
        "data": data,
        "script": "\n".join(map(_read, _SCRIPTS)),
    }
    first, *pieces = _read("page.html").split("{{")
    filled = [first]
    for piece in pieces:
        name, _, rest = piece.partition("}}")
        filled += parts[name], rest
    return "".join(filled)


def _read(name):
    return (_HERE / name).read_text(encoding="utf-8")
