"""Lesson 4: which windows cover a capsule."""

import numpy as np

import reference
from experiments.lessons.exercise import Case, Exercise, Mistake
from numbacaps import Geometry

_MOVES = (
    ((2, 2), (0, 0), (1, 1)),
    ((1, 2), (1, 0), (2, 1)),
    ((3, 1), (2, 1), (1, 2)),
)


def _cases():
    found = []
    for moves in _MOVES:
        g = Geometry(1, 1, 1, 6, 7, 3, 2, 1, 1, 1, 1, *moves)
        numbers = np.arange(1.0, 1 + g.H * g.W).reshape(g.input_shape)
        columns = reference.capsule_im2col(numbers, (g.KH, g.KW), *moves).reshape(g.L, g.KH, g.KW)
        for h, w in np.ndindex(g.H, g.W):
            places = np.argwhere(columns == numbers[0, 0, h, w])
            wanted = {tuple(map(int, place)) for place in places}
            moved = "stride {}, padding {}, dilation {}".format(*moves)
            said = f"covering({h}, {w}, g) of a window 3 x 2, {moved},"
            found.append(Case((h, w, g), wanted, said))
    return found


def _covering(h, w, g, padding=None, dilation=None, whole=True, inside=True):
    """The right answer, or one in which something is left out."""
    padding = g.padding if padding is None else padding
    dilation, found = dilation or g.dilation, []
    for kh, kw in np.ndindex(g.KH, g.KW):
        oh, down = divmod(h + padding[0] - kh * dilation[0], g.stride[0])
        ow, across = divmod(w + padding[1] - kw * dilation[1], g.stride[1])
        met = not whole or down == across == 0
        if met and (not inside or 0 <= oh < g.OH and 0 <= ow < g.OW):
            found.append((oh * g.OW + ow, kh, kw))
    return found


EXERCISE = Exercise(
    wants="takes h, w and a geometry; returns the list of (l, kh, kw) at which a window covers the capsule",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda h, w, g: _covering(h, w, g)[:1],
            "there may be several windows: go on behind the first",
        ),
        Mistake(
            lambda h, w, g: _covering(h, w, g, whole=False),
            "a window begins at multiples of the stride: where the division leaves a remainder, there is none",
        ),
        Mistake(
            lambda h, w, g: _covering(h, w, g, padding=(0, 0)),
            "h = oh*stride + kh*dilation - padding, so the padding is added on the way back",
        ),
        Mistake(
            lambda h, w, g: _covering(h, w, g, inside=False),
            "there are OH x OW windows: leave out those before the first and behind the last",
        ),
        Mistake(
            lambda h, w, g: _covering(h, w, g, dilation=(1, 1)),
            "under a dilation the window's capsules stand apart: kh and kw are multiplied by it",
        ),
    ),
    hint="solve h = oh*stride + kh*dilation - padding for oh, for every kh; the same for w",
)
