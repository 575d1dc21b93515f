"""The gradients of w and x in dynamic routing on tensor cores: a group of warps owns a child, and walks over the places.

With c and db of every iteration (:mod:`numbacaps.routing.dynamic_backward`), computed from votes as in a pass:

    dV = sum over the iterations of c ds + db A

which is multiplied by x and w (:mod:`numbacaps.routing.mma_sync.vote_gradient`).

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
    float_of,
    let_next_start,
    load_run,
    local_array,
    shared_address,
    short,
    unroll_loops,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import at, cuda
from numbacaps.routing.mma_sync.dynamic import make_slopes, words_behind
from numbacaps.routing.mma_sync.sharing import words_of_sharing, words_of_totals
from numbacaps.routing.mma_sync.stage import (
    count_of_w,
    counts_of_x,
    make_copies_of_w,
    make_copies_of_x,
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
    def kernel(self):
        """Words of shared memory that the kernels take."""
        return self.children * self.tile.fragments.of_child

    @property
    def stage(self):
        """Words of a stage: the inputs, then what is read of the parents."""
        f = self.tile.fragments
        return self.children * f.places * f.pitch + self.arrays * words_behind(f, 1)

    @property
    def shared_bytes(self):
        """Shared memory of a block."""
        f, sets = self.tile.fragments, self.children
        meeting = words_of_sharing(f, sets, 1) + words_of_totals(f, sets)
        return 4 * (self.kernel + STAGES * self.stage + meeting + 2 * sets * f.across * f.reached)


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
def make_write_part(owners):
    """Device function ``write_part(dw, in_dw, parts, own, part, q, warp)``: a lane's elements of the dw of child ``q``."""
    g, f = owners.tile.geometry, owners.tile.fragments
    P, Q, E2, D2, D3 = map(specialized, (g.P, g.Q, g.E2, g.D2, g.D3))
    PAIRS, STEPS, TILES = map(specialized, (f.pairs, f.steps, f.tiles))
    column_of = make_column_of_w(f)

    @cuda.jit(device=True, forceinline=True)
    def write_part(dw, in_dw, parts, own, part, q, warp):
        lane = short(cuda.threadIdx.x % 32)
        before = max(part - in_dw, 0) * P
        for pair in range(PAIRS):
            for half in range(2):
                tile = 2 * pair + half
                p, d3 = column_of(lane, warp, tile)
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
    REACHED, BACK = map(specialized, (meeting + of_softmax, f.reached))
    OWN, NUMBERS = map(specialized, (f.own, 4 * f.down * f.steps))
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
    reach, write_part = make_reach(owners), make_write_part(owners)
    _, add_columns, end_columns = make_write_columns(g, f)
    columns_of, add = make_columns(f), make_kernel_gradient(f)
    WRITES = specialized(columns_of_thread(g, f))

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
        R, before = local_array(NUMBERS, np.float32), local_array(WRITES, np.float32)
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
        for turn in range(WRITES):  # columns are written once
            before[turn] = ZERO
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
                    add_columns(R, shared, back, child, warp)
                    end_columns(columns, before, shared, back, q, block, places)
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
