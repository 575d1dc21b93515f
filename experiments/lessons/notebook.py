"""Lessons as notebooks with outputs and pictures. The lesson's file is the source; what is changed in a notebook stays there."""

import os

from experiments.lessons.course import FOLDER
from numbacaps.extras import require

_CHECKOUT = FOLDER.parent.parent
_SECONDS = 600  # that a cell may take


def path_of(lesson, folder):
    """Where a lesson's notebook is written."""
    return folder / f"{lesson.name}.ipynb"


def write(lesson, folder):
    """Run a lesson in a Jupyter kernel, and write it with what it gave.

    Parameters
    ----------
    lesson : experiments.lessons.course.Lesson
    folder : Path
        Made where it is not there. The notebook finds the checkout from here.

    Returns
    -------
    Path
        The notebook.

    Raises
    ------
    ImportError
        The extra ``lessons`` is not installed; the message names it.
    nbclient.exceptions.CellExecutionError
        A cell has failed. Nothing was written.
    """
    jupytext, nbformat, nbclient, _ = packages()
    folder.mkdir(parents=True, exist_ok=True)
    notebook = jupytext.reads(lesson.path.read_text("utf-8"), fmt="py:percent")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(_finds_checkout(folder)))
    names = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = names
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=_SECONDS, resources=where).execute()
    path = path_of(lesson, folder)
    temporary = path.with_suffix(".tmp")
    nbformat.write(notebook, temporary)
    os.replace(temporary, path)
    return path


def packages():
    """What writes notebooks and runs them; ImportError, which names the extra, where one is not installed."""
    names = "jupytext", "nbformat", "nbclient", "ipykernel"
    return [require(name, "lessons", "--notebooks") for name in names]


def _finds_checkout(folder):
    """A cell by which a notebook, run in its folder, finds the packages of the checkout."""
    path = os.path.relpath(_CHECKOUT, folder.resolve())
    return f"import os\nimport sys\n\nsys.path.insert(0, os.path.abspath({path!r}))"
