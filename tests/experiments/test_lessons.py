"""The lessons run, their prose computes its numbers; a right answer is right, and each common mistake gets its own hint."""

import inspect
import pkgutil
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments import lessons
from experiments.lessons import __main__, course, exercises, recorded, solutions
from experiments.lessons.exercise import RIGHT, UNANSWERED, WRONG, find, judge, same

LESSONS = course.lessons()
QUICK = [f"lesson_{number}_*" for number in (1, 2, 3)]
MOST_SECONDS = 20
EXERCISES = [found.name for found in pkgutil.iter_modules(exercises.__path__)]
MISTAKES = [(name, i) for name in EXERCISES for i in range(len(find(name).mistakes))]
README = (course.FOLDER / "README.md").read_text()
# What may hold a digit in the prose: names of the paper and of code, and a page's headings.
_NAMED = (
    r"Algorithm \d|Figures? \d( and \d)?|steps? \d( and \d)?|[EDTd]\d|im2col|col2im|rank-3|float\d+"
    r"|TF32|tf32(x3)?|H100|v_\d|Thread 0"
)


def named(lesson):
    return lesson.name


# ---- the lessons


def test_they_are_in_order():
    assert [lesson.number for lesson in LESSONS] == list(range(1, 11))
    for lesson in LESSONS:
        assert lesson.name in lessons.__doc__ and lesson.name in README


@pytest.mark.slow(but=QUICK)
@pytest.mark.parametrize("lesson", LESSONS, ids=named)
def test_a_lesson_runs(lesson, tmp_path, capsys):
    """The shipped file runs to its end: prose, picture, and exercises that nobody has answered yet."""
    begin = time.process_time()  # this process alone: whatever else the machine does
    names = course.run_lesson(lesson, tmp_path)
    assert time.process_time() - begin < 2 * MOST_SECONDS
    said = capsys.readouterr().out
    assert f"# {lesson.title}" in said and "## Exercise" in said
    assert list(tmp_path.glob(f"lesson-{lesson.number:02}-*.png")) and "picture: " in said
    own = [name for name in names if name in EXERCISES]
    assert own and said.count(f"{UNANSWERED}: ") == len(own)


@pytest.mark.parametrize("lesson", LESSONS, ids=named)
def test_prose_comes_first_and_computes_its_numbers(lesson):
    assert lesson.path.read_text().startswith("# %% [markdown]\n# # ")
    prose = [text for _, is_prose, text in course.cells(lesson) if is_prose]
    assert any("## Exercise" in text for text in prose)
    for text in prose:
        assert not re.search(r"\d", re.sub(_NAMED, "", text)), text


@pytest.mark.slow
def test_started_as_a_module_it_runs_in_the_terminal(tmp_path):
    run = [sys.executable, "-m", "experiments.lessons.lesson_2_replicate"]
    root = course.FOLDER.parent.parent
    said = subprocess.run(run, cwd=root, capture_output=True, text=True, check=True).stdout
    assert said.count("# Replicate") == 1 and UNANSWERED in said


def test_lessons_are_listed(capsys):
    assert __main__.main([]) == 0
    listed = capsys.readouterr().out
    assert all(lesson.title in listed for lesson in LESSONS)


@pytest.mark.parametrize(
    "wanted", ["3", 3, "lesson_3", "lesson_3_multiply", "lesson_3_multiply.py"]
)
def test_a_lesson_is_found(wanted):
    assert course.find(wanted).number == 3


@pytest.mark.parametrize("wanted", ["0", "lesson", "multiply", "11", ""])
def test_a_lesson_that_is_not_there(wanted, capsys):
    with pytest.raises(SystemExit):
        __main__.main([wanted])
    assert f"lesson is {wanted!r}; it takes 1, 2," in capsys.readouterr().err


# ---- notebooks


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["all", "nothing"], "nothing"),
        (["--pictures", "here"], "--pictures was given without a lesson"),
        (["1", "--pictures", "here", "--notebooks", "there"], "were both given"),
    ],
)
def test_nothing_is_ignored(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        __main__.main(arguments)
    assert stop.value.code == 2 and said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_notebook_has_outputs_and_picture(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="the extra 'lessons' is not installed")
    for name in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(name)
    run = [sys.executable, "-m", "experiments.lessons", "2", "--notebooks", tmp_path / "books"]
    root = course.FOLDER.parent.parent
    subprocess.run(run, cwd=root, capture_output=True, check=True)
    (path,) = (tmp_path / "books").iterdir()
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "elements written to copy" in text and UNANSWERED in text
    assert any("image/png" in output.get("data", ()) for output in outputs)
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    assert prose[0].source.startswith("# Replicate")


@pytest.mark.parametrize("absent", ["jupytext", "nbformat", "nbclient", "ipykernel"])
def test_without_the_extra_it_is_named(absent, monkeypatch, tmp_path, capsys):
    for name in ("jupytext", "nbformat", "nbclient", "ipykernel"):
        monkeypatch.setitem(sys.modules, name, None if name == absent else sys)
    with pytest.raises(SystemExit):
        __main__.main(["1", "--notebooks", str(tmp_path / "books")])
    assert "--notebooks takes the extra 'lessons'" in capsys.readouterr().err
    assert not (tmp_path / "books").exists()


def test_no_notebook_is_written_over_another(tmp_path, capsys):
    path = tmp_path / "lesson_2_replicate.ipynb"
    path.write_text("answers")
    with pytest.raises(SystemExit):
        __main__.main(["1", "2", "--notebooks", str(tmp_path)])
    assert f"which has {path.name}; it takes" in capsys.readouterr().err
    assert [one.read_text() for one in tmp_path.iterdir()] == ["answers"]


# ---- the exercises


def test_every_exercise_is_asked_solved_and_planned():
    sources = "".join(lesson.path.read_text() for lesson in LESSONS)
    for name in EXERCISES:
        assert sources.count(f"\ncheck({name})\n") == 1
        assert inspect.isfunction(getattr(solutions, name)) and f"`{name}`" in README
    assert sources.count("\ncheck(") == len(EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
def test_solution_is_right(name):
    verdict = judge(getattr(solutions, name))
    assert verdict.state == RIGHT, verdict


@pytest.mark.parametrize("name, number", MISTAKES)
def test_mistake_gets_its_hint(name, number):
    mistake = find(name).mistakes[number]

    def answer(*arguments):
        return mistake.answer(*arguments)

    answer.__name__ = name
    verdict = judge(answer)
    assert verdict.state == WRONG and verdict.words.endswith(f"hint: {mistake.hint}"), verdict
    assert " gave " in verdict.words and ", wanted " in verdict.words


@pytest.mark.parametrize("name", EXERCISES)
def test_hints_differ(name):
    hints = [mistake.hint for mistake in find(name).mistakes]
    assert len(hints) == len({*hints, find(name).hint}) - 1 >= 4


def answered(name, gives):
    """The verdict on a function that always gives one thing."""

    def answer(*_):
        return gives

    answer.__name__ = name
    return judge(answer)


@pytest.mark.parametrize("blank", [..., (..., 1), [(1, ...)]])
def test_a_blank_is_no_answer(blank):
    verdict = answered("part", blank)
    assert verdict.state == UNANSWERED and find("part").wants in verdict.words


def test_nothing_returned():
    assert "does every way through the function end in a return?" in answered("part", None).words


def test_too_few_values():
    assert "2 values are wanted, as a tuple" in answered("part", 3).words
    assert "2 values are wanted, as a tuple" in answered("part", (3,)).words


def test_wrong_in_a_way_of_its_own():
    assert answered("part", (-7, -8)).words.endswith(find("part").hint)


def test_several_mistakes_at_once_are_led_from_one_to_the_next():
    def make(strided, dilated, padded):
        def origin(l, q, g):
            stride = g.stride if strided else (1, 1)
            dilation = g.dilation if dilated else (1, 1)
            padding = g.padding if padded else (0, 0)
            h = l // g.OW * stride[0] + q // g.KW % g.KH * dilation[0] - padding[0]
            w = l % g.OW * stride[1] + q % g.KW * dilation[1] - padding[1]
            return q // (g.KH * g.KW), h, w

        return origin

    words = "multiplied by it", "subtract the padding", "in the padding there is no capsule"
    for done, hint in zip(((0, 0, 0), (1, 1, 0), (1, 1, 1)), words):
        verdict = judge(make(*done))
        assert verdict.state == WRONG and hint in verdict.words, verdict


def test_an_answer_that_fails():
    def part(split, splits, M, BK):
        return split / 0, M

    verdict = judge(part)
    assert verdict.state == WRONG and "the error ZeroDivisionError" in verdict.words
    assert "the call fails" in verdict.words


def test_a_function_of_another_name():
    def mine():
        return 1

    for answer, name in ((mine, "mine"), (lambda: 1, "<lambda>"), (5, "5")):
        with pytest.raises(ValueError, match=f"a function named '{name}'; it takes"):
            course.check(answer)


@pytest.mark.parametrize(
    "found, wanted, alike",
    [
        (1.0000001, 1, True),
        (1.001, 1, False),
        ((1, 2), (1, 2), True),
        ([1, 2], (1, 2), True),
        ((1, 2, 3), (1, 2), False),
        ([(1, 2), (0, 1)], {(0, 1), (1, 2)}, True),
        ([(1, 2), (1, 2)], {(1, 2)}, False),
        (None, (1, 2), False),
        ("no", 1, False),
        (3, {(1, 2)}, False),
        (0, None, False),
        ([[1.0, 2.0]], np.array([[1.0, 2.0]]), True),
        ([1.0, 2.0], np.array([[1.0, 2.0]]), False),
    ],
)
def test_same(found, wanted, alike):
    assert same(found, wanted) is alike


def test_recorded_rows_are_of_one_gpu():
    rows = recorded.rows("table1", pass_="forward", algorithm="fused")
    assert rows and {row["gpu"] for row in rows} == {recorded.GPU}
    assert all(isinstance(row["gflop"], float) for row in rows)
