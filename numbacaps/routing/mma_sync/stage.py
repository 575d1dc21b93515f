"""A stage's copies to shared memory: the kernel of some children, and the input's capsules under their taps.

kernel    (children, parents, d2, d3)    rows of d3, whose 16 bytes change places so that four rows lie on banks of their own
input     (children, places, d1, d2)     behind each capsule, perhaps, its activation
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import cp_async, cp_async_commit, cp_async_wait, short
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cache
def make_swizzle(fragments):
    """Device function ``swizzle(d2)``: what the numbers of a row's 16 bytes are exclusive-ored with; 0 where a lane reads
    more than 16 bytes in a run.
    """
    chunks = fragments.width // 4
    is_power = chunks > 0 and chunks & (chunks - 1) == 0
    mask = chunks - 1 if is_power and fragments.beside <= 4 else 0
    WIDTH, MASK = map(specialized, (fragments.width, mask))

    @cuda.jit(device=True, forceinline=True)
    def swizzle(d2):
        return d2 * WIDTH // 32 * 2 & MASK

    return swizzle


@cache
def make_copies_of_w(tile):
    """Device functions ``(begin, copy)`` of the kernel. A thread copies the same elements of the same children of every
    stage, of some parents: ``begin(mine, sources, first)`` finds them, ``first`` the block's first child.

    ``copy(shared, start, to, w, mine, sources, first, last, step)`` begins the copies of children ``first`` and on, those
    before ``last``, to word ``to``.
    """
    g, f = tile.geometry, tile.fragments
    each, matrix = tile.runs[1] // 4, f.D2 * f.D3
    pieces = matrix // each
    across = tile.children * pieces
    apart = max(1, tile.threads // across)  # parents that the block's threads copy at once
    THREADS, CHILDREN, OF_CHILD = map(specialized, (tile.threads, tile.children, f.of_child))
    DEPTH, WIDTH, D2, D3, P = map(specialized, (f.depth, f.width, f.D2, f.D3, g.P))
    RUN, EACH, PIECES = map(specialized, (tile.runs[1], each, pieces))
    ACROSS, COUNT, APART = map(specialized, (across, count_of_w(tile), apart))
    COPIES = specialized(ceil_div(g.P, apart))
    OF_PARENT, SLOTS_APART = map(specialized, (g.Q * matrix, apart * f.depth * f.width))
    OF_STAGE, NEVER = map(specialized, (tile.children * matrix, tile.children))
    swizzle = make_swizzle(f)

    @cuda.jit(device=True, forceinline=True)
    def begin(mine, sources, first):
        thread = short(cuda.threadIdx.x & 1023)
        for k in range(COUNT):
            piece = short(thread + k * THREADS)
            p = short(piece // ACROSS)
            element = short(piece % PIECES * EACH)
            child = short(piece // PIECES % CHILDREN)
            d2, d3 = short(element // D3), short(element % D3)
            slot = (p * DEPTH + d2) * WIDTH + (d3 // 4 ^ swizzle(d2)) * 4 + d3 % 4
            mine[3 * k] = short(child * OF_CHILD + slot)
            mine[3 * k + 1] = child if p < APART else short(NEVER)
            mine[3 * k + 2] = p
            sources[k] = np.int64(p) * OF_PARENT + np.int64(first + child) * (D2 * D3) + element

    @cuda.jit(device=True, forceinline=True)
    def copy(shared, start, to, w, mine, sources, first, last, step):
        for k in range(COUNT):
            child = mine[3 * k + 1]
            if child < CHILDREN and short(first + child) < last:
                source = sources[k] + np.int64(step) * OF_STAGE
                there = start + 4 * short(to + mine[3 * k])
                for c in range(COPIES):
                    if P % APART == 0 or mine[3 * k + 2] + c * APART < P:
                        at_slot = there + c * (4 * SLOTS_APART)
                        cp_async(RUN, shared, at_slot, w, source + c * (APART * OF_PARENT), True)

    return begin, copy


def count_of_w(tile):
    """Elements of a parent that a thread copies for a stage."""
    pieces = tile.children * tile.geometry.E2 * 4 // tile.runs[1]
    return ceil_div(pieces, tile.threads)


@cache
def make_copies_of_x(tile, has_activations):
    """Device functions ``(begin, copy)`` of the input, the same way: of a thread's children in some places.

    ``begin(mine, block, places)`` takes the block's first place. ``copy(shared, start, to, x, activations, mine, first,
    last)``: with activations, those of the capsules come behind them.
    """
    g, f = tile.geometry, tile.fragments
    H, W, KH, KW, OW, L = map(specialized, (g.H, g.W, g.KH, g.KW, g.OW, g.L))
    SH, SW, PH, PW, DH, DW = map(specialized, (*g.stride, *g.padding, *g.dilation))
    each = tile.runs[0] // 4
    pieces = g.E1 // each
    across = tile.children * pieces
    apart = max(1, tile.threads // across)  # places that the block's threads copy at once
    THREADS, CHILDREN, PLACES = map(specialized, (tile.threads, tile.children, tile.places))
    PITCH, DEPTH, D2, E1 = map(specialized, (f.pitch, f.depth, f.D2, g.E1))
    CAPSULES, BEHIND = map(specialized, (g.C * g.H * g.W, f.pitch - 4))
    ACTIVATIONS = has_activations
    RUN, EACH, PIECES = map(specialized, (tile.runs[0], each, pieces))
    ACROSS, APART = map(specialized, (across, apart))
    COUNT, COPIES = map(specialized, counts_of_x(tile))
    NEVER = specialized(tile.children)
    NOWHERE = -(1 << 20)  # a row that no tap brings back

    @cuda.jit(device=True, forceinline=True)
    def begin(mine, block, places):
        thread = short(cuda.threadIdx.x & 1023)
        for k in range(COUNT):
            piece = short(thread + k * THREADS)
            row = short(piece // ACROSS)
            element = short(piece % PIECES * EACH)
            child = short(piece // PIECES % CHILDREN)
            inside = element // D2 * DEPTH + element % D2
            mine[3 * k] = short((child * PLACES + row) * PITCH + inside)
            mine[3 * k + 1] = child if row < APART else short(NEVER)
            mine[3 * k + 2] = element
        for c in range(COPIES):
            row = short(thread // ACROSS if APART > 1 else 0)
            place = short(block + row + c * APART & 0x7FFFFFFF)
            l = short(place % L)
            mine[3 * (COUNT + c)] = short(place // L * CAPSULES)
            top = short(l // OW * SH - PH) if place < places else short(NOWHERE)
            mine[3 * (COUNT + c) + 1] = top
            mine[3 * (COUNT + c) + 2] = short(l % OW * SW - PW)

    @cuda.jit(device=True, forceinline=True)
    def copy(shared, start, to, x, activations, mine, first, last):
        thread = short(cuda.threadIdx.x & 1023)
        for k in range(COUNT):
            child, element = mine[3 * k + 1], mine[3 * k + 2]
            i = short(first + child & 0xFFFFFF)
            if child < CHILDREN and i < last:
                slot = short(to + mine[3 * k])
                down = short(i // KW % KH * DH)
                across = short(i % KW * DW)
                channel = short(i // (KW * KH) * (H * W))
                for c in range(COPIES):
                    if PLACES % APART == 0 or thread // ACROSS + c * APART < PLACES:
                        row = short(mine[3 * (COUNT + c) + 1] + down)
                        column = short(mine[3 * (COUNT + c) + 2] + across)
                        valid = row >= 0 and row < H and column >= 0 and column < W
                        number = short(mine[3 * (COUNT + c)] + channel + row * W + column)
                        there = start + 4 * short(slot + c * (APART * PITCH))
                        source = np.int64(number) * E1 + element
                        cp_async(RUN, shared, there, x, source, valid)
                        if ACTIVATIONS and element == 0:
                            cp_async(4, shared, there + 4 * BEHIND, activations, number, valid)

    return begin, copy


def counts_of_x(tile):
    """(elements of children, places) that a thread copies for a stage."""
    across = tile.children * tile.geometry.E1 * 4 // tile.runs[0]
    apart = max(1, tile.threads // across)
    return ceil_div(across, tile.threads), ceil_div(tile.places, apart)


def words_of_copies(tile):
    """(32 bits, 64 bits): numbers that a thread keeps of its copies."""
    of_kernel = count_of_w(tile)
    return 3 * (of_kernel + sum(counts_of_x(tile))), of_kernel


@cache
def _make_copy_stage(tile, has_activations):
    """Device functions ``(begin, copy)`` of both.

    ``begin(mine, sources, block, places, first)``; ``copy(shared, start, stage, x, activations, w, mine, sources, first, last,
    step)`` of the children from ``first`` on, of step ``step``, into a stage of the ring.
    """
    STAGE = specialized(tile.stage)
    X_FIRST = specialized(tile.children * tile.fragments.of_child)
    OF_X = specialized(3 * count_of_w(tile))
    begin_kernel, copy_kernel = make_copies_of_w(tile)
    begin_input, copy_input = make_copies_of_x(tile, has_activations)

    @cuda.jit(device=True, forceinline=True)
    def begin(mine, sources, block, places, first):
        begin_kernel(mine, sources, first)
        begin_input(mine[OF_X:], block, places)

    @cuda.jit(device=True, forceinline=True)
    def copy(shared, start, stage, x, activations, w, mine, sources, first, last, step):
        to = short(stage * STAGE)
        copy_kernel(shared, start, to, w, mine, sources, first, last, step)
        to = short(to + X_FIRST)
        copy_input(shared, start, to, x, activations, mine[OF_X:], first, last)

    return begin, copy


@cache
def _make_clear_stages(tile):
    """Device function ``clear(shared)``: zeros where no copy comes, of what is filled up."""
    g, f = tile.geometry, tile.fragments
    WORDS, THREADS = map(specialized, (tile.stages * tile.stage, tile.threads))
    is_whole = f.rows * f.depth == g.E1 and f.parents * f.depth * f.width == g.P * g.E2
    IS_WHOLE = specialized(is_whole)
    ZERO = np.float32(0)

    @cuda.jit(device=True, forceinline=True)
    def clear(shared):
        if IS_WHOLE == 0:
            for word in range(cuda.threadIdx.x, WORDS, THREADS):
                shared[at(word)] = ZERO
            cuda.syncthreads()  # before a copy is begun

    return clear


@cache
def make_ring(tile, has_activations):
    """Device functions ``(start, next_stage)``: stages of children that are under way while others are in use.

    ``start(mine, sources, shared, address, x, activations, w, block, places, first, last)`` begins the copies of the first ones, of the
    children from ``first`` to before ``last`` at the places from ``block`` on. ``next_stage(mine, sources, shared, address, x,
    activations, w, first, last, step, steps)`` begins those of a later one where that of step ``step`` - 1 was, and returns the first word of
    stage ``step``, which has arrived. All threads meet there.
    """
    STAGES, PENDING = map(specialized, (tile.stages, tile.stages - 2))
    STAGE, TOGETHER = map(specialized, (tile.stage, tile.children))
    (begin, copy), clear = _make_copy_stage(tile, has_activations), _make_clear_stages(tile)

    @cuda.jit(device=True, forceinline=True)
    def start(mine, sources, shared, address, x, activations, w, block, places, first, last):
        clear(shared)
        begin(mine, sources, block, places, first)
        for step in range(STAGES - 1):
            ahead = short(first + step * TOGETHER)
            copy(shared, address, step, x, activations, w, mine, sources, ahead, last, step)
            cp_async_commit()

    @cuda.jit(device=True, forceinline=True)
    def next_stage(mine, sources, shared, address, x, activations, w, first, last, step, steps):
        cp_async_wait(PENDING)  # this thread's copies of the stage have arrived
        cuda.syncthreads()  # so have the others', and no thread reads the stage before
        ahead = short(step + STAGES - 1)
        if ahead < steps:
            to = short(np.uint32(ahead) % STAGES)
            children = short(first + ahead * TOGETHER)
            copy(shared, address, to, x, activations, w, mine, sources, children, last, ahead)
        cp_async_commit()
        return short(np.uint32(step) % STAGES * STAGE)

    return start, next_stage
