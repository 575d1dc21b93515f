"""The gradients of w and x in dynamic routing on tensor cores: a group of warps owns a child, and walks over the places.

With c and db of every iteration (:mod:`numbacaps.routing.dynamic_backward`), computed from votes as in a pass:

    dV = sum over the iterations of c ds + db A
    dw = sum over the places of x^T dV
    columns = dV w^T, summed over the parents: the gradient of the capsule under the tap at a place

A tensor core hands out dV by rows of places. That is the left factor of dV w^T as it lies: a lane has two columns side by side where a
factor's are four apart, but a sum may take its terms in any order. For dw the places have to lie along the sum: lanes exchange 8 x 8 elements.

Thread mapping: a block has some children at a time, a group of warps each, and walks over rows of places. The children's kernels
stay in shared memory; the inputs and what is read of the parents come a row of places at a time. Steps are counted children by
children, and each block has equally many of them, so a block may end in the middle of some children's places and the next one goes on:
of their dw each has a part, which :func:`make_add_parts` adds in the order of the blocks. The first part lies in dw itself, unless
there are sums in it that go on.
"""

import math
from dataclasses import dataclass
from functools import cache
from math import gcd

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    cp_async,
    cp_async_commit,
    cp_async_wait,
    cut_tf32,
    float_of,
    let_next_start,
    load_run,
    local_array,
    meet_at,
    mma,
    shared_address,
    short,
    shuffle,
    unroll_loops,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import at, cuda
from numbacaps.device.tf32 import nearer
from numbacaps.routing.mma_sync.dynamic import make_slopes, words_behind
from numbacaps.routing.mma_sync.sharing import words_of_sharing, words_of_totals
from numbacaps.routing.mma_sync.stage import (
    count_of_w,
    counts_of_x,
    make_copies_of_w,
    make_copies_of_x,
    make_swizzle,
)
from numbacaps.routing.mma_sync.tile import Tile
from numbacaps.routing.mma_sync.votes import (
    make_load_input,
    make_places,
    make_votes,
    words_of_input,
)

STAGES = 2


@dataclass(frozen=True)
class Owners:
    """What the kernel is compiled for.

    Attributes
    ----------
    tile : numbacaps.routing.mma_sync.tile.Tile
        One row of places, and as many sets as a block has children.
    has_even : bool
        A gradient passes through the first iteration, whose couplings are all the same.
    turns : int
        Other iterations that it passes through.
    is_whole : bool
        It passes through the couplings, too: db counts.
    """

    tile: Tile
    has_even: bool
    turns: int
    is_whole: bool

    @property
    def arrays(self):
        """That are read of the parents: ds of the first iteration, A and ds of the others."""
        return self.has_even + 2 * self.turns

    @property
    def children(self):
        """Of a block."""
        return self.tile.sets

    @property
    def steps(self):
        """Products of 8 that D2 takes."""
        return max(1, self.tile.fragments.depth // 8)

    @property
    def pairs(self):
        """Of tiles."""
        return ceil_div(self.tile.fragments.tiles, 2)

    @property
    def own(self):
        """Elements of dw that a lane has."""
        return 4 * self.pairs * self.steps

    @property
    def kernel(self):
        """Words of shared memory that the kernels take."""
        return self.children * self.tile.fragments.of_child

    @property
    def stage(self):
        """Words of a stage: the inputs, then what is read of the parents."""
        f = self.tile.fragments
        return self.children * f.places * f.pitch + self.arrays * words_behind(f, 1)

    @property
    def reached(self):
        """Words of what a warp adds of columns."""
        f = self.tile.fragments
        return f.places * f.rows * 8 * self.steps

    @property
    def shared_bytes(self):
        """Shared memory of a block."""
        f, sets = self.tile.fragments, self.children
        meeting = words_of_sharing(f, sets, 1) + words_of_totals(f, sets)
        return 4 * (
            self.kernel + STAGES * self.stage + meeting + 2 * sets * f.across * self.reached
        )


@cuda.jit(device=True, forceinline=True)
def _transposed(rows, first, second):
    """Transpose 8 x 8 elements of a warp.

    A lane gives columns ``2 (lane % 4)`` and the next of row ``lane // 4``; it gets rows ``2 (lane % 4)`` and the next of
    column ``lane // 4``.
    """
    lane = cuda.threadIdx.x % 32
    is_odd = lane // 4 % 2 == 1
    # Lanes of neighbouring rows exchange an element: each then has one column of both rows.
    other = shuffle(first if is_odd else second, lane ^ 4)
    upper = other if is_odd else first
    lower = second if is_odd else other
    source = (lane % 4 * 2 + lane // 4 % 2) * 4 + lane // 8
    rows[0], rows[1] = shuffle(upper, source), shuffle(lower, source)


@cache
def make_multiply(fragments):
    """Device function ``multiply(sums, to, a, b)``: one product more; ``a`` has four numbers, ``b`` two, in float32."""
    THREE = fragments.terms == 3

    @cuda.jit(device=True, forceinline=True)
    def multiply(sums, to, a, b):
        a_high, a_low = local_array(4, np.float32), local_array(4, np.float32)
        b_high, b_low = local_array(2, np.float32), local_array(2, np.float32)
        for k in range(4):
            a_high[k] = a[k] if THREE else nearer(a[k])
            a_low[k] = a[k] - cut_tf32(a[k])
        for k in range(2):
            b_high[k] = b[k] if THREE else nearer(b[k])
            b_low[k] = b[k] - cut_tf32(b[k])
        if THREE:
            mma(sums, to, a_low, 0, b_high, 0)
            mma(sums, to, a_high, 0, b_low, 0)
        mma(sums, to, a_high, 0, b_high, 0)

    return multiply


@cache
def make_reach(owners):
    """Device function ``reach(V, C, db, shared, parents)``: V becomes dV, by the couplings C and db of each turn.

    What is read of the parents lies from word ``parents`` on.
    """
    f = owners.tile.fragments
    TILES, SCALARS, IMAGES, BESIDE = map(specialized, (f.tiles, f.scalars, f.images, f.beside))
    OF_ARRAY, TURNS = map(specialized, (words_behind(f, 1), owners.turns))
    BLOCKS = specialized(f.down * f.tiles)
    EVEN, WHOLE, FIRST = owners.has_even, owners.is_whole, specialized(int(owners.has_even))
    ZERO, SHARE = np.float32(0), specialized_float32(1 / f.P)

    @cuda.jit(device=True, forceinline=True)
    def reach(V, C, db, shared, parents):
        unroll_loops()
        four, dV = local_array(4, np.float32), local_array(4, np.float32)
        for block in range(BLOCKS):
            for k in range(4):
                dV[k] = ZERO
            if EVEN:
                load_run(4, four, shared, parents + block * 128)
                for k in range(4):
                    dV[k] = four[k] * float_of(SHARE)
            for turn in range(TURNS):
                of_scalar = turn * SCALARS + block % TILES // BESIDE * IMAGES
                where = parents + (FIRST + 2 * turn) * OF_ARRAY + block * 128
                load_run(4, four, shared, where + OF_ARRAY)
                for k in range(4):
                    dV[k] += C[of_scalar + k // 2 % IMAGES] * four[k]
                if WHOLE:
                    load_run(4, four, shared, where)
                    for k in range(4):
                        dV[k] += db[of_scalar + k // 2 % IMAGES] * four[k]
            for k in range(4):
                V[block * 4 + k] = dV[k]

    return reach


@cache
def make_columns(owners):
    """Device function ``columns_of(R, dV, shared, child, warp)``: R = dV w^T, of the kernel at word ``child``."""
    f = owners.tile.fragments
    DOWN, TILES, GROUPS, BESIDE = map(specialized, (f.down, f.tiles, f.groups, f.beside))
    DEPTH, WIDTH, SPLIT, COLUMNS = map(specialized, (f.depth, f.width, f.split, f.columns))
    TOGETHER, OF_GROUP = map(specialized, (f.together, f.together * f.depth * f.width))
    STEPS, NUMBERS = map(specialized, (owners.steps, 4 * f.down * owners.steps))
    OF_STEP, HALF = map(specialized, (2 * f.beside, f.is_half))
    RUN = specialized(gcd(f.beside, 4))  # words of one load
    ZERO = np.float32(0)
    swizzle, multiply = make_swizzle(f), make_multiply(f)

    @cuda.jit(device=True, forceinline=True)
    def columns_of(R, dV, shared, child, warp):
        a, b = local_array(4, np.float32), local_array(2, np.float32)
        words, some = local_array(OF_STEP, np.float32), local_array(RUN, np.float32)
        lane = short(cuda.threadIdx.x % 32)
        for k in range(NUMBERS):
            R[k] = ZERO
        for step in range(STEPS):
            d2 = short(step * 8 + lane // 4)
            is_there = HALF == 0 or d2 < DEPTH
            d2 = short(d2 % DEPTH)
            first = short(warp * GROUPS * TOGETHER + lane % 4 // SPLIT)
            first = short(child + (first * DEPTH + d2) * WIDTH)
            for group in range(GROUPS):
                for side in range(2):
                    d3 = short(lane % 4 % SPLIT * COLUMNS + side * BESIDE)
                    word = short(first + group * OF_GROUP + (d3 // 4 ^ swizzle(d2)) * 4 + d3 % 4)
                    for run in range(BESIDE // RUN):
                        load_run(RUN, some, shared, word + run * RUN)
                        for i in range(RUN):
                            words[side * BESIDE + run * RUN + i] = some[i] if is_there else ZERO
                for beside in range(BESIDE):
                    tile = group * BESIDE + beside
                    b[0], b[1] = words[beside], words[BESIDE + beside]
                    for i in range(DOWN):
                        e = (i * TILES + tile) * 4
                        a[0], a[1], a[2], a[3] = dV[e], dV[e + 2], dV[e + 1], dV[e + 3]
                        multiply(R, (i * STEPS + step) * 4, a, b)

    return columns_of


@cache
def make_write_columns(owners):
    """Device function ``write(columns, R, shared, back, child, warp, q, block, places)``: columns of child ``q`` at a row of places.

    Warps that share the parents add up in shared memory, from word ``back`` on; ``block`` is the row's first place.
    """
    g, f = owners.tile.geometry, owners.tile.fragments
    Q, E1, D2, ROWS = map(specialized, (g.Q, g.E1, g.D2, f.rows))
    ACROSS, PLACES, DOWN = map(specialized, (f.across, f.places, f.down))
    STEPS, OF_ROW, BACK = map(specialized, (owners.steps, 8 * owners.steps, owners.reached))
    TOGETHER, ZERO = specialized(32 * f.across), np.float32(0)
    TURNS = specialized(ceil_div(f.places * g.E1, 32 * f.across))

    @cuda.jit(device=True, forceinline=True)
    def write(columns, R, shared, back, child, warp, q, block, places):
        thread = short(cuda.threadIdx.x & 1023)
        lane = short(thread % 32)
        within = short(thread % TOGETHER)
        for i in range(DOWN):
            for side in range(2):
                place = lane // 4 + (8 * side if ROWS == 1 else 0)
                d1 = (2 * i + side) % ROWS
                to = back + warp * BACK + (place * ROWS + d1) * OF_ROW
                for n in range(STEPS):
                    for k in range(2):
                        word = to + n * 8 + 2 * (lane % 4) + k
                        shared[at(word)] = R[(i * STEPS + n) * 4 + 2 * side + k]
        meet_at(2 + child, TOGETHER)
        for turn in range(TURNS):
            k = short(within + turn * TOGETHER)
            place, e = k // E1, k % E1
            if place < PLACES and block + place < places and q < Q:
                word = back + (place * ROWS + e // D2) * OF_ROW + e % D2
                added = ZERO
                for one in range(ACROSS):
                    added += shared[at(word + one * BACK)]
                columns[at(((block + place) * Q + q) * E1 + e)] = added

    return write


@cache
def make_write_part(owners):
    """Device function ``write_part(dw, in_dw, parts, own, part, q, warp)``: a lane's elements of the dw of child ``q``."""
    g, f = owners.tile.geometry, owners.tile.fragments
    P, Q, E2, D2, D3 = map(specialized, (g.P, g.Q, g.E2, g.D2, g.D3))
    TILES, BESIDE, SPLIT = map(specialized, (f.tiles, f.beside, f.split))
    COLUMNS, GROUPS, PARENTS = map(specialized, (f.columns, f.groups, f.together))
    PAIRS, STEPS = map(specialized, (owners.pairs, owners.steps))

    @cuda.jit(device=True, forceinline=True)
    def write_part(dw, in_dw, parts, own, part, q, warp):
        lane = short(cuda.threadIdx.x % 32)
        column = lane // 4
        before = max(part - in_dw, 0) * P
        for pair in range(PAIRS):
            for half in range(2):
                tile = 2 * pair + half
                p = (warp * GROUPS + tile // BESIDE) * PARENTS + column // 2 // SPLIT
                d3 = column // 2 % SPLIT * COLUMNS + column % 2 * BESIDE + tile % BESIDE
                if tile < TILES and p < P and d3 < D3:
                    for n in range(STEPS):
                        for k in range(2):
                            d2 = n * 8 + 2 * (lane % 4) + k
                            if d2 < D2:
                                element = d2 * D3 + d3
                                value = own[(pair * STEPS + n) * 4 + 2 * half + k]
                                if part < in_dw:
                                    dw[at((p * Q + q) * E2 + element)] = value
                                else:
                                    parts[at(((before + p) * Q + q) * E2 + element)] = value

    return write_part


@cache
def make_kernel_gradient(owners):
    """Device function ``add(own, dV, shared, input)``: own += x^T dV, of the capsules at word ``input``."""
    f = owners.tile.fragments
    DOWN, TILES, STEPS = map(specialized, (f.down, f.tiles, owners.steps))
    ROWS, PITCH, DEPTH = map(specialized, (f.rows, f.pitch, f.depth))
    OF_X, HALF, PAIRS = map(specialized, (2 * owners.steps, f.is_half, owners.pairs))
    ZERO = np.float32(0)
    multiply = make_multiply(f)

    @cuda.jit(device=True, forceinline=True)
    def add_pairs(own, dV, x, i, side):
        unroll_loops()
        a, b = local_array(4, np.float32), local_array(2, np.float32)
        rows = local_array(2, np.float32)
        for pair in range(PAIRS):
            for half in range(2):
                tile = 2 * pair + half
                if tile < TILES:
                    e = (i * TILES + tile) * 4 + 2 * side
                    _transposed(rows, dV[e], dV[e + 1])
                    a[half], a[half + 2] = rows[0], rows[1]
                else:
                    a[half], a[half + 2] = ZERO, ZERO
            for step in range(STEPS):
                b[0], b[1] = x[2 * step], x[2 * step + 1]
                multiply(own, (pair * STEPS + step) * 4, a, b)

    @cuda.jit(device=True, forceinline=True)
    def add(own, dV, shared, input):
        x = local_array(OF_X, np.float32)
        lane = short(cuda.threadIdx.x % 32)
        for i in range(DOWN):
            for side in range(2):
                for step in range(STEPS):
                    d2 = short(step * 8 + lane // 4)
                    for k in range(2):
                        place = short(2 * (lane % 4) + k + (8 * side if ROWS == 1 else 0))
                        row = short((2 * i + side) % ROWS)
                        word = short(input + place * PITCH + row * DEPTH + d2 % DEPTH)
                        is_there = HALF == 0 or d2 < DEPTH
                        x[2 * step + k] = shared[at(word)] if is_there else ZERO
                add_pairs(own, dV, x, i, side)

    return add


@cache
def make_dynamic_gradient(owners):
    """Kernel that owns the children's kernels."""
    tile = owners.tile
    g, f = tile.geometry, tile.fragments
    meeting = owners.kernel + STAGES * owners.stage
    of_softmax = words_of_sharing(f, owners.children, 1) + words_of_totals(f, owners.children)
    Q, CHILDREN, OF_CHILD = map(specialized, (g.Q, owners.children, f.of_child))
    ELEMENTS, SCALARS, PITCH = map(specialized, (f.elements, f.scalars, f.pitch))
    ACROSS, THREADS, PLACES = map(specialized, (f.across, tile.threads, f.places))
    HELD, OF_ARRAY = map(specialized, (32 * f.elements, words_behind(f, 1)))
    OF_PARENTS = specialized(owners.arrays * words_behind(f, 1))
    X_WORDS = specialized(owners.children * f.places * f.pitch)
    STAGE, RING, WORDS = map(specialized, (owners.stage, owners.kernel, meeting))
    REACHED, BACK = map(specialized, (meeting + of_softmax, owners.reached))
    OWN, NUMBERS = map(specialized, (owners.own, 4 * f.down * owners.steps))
    TURNS, COUPLED = map(specialized, (owners.turns, max(1, owners.turns) * f.scalars))
    FIRST = specialized(int(owners.has_even))
    A_WORDS, FOURS = map(specialized, (words_of_input(f), f.depth // 4))
    of_x = 3 * sum(counts_of_x(tile))
    MINE, OF_W, SOURCES = map(specialized, (of_x, 3 * count_of_w(tile), count_of_w(tile)))
    ZERO, NATURAL = np.float32(0), np.float32(math.log(2))
    BOUNDS = (specialized(tile.threads), 1)
    begin_kernel, copy_kernel = make_copies_of_w(tile)
    begin_input, copy_input = make_copies_of_x(tile, False)
    load, find, votes = make_load_input(f), make_places(f), make_votes(f)
    slope = make_slopes(f, owners.children, meeting)
    reach, write, write_part = (
        make_reach(owners),
        make_write_columns(owners),
        make_write_part(owners),
    )
    columns_of, add = make_columns(owners), make_kernel_gradient(owners)

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_dynamic_gradient_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (P, Q, E2)
        held,  # in   (rows of places, arrays, words): ds of the first iteration, A times log2(e) and ds of the others
        columns,  # out  (N, L, Q, E1)
        dw,  # out  (P, Q, E2), where parts are in it
        parts,  # out  (parts, P, Q, E2), the others
        places,  # N * L
        count,  # steps of a block
        in_dw,  # parts that lie in dw: 1 or 0
        kept,  # parts that are written: all, or 0 where dw is not wanted
    ):
        shared = cuda.shared.array(0, np.float32, CHUNK)  # kernels, stages, where warps meet
        V, own = local_array(ELEMENTS, np.float32), local_array(OWN, np.float32)
        B, D = local_array(SCALARS, np.float32), local_array(SCALARS, np.float32)
        C, db = local_array(COUPLED, np.float32), local_array(COUPLED, np.float32)
        a, at_words = local_array(A_WORDS, np.float32), local_array(FOURS, np.int32)
        R = local_array(NUMBERS, np.float32)
        mine, of_kernel = local_array(MINE, np.int32), local_array(OF_W, np.int32)
        sources = local_array(SOURCES, np.int64)
        start = shared_address(shared)
        thread = short(cuda.threadIdx.x & 1023)
        lane, warp = short(thread % 32), short(thread // 32 % ACROSS)
        child = short(thread // (32 * ACROSS))
        rows = short((places + PLACES - 1) // PLACES)
        now = np.int64(cuda.blockIdx.x) * count
        end = min(now + count, np.int64(rows) * ((Q + CHILDREN - 1) // CHILDREN))
        for word in range(thread, WORDS, THREADS):  # what is filled up is zeros
            shared[at(word)] = ZERO
        find(at_words, warp)
        wait_for_last()  # what is held is there
        let_next_start()
        while now < end:
            first = short(now // rows * CHILDREN)
            q, begin = short(first + child), short(now % rows)
            steps = short(min(end - now, np.int64(rows - begin)))
            for k in range(OWN):
                own[k] = ZERO
            cuda.syncthreads()  # before a copy is begun
            begin_kernel(of_kernel, sources, first)
            copy_kernel(shared, start, 0, w, of_kernel, sources, first, Q, 0)
            for step in range(-1, steps):
                if step + 1 < steps:
                    row = np.int64(begin + step + 1)
                    to = short(RING + (step + 1) % STAGES * STAGE)
                    begin_input(mine, row * PLACES, places)
                    copy_input(shared, start, to, x, x, mine, first, Q)
                    for word in range(thread * 4, OF_PARENTS, THREADS * 4):
                        there = start + 4 * (to + X_WORDS + word)
                        cp_async(16, shared, there, held, row * OF_PARENTS + word, True)
                cp_async_commit()
                if step >= 0:
                    stage = short(RING + step % STAGES * STAGE)
                    of_input = short(stage + child * PLACES * PITCH)
                    of_parents = short(stage + X_WORDS + warp * HELD + lane * 4)
                    load(a, shared, of_input)
                    votes(V, a, shared, short(child * OF_CHILD), at_words)
                    for turn in range(TURNS):
                        where = short(of_parents + (FIRST + 2 * turn) * OF_ARRAY)
                        slope(B, D, V, x, shared, where, q, child, warp, step * TURNS + turn)
                        for s in range(SCALARS):
                            C[turn * SCALARS + s] = B[s]
                            db[turn * SCALARS + s] = D[s] * NATURAL
                    reach(V, C, db, shared, of_parents)
                    columns_of(R, V, shared, short(child * OF_CHILD), warp)
                    back = short(REACHED + (step % 2 * CHILDREN + child) * (ACROSS * BACK))
                    block = np.int64(begin + step) * PLACES
                    write(columns, R, shared, back, child, warp, q, block, places)
                    add(own, V, shared, of_input)
                cp_async_wait(0)
                cuda.syncthreads()  # the next stage has arrived, and all threads have read this one
            part = cuda.blockIdx.x - now // rows * rows // count
            if q < Q and part < kept:
                write_part(dw, in_dw, parts, own, part, q, warp)
            now += steps

    return routing_dynamic_gradient_kernel


@cache
def make_add_parts(g, children):
    """Kernel that adds the blocks' parts of dw, in the order of the blocks, each of which has ``children`` children at a time.

    Thread mapping: one thread up to four elements of a kernel capsule.
    """
    RUN = specialized(gcd(g.E2, 4))
    Q, E2, CHILDREN, SIZE = map(specialized, (g.Q, g.E2, children, g.P * g.Q * g.E2))

    @kept_on_disk
    @cuda.jit
    def routing_add_parts_kernel(
        parts,  # in   (parts, P, Q, E2), those that do not lie in dw
        dw,  # in and out  (P, Q, E2)
        rows,  # steps that the children of a block take
        count,  # steps of a block
        in_dw,  # parts that lie in dw: 1 or 0
        more,  # dw goes on from what is there: that part, or other sums
    ):
        some, total = local_array(RUN, np.float32), local_array(RUN, np.float32)
        i = cuda.grid(1) * RUN
        if i >= SIZE:
            return
        first = short(i // E2 % Q // CHILDREN) * short(rows)
        last = short(first + rows - 1) // short(count) - first // short(count)
        for k in range(RUN):
            total[k] = dw[at(i + k)] if more else np.float32(0)
        for part in range(last + 1 - in_dw):
            load_run(RUN, some, parts, part * np.int64(SIZE) + i)
            for k in range(RUN):
                total[k] += some[k]
        for k in range(RUN):
            dw[at(i + k)] = total[k]

    return routing_add_parts_kernel
