"""Print lessons and run their cells, or write them as notebooks with outputs and pictures: ``python -m experiments.lessons 1``."""

import sys
from pathlib import Path

from experiments.lessons import notebook
from experiments.lessons.course import find, lessons, run_lesson
from experiments.measuring.interruption import or_interrupted
from experiments.measuring.refusal import Parser, Refusal, make_folder

_EPILOG = """\
Without a name the lessons are listed. They run on Numba's simulator; no GPU is needed. Exercises are answered in the
lesson's file, or in its notebook.

exit status: 0 done, 2 an argument cannot be used, 130 after Ctrl-C
"""


def main(arguments=None):
    """Run lessons, or write notebooks; the exit status.

    Parameters
    ----------
    arguments : list of str, optional
        Of the command line; by default those of the process.
    """
    parser = Parser(prog="python -m experiments.lessons", description=__doc__, epilog=_EPILOG)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a number, a name, or all")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="save the pictures here")
    parser.add_argument("--notebooks", type=Path, metavar="FOLDER", help="write notebooks here")
    options = parser.parse_args(arguments)
    if options.notebooks and options.pictures:
        parser.error("--notebooks and --pictures were both given; notebooks hold their pictures")
    if options.pictures and not options.names:
        parser.error("--pictures was given without a lesson; it takes the names of some, or all")
    try:
        named = [name for name in options.names if name != "all"]
        chosen = [find(name) for name in named]
        if named != options.names:
            chosen = lessons()
    except ValueError as refusal:
        parser.error(str(refusal))
    if options.notebooks:
        return _write(parser, chosen or lessons(), options.notebooks)
    if options.pictures:
        _make(parser, "--pictures", options.pictures)
    for lesson in chosen:
        run_lesson(lesson, options.pictures)
    if not chosen:
        for lesson in lessons():
            print(f"{lesson.number:>2}  {lesson.name:<36} {lesson.title}")
    return 0


def _write(parser, chosen, folder):
    """Write notebooks one by one; none over one that is there, which may hold answers."""
    there = [path for lesson in chosen if (path := notebook.path_of(lesson, folder)).exists()]
    if there:
        got = f"{folder}, which has {', '.join(path.name for path in there)}"
        parser.error(str(Refusal("--notebooks", got, "a folder that lacks them")))
    try:
        notebook.packages()
    except ImportError as missing:
        parser.error(str(missing))
    _make(parser, "--notebooks", folder)
    for lesson in chosen:
        print(notebook.write(lesson, folder), flush=True)
    return 0


def _make(parser, option, folder):
    try:
        make_folder(option, folder)
    except Refusal as refusal:
        parser.error(str(refusal))


if __name__ == "__main__":
    sys.exit(or_interrupted(main, "files that were written are whole"))
