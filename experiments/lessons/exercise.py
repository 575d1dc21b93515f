"""An exercise: a function that a student writes, and what is said about it.

An answer is right if it gives what is wanted in every case. What is wanted comes from the reference, from counting what a
kernel does, or from a recorded row; never from a solution. A wrong answer is compared with the common mistakes. Of those
that give the same in the first case that is wrong, the one that agrees in most cases has its hint told: so who makes
several mistakes at once is led from one to the next.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

RIGHT, WRONG, UNANSWERED = "right", "wrong", "not answered yet"
_CLOSE = 1e-5  # relative: answers may be rounded to float32


@dataclass(frozen=True)
class Case:
    """One call of an answer.

    Attributes
    ----------
    arguments : tuple
    wanted : object
        A number, None, an array, a tuple of such, or a set of tuples, which an answer may list in any order.
    said : str
        The call, in words.
    """

    arguments: tuple
    wanted: object
    said: str


@dataclass(frozen=True)
class Mistake:
    """A common wrong answer, as a function, and the hint that it gets."""

    answer: Callable
    hint: str


@dataclass(frozen=True)
class Exercise:
    """A function to write.

    Attributes
    ----------
    wants : str
        What the function takes and returns.
    cases : callable
        ``cases()`` lists :class:`Case`.
    mistakes : tuple of Mistake
    hint : str
        For an answer that is wrong in a way of its own.
    """

    wants: str
    cases: Callable
    mistakes: tuple
    hint: str


@dataclass(frozen=True)
class Verdict:
    """What is said about an answer: one of :data:`RIGHT`, :data:`WRONG`, :data:`UNANSWERED`, and the words."""

    state: str
    words: str

    def __str__(self):
        return f"{self.state}: {self.words}"


@dataclass(frozen=True)
class _Failed:
    """What an answer gives that raises an error."""

    error: str

    def __repr__(self):
        return f"the error {self.error}"


def find(name):
    """The exercise whose function has a name.

    Raises
    ------
    ValueError
        There is none.
    """
    path = f"{__package__}.exercises.{name}"
    try:
        return importlib.import_module(path).EXERCISE
    except ModuleNotFoundError as missing:
        if missing.name != path:
            raise
        raise ValueError(
            f"check got a function named {name!r}; it takes the function of an exercise, under its own name"
        ) from None


def judge(answer):
    """Judge an answer.

    Parameters
    ----------
    answer : function
        Its name is the exercise's.

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        No exercise has a function of this name.
    """
    name = getattr(answer, "__name__", repr(answer))
    exercise = find(name)
    cases = exercise.cases()
    found = [_call(answer, case) for case in cases]
    if any(map(_is_blank, found)):
        return Verdict(UNANSWERED, f"{name}: {exercise.wants}")
    for case, got in zip(cases, found):
        if not same(got, case.wanted):
            words = f"{case.said} gave {_shown(got)}, wanted {_shown(case.wanted)}"
            return Verdict(WRONG, f"{words}\n  hint: {_hint(exercise, cases, found, got, case)}")
    return Verdict(RIGHT, f"{name} gives what is wanted in all {len(cases)} cases")


def check(answer):
    """Say whether an answer is right, or what it gave, what was wanted, and a hint.

    Parameters and errors are those of :func:`judge`.
    """
    print(judge(answer))


def _call(answer, case):
    try:
        with np.errstate(all="ignore"):  # an overflow is a wrong answer, not a warning
            return answer(*case.arguments)
    except Exception as error:  # whichever an answer raises
        return _Failed(f"{type(error).__name__}: {error}")


def _is_blank(found):
    """Whether a ``...`` is left in what an answer gave."""
    if isinstance(found, (tuple, list)):
        return any(map(_is_blank, found))
    return found is ...


def same(found, wanted):
    """Whether an answer gave what was wanted, rounding apart."""
    if isinstance(found, _Failed) or isinstance(wanted, _Failed):
        return found == wanted
    if found is None or wanted is None:
        return found is wanted
    try:
        if isinstance(wanted, set):
            found = [tuple(one) for one in found]
            return len(found) == len(wanted) and set(found) == set(wanted)
        if isinstance(wanted, (tuple, list)):
            return len(found) == len(wanted) and all(map(same, found, wanted))
        if np.shape(found) != np.shape(wanted):
            return False
        return bool(np.allclose(found, wanted, rtol=_CLOSE, atol=0, equal_nan=True))
    except (TypeError, ValueError):  # something of another kind
        return False


def _hint(exercise, cases, found, got, case):
    """What helps most with a wrong answer."""
    if isinstance(got, _Failed):
        return "the call fails; try it with these arguments in a cell of its own"
    agreed = {
        mistake.hint: sum(same(one, _call(mistake.answer, at)) for one, at in zip(found, cases))
        for mistake in exercise.mistakes
        if same(got, _call(mistake.answer, case))
    }
    if agreed:
        return max(agreed, key=agreed.get)  # of several the first
    if got is None:
        return "nothing is returned here; does every way through the function end in a return?"
    if isinstance(case.wanted, tuple) and np.shape(got)[:1] != (len(case.wanted),):
        return f"{len(case.wanted)} values are wanted, as a tuple; {exercise.wants}"
    return exercise.hint


def _shown(value):
    """A value in few words."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if isinstance(value, (set, list)):
        return str(sorted(value)) if isinstance(value, set) else str(value)
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=4, separator=", ", threshold=16)
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    return str(value)
