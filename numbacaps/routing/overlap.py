"""EM routing's assignments normalised over all parents that a capsule votes for, of all windows that cover it.

A pass more writes a number of every child over the parents of one position, and a second kernel puts those of a capsule
together: the norm as the logarithm of a sum of exponentials, forward; a sum, backward.

    found (N, L, I), I = C * KH * KW     ->     total (N, C, H, W)

The second kernel also adds up what reaches a capsule's activation by its stored votes.

Thread mapping: a team a child of some images at a position; then one thread a capsule.
"""

import math
from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.votes import make_votes


@cache
def make_of_children(shape, stored, form):
    """Kernel that writes a form's number of every child."""
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
def make_of_capsules(shape, exponential):
    """Kernel that puts together what children have found, as it is or as logarithms."""
    g = shape.geometry
    C, H, W, KH, KW, OH, OW = g.C, g.H, g.W, g.KH, g.KW, g.OH, g.OW
    (SH, SW), (PH, PW), (DH, DW) = g.stride, g.padding, g.dilation
    CHILDREN, L, sums = shape.children, g.L, shape.sums
    ZERO, LOWEST, LOGARITHMS = sums.type(0), sums.type(-math.inf), exponential
    C, H, W, KH, KW = map(specialized, (C, H, W, KH, KW))
    OH, OW, SH, SW, PH = map(specialized, (OH, OW, SH, SW, PH))
    PW, DH, DW, CHILDREN, L = map(specialized, (PW, DH, DW, CHILDREN, L))

    @kept_on_disk
    @cuda.jit
    def em_of_capsules_kernel(
        found,  # in   (N, L, I)
        total,  # out  (iterations, N, C, H, W)
        N,
        t,
    ):
        i = cuda.grid(1)
        if i >= N * C * H * W:
            return
        w, h, c, n = i % W, i // W % H, i // (W * H) % C, i // (W * H * C)
        top, added = LOWEST, ZERO
        for kh in range(KH):
            row = h + PH - kh * DH
            if row < 0 or row % SH != 0 or row // SH >= OH:
                continue
            for kw in range(KW):
                column = w + PW - kw * DW
                if column < 0 or column % SW != 0 or column // SW >= OW:
                    continue
                l = row // SH * OW + column // SW
                value = found[at((n * L + l) * CHILDREN + (c * KH + kh) * KW + kw)]
                if not LOGARITHMS:
                    added += value
                elif value > top:
                    added = added * sums.type(math.exp(top - value)) + sums.type(1)
                    top = value
                else:
                    added += sums.type(math.exp(value - top))
        if LOGARITHMS:
            added = top + sums.type(math.log(added)) if added != ZERO else ZERO
        total[at(t * (N * C * H * W) + i)] = added

    return em_of_capsules_kernel
