"""Lesson 7: one product of float32 as three of TF32."""

from experiments.lessons.exercise import Case, Exercise, Mistake

_PARTS = ((1.0, 0.125, 2.0, 0.25), (3.0, -0.5, 1.0, 0.25), (-2.0, 0.5, 4.0, 0.125))


def _cases():
    """What is wanted is the whole product without that of the low parts."""
    found = []
    for a_high, a_low, b_high, b_low in _PARTS:
        wanted = (a_high + a_low) * (b_high + b_low) - a_low * b_low
        said = f"product_of_parts({a_high}, {a_low}, {b_high}, {b_low})"
        found.append(Case((a_high, a_low, b_high, b_low), wanted, said))
    return found


EXERCISE = Exercise(
    wants="takes the high and the low part of a and of b; returns the product as three terms have it",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda a_high, a_low, b_high, b_low: (a_high + a_low) * (b_high + b_low),
            "this has all four terms; the smallest, low * low, is left out",
        ),
        Mistake(
            lambda a_high, a_low, b_high, b_low: a_high * b_high,
            "this is one term, as tf32 has it; the low parts are multiplied too",
        ),
        Mistake(
            lambda a_high, a_low, b_high, b_low: a_high * b_high + a_low * b_high,
            "the low part of b is lost: high(a) * low(b)",
        ),
        Mistake(
            lambda a_high, a_low, b_high, b_low: a_high * b_high + a_high * b_low,
            "the low part of a is lost: low(a) * high(b)",
        ),
        Mistake(
            lambda a_high, a_low, b_high, b_low: a_high * b_high + a_low * b_low,
            "the two products of a high with a low part are lost, which are larger than low * low",
        ),
    ),
    hint="multiply (a_high + a_low) * (b_high + b_low) out, and leave out the smallest of the four",
)
