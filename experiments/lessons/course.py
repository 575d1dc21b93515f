"""The lessons as files of ``# %%`` cells: printed and run in a terminal, or opened as notebooks.

A lesson's second cell opens it: ``lesson = open_lesson(1)``. What it has to show it shows by ``lesson.show``.
"""

import importlib.util
import io
import pkgutil
import re
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from experiments.lessons.exercise import check

__all__ = ["Lesson", "cells", "check", "find", "lessons", "open_lesson", "run_lesson"]

FOLDER = Path(__file__).resolve().parent
DPI = 110
_running = ContextVar("running", default=None)  # the run at hand, if a lesson is run in a terminal


@dataclass(frozen=True)
class _Run:
    """A run of a lesson in a terminal: the folder of its pictures, or None."""

    pictures: Path | None


@dataclass(frozen=True)
class Lesson:
    """A lesson's number, and the module that it is."""

    number: int
    name: str

    @property
    def path(self):
        """The file."""
        return FOLDER / f"{self.name}.py"

    @property
    def title(self):
        """Its first heading."""
        return re.search(r"^# # (.*)$", self.path.read_text("utf-8"), re.MULTILINE)[1]

    def show(self, figure, name, says):
        """Show a picture: inline in a notebook; of a script as a file in its folder of pictures, if it has one.

        Parameters
        ----------
        figure : matplotlib.figure.Figure
        name : str
            Of the file, behind the lesson's number.
        says : str
            What is seen, in a sentence.
        """
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=DPI)
        run, display = _running.get(), _notebook_display()
        if display:
            display(png.getvalue(), says)
        elif run and run.pictures:
            folder = run.pictures
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"lesson-{self.number:02}-{name}.png"
            path.write_bytes(png.getvalue())
            says = f"{says} [{path}]"
        else:
            says = f"{says} (--pictures FOLDER saves it)"
        print(f"picture: {says}")


def _notebook_display():
    """A function of a PNG's bytes and its words that shows it, in a notebook; else None."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython
    from IPython.display import Image, display

    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return lambda png, says: display(Image(png, alt=says))


def lessons():
    """All lessons, in order."""
    found = []
    for module in pkgutil.iter_modules([str(FOLDER)]):
        named = re.match(r"lesson_(\d+)_", module.name)
        if named:
            found.append(Lesson(int(named[1]), module.name))
    return sorted(found, key=lambda lesson: lesson.number)


def find(wanted):
    """The lesson of a number, or of a module's name or its beginning.

    Raises
    ------
    ValueError
        None, or several, are called so.
    """
    text = str(wanted).removesuffix(".py")
    found = [
        lesson
        for lesson in lessons()
        if text == str(lesson.number) or f"{lesson.name}_".startswith(f"{text}_")
    ]
    if len(found) != 1:
        numbers = ", ".join(str(lesson.number) for lesson in lessons())
        raise ValueError(f"lesson is {wanted!r}; it takes {numbers}, or a name as lesson_1")
    return found[0]


def open_lesson(number):
    """A lesson from inside of it; one that was started as a module of its own is run by :func:`run_lesson` instead.

    Parameters
    ----------
    number : int

    Returns
    -------
    Lesson
    """
    lesson = find(number)
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    alone = spec is not None and spec.name == f"{__package__}.{lesson.name}"
    if alone and _running.get() is None:
        run_lesson(lesson)
        sys.exit()
    return lesson


def cells(lesson):
    """The cells of a lesson.

    Returns
    -------
    list of (int, bool, str)
        The line of the file that a cell's text begins at, from 0; whether it is prose; the text, of prose without the
        comments' marks.
    """
    found, lines = [], lesson.path.read_text("utf-8").splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith("# %%")]
    for begin, end in zip(begins, [*begins[1:], len(lines)]):
        text, prose = lines[begin + 1 : end], lines[begin].startswith("# %% [markdown]")
        if prose:
            text = [line.removeprefix("#").removeprefix(" ") for line in text]
        found.append((begin + 1, prose, "\n".join(text).strip("\n")))
    return found


def run_lesson(lesson, pictures=None):
    """Print a lesson's prose and run its cells, in order.

    Parameters
    ----------
    lesson : Lesson
    pictures : Path, optional
        Folder that its pictures are saved to.

    Returns
    -------
    dict
        What the cells have defined, by name.
    """
    spec = importlib.util.spec_from_file_location(f"{__package__}.{lesson.name}", lesson.path)
    names = vars(importlib.util.module_from_spec(spec))
    path = str(lesson.path)
    with _run(pictures):
        for line, prose, text in cells(lesson):
            if prose:
                print(f"\n{text}\n", flush=True)
            else:
                exec(compile("\n" * line + text, path, "exec"), names)
    return names


@contextmanager
def _run(pictures):
    """Meanwhile a lesson is run in a terminal."""
    token = _running.set(_Run(pictures and Path(pictures)))
    try:
        yield
    finally:
        _running.reset(token)
