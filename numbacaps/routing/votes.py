"""Where votes come from: computed from x and the packed kernel whenever they are needed, or read where they are stored.

    votes(V, x, w, n, l, i, lane, N)    of a source, V[m, j, e]: the votes of child i at position l of images n, n + 1, ...
    capsule(l, q)                       number in its image of the capsule under tap q = (c, kh, kw); -1 in the padding
    w's index                           (q, e2, p): what lies next to each other is what lanes read together

A child is a tap, or, where votes are summed over the window, a channel c with all its taps.

Lanes without a parent compute the last parent again; the result is not read.
"""

from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cache
def make_parent(shape):
    """Device function ``parent(lane, j)``: number of a lane's j-th parent, the last one's where there is none."""
    P, TEAM = shape.geometry.P, shape.team
    P, TEAM = map(specialized, (P, TEAM))

    @cuda.jit(device=True, forceinline=True)
    def parent(lane, j):
        return min(lane + j * TEAM, P - 1)

    return parent


@cache
def make_capsule(shape):
    """Device function ``capsule(l, q)`` of the window's taps."""
    g = shape.geometry
    H, W, KH, KW, OW = g.H, g.W, g.KH, g.KW, g.OW
    SH, SW = g.stride
    PH, PW = g.padding
    DH, DW = g.dilation
    H, W, KH, KW, OW = map(specialized, (H, W, KH, KW, OW))
    SH, SW, PH, PW, DH = map(specialized, (SH, SW, PH, PW, DH))
    DW = specialized(DW)

    @cuda.jit(device=True, forceinline=True)
    def capsule(l, q):
        kw = q % KW
        kh = q // KW % KH
        c = q // (KW * KH)
        row = l // OW * SH + kh * DH - PH
        column = l % OW * SW + kw * DW - PW
        if row < 0 or row >= H or column < 0 or column >= W:
            return -1
        return (c * H + row) * W + column

    return capsule


@cache
def make_computed(shape):
    """Device function ``votes`` that multiplies, and adds what the child's taps make."""
    g = shape.geometry
    G, D1, D2, D3, E1, E2, E3, P = g.G, g.D1, g.D2, g.D3, g.E1, g.E2, g.E3, g.P
    CAPSULES = g.C * g.H * g.W
    M, J, ROW = shape.images, shape.parents, shape.parents * g.D3
    TAPS, sums = shape.taps, shape.sums
    ZERO, ELEMENTS = sums.type(0), shape.elements
    read, _ = conversions(shape.dtype)
    capsule, parent = make_capsule(shape), make_parent(shape)
    G, D1, D2, D3, E1 = map(specialized, (G, D1, D2, D3, E1))
    E2, E3, P, CAPSULES, M = map(specialized, (E2, E3, P, CAPSULES, M))
    J, ROW, TAPS, ELEMENTS = map(specialized, (J, ROW, TAPS, ELEMENTS))

    @cuda.jit(device=True, forceinline=True)
    def votes(V, x, w, n, l, i, lane, N):
        row = local_array(ROW, sums)
        for e in range(ELEMENTS):
            V[e] = ZERO
        for tap in range(TAPS):
            q = i * TAPS + tap
            place = capsule(l, q)
            for g in range(G):
                for d2 in range(D2):
                    for j in range(J):
                        for d3 in range(D3):
                            e2 = (g * D2 + d2) * D3 + d3
                            row[j * D3 + d3] = w[at((q * E2 + e2) * P + parent(lane, j))]
                    for m in range(M):
                        first = (min(n + m, N - 1) * CAPSULES + max(place, 0)) * E1
                        for d1 in range(D1):
                            value = ZERO  # padding is zeros that multiply like any other value
                            if place >= 0:
                                value = read(x[at(first + (g * D1 + d1) * D2 + d2)])
                            for j in range(J):
                                for d3 in range(D3):
                                    e = (m * J + j) * E3 + (g * D1 + d1) * D3 + d3
                                    V[e] += value * row[j * D3 + d3]

    return votes


@cache
def make_stored(shape):
    """Device function ``votes`` that reads, from x: (N, P, L, I, E)."""
    g = shape.geometry
    L, P, E3, CHILDREN = g.L, g.P, g.E3, shape.children
    M, J = shape.images, shape.parents
    read, _ = conversions(shape.dtype)
    parent = make_parent(shape)
    L, P, E3, CHILDREN, M = map(specialized, (L, P, E3, CHILDREN, M))
    J = specialized(J)

    @cuda.jit(device=True, forceinline=True)
    def votes(V, x, w, n, l, i, lane, N):
        for m in range(M):
            for j in range(J):
                vote = (min(n + m, N - 1) * P + parent(lane, j)) * L + l
                for e in range(E3):
                    V[(m * J + j) * E3 + e] = read(x[at((vote * CHILDREN + i) * E3 + e)])

    return votes


def make_votes(shape, stored):
    """Device function ``votes`` of a source."""
    return (make_stored if stored else make_computed)(shape)
