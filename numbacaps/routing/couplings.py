"""The couplings of the last iteration, for who asks for them: how much of each child each parent gets.

    c[n, p, l, i]    of dynamic routing; of EM routing the assignments R

They are computed again from the parents' states, by forms of the walk of :mod:`numbacaps.routing.children`.
"""

import math
from dataclasses import dataclass
from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.made_once import made_once
from numbacaps.routing import dynamic
from numbacaps.routing.constant import make_constant
from numbacaps.routing.em import gaussian_numbers, make_hold_gaussians, make_log_p, make_norms
from numbacaps.routing.shape import Shape
from numbacaps.routing.votes import make_parent


@cache
def make_write_of_parents(shape):
    """Device function ``write(found, B, n, l, i, lane, N, inside)`` of a number of each image and parent, to (N, P, L, I)."""
    L, P, CHILDREN, M, J = map(
        specialized,
        (shape.geometry.L, shape.geometry.P, shape.children, shape.images, shape.parents),
    )
    (parent, has_parent), (_, rounded) = make_parent(shape), conversions(shape.dtype)

    @cuda.jit(device=True, forceinline=True)
    def write(found, B, n, l, i, lane, N, inside):
        for m in range(M):
            for j in range(J):
                if inside and n + m < N and has_parent(lane, j):
                    to = ((n + m) * P + parent(lane, j)) * L + l
                    found[at(to * CHILDREN + i)] = rounded(B[m * J + j])

    return write


@dataclass(frozen=True)
class DynamicCouplings:
    """softmax of the last logits.

    ``has_prior`` and ``is_even`` are those of the pass that had them (:class:`numbacaps.routing.dynamic.OverParents`).
    """

    shape: Shape
    over: str
    has_prior: bool
    is_even: bool

    @property
    def held(self):
        return self.shape.elements + self.shape.scalars

    @made_once
    def functions(self):
        shape, sums = self.shape, self.shape.sums
        E, ELEMENTS = shape.geometry.E3, shape.elements
        read, read_number = dynamic.make_read(shape, dynamic.state_fields(E)[0])
        logits = dynamic.make_logits(shape, self.has_prior)
        over_parents, IS_EVEN = self.over == "parents", self.is_even
        even = make_constant(1 / (shape.geometry.P if over_parents else shape.children), sums)
        couple = (dynamic.make_over_parents if over_parents else dynamic.make_over_children)(shape)
        write = make_write_of_parents(shape)
        E, ELEMENTS, SCALARS = map(specialized, (E, ELEMENTS, shape.scalars))

        @cuda.jit(device=True, forceinline=True)
        def hold(held, states, slopes, t, n, l, lane, N):
            read(held, 0, states, 0, t, n, l, lane, N)
            read_number(held, ELEMENTS, states, 2 * E, t + 1, n, l, lane, N)

        @cuda.jit(device=True, forceinline=True)
        def of_child(found, V, held, prior, norm, t, n, l, i, lane, N, inside):
            B = local_array(SCALARS, sums)
            if IS_EVEN:
                for s in range(SCALARS):
                    B[s] = even()
            else:
                logits(B, V, held, prior, i, lane)
                couple(B, held, ELEMENTS)
            write(found, B, n, l, i, lane, N, inside)

        return hold, of_child


@dataclass(frozen=True)
class Assignments:
    """R of the last E step."""

    shape: Shape
    normalise: str

    @property
    def held(self):
        return gaussian_numbers(self.shape)

    @made_once
    def functions(self):
        shape, sums = self.shape, self.shape.sums
        M, J = shape.images, shape.parents
        log_p, norms = make_log_p(shape), make_norms(shape, self.normalise)
        write = make_write_of_parents(shape)
        M, J, ELEMENTS, SCALARS = map(specialized, (M, J, shape.elements, shape.scalars))

        @cuda.jit(device=True, forceinline=True)
        def of_child(found, V, held, prior, norm, t, n, l, i, lane, N, inside):
            B, of_images = local_array(SCALARS, sums), local_array(M, sums)
            steep = local_array(ELEMENTS, sums)
            log_p(B, steep, V, held, lane)
            norms(of_images, B, norm, t, n, l, i, N)
            for m in range(M):
                for j in range(J):
                    B[m * J + j] = sums.type(math.exp(B[m * J + j] - of_images[m]))
            write(found, B, n, l, i, lane, N, inside)

        return make_hold_gaussians(shape), of_child
