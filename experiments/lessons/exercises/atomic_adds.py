"""Lesson 6: how often threads add to memory that others add to."""

import numpy as np

from experiments.lessons.counting import elements
from experiments.lessons.example import unwritten
from experiments.lessons.exercise import Case, Exercise, Mistake
from experiments.walk.watch import ATOMIC, watching
from numbacaps import Geometry
from numbacaps.device.target import cuda
from numbacaps.plan import Plan


def _cases():
    found = []
    for sizes in ((1, 1, 2, 4, 4, 2, 2, 1, 2, 3, 4, 1), (2, 2, 3, 5, 3, 3, 2, 2, 1, 2, 3, 2)):
        g = Geometry(*sizes)
        found.append(Case((g,), _counted(g), f"atomic_adds(g) of {g}"))
    return found


def _counted(g):
    shapes = g.input_shape, g.kernel_shape, g.output_shape
    operands = [cuda.to_device(np.ones(shape, np.float32)) for shape in shapes]
    plan = Plan(g, np.dtype(np.float32), "naive")
    with watching({}) as launches:
        plan.launch_backward(*operands, unwritten(g.input_shape), None, 0)
    return elements(launches, ATOMIC)


def _products(g):
    return g.N * g.P * g.L * g.Q


EXERCISE = Exercise(
    wants="takes a geometry; returns how many atomic additions the naive input gradient makes",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda g: g.N * g.P * g.L * g.C,
            "this is the number of threads; each adds for every tap and every element of a capsule",
        ),
        Mistake(
            lambda g: _products(g), "a capsule has E1 = G*D1*D2 elements, and each is added to"
        ),
        Mistake(
            lambda g: _products(g) * g.E1 * g.D3,
            "the sum over d3 is made in a register, and added once",
        ),
        Mistake(
            lambda g: _products(g) // g.P * g.E1,
            "every output channel p has threads of its own, which add to the same input",
        ),
        Mistake(
            lambda g: _products(g) * g.E3,
            "what is added to is the input's gradient, whose capsules have E1 elements",
        ),
    ),
    hint="multiply: threads, taps of a window, elements of an input capsule",
)
