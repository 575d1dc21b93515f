"""A pass of dynamic routing on tensor cores: s = sum of c u over a part of the children.

The logits are b = prior + <u, A>, A the sum of v so far; they are kept to the base 2. In the first pass, where no logits
are given, all couplings are 1 / P, and nothing is read of the parents.

Thread mapping: a warp has 8 or 16 places and all parents, or a part of them; sets of warps take the children of a stage in turns.
"""

import math
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
from numbacaps.routing.mma_sync.sharing import make_softmax, make_sum_of_parent
from numbacaps.routing.mma_sync.stage import (
    make_clear_stages,
    make_copy_stage,
    words_of_copies,
)
from numbacaps.routing.mma_sync.votes import (
    make_load_input,
    make_places,
    make_votes,
    words_of_input,
)


def words_behind(fragments, rows):
    """Words of shared memory for A of a block's places."""
    return rows * fragments.across * 32 * fragments.elements


def words_at_end(g, places, sets):
    """Words that the sums of all sets take."""
    return sets * places * (g.P * g.E3 + 4)


@cache
def make_logits(fragments):
    """Device function ``logits(B, V, shared, held, warp)``: b of a child's votes; A lies in shared memory from word ``held`` on."""
    f = fragments
    P, DOWN, TILES = map(specialized, (f.P, f.down, f.tiles))
    IMAGES, SCALARS, BESIDE = map(specialized, (f.images, f.scalars, f.beside))
    ZERO, ABSENT = np.float32(0), np.float32(-math.inf)
    NONE_ABSENT = specialized(f.parents == f.P)
    _, parent_of, _ = make_where(f)
    whole = make_sum_of_parent(f.split)

    @cuda.jit(device=True, forceinline=True)
    def logits(B, V, shared, held, warp):
        four = local_array(4, np.float32)
        lane = cuda.threadIdx.x % 32
        for s in range(SCALARS):
            B[s] = ZERO
        for i in range(DOWN):
            for tile in range(TILES):
                load_run(4, four, shared, held + (i * TILES + tile) * 128)
                for quarter in range(4):
                    s = tile // BESIDE * IMAGES + quarter // 2 % IMAGES
                    B[s] += V[(i * TILES + tile) * 4 + quarter] * four[quarter]
        for s in range(SCALARS):
            b = whole(B[s])
            there = NONE_ABSENT == 1 or parent_of(lane, warp, s // IMAGES * BESIDE) < P
            B[s] = b if there else ABSENT

    return logits


@cache
def make_dynamic_pass(tile, is_uniform, has_prior):
    """Kernel of a pass; of the first one, whose couplings are all the same, or of another."""
    g, f = tile.geometry, tile.fragments
    columns, behind = g.P * g.E3, words_behind(f, tile.rows)
    P, CHILDREN, E = map(specialized, (g.P, g.Q, g.E3))
    ELEMENTS, SCALARS, IMAGES = map(specialized, (f.elements, f.scalars, f.images))
    ACROSS, ROWS, SETS = map(specialized, (f.across, tile.rows, tile.sets))
    TURNS, STAGES, PENDING = map(specialized, (tile.turns, tile.stages, tile.stages - 2))
    THREADS, PLACES, OF_WARP = map(specialized, (tile.threads, tile.places, f.places))
    TOGETHER, STAGE, RING = map(specialized, (tile.children, tile.stage, tile.ring))
    OF_CHILD, PITCH, X_FIRST = map(specialized, (f.of_child, f.pitch, tile.children * f.of_child))
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    HELD, OF_BLOCK = map(specialized, (32 * f.elements, behind))
    RUN = 4 if columns % 4 == 0 else 1  # sums that a thread stores at once
    RUNS, COLUMNS, ROW = map(specialized, (columns // RUN, columns, columns + 4))
    UNIFORM, PRIOR = is_uniform, has_prior
    A_WORDS, FOURS = map(specialized, (words_of_input(f), f.depth // 4))
    ZERO, SHARE = np.float32(0), specialized_float32(1 / g.P if is_uniform else 1)
    BASE = np.float32(math.log2(math.e))
    BOUNDS = tuple(map(specialized, (tile.threads, tile.blocks_at_once)))
    (begin, copy), clear = make_copy_stage(tile, False), make_clear_stages(tile)
    MINE, SOURCES = map(specialized, words_of_copies(tile))
    load, find, votes = make_load_input(f), make_places(f), make_votes(f)
    softmax = make_softmax(f, tile.rows, tile.sets, tile.ring + behind)
    place_of, parent_of, element_of = make_where(f)
    logits = make_logits(f)

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_dynamic_pass_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (P, I, E2)
        prior,  # in   (I, P), or anything where there is none
        summed,  # in   A times log2(e), as lanes hold it
        partial,  # out  (parts, N * L, P, E)
        places,  # N * L
        count,  # children of a part
    ):
        shared = cuda.shared.array(0, np.float32, CHUNK)  # STAGES of STAGE words, A, the softmax
        S, V = local_array(ELEMENTS, np.float32), local_array(ELEMENTS, np.float32)
        a, B = local_array(A_WORDS, np.float32), local_array(SCALARS, np.float32)
        mine, sources = local_array(MINE, np.int32), local_array(SOURCES, np.int64)
        some, added = local_array(RUN, np.float32), local_array(RUN, np.float32)
        at_words = local_array(FOURS, np.int32)
        top, total = local_array(IMAGES, np.float32), local_array(IMAGES, np.float32)
        start = shared_address(shared)
        thread = short(cuda.threadIdx.x & 1023)
        lane, warp = short(thread % 32), short(thread // 32 % ACROSS)
        row, of_set = short(thread // (32 * ACROSS) % ROWS), short(thread // (32 * ACROSS * ROWS))
        block = np.int64(cuda.blockIdx.x) * PLACES
        first = short(cuda.blockIdx.y * count)
        last = min(short(first + count), short(CHILDREN))
        steps = short((last - first + TOGETHER - 1) // TOGETHER)
        held = short(RING + (row * ACROSS + warp) * HELD + lane * 4)
        clear(shared)
        find(at_words, warp)
        begin(mine, sources, block, places, first)
        for step in range(STAGES - 1):  # x and w are there, whatever the last kernel does
            ahead = short(first + step * TOGETHER)
            copy(shared, start, step, x, x, w, mine, sources, ahead, last, step)
            cp_async_commit()
        wait_for_last()  # A is there; nobody reads the sums of the last pass
        let_next_start()
        if not UNIFORM:
            copied = np.int64(cuda.blockIdx.x) * OF_BLOCK
            for word in range(thread * 4, OF_BLOCK, THREADS * 4):
                cp_async(16, shared, start + 4 * (RING + word), summed, copied + word, True)
            cp_async_commit()
            cp_async_wait(0)  # the loop makes what has arrived known to all
        for e in range(ELEMENTS):
            S[e] = ZERO
        for step in range(steps):
            cp_async_wait(PENDING)  # this thread's copies of the stage have arrived
            cuda.syncthreads()  # so have the others', and no thread reads the stage before
            ahead = short(step + STAGES - 1)
            if ahead < steps:
                to = short(np.uint32(ahead) % STAGES)
                children = short(first + ahead * TOGETHER)
                copy(shared, start, to, x, x, w, mine, sources, children, last, ahead)
            cp_async_commit()
            stage = short(np.uint32(step) % STAGES * STAGE)
            for turn in range(TURNS):
                child = short(turn * SETS + of_set)
                i = short(first + step * TOGETHER + child)
                if i >= last:
                    continue
                at_row = short((child * PLACES + row * OF_WARP) * PITCH)
                load(a, shared, short(stage + X_FIRST + at_row))
                votes(V, a, shared, short(stage + child * OF_CHILD), at_words)
                if UNIFORM:
                    for e in range(ELEMENTS):
                        S[e] += V[e]
                    continue
                logits(B, V, shared, held, warp)
                if PRIOR:
                    for s in range(SCALARS):
                        p = parent_of(lane, warp, s // IMAGES * BESIDE)
                        B[s] += prior[at(i * P + min(p, P - 1))] * BASE
                softmax(B, top, total, shared, of_set * ROWS + row, warp, step * TURNS + turn)
                for image in range(IMAGES):
                    total[image] = reciprocal(total[image])
                for s in range(SCALARS):
                    B[s] *= total[s % IMAGES]
                for k in range(DOWN):
                    for tile in range(TILES):
                        for quarter in range(4):
                            e = (k * TILES + tile) * 4 + quarter
                            S[e] += B[tile // BESIDE * IMAGES + quarter // 2 % IMAGES] * V[e]
        cp_async_wait(0)
        cuda.syncthreads()  # nobody reads a stage any more
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
