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
from numbacaps.routing.mma_sync.dynamic import words_behind
from numbacaps.routing.mma_sync.parents import (
    make_hold,
    make_leave,
    make_read,
    words_of_records,
)
from numbacaps.routing.mma_sync.sharing import (
    LOWEST,
    make_softmax,
    make_sum_of_parent,
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
    """Device functions ``(read, logits)``: r and r mu of a lane's parents; log2 p of votes.

    r and r mu lie in shared memory, as lanes hold them, from word ``held`` on.
    """
    f = tile.fragments
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    IMAGES, SCALARS, E = map(specialized, (f.images, f.scalars, tile.geometry.E3))
    ELEMENTS, OF_ARRAY = map(specialized, (f.elements, words_behind(f, tile.rows)))
    ZERO, HALF = np.float32(0), np.float32(_LOG2_E / 2)
    (elements, _), hold = make_read(tile), make_hold(tile)
    whole = make_sum_of_parent(f.split)

    @cuda.jit(device=True, forceinline=True)
    def read(shared, held, states, t, first, places, warp):
        scale, center = local_array(ELEMENTS, np.float32), local_array(ELEMENTS, np.float32)
        elements(center, states, t, 0, first, places, warp)
        elements(scale, states, t, E, first, places, warp)
        for e in range(ELEMENTS):
            scale[e] = np.float32(math.sqrt(HALF * scale[e]))
            center[e] *= scale[e]
        hold(shared, held, scale)
        hold(shared, held + OF_ARRAY, center)

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

    return read, logits


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
    CHILDREN, E = map(specialized, (g.Q, g.E3))
    ELEMENTS, SCALARS, IMAGES = map(specialized, (f.elements, f.scalars, f.images))
    ACROSS, ROWS, SETS = map(specialized, (f.across, tile.rows, tile.sets))
    PLACES, OF_WARP, TOGETHER = map(specialized, (tile.places, f.places, tile.children))
    TURNS, OF_CHILD, PITCH = map(specialized, (tile.turns, f.of_child, f.pitch))
    X_FIRST = specialized(tile.children * f.of_child)
    DOWN, TILES, BESIDE = map(specialized, (f.down, f.tiles, f.beside))
    FOURS, A_WORDS, SPLIT = map(specialized, (f.depth // 4, words_of_input(f), f.split))
    TOPS, OF_LANES, UNIFORM = *map(specialized, (tops, 32 * f.elements)), is_uniform
    HELD = specialized(tile.ring + words_of_sharing(f, tile.rows, tile.sets))
    ROOM = specialized(max(f.elements, 2 * tops))
    RECORD = specialized(32 * 2 * (f.elements + tops))
    ZERO, LOW, ABSENT = np.float32(0), LOWEST, np.float32(-math.inf)
    UNIFORM_R, LN2 = specialized_float32(-math.log2(g.P)), np.float32(math.log(2))
    BASE = np.float32(_LOG2_E)
    BOUNDS = tuple(map(specialized, (tile.threads, tile.blocks_at_once)))
    begin, next_stage = make_ring(tile, True)
    MINE, SOURCES = map(specialized, words_of_copies(tile))
    load, find, votes = make_load_input(f), make_places(f), make_votes(f)
    softmax = make_softmax(f, tile.rows, tile.sets, tile.ring)
    (read, logits), (_, number) = make_gaussians(tile), make_read(tile)
    absorb, give, take = make_record(tile, tops)
    leave, leave_numbers, copy_records = make_leave(tile, 2 * g.E3 + 2)

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
        shared = cuda.shared.array(0, np.float32, CHUNK)  # the stages, the softmax, what is held
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
        find(at_words, warp)
        # x and w are there, whatever the last kernel does
        begin(mine, sources, shared, start, x, activations, w, block, places, first, last)
        wait_for_last()  # the parents' states are there; no kernel reads the records of the last pass
        let_next_start()
        held = short(HELD + (row * ACROSS + warp) * OF_LANES + lane * 4)
        if not UNIFORM and of_set == 0:
            read(shared, held, states, t, block + row * OF_WARP, places, warp)
        if not UNIFORM:
            number(bias, states, t, 2 * E, block + row * OF_WARP, places, warp, ABSENT, ZERO)
            for s in range(SCALARS):
                bias[s] *= BASE
        for e in range(ELEMENTS):
            mean[e], squares[e] = ZERO, ZERO
        for k in range(TOPS):
            highest[k], weight[k] = LOW, ZERO
        for step in range(steps):
            stage = next_stage(
                mine, sources, shared, start, x, activations, w, first, last, step, steps
            )
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
        cuda.syncthreads()  # no thread reads a stage any more
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
            cuda.syncthreads()  # and no thread reads them any more
        if of_set == 0:
            leave(shared, 0, 0, mean, row, warp)
            leave(shared, 0, E, squares, row, warp)
            for s in range(SCALARS):
                B[s], C[s] = highest[s % TOPS] * LN2, weight[s % TOPS]
            leave_numbers(shared, 0, 2 * E, B, row, warp)
            leave_numbers(shared, 0, 2 * E + 1, C, row, warp)
        cuda.syncthreads()  # all records are there
        copy_records(partial, shared, 0, cuda.blockIdx.y, block, places)

    return routing_em_pass_kernel
