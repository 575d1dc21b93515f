"""The gradients of x and w, of votes that are never stored: each owner walks over the votes that it has a part in.

A form says what reaches a vote, by ``gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first,
end)``: it adds to dV what reaches the votes V in the iterations first to end, and to dp what reaches the child's prior.

    input     a team owns an input capsule of some images, and walks over the windows that cover it
              dx = sum of dV @ w^T, over the taps, then over the parents
    kernel    a team owns some rows of a tap's kernel capsules, and walks over a part of the images and positions
              dw = sum of x^T @ dV
    votes     a team owns a child, and writes dV; of votes that are stored

Where a child has several taps, what reaches its vote reaches each of them, and each of their owners computes it anew.

Nothing is added by two threads at once, and everything in one order.
"""

from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.team import make_team_functions
from numbacaps.routing.votes import make_capsule, make_parent, make_votes


@cache
def make_reach(shape, stored, form):
    """Device function ``reach``: a child's votes, and by a form's gradient what reaches them and the child's prior."""
    ELEMENTS, SCALARS, ZERO = shape.elements, shape.scalars, shape.sums.type(0)
    votes, gradient = make_votes(shape, stored), form.function
    ELEMENTS, SCALARS = map(specialized, (ELEMENTS, SCALARS))

    @cuda.jit(device=True, forceinline=True)
    def reach(
        dV, dp, V, x, w, prior, norm, total, states, slopes, n, l, i, lane, N, first, end
    ):  # fmt: skip
        votes(V, x, w, n, l, i, lane, N)
        for e in range(ELEMENTS):
            dV[e] = ZERO
        for s in range(SCALARS):
            dp[s] = ZERO
        gradient(dV, dp, V, prior, norm, total, states, slopes, n, l, i, lane, N, first, end)

    return reach


@cache
def make_input_gradient(shape, form):
    """Kernel that owns input capsules; a block's all lie at one (h, w)."""
    g = shape.geometry
    C, H, W, KH, KW, OH, OW, P = g.C, g.H, g.W, g.KH, g.KW, g.OH, g.OW, g.P
    G, D1, D2, D3, E1, E2, E3 = g.G, g.D1, g.D2, g.D3, g.E1, g.E2, g.E3
    (SH, SW), (PH, PW), (DH, DW) = g.stride, g.padding, g.dilation
    M, J, TEAM, TEAMS, sums = shape.images, shape.parents, shape.team, shape.teams, shape.sums
    ELEMENTS, SCALARS, OWN, ROW = shape.elements, shape.scalars, M * E1, J * D3
    TAPS, ZERO = shape.taps, sums.type(0)
    _, write = conversions(shape.dtype)
    reach, parent = make_reach(shape, False, form), make_parent(shape)
    team_sum, _ = make_team_functions(TEAM)
    C, H, W, KH, KW = map(specialized, (C, H, W, KH, KW))
    OH, OW, P, G, D1 = map(specialized, (OH, OW, P, G, D1))
    D2, D3, E1, E2, E3 = map(specialized, (D2, D3, E1, E2, E3))
    SH, SW, PH, PW, DH = map(specialized, (SH, SW, PH, PW, DH))
    DW, M, J, TEAM, TEAMS = map(specialized, (DW, M, J, TEAM, TEAMS))
    ELEMENTS, SCALARS, OWN, ROW, TAPS = map(specialized, (ELEMENTS, SCALARS, OWN, ROW, TAPS))

    @kept_on_disk
    @cuda.jit
    def routing_input_gradient_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (Q, E2, P)
        prior,  # in
        norm,  # in
        total,  # in
        states,  # in
        slopes,  # in
        dx,  # out  (N, C, H, W, E1)
        d_prior,  # out  (N, C, H, W)
        N,
        first,
        end,
    ):
        V, dV = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
        dp, own, d_own = (
            local_array(SCALARS, sums),
            local_array(OWN, sums),
            local_array(M, sums),
        )
        row = local_array(ROW, sums)
        lane = cuda.threadIdx.x % TEAM
        units = (N + M - 1) // M * C
        across = (units + TEAMS - 1) // TEAMS  # blocks at one (h, w)
        unit = cuda.blockIdx.x % across * TEAMS + cuda.threadIdx.x // TEAM
        inside = unit < units
        unit = unit if inside else 0
        c, n = unit % C, unit // C * M
        h, w_in = cuda.blockIdx.x // across // W, cuda.blockIdx.x // across % W
        for e in range(OWN):
            own[e] = ZERO
        for m in range(M):
            d_own[m] = ZERO
        for kh in range(KH):
            top = h + PH - kh * DH
            if top < 0 or top % SH != 0 or top // SH >= OH:
                continue
            for kw in range(KW):
                left = w_in + PW - kw * DW
                if left < 0 or left % SW != 0 or left // SW >= OW:
                    continue
                l, q = top // SH * OW + left // SW, c * (KH * KW) + kh * KW + kw
                i = q // TAPS
                reach(
                    dV, dp, V, x, w, prior, norm, total, states, slopes, n, l, i, lane, N, first, end
                )  # fmt: skip
                for s in range(SCALARS):
                    if lane + s % J * TEAM < P:
                        d_own[s // J] += dp[s]
                    else:
                        for e in range(E3):
                            dV[s * E3 + e] = ZERO
                for g in range(G):
                    for d2 in range(D2):
                        for j in range(J):
                            for d3 in range(D3):
                                e2 = (g * D2 + d2) * D3 + d3
                                row[j * D3 + d3] = w[at((q * E2 + e2) * P + parent(lane, j))]
                        for m in range(M):
                            for d1 in range(D1):
                                value = ZERO
                                for j in range(J):
                                    for d3 in range(D3):
                                        e = (m * J + j) * E3 + (g * D1 + d1) * D3 + d3
                                        value += dV[e] * row[j * D3 + d3]
                                own[m * E1 + (g * D1 + d1) * D2 + d2] += value
        capsule = (c * H + h) * W + w_in
        for m in range(M):
            written = inside and n + m < N
            place = (n + m) * (C * H * W) + capsule
            for e in range(E1):
                value = team_sum(own[m * E1 + e])
                if written and lane == e % TEAM:
                    dx[at(place * E1 + e)] = write(value)
            value = team_sum(d_own[m])
            if written and lane == 0:
                d_prior[at(place)] = value

    return routing_input_gradient_kernel


@cache
def make_kernel_gradient(shape, form, rows):
    """Kernel that owns rows of kernel capsules: ``rows`` of D2, for every g; a child's first tap owns its prior too."""
    g = shape.geometry
    L, P, Q, CHILDREN, TAPS = g.L, g.P, g.Q, shape.children, shape.taps
    G, D1, D2, D3, E1, E2, E3 = g.G, g.D1, g.D2, g.D3, g.E1, g.E2, g.E3
    M, J, TEAM, TEAMS, sums = shape.images, shape.parents, shape.team, shape.teams, shape.sums
    ELEMENTS, SCALARS, ROWS, OWN = shape.elements, shape.scalars, rows, J * G * rows * D3
    ZERO = sums.type(0)
    read, _ = conversions(shape.dtype)
    reach, parent = make_reach(shape, False, form), make_parent(shape)
    capsule, CAPSULES = make_capsule(shape), shape.capsules
    L, P, Q, CHILDREN, TAPS = map(specialized, (L, P, Q, CHILDREN, TAPS))
    G, D1, D2, D3, E1 = map(specialized, (G, D1, D2, D3, E1))
    E2, E3, M, J, TEAM = map(specialized, (E2, E3, M, J, TEAM))
    TEAMS, ELEMENTS, SCALARS, ROWS, OWN = map(specialized, (TEAMS, ELEMENTS, SCALARS, ROWS, OWN))
    CAPSULES = specialized(CAPSULES)

    @kept_on_disk
    @cuda.jit
    def routing_kernel_gradient_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (Q, E2, P)
        prior,  # in
        norm,  # in
        total,  # in
        states,  # in
        slopes,  # in
        dw,  # out  (splits, Q, E2, P)
        d_prior,  # out  (splits, I, P)
        N,
        count,  # groups of images and positions of a team
        first,
        end,
        more,  # sums go on from what lies there
    ):
        V, dV = local_array(ELEMENTS, sums), local_array(ELEMENTS, sums)
        dp, own, d_own = (
            local_array(SCALARS, sums),
            local_array(OWN, sums),
            local_array(J, sums),
        )
        lane = cuda.threadIdx.x % TEAM
        unit = cuda.blockIdx.x * TEAMS + cuda.threadIdx.x // TEAM
        inside = unit < (D2 + ROWS - 1) // ROWS * Q
        unit = unit if inside else 0
        q, begin = unit % Q, unit // Q * ROWS
        i = q // TAPS
        groups = (N + M - 1) // M * L
        to, to_prior = cuda.blockIdx.y * Q + q, cuda.blockIdx.y * CHILDREN + i
        for j in range(J):
            d_own[j] = d_prior[at(to_prior * P + parent(lane, j))] if more else ZERO
            for g in range(G):
                for r in range(ROWS):
                    for d3 in range(D3):
                        e2 = (g * D2 + min(begin + r, D2 - 1)) * D3 + d3
                        before = ZERO
                        if more:
                            before = dw[at((to * E2 + e2) * P + parent(lane, j))]
                        own[((j * G + g) * ROWS + r) * D3 + d3] = before
        for step in range(count):
            place = cuda.blockIdx.y * count + step
            live = place < groups
            place = place if live else 0
            l, n = place % L, place // L * M
            reach(dV, dp, V, x, w, prior, norm, total, states, slopes, n, l, i, lane, N, first, end)
            where = capsule(l, q)
            for m in range(M):
                if live and n + m < N:
                    for j in range(J):
                        d_own[j] += dp[m * J + j]
                    from_x = ((n + m) * CAPSULES + max(where, 0)) * E1
                    for g in range(G):
                        for r in range(ROWS):
                            for d1 in range(D1):
                                value = ZERO
                                if where >= 0 and begin + r < D2:
                                    index = from_x + (g * D1 + d1) * D2 + begin + r
                                    value = read(x[at(index)])
                                for j in range(J):
                                    for d3 in range(D3):
                                        e = (m * J + j) * E3 + (g * D1 + d1) * D3 + d3
                                        own[((j * G + g) * ROWS + r) * D3 + d3] += value * dV[e]
        for j in range(J):
            if inside and lane + j * TEAM < P:
                for g in range(G):
                    for r in range(ROWS):
                        for d3 in range(D3):
                            if begin + r < D2:
                                e2 = (g * D2 + begin + r) * D3 + d3
                                dw[at((to * E2 + e2) * P + parent(lane, j))] = own[
                                    ((j * G + g) * ROWS + r) * D3 + d3
                                ]
                if begin == 0 and q % TAPS == 0:
                    d_prior[at(to_prior * P + parent(lane, j))] = d_own[j]

    return routing_kernel_gradient_kernel


@cache
def make_votes_gradient(shape, form):
    """Kernel that owns children of stored votes."""
    g = shape.geometry
    L, P, CHILDREN, E3 = g.L, g.P, shape.children, g.E3
    M, J, TEAM, TEAMS, sums = shape.images, shape.parents, shape.team, shape.teams, shape.sums
    ELEMENTS, SCALARS, ZERO = shape.elements, shape.scalars, shape.sums.type(0)
    _, write = conversions(shape.dtype)
    reach, parent = make_reach(shape, True, form), make_parent(shape)
    team_sum, _ = make_team_functions(TEAM)
    L, P, CHILDREN, E3, M = map(specialized, (L, P, CHILDREN, E3, M))
    J, TEAM, TEAMS, ELEMENTS, SCALARS = map(specialized, (J, TEAM, TEAMS, ELEMENTS, SCALARS))

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
            reach(dV, dp, V, x, w, prior, norm, total, states, slopes, n, l, i, lane, N, first, end)
            for m in range(M):
                written, of_child = live and n + m < N, ZERO
                for j in range(J):
                    if written and lane + j * TEAM < P:
                        s = m * J + j
                        of_child += dp[s]
                        d_own[j] += dp[s]
                        vote = ((n + m) * P + parent(lane, j)) * L + l
                        for e in range(E3):
                            dx[at((vote * CHILDREN + i) * E3 + e)] = write(dV[s * E3 + e])
                of_child = team_sum(of_child)
                if written and lane == 0:
                    d_children[at(((n + m) * L + l) * CHILDREN + i)] = of_child
        for j in range(J):
            if inside and lane + j * TEAM < P:
                d_prior[at(to * P + parent(lane, j))] = d_own[j]

    return routing_votes_gradient_kernel
