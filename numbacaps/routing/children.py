"""A walk over the children that writes something of each: its couplings, or a number over the parents of a position.

A form says what, by device functions:

    hold(held, states, slopes, t, n, l, lane, N)      read what it takes of the parents, as in :mod:`numbacaps.routing.reduce`
    of_child(found, V, held, prior, norm, t, n, l, i, lane, N, inside)
                                                      find it and, if the team is ``inside`` the grid, write it to ``found``

Thread mapping: a team a part of the children of some images at a position.
"""

from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.votes import make_votes


@cache
def make_of_children(shape, stored, form):
    """Kernel that writes what a form finds of every child."""
    L, CHILDREN, M, TEAM, TEAMS = map(
        specialized, (shape.geometry.L, shape.children, shape.images, shape.team, shape.teams)
    )
    ELEMENTS, HELD, sums = *map(specialized, (shape.elements, form.held)), shape.sums
    votes, (hold, of_child) = make_votes(shape, stored), form.functions

    @kept_on_disk
    @cuda.jit
    def routing_of_children_kernel(
        x,  # in   (N, C, H, W, E1), or votes (N, P, L, I, E)
        w,  # in   (Q, E2, P)
        prior,  # in   what the form takes of the children
        norm,  # in   what the form takes of the capsules, of every iteration
        states,  # in   (iterations + 1, N * L, fields, P)
        slopes,  # in   (iterations, N * L, fields, P)
        found,  # out  as the form says
        N,
        count,  # children of a team
        t,
    ):
        V, held = local_array(ELEMENTS, sums), local_array(HELD, sums)
        lane = cuda.threadIdx.x % TEAM
        place = cuda.blockIdx.x * TEAMS + cuda.threadIdx.x // TEAM
        inside = place < (N + M - 1) // M * L
        place = place if inside else 0
        l, n = place % L, place // L * M
        hold(held, states, slopes, t, n, l, lane, N)
        for step in range(count):
            i = cuda.blockIdx.y * count + step
            if i >= CHILDREN:
                break
            votes(V, x, w, n, l, i, lane, N)
            of_child(found, V, held, prior, norm, t, n, l, i, lane, N, inside)

    return routing_of_children_kernel


@cache
def make_write_of_images(shape):
    """Device function ``write(found, numbers, n, l, i, lane, N, inside)`` of a number of each image, to (N, L, I)."""
    L, CHILDREN, M = map(specialized, (shape.geometry.L, shape.children, shape.images))

    @cuda.jit(device=True, forceinline=True)
    def write(found, numbers, n, l, i, lane, N, inside):
        for m in range(M):
            if lane == 0 and inside and n + m < N:
                found[at(((n + m) * L + l) * CHILDREN + i)] = numbers[m]

    return write
