"""Where votes come from: computed from x and the packed kernel whenever they are needed, or read where they are stored.

    votes(V, x, w, n, l, i, lane, N)    of a source, V[m, j, e]: the votes of child i at position l of images n, n + 1, ...
    capsule(l, q)                       number in its image of the capsule under tap q = (c, kh, kw); -1 in the padding
    w's index                           (q, e2, p): what lies next to each other is what lanes read together

A child is a tap, or, where votes are summed over the window, a channel c with all its taps.

Lanes without a parent compute the last parent again; the result is not read.
"""

from functools import cache

import numpy as np

from numbacaps.device.bfloat16 import stored
from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import CHUNK, load_run, local_array
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cache
def make_parent(shape):
    """Device functions ``(parent(lane, j), has_parent(lane, j))`` of a lane's j-th parent.

    The first is its number, the last parent's where there is none.
    """
    P, ACROSS = map(specialized, (shape.geometry.P, shape.across))

    @cuda.jit(device=True, forceinline=True)
    def parent(lane, j):
        return min(lane % ACROSS + j * ACROSS, P - 1)

    @cuda.jit(device=True, forceinline=True)
    def has_parent(lane, j):
        return lane % ACROSS + j * ACROSS < P

    return parent, has_parent


@cache
def make_element(shape):
    """Device function ``element(lane, e)``: which element of a vote is a lane's e-th, row by row of its columns."""
    ACROSS, COLUMNS, D3 = map(specialized, (shape.across, shape.columns, shape.geometry.D3))

    @cuda.jit(device=True, forceinline=True)
    def element(lane, e):
        return e // COLUMNS * D3 + lane // ACROSS * COLUMNS + e % COLUMNS

    return element


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
def make_read_row(shape):
    """Device function ``read_row(row, w, q, g, d2, lane)``: a lane's columns of row d2 of tap q's kernel capsules."""
    g = shape.geometry
    J, COLUMNS, D2, D3, E2, P = shape.parents, shape.columns, g.D2, g.D3, g.E2, g.P
    parent, _ = make_parent(shape)
    element = make_element(shape)
    J, COLUMNS, D2, D3, E2, P = map(specialized, (J, COLUMNS, D2, D3, E2, P))

    @cuda.jit(device=True, forceinline=True)
    def read_row(row, w, q, g, d2, lane):
        first = q * E2 + (g * D2 + d2) * D3
        for j in range(J):
            for k in range(COLUMNS):
                row[j * COLUMNS + k] = w[at((first + element(lane, k)) * P + parent(lane, j))]

    return read_row


@cache
def make_computed(shape):
    """Device function ``votes`` that multiplies, and adds what the child's taps make."""
    g = shape.geometry
    G, D1, D2, E1 = g.G, g.D1, g.D2, g.E1
    CAPSULES, COLUMNS, ROW = shape.capsules, shape.columns, shape.parents * shape.columns
    M, J, OWN, TAPS, sums = shape.images, shape.parents, shape.own, shape.taps, shape.sums
    ZERO, ELEMENTS = sums.type(0), shape.elements
    read, _ = conversions(shape.dtype)
    capsule, read_row = make_capsule(shape), make_read_row(shape)
    G, D1, D2, E1, CAPSULES = map(specialized, (G, D1, D2, E1, CAPSULES))
    COLUMNS, ROW, M, J, OWN = map(specialized, (COLUMNS, ROW, M, J, OWN))
    TAPS, ELEMENTS = map(specialized, (TAPS, ELEMENTS))

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
                    read_row(row, w, q, g, d2, lane)
                    for m in range(M):
                        first = (min(n + m, N - 1) * CAPSULES + max(place, 0)) * E1
                        for d1 in range(D1):
                            value = ZERO  # padding is zeros that multiply like any other value
                            if place >= 0:
                                value = read(x[at(first + (g * D1 + d1) * D2 + d2)])
                            for j in range(J):
                                for k in range(COLUMNS):
                                    e = (m * J + j) * OWN + (g * D1 + d1) * COLUMNS + k
                                    V[e] += value * row[j * COLUMNS + k]

    return votes


def run_of(shape):
    """Elements of a stored vote that one load or store of a lane takes, of an array that begins at a multiple of 16 bytes."""
    run, in_a_row = CHUNK // shape.dtype.itemsize, shape.own if shape.along == 1 else shape.columns
    while in_a_row % run:
        run //= 2
    return run


@cache
def make_stored(shape, run=1):
    """Device function ``votes`` that reads, from x: (N, P, L, I, E), ``run`` elements at a time."""
    g = shape.geometry
    L, P, CHILDREN = map(specialized, (g.L, g.P, shape.children))

    @cuda.jit(device=True, forceinline=True)
    def number(n, p, l, i):
        return ((n * P + p) * L + l) * CHILDREN + i

    return make_read_votes(shape, run, number)


def make_read_votes(shape, run, number):
    """Device function ``votes`` that reads, from x, ``run`` elements at a time; ``number(n, p, l, i)`` counts x's votes."""
    M, J, OWN, held = shape.images, shape.parents, shape.own, np.dtype(stored(shape.dtype))
    read, _ = conversions(shape.dtype)
    (parent, _), element = make_parent(shape), make_element(shape)
    E3, M, J, OWN = map(specialized, (shape.geometry.E3, M, J, OWN))
    RUN, RUNS = map(specialized, (run, shape.own // run))

    @cuda.jit(device=True, forceinline=True)
    def votes(V, x, w, n, l, i, lane, N):
        loaded = local_array(RUN, held)
        for m in range(M):
            for j in range(J):
                vote = number(min(n + m, N - 1), parent(lane, j), l, i) * E3
                for k in range(RUNS):
                    load_run(RUN, loaded, x, at(vote + element(lane, k * RUN)))
                    for e in range(RUN):
                        V[(m * J + j) * OWN + k * RUN + e] = read(loaded[e])

    return votes


def make_votes(shape, is_stored):
    """Device function ``votes`` of a source, whatever its arrays begin at."""
    return (make_stored if is_stored else make_computed)(shape)
