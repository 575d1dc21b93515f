"""Lesson 10: from logits to couplings."""

import numpy as np

from experiments.lessons.exercise import Case, Exercise, Mistake
from reference import routing


def _cases():
    draw = np.random.default_rng(10)
    logits = {
        "zeros (3, 2)": np.zeros((3, 2)),
        "random b (4, 3)": draw.standard_normal((4, 3)),
        "large b (2, 3)": np.array([[1000.0, 1001.0, 999.0], [-1000.0, -1001.0, -1002.0]]),
    }
    return [
        Case((b,), routing.couplings_of(b, "parents"), f"couplings_of(b) of {name}")
        for name, b in logits.items()
    ]


def _softmax(b, axis):
    e = np.exp(b - b.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


EXERCISE = Exercise(
    wants="takes logits, an array (children, parents); returns couplings of the same shape",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda b: np.exp(b) / np.exp(b).sum(axis=1, keepdims=True),
            "exp overflows for large logits: subtract each child's largest logit first, which changes nothing else",
        ),
        Mistake(
            lambda b: _softmax(b, 0),
            "each child's couplings add up to 1, so the sum runs over the parents: the last axis",
        ),
        Mistake(lambda b: _softmax(b, None), "each child has a sum of its own"),
        Mistake(
            lambda b: np.exp(b - b.max(axis=1, keepdims=True)),
            "divide by the sum over the parents, so that each child's couplings add up to 1",
        ),
        Mistake(
            lambda b: b / b.sum(axis=1, keepdims=True),
            "logits may be negative: take exp of them first",
        ),
    ),
    hint="softmax along the last axis; check that every row adds up to 1",
)
