"""The gradients of x and w, or of stored votes, from the gradients of the parents.

No thread adds to what another one adds to. Instead every sum has an *owner*, a team that walks over all votes with a part
in it, and computes them and their gradients again. So everything is added in one order.

    taps       a team owns some rows of a tap's kernel capsules, and walks over a part of the images and positions:
               dw = sum of x^T @ dV
               columns = dV @ w^T, summed over the parents: the gradient of the capsule under the tap at a position
    votes      a team owns a child of stored votes, and writes dV

Columns become dx in :mod:`numbacaps.routing.windows`. Where a child has several taps, the gradient of its vote reaches each of
them, and each of their owners computes it anew.

A form of routing computes the gradient of a vote by ``gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N,
first, end)``. It adds to dV the gradient of the votes V in the iterations from ``first`` to before ``end``, and to dp the
gradient of the child's prior.
"""

from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.shape import bounds
from numbacaps.routing.team import make_parents_sum, make_scattered_sums, scattered
from numbacaps.routing.votes import (
    make_capsule,
    make_element,
    make_parent,
    make_read_row,
    make_votes,
)


def taps_numbers(shape, form, rows):
    """Numbers that a lane holds in :func:`make_taps_gradient`, but for those that it adds up over its team."""
    g = shape.geometry
    kernel, of_x = shape.parents * g.G * rows * shape.columns, shape.images * g.G * g.D1 * rows
    return 2 * kernel + 2 * shape.elements + of_x + form.held


def taps_bounds(shape, form, rows):
    """What :func:`numbacaps.routing.shape.bounds` says of :func:`make_taps_gradient`."""
    return bounds(shape, taps_numbers(shape, form, rows))


@cache
def make_reach(shape, form):
    """Device function ``reach``: a form's ``gradient``, which adds, from zeros on."""
    ELEMENTS, SCALARS = map(specialized, (shape.elements, shape.scalars))
    gradient, ZERO = form.function, shape.sums.type(0)

    @cuda.jit(device=True, forceinline=True)
    def reach(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end):
        for e in range(ELEMENTS):
            dV[e] = ZERO
        for s in range(SCALARS):
            dp[s] = ZERO
        gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end)

    return reach


@cache
def make_prior_gradient(shape, is_of_capsules):
    """Device functions ``(begin, add, end)``: the gradient of child i's prior.

    A prior that all images share has a sum for each parent, of which a lane has its own in ``d_own``; it is written behind all
    images. A capsule's has a number for each image and position, the sum over the parents, which is written at once.
    """
    L, P, CHILDREN, M, J = map(
        specialized,
        (shape.geometry.L, shape.geometry.P, shape.children, shape.images, shape.parents),
    )
    OF_CAPSULES, ZERO = is_of_capsules, shape.sums.type(0)
    (parent, has_parent), parents_sum = make_parent(shape), make_parents_sum(shape)

    @cuda.jit(device=True, forceinline=True)
    def begin(d_own, d_prior, i, lane, more):
        for j in range(J):
            d_own[j] = ZERO
            if more and not OF_CAPSULES:
                d_own[j] = d_prior[at((cuda.blockIdx.y * CHILDREN + i) * P + parent(lane, j))]

    @cuda.jit(device=True, forceinline=True)
    def add(d_own, d_prior, dp, m, n, l, i, lane, is_image, owns):
        of_child = ZERO
        for j in range(J):
            reaches = dp[m * J + j] if is_image and has_parent(lane, j) else ZERO
            d_own[j] += reaches
            of_child += reaches
        if OF_CAPSULES:
            of_child = parents_sum(of_child)
            if is_image and owns and lane == 0:
                d_prior[at(((n + m) * L + l) * CHILDREN + i)] = of_child

    @cuda.jit(device=True, forceinline=True)
    def end(d_own, d_prior, i, lane, owns):
        for j in range(J):
            if not OF_CAPSULES and owns and has_parent(lane, j):
                to = (cuda.blockIdx.y * CHILDREN + i) * P + parent(lane, j)
                d_prior[at(to)] = d_own[j]

    return begin, add, end


@cache
def make_taps_gradient(shape, form, rows):
    """Kernel that owns ``rows`` of D2 of a tap's kernel capsules, for every g; a child's first tap owns its prior too."""
    g = shape.geometry
    L, P, Q, TAPS = g.L, g.P, g.Q, shape.taps
    G, D1, D2, E1, E2, D3 = g.G, g.D1, g.D2, g.E1, g.E2, g.D3
    M, J, TEAM, TEAMS, sums = shape.images, shape.parents, shape.team, shape.teams, shape.sums
    ELEMENTS, SCALARS, ROWS, COLUMNS = shape.elements, shape.scalars, rows, shape.columns
    ROW, OWN, SHARE = J * COLUMNS, J * G * rows * COLUMNS, G * D1 * rows
    ROOM, GETS, SAME = scattered(shape, SHARE)
    # The votes are of the rows that the team owns, and of no others.
    HAS_ALL, OF_X = rows == D2 and TAPS == 1, M * SHARE
    BOUNDS = tuple(map(specialized, taps_bounds(shape, form, rows)))
    ZERO, OF_VOTE = sums.type(0), shape.own
    read, _ = conversions(shape.dtype)
    votes, reach = make_votes(shape, False), make_reach(shape, form)
    begin_prior, add_prior, end_prior = make_prior_gradient(shape, form.is_prior_of_capsules)
    (parent, has_parent), read_row = make_parent(shape), make_read_row(shape)
    element, capsule, CAPSULES = make_element(shape), make_capsule(shape), shape.capsules
    share = make_scattered_sums(shape, SHARE)
    L, P, Q, TAPS = map(specialized, (L, P, Q, TAPS))
    G, D1, D2, E1, E2, D3 = map(specialized, (G, D1, D2, E1, E2, D3))
    M, J, TEAM, TEAMS, ELEMENTS = map(specialized, (M, J, TEAM, TEAMS, ELEMENTS))
    SCALARS, ROWS, COLUMNS, ROW, OWN = map(specialized, (SCALARS, ROWS, COLUMNS, ROW, OWN))
    SHARE, ROOM, GETS, SAME, HAS_ALL = map(specialized, (SHARE, ROOM, GETS, SAME, HAS_ALL))
    OF_VOTE, CAPSULES, OF_X = map(specialized, (OF_VOTE, CAPSULES, OF_X))

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_taps_gradient_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (Q, E2, P)
        prior,  # in
        norm,  # in
        total,  # in
        states,  # in
        slopes,  # in
        columns,  # out  (N, L, Q, E1)
        dw,  # out  (splits, Q, E2, P)
        d_prior,  # out  (splits, I, P), of capsules (N, L, I)
        N,
        count,  # groups of images and positions of a team
        first,
        end,
        more,  # sums go on from what lies there
    ):
        V, dV = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
        dp, row = local_array(SCALARS, sums), local_array(ROW, sums)
        reached, rows_of_x = local_array(ROOM, sums), local_array(OF_X, sums)
        kernel, own, d_own = local_array(OWN, sums), local_array(OWN, sums), local_array(J, sums)
        lane = cuda.threadIdx.x % TEAM
        unit = cuda.blockIdx.x * TEAMS + cuda.threadIdx.x // TEAM
        inside = unit < (D2 + ROWS - 1) // ROWS * Q
        unit = unit if inside else 0
        q, begin = unit % Q, 0 if HAS_ALL else unit // Q * ROWS
        i = q // TAPS
        owns_prior = begin == 0 and q % TAPS == 0
        groups, to = (N + M - 1) // M * L, cuda.blockIdx.y * Q + q
        begin_prior(d_own, d_prior, i, lane, more)
        for g in range(G):
            for r in range(ROWS):
                d2, at_row = min(begin + r, D2 - 1), (g * ROWS + r) * ROW
                read_row(row, w, q, g, d2, lane)
                for j in range(J):  # what is multiplied by no kernel gives no dx
                    for k in range(COLUMNS):
                        jk = j * COLUMNS + k
                        kernel[at_row + jk] = row[jk] if has_parent(lane, j) else ZERO
                        own[at_row + jk] = ZERO
                if more:
                    read_row(row, dw, to, g, d2, lane)
                    for jk in range(ROW):
                        own[at_row + jk] = row[jk]
        for step in range(count):
            place = cuda.blockIdx.y * count + step
            live = place < groups and inside
            place = place if place < groups else 0
            l, n = place % L, place // L * M
            where = capsule(l, q)
            for m in range(M):
                is_there = where >= 0 and live and n + m < N
                from_x = (min(n + m, N - 1) * CAPSULES + max(where, 0)) * E1
                if is_there:
                    for gd in range(G * D1):
                        for r in range(ROWS):
                            d2 = min(begin + r, D2 - 1)
                            rows_of_x[m * SHARE + gd * ROWS + r] = read(
                                x[at(from_x + gd * D2 + d2)]
                            )
                else:
                    for r in range(SHARE):
                        rows_of_x[m * SHARE + r] = ZERO
            if HAS_ALL:
                for e in range(ELEMENTS):
                    V[e] = ZERO
                for m in range(M):
                    for gd in range(G * D1):
                        for r in range(ROWS):
                            value = rows_of_x[m * SHARE + gd * ROWS + r]
                            at_row = gd // D1 * ROWS + r
                            for j in range(J):
                                for k in range(COLUMNS):
                                    e = (m * J + j) * OF_VOTE + gd * COLUMNS + k
                                    V[e] += value * kernel[at_row * ROW + j * COLUMNS + k]
            else:
                votes(V, x, w, n, l, i, lane, N)
            reach(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end)
            for m in range(M):
                is_image = live and n + m < N
                add_prior(d_own, d_prior, dp, m, n, l, i, lane, is_image, owns_prior)
                for gd in range(G * D1):
                    for r in range(ROWS):
                        value, back = rows_of_x[m * SHARE + gd * ROWS + r], ZERO
                        at_row = (gd // D1 * ROWS + r) * ROW
                        for j in range(J):
                            for k in range(COLUMNS):
                                e = (m * J + j) * OF_VOTE + gd * COLUMNS + k
                                own[at_row + j * COLUMNS + k] += value * dV[e]
                                back += dV[e] * kernel[at_row + j * COLUMNS + k]
                        reached[gd * ROWS + r] = back
                for e in range(SHARE, ROOM):
                    reached[e] = ZERO
                share(reached, lane)
                to_columns = ((n + m) * L + l) * Q + q
                if is_image and lane % SAME == 0:
                    for k in range(GETS):
                        e = lane // SAME * GETS + k
                        d2 = begin + e % ROWS
                        if e < SHARE and d2 < D2:
                            columns[at(to_columns * E1 + e // ROWS * D2 + d2)] = reached[k]
        for j in range(J):
            if inside and has_parent(lane, j):
                for g in range(G):
                    for r in range(ROWS):
                        for k in range(COLUMNS):
                            if begin + r < D2:
                                e2 = (g * D2 + begin + r) * D3 + element(lane, k)
                                dw[at((to * E2 + e2) * P + parent(lane, j))] = own[
                                    (g * ROWS + r) * ROW + j * COLUMNS + k
                                ]
        end_prior(d_own, d_prior, i, lane, inside and owns_prior)

    return routing_taps_gradient_kernel


@cache
def make_votes_gradient(shape, form):
    """Kernel that owns children of stored votes."""
    g = shape.geometry
    L, P, CHILDREN, E3 = g.L, g.P, shape.children, g.E3
    M, J, TEAM, TEAMS, sums = shape.images, shape.parents, shape.team, shape.teams, shape.sums
    ELEMENTS, SCALARS, OWN = shape.elements, shape.scalars, shape.own
    _, write = conversions(shape.dtype)
    votes, reach = make_votes(shape, True), make_reach(shape, form)
    begin_prior, add_prior, end_prior = make_prior_gradient(shape, form.is_prior_of_capsules)
    (parent, has_parent), element = make_parent(shape), make_element(shape)
    L, P, CHILDREN, E3, M = map(specialized, (L, P, CHILDREN, E3, M))
    J, TEAM, TEAMS, ELEMENTS, SCALARS = map(specialized, (J, TEAM, TEAMS, ELEMENTS, SCALARS))
    OWN = specialized(OWN)

    @kept_on_disk
    @cuda.jit
    def routing_votes_gradient_kernel(
        x,  # in   votes (N, P, L, I, E)
        w,  # in   anything
        prior,  # in
        norm,  # in
        total,  # in
        states,  # in
        slopes,  # in
        dx,  # out  (N, P, L, I, E)
        d_prior,  # out  (splits, I, P), of capsules (N, L, I)
        N,
        count,  # groups of images and positions of a team
        first,
        end,
        more,  # sums go on from what lies there
    ):
        V, dV = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
        dp, d_own = local_array(SCALARS, sums), local_array(J, sums)
        lane = cuda.threadIdx.x % TEAM
        i = cuda.blockIdx.x * TEAMS + cuda.threadIdx.x // TEAM
        inside = i < CHILDREN
        i = i if inside else 0
        groups = (N + M - 1) // M * L
        begin_prior(d_own, d_prior, i, lane, more)
        for step in range(count):
            place = cuda.blockIdx.y * count + step
            live = place < groups and inside
            place = place if live else 0
            l, n = place % L, place // L * M
            votes(V, x, w, n, l, i, lane, N)
            reach(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end)
            for m in range(M):
                is_image = live and n + m < N
                add_prior(d_own, d_prior, dp, m, n, l, i, lane, is_image, True)
                for j in range(J):
                    if is_image and has_parent(lane, j):
                        vote = ((n + m) * P + parent(lane, j)) * L + l
                        for e in range(OWN):
                            to = (vote * CHILDREN + i) * E3 + element(lane, e)
                            dx[at(to)] = write(dV[(m * J + j) * OWN + e])
        end_prior(d_own, d_prior, i, lane, inside)

    return routing_votes_gradient_kernel
