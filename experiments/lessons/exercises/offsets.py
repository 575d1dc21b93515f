"""Lesson 3: where the small matrices of a batch begin."""

import numpy as np

from experiments.lessons.exercise import Case, Exercise, Mistake
from numbacaps import Geometry, stages

_G = Geometry(2, 1, 2, 3, 3, 2, 2, 2, 2, 3, 1)


def _cases():
    whole, found = stages.whole(_G), []
    shapes = whole.extended_input_shape, whole.extended_kernel_shape, whole.products_shape
    numbered = [np.arange(np.prod(shape)).reshape(shape) for shape in shapes]
    for n, p, l, q, k in np.ndindex(_G.N, _G.P, _G.L, _G.Q, _G.G):
        a, b, c = numbered
        wanted = a[n, p, l, q, k, 0, 0], b[p, l, q, k, 0, 0], c[n, p, l, q, k, 0, 0]
        said = f"offsets({n}, {p}, {l}, {q}, {k}, g)"
        found.append(Case((n, p, l, q, k, _G), tuple(map(int, wanted)), said))
    return found


def _offsets(image, shared, sizes, k, pieces):
    places = image, shared, image
    return tuple(at * size + k * piece for at, size, piece in zip(places, sizes, pieces))


def _image(n, p, l, q, g):
    return ((n * g.P + p) * g.L + l) * g.Q + q


def _shared(p, l, q, g):
    return (p * g.L + l) * g.Q + q


def _capsules(g):
    return g.E1, g.E2, g.E3


def _matrices(g):
    return g.D1 * g.D2, g.D2 * g.D3, g.D1 * g.D3


def _kernel_of_an_image(n, p, l, q, k, g):
    image = _image(n, p, l, q, g)
    return _offsets(image, image, _capsules(g), k, _matrices(g))


def _paper(n, p, l, q, k, g):
    where = _image(n, p, l, q, g), _shared(p, l, q, g)
    return _offsets(*where, _matrices(g), k, _matrices(g))


def _next_element(n, p, l, q, k, g):
    where = _image(n, p, l, q, g), _shared(p, l, q, g)
    return _offsets(*where, _capsules(g), k, (1, 1, 1))


def _positions_first(n, p, l, q, k, g):
    image = ((n * g.L + l) * g.P + p) * g.Q + q
    return _offsets(image, (l * g.P + p) * g.Q + q, _capsules(g), k, _matrices(g))


EXERCISE = Exercise(
    wants="takes n, p, l, q, k and a geometry; returns the offsets in I', K' and O' at which matrix k begins",
    cases=_cases,
    mistakes=(
        Mistake(_kernel_of_an_image, "K' has no axis n: all images share it"),
        Mistake(
            _paper, "a capsule holds G matrices: it has E1 = G*D1*D2 elements (E2, E3 likewise)"
        ),
        Mistake(_next_element, "matrix k begins k whole matrices behind the capsule's first"),
        Mistake(_positions_first, "the axes are (n, p, l, q): l runs faster than p"),
    ),
    hint="the axes of I' are (n, p, l, q, k, d1, d2), and the last one runs fastest",
)
