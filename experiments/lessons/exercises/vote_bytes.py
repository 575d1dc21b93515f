"""Lesson 10: what stored votes move."""

import numpy as np

import numbacaps
from experiments.lessons.exercise import Case, Exercise, Mistake
from experiments.walk.watch import watching
from numbacaps import Geometry
from numbacaps.routing.options import Options
from numbacaps.routing.runner import Runner

_FLOAT = np.dtype(np.float32)


def _cases():
    """The votes' bytes as the toolkit knows them, times the passes that it launches, and once for writing them.

    EM routing's passes, each of which is a kernel.
    """
    found = []
    for sizes, iterations in (
        ((1, 2, 3, 4, 3, 2, 2, 1, 2, 3, 2), 1),
        ((2, 1, 2, 3, 3, 2, 2, 2, 1, 2, 3), 3),
    ):
        g = Geometry(*sizes)
        x, w = np.ones(g.input_shape, np.float32), np.ones(g.kernel_shape, np.float32)
        how = {"iterations": iterations, "product": "gab,gbc->gac", "algorithm": "stored"}
        how |= {"routing": "em"}
        with watching({}) as launches:
            numbacaps.capsule_routing(x, w, **how)
        passes = sum("reduce" in launch.kernel.__name__ for launch in launches)
        votes = Runner(g, _FLOAT, Options("em", iterations)).votes_nbytes()
        said = f"vote_bytes(g, {iterations}) of {g}"
        found.append(Case((g, iterations), (1 + passes) * votes, said))
    return found


def _votes(g):
    return 4 * g.N * g.P * g.L * g.Q * g.E3


EXERCISE = Exercise(
    wants="takes a geometry and the number of iterations; returns bytes of votes that are written and read",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda g, iterations: iterations * _votes(g),
            "the votes are also written, once, before the first pass",
        ),
        Mistake(lambda g, iterations: _votes(g), "this is written; every pass reads it again"),
        Mistake(
            lambda g, iterations: 2 * iterations * _votes(g),
            "one pass reads a vote once, for its agreement and for the sum; and all are written once",
        ),
        Mistake(
            lambda g, iterations: (1 + iterations) * _votes(g) // 4,
            "these are elements; a float32 has 4 bytes",
        ),
        Mistake(
            lambda g, iterations: (1 + iterations) * _votes(g) // g.P,
            "each child votes for every parent",
        ),
        Mistake(
            lambda g, iterations: (1 + iterations) * _votes(g) // g.Q,
            "each of the Q children of a position votes",
        ),
    ),
    hint="how many votes are there (images, positions, children, parents), and how many elements has one?",
)
