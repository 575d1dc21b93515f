"""A pass of dynamic routing on tensor cores: the sum of a weight times u over a part of the children, for each parent.

The weights are a form's:

    Even        1 / P: the couplings of the first iteration, where no logits are given. Nothing is read of the parents
    Couplings   c, the softmax of b = prior + <u, A>, where A is the sum of v so far: s = sum of c u
    Slopes      db = c (<u, ds> - sum over the parents of c <u, ds>), where ds is the gradient of s: backward, dA = sum of db u

What a form reads of the parents lies as lanes hold it, A times log2(e): logits are to the base 2.

Thread mapping: a warp has 8 or 16 places and all parents, or a part of them; sets of warps take the children of a stage in turns.
"""

import math
from dataclasses import dataclass
from functools import cache

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
    store_run,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.powers import reciprocal
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import at, cuda
from numbacaps.routing.mma_sync.fragments import make_where
from numbacaps.routing.mma_sync.sharing import (
    make_softmax,
    make_sum_of_parent,
    make_total,
    words_of_sharing,
)
from numbacaps.routing.mma_sync.stage import (
    make_ring,
    words_of_copies,
)
from numbacaps.routing.mma_sync.votes import (
    make_load_input,
    make_places,
    make_votes,
    words_of_input,
)


def words_behind(fragments, rows):
    """Words of shared memory for an array of the parents of a block's places, as lanes hold it."""
    return rows * fragments.across * 32 * fragments.elements


def words_at_end(g, places, sets):
    """Words that the sums of all sets take."""
    return sets * places * (g.P * g.E3 + 4)


@cache
def make_dots(fragments):
    """Device function ``dots(B, V, shared, held)``: <u, a> of a child's votes and an array a, which lies from word ``held`` on."""
    f = fragments
    DOWN, TILES, IMAGES = map(specialized, (f.down, f.tiles, f.images))
    SCALARS, BESIDE = map(specialized, (f.scalars, f.beside))
    ZERO = np.float32(0)
    whole = make_sum_of_parent(f.split)

    @cuda.jit(device=True, forceinline=True)
    def dots(B, V, shared, held):
        four = local_array(4, np.float32)
        for s in range(SCALARS):
            B[s] = ZERO
        for i in range(DOWN):
            for tile in range(TILES):
                load_run(4, four, shared, held + (i * TILES + tile) * 128)
                for quarter in range(4):
                    s = tile // BESIDE * IMAGES + quarter // 2 % IMAGES
                    B[s] += V[(i * TILES + tile) * 4 + quarter] * four[quarter]
        for s in range(SCALARS):
            B[s] = whole(B[s])

    return dots


@cache
def make_couplings(fragments, groups, words, has_prior):
    """Device function ``couple(B, V, prior, shared, held, i, group, warp, turn)``: B becomes the couplings of child ``i``.

    ``groups`` of warps, each with all parents, meet from word ``words`` of shared memory on.
    """
    f = fragments
    P, IMAGES = map(specialized, (f.P, f.images))
    SCALARS, BESIDE = map(specialized, (f.scalars, f.beside))
    BASE, ABSENT = np.float32(math.log2(math.e)), np.float32(-math.inf)
    PRIOR, NONE_ABSENT = has_prior, specialized(f.parents == f.P)
    _, parent_of, _ = make_where(f)
    dots, softmax = make_dots(f), make_softmax(f, groups, 1, words)

    @cuda.jit(device=True, forceinline=True)
    def couple(B, V, prior, shared, held, i, group, warp, turn):
        top, total = local_array(IMAGES, np.float32), local_array(IMAGES, np.float32)
        lane = cuda.threadIdx.x % 32
        dots(B, V, shared, held)
        for s in range(SCALARS):
            p = parent_of(lane, warp, s // IMAGES * BESIDE)
            B[s] = B[s] if NONE_ABSENT == 1 or p < P else ABSENT
            if PRIOR:
                B[s] += prior[at(i * P + min(p, P - 1))] * BASE
        softmax(B, top, total, shared, group, warp, turn)
        for image in range(IMAGES):
            total[image] = reciprocal(total[image])
        for s in range(SCALARS):
            B[s] *= total[s % IMAGES]

    return couple


@cache
def make_slopes(fragments, groups, words):
    """Device function ``slope(B, D, V, prior, shared, held, i, group, warp, turn)``: the couplings B, and D = db.

    ds lies behind A, and there is no prior. Else as :func:`make_couplings`.
    """
    f = fragments
    IMAGES, SCALARS, OF_ARRAY = map(specialized, (f.images, f.scalars, words_behind(f, 1)))
    couple, dots = make_couplings(f, groups, words, False), make_dots(f)
    total = make_total(f, groups, words + words_of_sharing(f, groups, 1))

    @cuda.jit(device=True, forceinline=True)
    def slope(B, D, V, prior, shared, held, i, group, warp, turn):
        inner = local_array(IMAGES, np.float32)
        couple(B, V, prior, shared, held, i, group, warp, turn)
        dots(D, V, shared, short(held + OF_ARRAY))
        for s in range(SCALARS):
            D[s] *= B[s]
        total(D, inner, shared, group, warp, turn)
        for s in range(SCALARS):
            D[s] -= B[s] * inner[s % IMAGES]

    return slope


@dataclass(frozen=True)
class Even:
    """1 for all; what is gathered is multiplied by 1 / P at the end."""

    arrays = 0

    def function(self, fragments, groups, words):
        """Device function ``weigh(B, V, prior, shared, held, i, group, warp, turn)``."""
        return _make_ones(fragments)


@dataclass(frozen=True)
class Couplings:
    """c of an iteration; ``has_prior``: logits to begin with are given."""

    has_prior: bool
    arrays = 1

    def function(self, fragments, groups, words):
        """Device function ``weigh(B, V, prior, shared, held, i, group, warp, turn)``."""
        return make_couplings(fragments, groups, words, self.has_prior)


@dataclass(frozen=True)
class Slopes:
    """db of an iteration, of which A and ds are read."""

    arrays = 2

    def function(self, fragments, groups, words):
        """Device function ``weigh(B, V, prior, shared, held, i, group, warp, turn)``."""
        return _make_slopes_alone(fragments, groups, words)


@cache
def _make_ones(fragments):
    SCALARS, ONE = specialized(fragments.scalars), np.float32(1)

    @cuda.jit(device=True, forceinline=True)
    def weigh(B, V, prior, shared, held, i, group, warp, turn):
        for s in range(SCALARS):
            B[s] = ONE

    return weigh


@cache
def _make_slopes_alone(fragments, groups, words):
    """db without the couplings."""
    SCALARS = specialized(fragments.scalars)
    slope = make_slopes(fragments, groups, words)

    @cuda.jit(device=True, forceinline=True)
    def weigh(D, V, prior, shared, held, i, group, warp, turn):
        B = local_array(SCALARS, np.float32)
        slope(B, D, V, prior, shared, held, i, group, warp, turn)

    return weigh


@cache
def make_dynamic_pass(tile, form):
    """Kernel of a pass, whose weights are a form's."""
    g, f = tile.geometry, tile.fragments
    columns, of_row = g.P * g.E3, form.arrays * words_behind(f, 1)
    P, CHILDREN, E = map(specialized, (g.P, g.Q, g.E3))
    ELEMENTS, SCALARS, IMAGES = map(specialized, (f.elements, f.scalars, f.images))
    ACROSS, ROWS, SETS = map(specialized, (f.across, tile.rows, tile.sets))
    THREADS, PLACES, OF_WARP = map(specialized, (tile.threads, tile.places, f.places))
    TURNS, TOGETHER, RING = map(specialized, (tile.turns, tile.children, tile.ring))
    OF_CHILD, PITCH, X_FIRST = map(specialized, (f.of_child, f.pitch, tile.children * f.of_child))
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    HELD, OF_ARRAY = map(specialized, (32 * f.elements, words_behind(f, 1)))
    OF_ROW, OF_BLOCK = map(specialized, (max(1, of_row), tile.rows * of_row))
    run = 4 if columns % 4 == 0 else 1  # sums that a thread stores at once
    RUN, RUNS, COLUMNS, ROW = map(specialized, (run, columns // run, columns, columns + 4))
    IS_EVEN = form.arrays == 0
    A_WORDS, FOURS = map(specialized, (words_of_input(f), f.depth // 4))
    ZERO, SHARE = np.float32(0), specialized_float32(1 / g.P if IS_EVEN else 1)
    BOUNDS = tuple(map(specialized, (tile.threads, tile.blocks_at_once)))
    begin, next_stage = make_ring(tile, False)
    MINE, SOURCES = map(specialized, words_of_copies(tile))
    load, find, votes = make_load_input(f), make_places(f), make_votes(f)
    weigh = form.function(f, tile.rows * tile.sets, tile.ring + tile.rows * of_row)
    place_of, parent_of, element_of = make_where(f)

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_dynamic_pass_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (P, I, E2)
        prior,  # in   (I, P), or anything where there is none
        held,  # in   (rows of places, arrays, words): what the form reads, as lanes hold it
        partial,  # out  (parts, N * L, P, E)
        places,  # N * L
        count,  # children of a part
        arrays,  # of each row of places, and the first that is read
        which,
    ):
        shared = cuda.shared.array(
            0, np.float32, CHUNK
        )  # the stages, what is held, where warps meet
        S, V = local_array(ELEMENTS, np.float32), local_array(ELEMENTS, np.float32)
        a, B = local_array(A_WORDS, np.float32), local_array(SCALARS, np.float32)
        mine, sources = local_array(MINE, np.int32), local_array(SOURCES, np.int64)
        some, added = local_array(RUN, np.float32), local_array(RUN, np.float32)
        at_words = local_array(FOURS, np.int32)
        start = shared_address(shared)
        thread = short(cuda.threadIdx.x & 1023)
        lane, warp = short(thread % 32), short(thread // 32 % ACROSS)
        row, of_set = short(thread // (32 * ACROSS) % ROWS), short(thread // (32 * ACROSS * ROWS))
        block = np.int64(cuda.blockIdx.x) * PLACES
        first = short(cuda.blockIdx.y * count)
        last = min(short(first + count), short(CHILDREN))
        steps = short((last - first + TOGETHER - 1) // TOGETHER)
        mine_of_held = short(RING + row * OF_ROW + warp * HELD + lane * 4)
        find(at_words, warp)
        # x and w are there, whatever the last kernel does
        begin(mine, sources, shared, start, x, x, w, block, places, first, last)
        wait_for_last()  # the last kernel has written what is held, and has read the sums of the pass before
        let_next_start()
        if not IS_EVEN:
            of_block = np.int64(cuda.blockIdx.x) * ROWS
            for word in range(thread * 4, OF_BLOCK, THREADS * 4):
                source = ((of_block + word // OF_ROW) * arrays + which) * OF_ARRAY + word % OF_ROW
                cp_async(16, shared, start + 4 * (RING + word), held, source, True)
            cp_async_commit()
            cp_async_wait(0)  # the loop makes what has arrived known to all
        for e in range(ELEMENTS):
            S[e] = ZERO
        for step in range(steps):
            stage = next_stage(mine, sources, shared, start, x, x, w, first, last, step, steps)
            for turn in range(TURNS):
                child = short(turn * SETS + of_set)
                i = short(first + step * TOGETHER + child)
                if i >= last:
                    continue
                at_row = short((child * PLACES + row * OF_WARP) * PITCH)
                load(a, shared, short(stage + X_FIRST + at_row))
                votes(V, a, shared, short(stage + child * OF_CHILD), at_words)
                group, time = of_set * ROWS + row, step * TURNS + turn
                weigh(B, V, prior, shared, mine_of_held, i, group, warp, time)
                for k in range(DOWN):
                    for tile in range(TILES):
                        for quarter in range(4):
                            e = (k * TILES + tile) * 4 + quarter
                            S[e] += B[tile // BESIDE * IMAGES + quarter // 2 % IMAGES] * V[e]
        cp_async_wait(0)
        cuda.syncthreads()  # no thread reads a stage any more
        for k in range(DOWN):
            for tile in range(TILES):
                p = parent_of(lane, warp, tile)
                for quarter in range(4):
                    e = element_of(lane, k, tile, quarter)
                    if p < P and e >= 0:
                        place = of_set * PLACES + row * OF_WARP + place_of(lane, quarter)
                        shared[at(place * ROW + p * E + e)] = S[(k * TILES + tile) * 4 + quarter]
        cuda.syncthreads()  # every set's sums are there
        for piece in range(thread, PLACES * RUNS, THREADS):
            number = short(piece & 0xFFFFFF)
            place, column = short(number // RUNS), short(number % RUNS * RUN)
            for i in range(RUN):
                added[i] = ZERO
            for one in range(SETS):
                load_run(RUN, some, shared, short((one * PLACES + place) * ROW + column))
                for i in range(RUN):
                    added[i] += some[i]
            for i in range(RUN):
                added[i] *= float_of(SHARE)
            if block + place < places:
                m = cuda.blockIdx.y * places + block + place
                store_run(RUN, partial, m * COLUMNS + column, added)

    return routing_dynamic_pass_kernel
