"""The page's one file: template, style, scripts and data put together."""

import json
import tempfile
from html import escape
from pathlib import Path

from experiments.measuring.refusal import Refusal
from experiments.walk.page.sources import style
from experiments.walk.pictures.canvas import NEGATIVE, OUTLINE, ROLES
from numbacaps.files import written_whole

MOST_BYTES = 4_000_000
_HERE = Path(__file__).resolve().parent
_COLOURS = ROLES | {"negative": NEGATIVE, "ink": OUTLINE}  # one meaning here and in the pictures
_STYLES = ("page.css", "board.css", "sections.css", "lecture.css", "small.css")
_SCRIPTS = (
    *("graph.js", "board.js", "numbers.js", "threads.js", "opening.js", "tiling.js", "tile.js"),
    *("routing.js", "network.js", "zoom.js", "steps.js", "guide.js", "address.js", "chosen.js"),
    *("sliders.js", "stage.js", "page.js", "modes.js", "links.js"),
)


def html(contents, title):
    """The page.

    Parameters
    ----------
    contents : dict
        See :func:`experiments.walk.page.contents.contents`.
    title : str

    Returns
    -------
    str
    """
    # "</" would end the script that holds it, whatever stands around it.
    data = json.dumps(contents, separators=(",", ":")).replace("</", "<\\/")
    parts = {
        "title": escape(title),
        "colours": "".join(f" --{name}: {colour};" for name, colour in _COLOURS.items()),
        "style": "\n".join(map(_read, _STYLES)),
        "theme": _read("theme.js"),
        "code-light": style("light"),
        "code-dark": style("dark"),
        "script": "\n".join(map(_read, _SCRIPTS)),
        "data": data,
    }
    pieces = _read("page.html").split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += parts[name], rest
    return "".join(filled)


def _read(name):
    return (_HERE / name).read_text(encoding="utf-8")


def check_writable(path):
    """Refuse a path that cannot be written, before any work is done.

    Raises
    ------
    Refusal
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if path.exists() and not path.is_file():
            raise OSError(0, "it is no regular file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        takes = "a file name in a folder to write in"
        raise Refusal("--html", f"{path} ({error.strerror})", takes) from None


def write(text, path):
    """Write the page whole or not at all.

    Parameters
    ----------
    text : str
    path : Path

    Raises
    ------
    Refusal
        The page is larger than 4 MB, or the path cannot be written.
    """
    content = text.encode()
    if len(content) > MOST_BYTES:
        raise Refusal(
            "--html",
            f"a page of {len(content):,} bytes",
            f"at most {MOST_BYTES:,}: try a smaller --crop",
        )
    try:
        with written_whole(path) as file:
            file.write(content)
    except OSError as error:
        raise Refusal("--html", f"{path} ({error.strerror or error})", "a file to write") from None
