"""EM routing's assignments normalised over all parents that a capsule votes for, in all windows that cover it.

Each such window sees the capsule as a child of its own. So what is summed over all these parents takes two kernels: one
sums over the parents of each position, a number for every child; one puts the numbers of a capsule together.

    forward     norm = log of the sum of exp(log p)      children's norms become the capsule's, here
    backward    q = sum of omega D                       children's q are added (:mod:`numbacaps.routing.windows`)

Thread mapping: a team a part of the children of some images at a position; then one thread a capsule.
"""

import math
from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.votes import make_votes
from numbacaps.routing.windows import make_over_windows


@cache
def make_of_children(shape, stored, form):
    """Kernel that writes a form's number of every child, of all parents of the child's position."""
    L, CHILDREN, M, TEAM, TEAMS = (
        *(shape.geometry.L, shape.children),
        *(shape.images, shape.team, shape.teams),
    )
    ELEMENTS, HELD, sums = shape.elements, form.held, shape.sums
    votes = make_votes(shape, stored)
    hold, of_child = form.functions
    L, CHILDREN, M, TEAM, TEAMS = map(specialized, (L, CHILDREN, M, TEAM, TEAMS))
    ELEMENTS, HELD = map(specialized, (ELEMENTS, HELD))

    @kept_on_disk
    @cuda.jit
    def em_of_children_kernel(
        x,  # in   (N, C, H, W, E1), or votes (N, P, L, I, E)
        w,  # in   (Q, E2, P)
        prior,  # in
        norm,  # in
        states,  # in
        slopes,  # in
        found,  # out  (N, L, I)
        N,
        count,  # children of a team
        t,
    ):
        V, held = local_array(ELEMENTS, sums), local_array(HELD, sums)
        number = local_array(M, sums)
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
            of_child(number, V, held, prior, norm, t, n, l, i, lane, N)
            for m in range(M):
                if lane == 0 and inside and n + m < N:
                    found[at(((n + m) * L + l) * CHILDREN + i)] = number[m]

    return em_of_children_kernel


@cache
def make_norms_of_capsules(shape):
    """Kernel that makes a capsule's norm of those of its children; 0 where there are none."""
    sums = shape.sums
    ZERO, ONE, LOWEST = sums.type(0), sums.type(1), sums.type(-math.inf)

    @cuda.jit(device=True, forceinline=True)
    def add(found, value):
        if value > found[1]:
            found[0] = found[0] * sums.type(math.exp(found[1] - value)) + ONE
            found[1] = value
        else:
            found[0] += sums.type(math.exp(value - found[1]))

    over_windows, CAPSULES = make_over_windows(shape, 1, add), specialized(shape.capsules)

    @kept_on_disk
    @cuda.jit
    def em_norms_of_capsules_kernel(
        norms,  # in   (N, L, I)
        total,  # out  (N, C, H, W)
        N,
    ):
        i = cuda.grid(1)
        if i >= N * CAPSULES:
            return
        found = local_array(2, sums)  # the sum of exp(norm - largest), the largest
        found[0], found[1] = ZERO, LOWEST
        over_windows(found, norms, i)
        total[at(i)] = found[1] + sums.type(math.log(found[0])) if found[0] != ZERO else ZERO

    return em_norms_of_capsules_kernel
