"""The gradient of an iteration of EM routing on tensor cores: one pass over a part of the children.

As :mod:`numbacaps.routing.em_backward` has it, with mu' and variance' of the iteration before:

    D = gamma + sum of (V - mu) (dmu + dvar (V - mu))        omega = R a / S
    dV = omega (dmu + 2 dvar (V - mu)) - dlog (V - mu') / variance'
    dlog = omega D - R (sum of omega D over the parents)

Each iteration is a pass of its own, from the last one to the first. It gathers what the iteration before takes, the sums of
dlog (V - mu'), dlog (V - mu')^2 and dlog over the children, and adds what dV gives for x and w
(:mod:`numbacaps.routing.mma_sync.vote_gradient`) to what the iterations behind it have left. A form says which:

    even        the first iteration: R is 1 / P whatever the votes are, so there is no dlog, and nothing is gathered
    detached    another one, whose R count as constants
    whole       another one

Logarithms are to the base 2. V - mu' is a difference of the votes that the forward pass had, bit by bit: where all votes are
alike it is 0, though variances may be near epsilon.

Thread mapping: a block has some rows of places, and a part of the children; warps share them as in
:mod:`numbacaps.routing.mma_sync.em`. What is read of the parents is put into shared memory once, as lanes hold it. A child's
dw, of the block's places, is a part that is written at once; :func:`make_add_parts` adds the parts. Where they would take too
much memory, blocks of later launches add to the parts of earlier ones.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    cp_async_wait,
    float_of,
    load_run,
    local_array,
    meet_at,
    shared_address,
    short,
    store_run,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.powers import exp2, log2, reciprocal
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import at, cuda
from numbacaps.routing.mma_sync.dynamic import words_behind
from numbacaps.routing.mma_sync.parents import (
    make_hold,
    make_leave,
    make_read,
    words_of_records,
)
from numbacaps.routing.mma_sync.sharing import (
    make_softmax,
    make_sum_of_parent,
    make_total,
    words_of_sharing,
    words_of_totals,
)
from numbacaps.routing.mma_sync.stage import (
    make_ring,
    words_of_copies,
)
from numbacaps.routing.mma_sync.tile import Tile
from numbacaps.routing.mma_sync.vote_gradient import (
    columns_of_thread,
    make_column_of_w,
    make_columns,
    make_kernel_gradient,
    make_write_columns,
)
from numbacaps.routing.mma_sync.votes import (
    make_load_input,
    make_places,
    make_votes,
    words_of_input,
)

_LOG2_E = math.log2(math.e)
_SUMS = 2  # over all parents: of the activation's gradient, and omega D


@dataclass(frozen=True)
class GradientPass:
    """What the kernel is compiled for.

    Attributes
    ----------
    tile : numbacaps.routing.mma_sync.tile.Tile
    form : str
        "even", "detached" or "whole".
    """

    tile: Tile
    form: str

    @property
    def arrays(self):
        """Of the parents' elements that are read: mu, dmu and dvar; of all but the even form mu' and 1 / variance'."""
        return 3 if self.form == "even" else 5

    @property
    def groups(self):
        """Of warps that share no parents."""
        return self.tile.rows * self.tile.sets

    @property
    def of_set(self):
        """Words of the records of a set."""
        f = self.tile.fragments
        return self.tile.rows * f.across * 32 * (2 * f.elements + f.scalars)

    @property
    def parents(self):
        """The first word of shared memory in which a parent's elements lie, behind the stages or what takes their place."""
        return max(self.tile.stages * self.tile.stage, self.words_at_end)

    @property
    def words_at_end(self):
        """Words that the records of all sets but the first take."""
        return (self.tile.sets - 1) * self.of_set

    @property
    def of_softmax(self):
        """The first word in which the warps of a softmax meet."""
        of_row = self.arrays * words_behind(self.tile.fragments, 1)
        at_end = words_of_records(self.tile, 2 * self.tile.geometry.E3 + 1)
        return self.parents + max(self.tile.rows * of_row, at_end)

    @property
    def of_totals(self):
        """And of a sum over the parents."""
        return self.of_softmax + words_of_sharing(
            self.tile.fragments, self.tile.rows, self.tile.sets
        )

    @property
    def back(self):
        """The first word in which warps that share the parents add up columns, two calls in turns."""
        return self.of_totals + words_of_totals(self.tile.fragments, self.groups, _SUMS)

    @property
    def of_rows(self):
        """The first word in which rows add up dw, two calls in turns."""
        f = self.tile.fragments
        return self.back + 2 * self.groups * f.across * f.reached

    @property
    def words_of_rows(self):
        """Words that the dw of all rows but the first take, of one call."""
        t, f = self.tile, self.tile.fragments
        return t.sets * (t.rows - 1) * f.across * 32 * f.own

    @property
    def shared_bytes(self):
        """Shared memory of a block."""
        return 4 * (self.of_rows + 2 * self.words_of_rows)


def lanes_of_w(fragments):
    """Of four neighbouring lanes, those that have elements of dw."""
    return min(4, ceil_div(fragments.D2, 2))


def words_of_part(geometry, fragments):
    """Words of a block's part of dw: lanes' elements, side by side, by children and warps."""
    f = fragments
    return geometry.Q * f.across * 8 * lanes_of_w(f) * f.own


@cache
def make_e_step(made):
    """Device function ``e_step(B, R, away, V, shared, held, bias, group, warp, turn)``: R, its logarithm B, and V - mu'.

    What is read of the parents lies from word ``held`` on.
    """
    f = made.tile.fragments
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    IMAGES, SCALARS, OF_ARRAY = map(specialized, (f.images, f.scalars, words_behind(f, 1)))
    ZERO, HALF = np.float32(0), np.float32(_LOG2_E / 2)
    whole = make_sum_of_parent(f.split)
    softmax = make_softmax(f, made.tile.rows, made.tile.sets, made.of_softmax)

    @cuda.jit(device=True, forceinline=True)
    def e_step(B, R, away, V, shared, held, bias, group, warp, turn):
        mu, inverse = local_array(4, np.float32), local_array(4, np.float32)
        top, total = local_array(IMAGES, np.float32), local_array(IMAGES, np.float32)
        for s in range(SCALARS):
            B[s] = ZERO
        for i in range(DOWN):
            for tile in range(TILES):
                here = held + (i * TILES + tile) * 128
                load_run(4, mu, shared, here + 3 * OF_ARRAY)
                load_run(4, inverse, shared, here + 4 * OF_ARRAY)
                for quarter in range(4):
                    e = (i * TILES + tile) * 4 + quarter
                    away[e] = V[e] - mu[quarter]
                    s = tile // BESIDE * IMAGES + quarter // 2 % IMAGES
                    B[s] += away[e] * (away[e] * inverse[quarter])
        for s in range(SCALARS):
            B[s] = bias[s] - HALF * whole(B[s])
            R[s] = B[s]
        softmax(R, top, total, shared, group, warp, turn)
        for image in range(IMAGES):
            top[image] += log2(total[image])
            total[image] = reciprocal(total[image])
        for s in range(SCALARS):
            B[s] -= top[s % IMAGES]
            R[s] *= total[s % IMAGES]

    return e_step


@cache
def make_shares(made):
    """Device function ``share(omega, found, pull, V, B, weight, shared, held, log_s, gamma)``: what of a child each parent gets.

    ``found`` has R / S D of each scalar, which reaches the child's activation, then omega D; ``pull`` is dmu + 2 dvar (V - mu).
    """
    f = made.tile.fragments
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    IMAGES, SCALARS, OF_ARRAY = map(specialized, (f.images, f.scalars, words_behind(f, 1)))
    ZERO = np.float32(0)
    whole = make_sum_of_parent(f.split)

    @cuda.jit(device=True, forceinline=True)
    def share(omega, found, pull, V, B, weight, shared, held, log_s, gamma):
        mu, dmu = local_array(4, np.float32), local_array(4, np.float32)
        dvar = local_array(4, np.float32)
        for s in range(SCALARS):
            omega[s] = ZERO
        for i in range(DOWN):
            for tile in range(TILES):
                here = held + (i * TILES + tile) * 128
                load_run(4, mu, shared, here)
                load_run(4, dmu, shared, here + OF_ARRAY)
                load_run(4, dvar, shared, here + 2 * OF_ARRAY)
                for quarter in range(4):
                    e, s = (
                        (i * TILES + tile) * 4 + quarter,
                        tile // BESIDE * IMAGES + quarter // 2 % IMAGES,
                    )
                    away = V[e] - mu[quarter]
                    half = dmu[quarter] + away * dvar[quarter]
                    omega[s] += away * half
                    pull[e] = half + away * dvar[quarter]
        for s in range(SCALARS):
            inner = gamma[s] + whole(omega[s])
            part = exp2(B[s] - log_s[s])
            omega[s] = exp2(B[s] - log_s[s] + weight[s % IMAGES])
            # A parent without weight, or a child without: what is infinite takes no part. NaN is not 0.
            found[s] = part * inner if part != ZERO else ZERO
            found[SCALARS + s] = omega[s] * inner if omega[s] != ZERO else ZERO

    return share


@cache
def make_part_of_w(made):
    """Device functions ``(begin, end)`` of the dw of a child, which a block has a part of.

    ``begin(own, parts, q, warp, row, more)``: the first row goes on from what iterations behind have left, the others from 0.
    ``end(own, shared, parts, q, warp, row, of_set, turn)`` adds up the rows, and writes as :func:`make_add_parts` reads.
    """
    t, f = made.tile, made.tile.fragments
    Q, OWN, RUNS, LANES = map(specialized, (t.geometry.Q, f.own, f.own // 4, lanes_of_w(f)))
    ACROSS, ROWS, OF_ROW = map(specialized, (f.across, t.rows, f.across * 32 * f.own))
    FIRST, OF_TURN = map(specialized, (made.of_rows, made.words_of_rows))
    GROUPS, THREADS = map(specialized, (made.groups, 32 * f.across * t.rows))
    ZERO = np.float32(0)

    @cuda.jit(device=True, forceinline=True)
    def word(q, warp, lane):
        of_warp = (np.int64(cuda.blockIdx.x) * Q + q) * ACROSS + warp
        return (of_warp * LANES * 8 + lane // 4 * LANES + lane % 4) * OWN

    @cuda.jit(device=True, forceinline=True)
    def begin(own, parts, q, warp, row, more):
        lane, some = short(cuda.threadIdx.x % 32), local_array(4, np.float32)
        for k in range(OWN):
            own[k] = ZERO
        if more and row == 0 and lane % 4 < LANES:
            first = word(q, warp, lane)
            for run in range(RUNS):
                load_run(4, some, parts, first + run * 4)
                for k in range(4):
                    own[run * 4 + k] = some[k]

    @cuda.jit(device=True, forceinline=True)
    def end(own, shared, parts, q, warp, row, of_set, turn):
        lane, some = short(cuda.threadIdx.x % 32), local_array(4, np.float32)
        if ROWS > 1:
            mine = short(FIRST + turn % 2 * OF_TURN + of_set * (ROWS - 1) * OF_ROW)
            mine = short(mine + warp * (32 * OWN) + lane * 4)
            if row > 0:
                for run in range(RUNS):
                    for k in range(4):
                        some[k] = own[run * 4 + k]
                    store_run(4, shared, mine + (row - 1) * OF_ROW + run * 128, some)
            meet_at(2 + GROUPS + of_set, THREADS)
            if row == 0:
                for other in range(ROWS - 1):
                    for run in range(RUNS):
                        load_run(4, some, shared, mine + other * OF_ROW + run * 128)
                        for k in range(4):
                            own[run * 4 + k] += some[k]
        if row == 0 and lane % 4 < LANES:
            first = word(q, warp, lane)
            for run in range(RUNS):
                for k in range(4):
                    some[k] = own[run * 4 + k]
                store_run(4, parts, first + run * 4, some)

    return begin, end


@cache
def make_gather(made):
    """Device functions ``(reach, write)`` of the whole form.

    ``reach(V, pull, away, omega, d_log, moved, spread, weight, shared, held)``: V becomes dV, and the sums for the iteration
    before go on. ``write`` leaves them in ``partial``, those of all sets added up.
    """
    g, t, f = made.tile.geometry, made.tile, made.tile.fragments
    E = specialized(g.E3)
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    IMAGES, SCALARS, ELEMENTS = map(specialized, (f.images, f.scalars, f.elements))
    OF_ARRAY, ACROSS = map(specialized, (words_behind(f, 1), f.across))
    SETS, RECORDS = map(specialized, (t.sets, made.parents))
    leave, leave_numbers, copy = make_leave(t, 2 * g.E3 + 1)
    OF_SET, OF_WARP = map(specialized, (made.of_set, made.of_set // (t.rows * f.across)))

    @cuda.jit(device=True, forceinline=True)
    def reach(V, pull, away, omega, d_log, moved, spread, weight, shared, held):
        inverse = local_array(4, np.float32)
        for i in range(DOWN):
            for tile in range(TILES):
                here = held + (i * TILES + tile) * 128
                load_run(4, inverse, shared, here + 4 * OF_ARRAY)
                for quarter in range(4):
                    e, s = (
                        (i * TILES + tile) * 4 + quarter,
                        tile // BESIDE * IMAGES + quarter // 2 % IMAGES,
                    )
                    weighted = d_log[s] * away[e]
                    V[e] = omega[s] * pull[e] - weighted * inverse[quarter]
                    moved[e] += weighted
                    spread[e] += weighted * away[e]
        for s in range(SCALARS):
            weight[s] += d_log[s]

    @cuda.jit(device=True, forceinline=True)
    def write(partial, moved, spread, weight, shared, row, of_set, warp, block, places):
        """Where no thread reads stages or parents any more; ``block`` is the block's first place."""
        lane = short(cuda.threadIdx.x % 32)
        mine = (row * ACROSS + warp) * OF_WARP + lane
        if SETS > 1:
            if of_set > 0:
                to = (of_set - 1) * OF_SET + mine
                for e in range(ELEMENTS):
                    shared[at(to + e * 32)] = moved[e]
                    shared[at(to + (ELEMENTS + e) * 32)] = spread[e]
                for s in range(SCALARS):
                    shared[at(to + (2 * ELEMENTS + s) * 32)] = weight[s]
            cuda.syncthreads()  # every set's sums are there
            if of_set == 0:
                for other in range(SETS - 1):
                    first = other * OF_SET + mine
                    for e in range(ELEMENTS):
                        moved[e] += shared[at(first + e * 32)]
                        spread[e] += shared[at(first + (ELEMENTS + e) * 32)]
                    for s in range(SCALARS):
                        weight[s] += shared[at(first + (2 * ELEMENTS + s) * 32)]
        if of_set == 0:
            leave(shared, RECORDS, 0, moved, row, warp)
            leave(shared, RECORDS, E, spread, row, warp)
            leave_numbers(shared, RECORDS, 2 * E, weight, row, warp)
        cuda.syncthreads()  # all sums are there
        copy(partial, shared, RECORDS, cuda.blockIdx.y, block, places)

    return reach, write


@cache
def make_em_gradient(made):
    """Kernel of a pass."""
    tile = made.tile
    g, f = tile.geometry, tile.fragments
    gathers = made.form == "whole"
    E, CHILDREN = map(specialized, (g.E3, g.Q))
    ELEMENTS, SCALARS, IMAGES = map(specialized, (f.elements, f.scalars, f.images))
    GATHERED = specialized(f.elements if gathers else 1)
    HELD = specialized(1 if made.form == "even" else f.elements)
    ACROSS, ROWS, SETS = map(specialized, (f.across, tile.rows, tile.sets))
    PLACES, OF_WARP, TOGETHER = map(specialized, (tile.places, f.places, tile.children))
    TURNS, OF_CHILD, PITCH = map(specialized, (tile.turns, f.of_child, f.pitch))
    X_FIRST = specialized(tile.children * f.of_child)
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    FOURS, A_WORDS = map(specialized, (f.depth // 4, words_of_input(f)))
    PARENTS, OF_ROW = map(specialized, (made.parents, made.arrays * words_behind(f, 1)))
    OF_ARRAY, OF_LANES = map(specialized, (words_behind(f, 1), 32 * f.elements))
    OWN, NUMBERS = map(specialized, (f.own, 4 * f.down * f.steps))
    BACK, GROUPS, REACHED = map(specialized, (made.back, made.groups, f.across * f.reached))
    FOUND, SUMS = map(specialized, (_SUMS * f.scalars, _SUMS * f.images))
    EVEN, WHOLE = made.form == "even", gathers
    ZERO, ABSENT = np.float32(0), np.float32(-math.inf)
    NEVER, BASE = np.float32(math.inf), np.float32(_LOG2_E)
    UNIFORM_R = specialized_float32(-math.log2(g.P))
    BOUNDS = specialized(tile.threads), specialized(1)
    begin, next_stage = make_ring(tile, True)
    MINE, SOURCES = map(specialized, words_of_copies(tile))
    load, find, votes = make_load_input(f), make_places(f), make_votes(f)
    (elements, number), hold = make_read(tile), make_hold(tile)
    e_step, share = make_e_step(made), make_shares(made)
    total = make_total(f, made.groups, made.of_totals, _SUMS)
    (begin_part, end_part), (reach, write_sums) = make_part_of_w(made), make_gather(made)
    columns_of, (begin_columns, add_columns, end_columns) = (
        make_columns(f),
        make_write_columns(g, f),
    )
    WRITES = specialized(columns_of_thread(g, f))
    add = make_kernel_gradient(f)

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_em_gradient_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (P, I, E2)
        activations,  # in   (N, C, H, W)
        states,  # in   (iterations + 1, N * L, fields, P)
        slopes,  # in   (iterations, N * L, fields, P)
        partial,  # out  (parts, N * L, 2 E + 1, P), of the whole form
        columns,  # out  (N, L, I, E1)
        d_prior,  # out  (N, L, I)
        parts,  # out  (blocks of places, words)
        places,  # N * L
        count,  # children of a part
        t,
        before,  # blocks of places that other launches take
        more,  # columns and d_prior go on from what lies there
        more_of_dw,  # and so do parts
        kept,  # dw is wanted
    ):
        shared = cuda.shared.array(0, np.float32, CHUNK)  # as GradientPass says
        V, pull = local_array(ELEMENTS, np.float32), local_array(ELEMENTS, np.float32)
        away = local_array(HELD, np.float32)
        moved, spread = local_array(GATHERED, np.float32), local_array(GATHERED, np.float32)
        weight, d_log = local_array(SCALARS, np.float32), local_array(SCALARS, np.float32)
        B, R = local_array(SCALARS, np.float32), local_array(SCALARS, np.float32)
        omega, found = local_array(SCALARS, np.float32), local_array(FOUND, np.float32)
        bias, log_s = local_array(SCALARS, np.float32), local_array(SCALARS, np.float32)
        gamma, sums = local_array(SCALARS, np.float32), local_array(SUMS, np.float32)
        active, a = local_array(IMAGES, np.float32), local_array(A_WORDS, np.float32)
        own, reached = local_array(OWN, np.float32), local_array(NUMBERS, np.float32)
        mine, sources = local_array(MINE, np.int32), local_array(SOURCES, np.int64)
        at_words, prior = local_array(FOURS, np.int32), local_array(IMAGES, np.float32)
        reached_before = local_array(WRITES, np.float32)
        start = shared_address(shared)
        thread = short(cuda.threadIdx.x & 1023)
        lane, warp = short(thread % 32), short(thread // 32 % ACROSS)
        row, of_set = short(thread // (32 * ACROSS) % ROWS), short(thread // (32 * ACROSS * ROWS))
        group = short(of_set * ROWS + row)
        block = (np.int64(cuda.blockIdx.x) + before) * PLACES
        of_row = block + row * OF_WARP
        first = short(cuda.blockIdx.y * count)
        last = min(short(first + count), short(CHILDREN))
        steps = short((last - first + TOGETHER - 1) // TOGETHER)
        held = short(PARENTS + row * OF_ROW + warp * OF_LANES + lane * 4)
        find(at_words, warp)
        begin(mine, sources, shared, start, x, activations, w, block, places, first, last)
        if of_set == 0:
            elements(V, states, t + 1, 0, of_row, places, warp)
            hold(shared, held, V)
            elements(V, slopes, t, 0, of_row, places, warp)
            hold(shared, held + OF_ARRAY, V)
            elements(V, slopes, t, E, of_row, places, warp)
            hold(shared, held + 2 * OF_ARRAY, V)
            if not EVEN:
                elements(V, states, t, 0, of_row, places, warp)
                hold(shared, held + 3 * OF_ARRAY, V)
                elements(V, states, t, E, of_row, places, warp)
                hold(shared, held + 4 * OF_ARRAY, V)
        number(log_s, states, t + 1, 2 * E + 1, of_row, places, warp, NEVER, NEVER)
        number(gamma, slopes, t, 2 * E, of_row, places, warp, ZERO, ZERO)
        number(bias, states, t, 2 * E, of_row, places, warp, ABSENT, ZERO)
        for s in range(SCALARS):
            log_s[s] *= BASE
            bias[s] *= BASE
            weight[s] = ZERO
        for e in range(GATHERED):
            moved[e], spread[e] = ZERO, ZERO
        for step in range(steps):
            stage = next_stage(
                mine, sources, shared, start, x, activations, w, first, last, step, steps
            )
            for turn in range(TURNS):
                child = short(turn * SETS + of_set)
                i, time = short(first + step * TOGETHER + child), short(step * TURNS + turn)
                if i >= last:
                    continue
                begin_part(own, parts, i, warp, row, more_of_dw and kept)
                begin_columns(reached_before, columns, i, of_row, places, more)
                for image in range(IMAGES):
                    place = of_row + lane // 4 + 8 * image
                    prior[image] = ZERO
                    if more and lane % 4 == 0 and warp == 0 and place < places:
                        prior[image] = d_prior[at(place * CHILDREN + i)]
                of_input = short(stage + X_FIRST + (child * PLACES + row * OF_WARP) * PITCH)
                of_kernel = short(stage + child * OF_CHILD)
                load(a, shared, of_input)
                votes(V, a, shared, of_kernel, at_words)
                for image in range(IMAGES):
                    place = lane // 4 + 8 * image
                    active[image] = log2(shared[at(of_input + place * PITCH + PITCH - 4)])
                if EVEN:
                    for s in range(SCALARS):
                        B[s] = float_of(UNIFORM_R)
                else:
                    e_step(B, R, away, V, shared, held, bias, group, warp, time)
                share(omega, found, pull, V, B, active, shared, held, log_s, gamma)
                total(found, sums, shared, group, warp, time)
                if lane % 4 == 0 and warp == 0:
                    for image in range(IMAGES):
                        place = of_row + lane // 4 + 8 * image
                        if place < places:
                            d_prior[at(place * CHILDREN + i)] = prior[image] + sums[image]
                if WHOLE:
                    for s in range(SCALARS):
                        d_log[s] = found[SCALARS + s] - R[s] * sums[IMAGES + s % IMAGES]
                    reach(V, pull, away, omega, d_log, moved, spread, weight, shared, held)
                else:
                    for k in range(DOWN):
                        for tile in range(TILES):
                            for quarter in range(4):
                                e = (k * TILES + tile) * 4 + quarter
                                s = tile // BESIDE * IMAGES + quarter // 2 % IMAGES
                                V[e] = omega[s] * pull[e]
                columns_of(reached, V, shared, of_kernel, warp)
                back = short(BACK + (time % 2 * GROUPS + group) * REACHED)
                add_columns(reached, shared, back, group, warp)
                end_columns(columns, reached_before, shared, back, i, of_row, places)
                if kept:
                    add(own, V, shared, of_input)
                    end_part(own, shared, parts, i, warp, row, of_set, time)
        if WHOLE:
            cp_async_wait(0)
            cuda.syncthreads()  # no thread reads a stage any more
            write_sums(partial, moved, spread, weight, shared, row, of_set, warp, block, places)

    return routing_em_gradient_kernel


@cache
def make_add_parts(geometry, fragments):
    """Kernel that adds up the blocks' parts of dw, in the order of the blocks.

    Thread mapping: one thread four neighbouring elements of a lane.
    """
    f, words = fragments, words_of_part(geometry, fragments)
    E2, WORDS, RUNS, ACROSS = map(specialized, (geometry.E2, words, f.own // 4, f.across))
    LANES, STEPS = map(specialized, (lanes_of_w(f), f.steps))
    P, Q, TILES = map(specialized, (geometry.P, geometry.Q, f.tiles))
    D2, D3, column_of = *map(specialized, (geometry.D2, geometry.D3)), make_column_of_w(f)

    @kept_on_disk
    @cuda.jit
    def routing_em_add_parts_kernel(
        parts,  # in   (blocks of places, words)
        dw,  # in and out  (P, Q, E2)
        blocks,
        more,  # dw goes on from what is there
    ):
        some, total = local_array(4, np.float32), local_array(4, np.float32)
        run = cuda.grid(1)
        if run * 4 >= WORDS:
            return
        for k in range(4):
            total[k] = np.float32(0)
        for part in range(blocks):
            load_run(4, some, parts, part * np.int64(WORDS) + run * 4)
            for k in range(4):
                total[k] += some[k]
        number = short(run // RUNS)
        lane = short(number % (8 * LANES) // LANES * 4 + number % LANES)
        warp, q = short(number // (8 * LANES) % ACROSS), short(number // (8 * LANES * ACROSS))
        pair, n = short(run % RUNS // STEPS), short(run % RUNS % STEPS)
        for half in range(2):
            tile = 2 * pair + half
            p, d3 = column_of(lane, warp, tile)
            for k in range(2):
                d2 = n * 8 + 2 * (lane % 4) + k
                if tile < TILES and p < P and d3 < D3 and d2 < D2:
                    to = (np.int64(p) * Q + q) * E2 + d2 * D3 + d3
                    one = total[2 * half + k]
                    dw[at(to)] = dw[at(to)] + one if more else one

    return routing_em_add_parts_kernel
