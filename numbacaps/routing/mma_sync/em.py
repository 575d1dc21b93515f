"""A pass of EM routing on tensor cores: weighted means and squares of votes over a part of the children.

Logarithms are to the base 2. With r = sqrt(log2(e) / (2 variance)):

    y = r (v - mu)
    log2 p = bias log2(e) - sum of y^2          one multiply-add for y, one for the sum
    weight = R a = 2 ** (log2 p - norm + log2 a)

Means and squares of votes are kept child by child (West, 1979), so that no variance is a difference of large numbers: with W the
sum of weights before this child and W' behind it,

    away = v - mean        mean += weight / W' away        squares += weight W / W' away^2

So the mean of votes that are all alike is that vote, bit by bit. Weights are over 2 ** ``highest``, which grows when a weight is
much larger, so that all of a parent's may be small. In the first pass all R are 1 / P, and a child's weight is the same for all
parents.

Thread mapping: as :mod:`numbacaps.routing.mma_sync.dynamic`.
"""

import math
from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    cp_async_commit,
    cp_async_wait,
    float_of,
    let_next_start,
    load_run,
    local_array,
    shared_address,
    short,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.powers import exp2, log2, reciprocal
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import at, cuda
from numbacaps.routing.em import state_fields
from numbacaps.routing.mma_sync.dynamic import words_behind
from numbacaps.routing.mma_sync.fragments import make_where
from numbacaps.routing.mma_sync.records import make_records, words_of_records
from numbacaps.routing.mma_sync.sharing import (
    LOWEST,
    make_softmax,
    make_sum_of_parent,
    words_of_sharing,
)
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

_LOG2_E = math.log2(math.e)
REGISTERS = 168  # of a thread: three blocks of four warps are on a multiprocessor
_MUCH = 16  # a weight this many powers of two larger than the largest before moves ``highest``


def words_at_end(tile):
    """Words that records take: those of all sets but the first, then those of the block."""
    f, of_sets = tile.fragments, (tile.sets - 1) * tile.rows
    of_sets *= tile.fragments.across * 32 * 2 * (f.elements + f.scalars)
    return max(of_sets, words_of_records(tile, 2 * tile.geometry.E3 + 2))


@cache
def make_gaussians(tile):
    """Device functions ``(read, read_bias, logits)``: r and r mu, and the bias, of a lane's parents; log2 p of votes.

    r and r mu lie in shared memory, as lanes hold them, from word ``held`` on.
    """
    g, f = tile.geometry, tile.fragments
    P, E, FIELDS = map(specialized, (g.P, g.E3, state_fields(g.E3)[0]))
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    IMAGES, SCALARS = map(specialized, (f.images, f.scalars))
    ZERO, HALF, BASE = np.float32(0), np.float32(_LOG2_E / 2), np.float32(_LOG2_E)
    ABSENT = np.float32(-math.inf)
    ELEMENTS, OF_ARRAY = map(specialized, (f.elements, words_behind(f, tile.rows)))
    place_of, parent_of, element_of = make_where(f)
    whole = make_sum_of_parent(f.split)

    @cuda.jit(device=True, forceinline=True)
    def read(shared, held, states, t, first, places, warp):
        scale, center = local_array(ELEMENTS, np.float32), local_array(ELEMENTS, np.float32)
        lane = cuda.threadIdx.x % 32
        for i in range(DOWN):
            for tile in range(TILES):
                p = parent_of(lane, warp, tile)
                for quarter in range(4):
                    m, e = first + place_of(lane, quarter), element_of(lane, i, tile, quarter)
                    to = (i * TILES + tile) * 4 + quarter
                    # Without a branch, so that all loads are under way together.
                    number = (t * places + min(m, places - 1)) * FIELDS + max(e, 0)
                    where = number * P + min(p, P - 1)
                    mu, inverse = states[at(where)], states[at(where + E * P)]
                    r = np.float32(math.sqrt(HALF * inverse))
                    r = r if p < P and e >= 0 else ZERO
                    scale[to], center[to] = r, mu * r
        for e in range(ELEMENTS):
            shared[at(held + e // 4 * 128 + e % 4)] = scale[e]
            shared[at(held + OF_ARRAY + e // 4 * 128 + e % 4)] = center[e]

    @cuda.jit(device=True, forceinline=True)
    def read_bias(bias, states, t, first, places, warp):
        lane = cuda.threadIdx.x % 32
        for s in range(SCALARS):
            p, m = parent_of(lane, warp, s // IMAGES * BESIDE), first + lane // 4 + s % IMAGES * 8
            bias[s] = ABSENT if p >= P else ZERO
            if m < places and p < P:
                bias[s] = states[at(((t * places + m) * FIELDS + 2 * E) * P + p)] * BASE

    @cuda.jit(device=True, forceinline=True)
    def logits(B, V, shared, held, bias):
        scale, center = local_array(4, np.float32), local_array(4, np.float32)
        for s in range(SCALARS):
            B[s] = ZERO
        for i in range(DOWN):
            for tile in range(TILES):
                here = held + (i * TILES + tile) * 128
                load_run(4, scale, shared, here)
                load_run(4, center, shared, here + OF_ARRAY)
                for quarter in range(4):
                    s, e = tile // BESIDE * IMAGES + quarter // 2 % IMAGES, (i * TILES + tile) * 4
                    y = V[e + quarter] * scale[quarter] - center[quarter]
                    B[s] += y * y
        for s in range(SCALARS):
            B[s] = bias[s] - whole(B[s])

    return read, read_bias, logits


@cache
def make_record(tile, tops):
    """Device functions ``(absorb, give, take)`` of a lane's records; ``tops`` of its scalars have weights of their own.

    ``absorb`` takes a child more; ``give`` leaves a record in shared memory, and ``take`` merges one that lies there.
    """
    f = tile.fragments
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    IMAGES, ELEMENTS, TOPS = map(specialized, (f.images, f.elements, tops))
    ZERO, ONE, MUCH = np.float32(0), np.float32(1), np.float32(_MUCH)

    @cuda.jit(device=True, forceinline=True)
    def absorb(mean, squares, highest, weight, B, V, part, rest):
        for k in range(TOPS):
            if B[k] > highest[k] + MUCH:
                kept = exp2(highest[k] - B[k])
                highest[k] = B[k]
                weight[k] *= kept
                for i in range(DOWN):
                    for tile in range(TILES):
                        for quarter in range(4):
                            s = tile // BESIDE * IMAGES + quarter // 2 % IMAGES
                            if s % TOPS == k:
                                squares[(i * TILES + tile) * 4 + quarter] *= kept
            share, before = exp2(B[k] - highest[k]), weight[k]
            weight[k] = before + share
            part[k] = share * reciprocal(weight[k] if weight[k] > ZERO else ONE)
            if (
                before == ZERO and share > ZERO
            ):  # of the first child the mean is its vote, bit by bit
                part[k] = ONE
            rest[k] = part[k] * before
        for i in range(DOWN):
            for tile in range(TILES):
                for quarter in range(4):
                    k = (tile // BESIDE * IMAGES + quarter // 2 % IMAGES) % TOPS
                    e = (i * TILES + tile) * 4 + quarter
                    away = V[e] - mean[e]
                    mean[e] += part[k] * away
                    squares[e] += rest[k] * (away * away)

    @cuda.jit(device=True, forceinline=True)
    def give(shared, to, mean, squares, highest, weight):
        for e in range(ELEMENTS):
            shared[at(to + e * 32)] = mean[e]
            shared[at(to + (ELEMENTS + e) * 32)] = squares[e]
        for k in range(TOPS):
            shared[at(to + (2 * ELEMENTS + k) * 32)] = highest[k]
            shared[at(to + (2 * ELEMENTS + TOPS + k) * 32)] = weight[k]

    @cuda.jit(device=True, forceinline=True)
    def take(shared, first, mean, squares, highest, weight, part, rest, V):
        """Merged as Chan, Golub and LeVeque do; V holds what the other's squares are multiplied by."""
        for k in range(TOPS):
            top = shared[at(first + (2 * ELEMENTS + k) * 32)]
            top = top if top > highest[k] else highest[k]
            mine = exp2(highest[k] - top)
            theirs = exp2(shared[at(first + (2 * ELEMENTS + k) * 32)] - top)
            before = mine * weight[k]
            more = theirs * shared[at(first + (2 * ELEMENTS + TOPS + k) * 32)]
            weight[k] = before + more
            part[k] = more * reciprocal(weight[k] if weight[k] > ZERO else ONE)
            if before == ZERO and more > ZERO:
                part[k] = ONE
            rest[k] = part[k] * before
            highest[k] = top
            V[2 * k], V[2 * k + 1] = mine, theirs
        for i in range(DOWN):
            for tile in range(TILES):
                for quarter in range(4):
                    k = (tile // BESIDE * IMAGES + quarter // 2 % IMAGES) % TOPS
                    e = (i * TILES + tile) * 4 + quarter
                    away = shared[at(first + e * 32)] - mean[e]
                    other = shared[at(first + (ELEMENTS + e) * 32)]
                    mean[e] += part[k] * away
                    kept = V[2 * k] * squares[e] + V[2 * k + 1] * other
                    squares[e] = kept + rest[k] * (away * away)

    return absorb, give, take


@cache
def make_em_pass(tile, is_uniform):
    """Kernel of a pass; of the first one, whose assignments are all the same, or of another."""
    g, f = tile.geometry, tile.fragments
    tops = f.images if is_uniform else f.scalars
    P, CHILDREN, E = map(specialized, (g.P, g.Q, g.E3))
    ELEMENTS, SCALARS, IMAGES = map(specialized, (f.elements, f.scalars, f.images))
    ACROSS, ROWS, SETS = map(specialized, (f.across, tile.rows, tile.sets))
    TURNS, STAGES, PENDING = map(specialized, (tile.turns, tile.stages, tile.stages - 2))
    PLACES, OF_WARP, TOGETHER = map(specialized, (tile.places, f.places, tile.children))
    STAGE, OF_CHILD, PITCH = map(specialized, (tile.stage, f.of_child, f.pitch))
    X_FIRST = specialized(tile.children * f.of_child)
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    FOURS, A_WORDS, SPLIT = map(specialized, (f.depth // 4, words_of_input(f), f.split))
    TOPS, OF_LANES, UNIFORM = *map(specialized, (tops, 32 * f.elements)), is_uniform
    HELD = specialized(tile.ring + words_of_sharing(f, tile.rows, tile.sets))
    ROOM = specialized(max(f.elements, 2 * tops))
    RECORD = specialized(32 * 2 * (f.elements + tops))
    ZERO, LOW = np.float32(0), LOWEST
    UNIFORM_R, LN2 = specialized_float32(-math.log2(g.P)), np.float32(math.log(2))
    BOUNDS = tuple(map(specialized, (tile.threads, tile.blocks_at_once)))
    (begin, copy), clear = make_copy_stage(tile, True), make_clear_stages(tile)
    MINE, SOURCES = map(specialized, words_of_copies(tile))
    load, find, votes = make_load_input(f), make_places(f), make_votes(f)
    softmax = make_softmax(f, tile.rows, tile.sets, tile.ring)
    place_of, parent_of, element_of = make_where(f)
    read, read_bias, logits = make_gaussians(tile)
    absorb, give, take = make_record(tile, tops)
    put, copy_records = make_records(tile, 2 * g.E3 + 2)

    @kept_on_disk
    @cuda.jit(launch_bounds=BOUNDS)
    def routing_em_pass_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (P, I, E2)
        activations,  # in   (N, C, H, W)
        states,  # in   (states, N * L, fields, P)
        partial,  # out  (parts, N * L, SIZE, P)
        places,  # N * L
        count,  # children of a part
        t,  # which state
    ):
        shared = cuda.shared.array(0, np.float32, CHUNK)  # STAGES of STAGE words, the softmax
        mean, squares = (
            local_array(ELEMENTS, np.float32),
            local_array(ELEMENTS, np.float32),
        )
        V, a = local_array(ROOM, np.float32), local_array(A_WORDS, np.float32)
        B, C = local_array(SCALARS, np.float32), local_array(SCALARS, np.float32)
        bias = local_array(SCALARS, np.float32)
        highest, weight = local_array(TOPS, np.float32), local_array(TOPS, np.float32)
        part, rest = local_array(TOPS, np.float32), local_array(TOPS, np.float32)
        mine, sources = local_array(MINE, np.int32), local_array(SOURCES, np.int64)
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
        clear(shared)
        find(at_words, warp)
        begin(mine, sources, block, places, first)
        for step in range(STAGES - 1):  # x and w are there, whatever the last kernel does
            ahead = short(first + step * TOGETHER)
            copy(shared, start, step, x, activations, w, mine, sources, ahead, last, step)
            cp_async_commit()
        wait_for_last()  # the parents' states are there; nobody reads the records of the last pass
        let_next_start()
        held = short(HELD + (row * ACROSS + warp) * OF_LANES + lane * 4)
        if not UNIFORM and of_set == 0:
            read(shared, held, states, t, block + row * OF_WARP, places, warp)
        if not UNIFORM:
            read_bias(bias, states, t, block + row * OF_WARP, places, warp)
        for e in range(ELEMENTS):
            mean[e], squares[e] = ZERO, ZERO
        for k in range(TOPS):
            highest[k], weight[k] = LOW, ZERO
        for step in range(steps):
            cp_async_wait(PENDING)  # this thread's copies of the stage have arrived
            cuda.syncthreads()  # so have the others', and no thread reads the stage before
            ahead = short(step + STAGES - 1)
            if ahead < steps:
                to = short(np.uint32(ahead) % STAGES)
                children = short(first + ahead * TOGETHER)
                copy(shared, start, to, x, activations, w, mine, sources, children, last, ahead)
            cp_async_commit()
            stage = short(np.uint32(step) % STAGES * STAGE)
            for turn in range(TURNS):
                child = short(turn * SETS + of_set)
                if short(first + step * TOGETHER + child) >= last:
                    continue
                at_row = short(stage + X_FIRST + (child * PLACES + row * OF_WARP) * PITCH)
                load(a, shared, at_row)
                votes(V, a, shared, short(stage + child * OF_CHILD), at_words)
                for image in range(IMAGES):
                    place = lane // 4 + 8 * image
                    part[image] = log2(shared[at(at_row + place * PITCH + PITCH - 4)])
                if UNIFORM:
                    for image in range(IMAGES):
                        B[image] = part[image] + float_of(UNIFORM_R)
                else:
                    logits(C, V, shared, held, bias)
                    for s in range(SCALARS):
                        B[s] = C[s]
                    softmax(C, top, total, shared, of_set * ROWS + row, warp, step * TURNS + turn)
                    for image in range(IMAGES):
                        top[image] += log2(total[image]) - part[image]
                    for s in range(SCALARS):
                        B[s] -= top[s % IMAGES]
                absorb(mean, squares, highest, weight, B, V, part, rest)
        cp_async_wait(0)
        cuda.syncthreads()  # nobody reads a stage any more
        group = short((row * ACROSS + warp) * RECORD + lane)
        if SETS > 1:
            if of_set > 0:
                to = short((of_set - 1) * (ROWS * ACROSS * RECORD) + group)
                give(shared, to, mean, squares, highest, weight)
            cuda.syncthreads()  # every set's records are there
            if of_set == 0:
                for other in range(SETS - 1):
                    at_record = short(other * (ROWS * ACROSS * RECORD) + group)
                    take(shared, at_record, mean, squares, highest, weight, part, rest, V)
            cuda.syncthreads()  # and nobody reads them any more
        if of_set == 0:
            of_row = row * OF_WARP
            for i in range(DOWN):
                for tile in range(TILES):
                    p = parent_of(lane, warp, tile)
                    for quarter in range(4):
                        m, e = of_row + place_of(lane, quarter), element_of(lane, i, tile, quarter)
                        one = (i * TILES + tile) * 4 + quarter
                        if p < P and e >= 0:
                            put(shared, 0, m, e, p, mean[one])
                            put(shared, 0, m, E + e, p, squares[one])
            for s in range(SCALARS):
                m, p = lane // 4 + s % IMAGES * 8, parent_of(lane, warp, s // IMAGES * BESIDE)
                if p < P and lane % 4 % SPLIT == 0:
                    put(shared, 0, of_row + m, 2 * E, p, highest[s % TOPS] * LN2)
                    put(shared, 0, of_row + m, 2 * E + 1, p, weight[s % TOPS])
        cuda.syncthreads()  # all records are there
        copy_records(partial, shared, 0, cuda.blockIdx.y, block, places)

    return routing_em_pass_kernel
