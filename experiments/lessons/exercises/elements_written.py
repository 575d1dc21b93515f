"""Lesson 2: what laying out writes."""

import numpy as np

from experiments.lessons.counting import elements
from experiments.lessons.example import unwritten
from experiments.lessons.exercise import Case, Exercise, Mistake
from experiments.walk.watch import WRITE, watching
from numbacaps import Geometry, stages
from numbacaps.device.target import cuda


def _cases():
    found = []
    for sizes in ((1, 1, 2, 4, 4, 2, 2, 1, 2, 2, 2, 1), (2, 2, 3, 5, 3, 3, 2, 2, 1, 2, 3, 2)):
        g = Geometry(*sizes)
        found.append(Case((g,), _counted(g), f"elements_written(g) of {g}"))
    return found


def _counted(g):
    """What the three stages write, as their threads do it."""
    x, w = (cuda.to_device(np.ones(s, np.float32)) for s in (g.input_shape, g.kernel_shape))
    whole = stages.whole(g)
    columns = unwritten(whole.columns_shape)
    with watching({}) as launches:
        stages.capsule_im2col(whole, x, columns)
        stages.input_extend(whole, columns, unwritten(whole.extended_input_shape))
        stages.kernel_extend(whole, w, unwritten(whole.extended_kernel_shape))
    return elements(launches, WRITE)


def _column(g):
    return g.L * g.Q * g.E1


EXERCISE = Exercise(
    wants="takes a geometry; returns how many elements capsule_im2col, input_extend and kernel_extend write together",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda g: g.N * g.P * _column(g) + g.P * g.L * g.Q * g.E2,
            "capsule_im2col writes the columns themselves, too, before they are copied",
        ),
        Mistake(
            lambda g: g.N * (_column(g) + g.P * _column(g) + g.P * g.L * g.Q * g.E2),
            "K' has no axis n: all images share it",
        ),
        Mistake(
            lambda g: 2 * g.N * _column(g) + g.P * g.L * g.Q * g.E2,
            "I' holds a copy of the columns for each output channel p",
        ),
        Mistake(
            lambda g: g.N * g.L * g.Q * (1 + g.P) + g.P * g.L * g.Q,
            "these are capsules; a capsule of the input has E1 elements, of the kernel E2",
        ),
        Mistake(
            lambda g: g.N * (1 + g.P) * _column(g) + g.P * g.Q * g.E2,
            "K' holds a copy of the kernel for each position l",
        ),
    ),
    hint="write down the axes of I_flat, I' and K'; each of their elements is written once",
)
