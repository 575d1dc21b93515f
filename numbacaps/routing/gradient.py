"""The gradients of x and w, of votes that are never stored: each owner walks over the votes that it has a part in.

A form says what reaches a vote, by ``gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first,
end)``: it adds to dV what reaches the votes V in the iterations first to end, and to dp what reaches the child's prior.

    taps       a team owns some rows of a tap's kernel capsules, and walks over a part of the images and positions
               dw = sum of x^T @ dV
               columns = dV @ w^T, summed over the parents: what reaches the capsule under the tap at a position
    windows    dx = sum of columns, over the windows that cover a capsule
    votes      a team owns a child, and writes dV; of votes that are stored

Where a child has several taps, what reaches its vote reaches each of them, and each of their owners computes it anew.

Nothing is added by two threads at once, and everything in one order.
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


def taps_bounds(shape, form, rows):
    """What :func:`numbacaps.routing.shape.bounds` says of :func:`make_taps_gradient`."""
    g = shape.geometry
    kernel, of_x = shape.parents * g.G * rows * shape.columns, shape.images * g.G * g.D1 * rows
    return bounds(shape, 2 * kernel + 2 * shape.elements + of_x + form.held)


@cache
def make_taps_gradient(shape, form, rows):
    """Kernel that owns ``rows`` of D2 of a tap's kernel capsules, for every g; a child's first tap owns its prior too."""
    g = shape.geometry
    L, P, Q, CHILDREN, TAPS = g.L, g.P, g.Q, shape.children, shape.taps
    G, D1, D2, E1, E2, D3 = g.G, g.D1, g.D2, g.E1, g.E2, g.D3
    M, J, TEAM, TEAMS, sums = shape.images, shape.parents, shape.team, shape.teams, shape.sums
    ELEMENTS, SCALARS, ROWS, COLUMNS = shape.elements, shape.scalars, rows, shape.columns
    ROW, OWN, SHARE = J * COLUMNS, J * G * rows * COLUMNS, G * D1 * rows
    ROOM, GETS, SAME = scattered(shape, SHARE)
    # The votes are of the rows that the team owns, and of no others.
    HAS_ALL, OF_CAPSULES = rows == D2 and TAPS == 1, form.is_prior_of_capsules
    OF_X = M * SHARE
    BOUNDS = tuple(map(specialized, taps_bounds(shape, form, rows)))
    ZERO, OF_VOTE = sums.type(0), shape.own
    read, _ = conversions(shape.dtype)
    votes, gradient = make_votes(shape, False), form.function
    (parent, has_parent), read_row = make_parent(shape), make_read_row(shape)
    element, capsule, CAPSULES = make_element(shape), make_capsule(shape), shape.capsules
    parents_sum, share = make_parents_sum(shape), make_scattered_sums(shape, SHARE)
    L, P, Q, CHILDREN, TAPS = map(specialized, (L, P, Q, CHILDREN, TAPS))
    G, D1, D2, E1, E2, D3 = map(specialized, (G, D1, D2, E1, E2, D3))
    M, J, TEAM, TEAMS, ELEMENTS = map(specialized, (M, J, TEAM, TEAMS, ELEMENTS))
    SCALARS, ROWS, COLUMNS, ROW, OWN = map(specialized, (SCALARS, ROWS, COLUMNS, ROW, OWN))
    SHARE, ROOM, GETS, SAME, HAS_ALL = map(specialized, (SHARE, ROOM, GETS, SAME, HAS_ALL))
    OF_CAPSULES, OF_VOTE, CAPSULES = map(specialized, (OF_CAPSULES, OF_VOTE, CAPSULES))
    OF_X = specialized(OF_X)

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
        d_children,  # out  (N, L, I)
        dw,  # out  (splits, Q, E2, P)
        d_prior,  # out  (splits, I, P)
        N,
        count,  # groups of images and positions of a team
        first,
        end,
        more,  # sums go on from what lies there
    ):
        V, dV = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
        dp, row, reached = (
            local_array(SCALARS, sums),
            local_array(ROW, sums),
            local_array(ROOM, sums),
        )
        kernel, own, d_own = local_array(OWN, sums), local_array(OWN, sums), local_array(J, sums)
        rows_of_x = local_array(OF_X, sums)
        lane = cuda.threadIdx.x % TEAM
        unit = cuda.blockIdx.x * TEAMS + cuda.threadIdx.x // TEAM
        inside = unit < (D2 + ROWS - 1) // ROWS * Q
        unit = unit if inside else 0
        q, begin = unit % Q, 0 if HAS_ALL else unit // Q * ROWS
        i = q // TAPS
        owns_prior = begin == 0 and q % TAPS == 0
        groups = (N + M - 1) // M * L
        to, to_prior = cuda.blockIdx.y * Q + q, cuda.blockIdx.y * CHILDREN + i
        for j in range(J):
            d_own[j] = d_prior[at(to_prior * P + parent(lane, j))] if more else ZERO
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
                            value, at_row = (
                                rows_of_x[m * SHARE + gd * ROWS + r],
                                gd // D1 * ROWS + r,
                            )
                            for j in range(J):
                                for k in range(COLUMNS):
                                    e = (m * J + j) * OF_VOTE + gd * COLUMNS + k
                                    V[e] += value * kernel[at_row * ROW + j * COLUMNS + k]
            else:
                votes(V, x, w, n, l, i, lane, N)
            for e in range(ELEMENTS):
                dV[e] = ZERO
            for s in range(SCALARS):
                dp[s] = ZERO
            gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end)
            for m in range(M):
                is_image, of_child = live and n + m < N, ZERO
                for j in range(J):
                    reaches = dp[m * J + j] if is_image and has_parent(lane, j) else ZERO
                    d_own[j] += reaches
                    of_child += reaches
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
                if OF_CAPSULES:
                    of_child = parents_sum(of_child)
                    if is_image and owns_prior and lane == 0:
                        d_children[at(((n + m) * L + l) * CHILDREN + i)] = of_child
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
                if owns_prior:
                    d_prior[at(to_prior * P + parent(lane, j))] = d_own[j]

    return routing_taps_gradient_kernel


@cache
def make_windows_gradient(shape):
    """Kernel that adds the columns of the windows that cover a capsule; a thread an element of dx."""
    g = shape.geometry
    C, H, W, KH, KW, OH, OW, Q, E1 = g.C, g.H, g.W, g.KH, g.KW, g.OH, g.OW, g.Q, g.E1
    (SH, SW), (PH, PW), (DH, DW) = g.stride, g.padding, g.dilation
    _, write = conversions(shape.dtype)
    ZERO = shape.sums.type(0)
    C, H, W, KH, KW, OH = map(specialized, (C, H, W, KH, KW, OH))
    OW, Q, E1, SH, SW, PH = map(specialized, (OW, Q, E1, SH, SW, PH))
    PW, DH, DW = map(specialized, (PW, DH, DW))

    @kept_on_disk
    @cuda.jit
    def routing_windows_gradient_kernel(
        columns,  # in   (N, L, Q, E1)
        dx,  # out  (N, C, H, W, E1)
        N,
    ):
        i = cuda.grid(1)
        if i >= N * (C * H * W * E1):
            return
        e, capsule, added = i % E1, i // E1, ZERO
        n, w, h, c = capsule // (C * H * W), capsule % W, capsule // W % H, capsule // (H * W) % C
        for kh in range(KH):
            row = h + PH - kh * DH
            if row < 0 or row % SH != 0 or row // SH >= OH:
                continue
            for kw in range(KW):
                column = w + PW - kw * DW
                if column < 0 or column % SW != 0 or column // SW >= OW:
                    continue
                l = row // SH * OW + column // SW
                tap = (n * (OH * OW) + l) * Q + (c * KH + kh) * KW + kw
                added += columns[at(tap * E1 + e)]
        dx[at(i)] = write(added)

    return routing_windows_gradient_kernel


@cache
def make_votes_gradient(shape, form):
    """Kernel that owns children of stored votes."""
    g = shape.geometry
    L, P, CHILDREN, E3 = g.L, g.P, shape.children, g.E3
    M, J, TEAM, TEAMS, sums = shape.images, shape.parents, shape.team, shape.teams, shape.sums
    ELEMENTS, SCALARS, ZERO = shape.elements, shape.scalars, shape.sums.type(0)
    _, write = conversions(shape.dtype)
    votes, gradient = make_votes(shape, True), form.function
    (parent, has_parent), element = make_parent(shape), make_element(shape)
    parents_sum, OWN = make_parents_sum(shape), shape.own
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
        d_children,  # out  (N, L, I)
        d_prior,  # out  (splits, I, P)
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
        to = cuda.blockIdx.y * CHILDREN + i
        for j in range(J):
            d_own[j] = d_prior[at(to * P + parent(lane, j))] if more else ZERO
        for step in range(count):
            place = cuda.blockIdx.y * count + step
            live = place < groups and inside
            place = place if live else 0
            l, n = place % L, place // L * M
            votes(V, x, w, n, l, i, lane, N)
            for e in range(ELEMENTS):
                dV[e] = ZERO
            for s in range(SCALARS):
                dp[s] = ZERO
            gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end)
            for m in range(M):
                written, of_child = live and n + m < N, ZERO
                for j in range(J):
                    if written and has_parent(lane, j):
                        s = m * J + j
                        of_child += dp[s]
                        d_own[j] += dp[s]
                        vote = ((n + m) * P + parent(lane, j)) * L + l
                        for e in range(OWN):
                            to_vote = (vote * CHILDREN + i) * E3 + element(lane, e)
                            dx[at(to_vote)] = write(dV[s * OWN + e])
                of_child = parents_sum(of_child)
                if written and lane == 0:
                    d_children[at(((n + m) * L + l) * CHILDREN + i)] = of_child
        for j in range(J):
            if inside and has_parent(lane, j):
                d_prior[at(to * P + parent(lane, j))] = d_own[j]

    return routing_votes_gradient_kernel
