"""Lesson 8: how many stages hide a copy."""

from itertools import count

from experiments.lessons.exercise import Case, Exercise, Mistake
from experiments.lessons.pipeline_model import schedule

_PIECES = 40


def _cases():
    """The model is tried with more and more stages."""
    found = []
    for copy, product in ((6, 1), (5, 2), (1, 1), (3, 4), (8, 4), (10, 3)):
        least = copy + _PIECES * product
        wanted = next(n for n in count(1) if schedule(_PIECES, n, copy, product)[-1][2] == least)
        found.append(Case((copy, product), wanted, f"stages_wanted({copy}, {product})"))
    return found


EXERCISE = Exercise(
    wants="takes the times of a copy and of a product; returns the fewest stages with which only the first piece is waited for",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda copy, product: -(-copy // product),
            "these are the copies under way; the piece that is being multiplied has a stage, too",
        ),
        Mistake(
            lambda copy, product: copy // product + 1,
            "a copy that takes part of a product's time longer needs a whole stage more: round up",
        ),
        Mistake(
            lambda copy, product: 2,
            "two stages hide a copy that takes no longer than a product; others need more",
        ),
        Mistake(
            lambda copy, product: -(-product // copy) + 1,
            "the longer a copy takes, the more stages: copy over product, not the other way round",
        ),
        Mistake(
            lambda copy, product: copy + product,
            "how many products fit into the time of a copy?",
        ),
    ),
    hint="while one piece is multiplied and the next copies are under way, each of them has a stage",
)
