"""The backward pass as one kernel, from the loss to what reaches every layer's sums.

What changed from :mod:`numbacaps.nn.resident.forward`, which a block again takes an image through: here a layer's input
is what is made, and its windows overlap. Read as a sum over the taps that reach a pixel, that is one product for
each residue of the stride, and taps reach over the edge. Read the other way round, every tap is a product of its own,

    d_input[pixel * stride + tap, d1, (c, d2)] += sum over (p, d3) of d_sums[pixel, d1, (p, d3)] * kernel[tap]

whose first operand is the same of all taps: a thread loads its part once, and keeps it in registers. The sums are
added up in shared memory, tap after tap. Two warpgroups take the taps in turn: while one adds, the tensor cores work
for the other, and between two taps they meet, so the order is fixed. Where columns are few, several taps are one
product, and each warpgroup takes tiles of its own and adds to an input of its own.

What reaches an output becomes in place what reaches the sums before its activation. A kernel's gradient is a
sum over the images too, so a block leaves its images' part, for another kernel to add, of those kernels
that are small: the first layer's, and that of a layer whose capsules of 4 x 8 are, transposed, the tensor cores'
core matrices. :mod:`numbacaps.nn.resident.backward_layout` says what fits, and where it lies.
"""

from functools import cache
from math import gcd

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    TF32_NEARER,
    bulk_copy,
    cp_async_commit,
    cp_async_wait,
    cut_tf32,
    descriptor_strides,
    fence_proxy_async,
    fewer_registers,
    let_next_start,
    load_run,
    mbarrier_arrive,
    mbarrier_arrive_times,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    meet,
    meet_at,
    more_registers,
    shared_address,
    short,
    shuffle,
    store_quad,
    store_run,
    to_tf32,
    unforeseen,
    wait_for_last,
    wgmma_commit,
    wgmma_fence,
    wgmma_fragment,
    wgmma_wait,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda
from numbacaps.nn.kernels.margin_loss import MARGIN_ABSENT, MARGIN_PRESENT, WEIGHT_ABSENT
from numbacaps.nn.resident.layout import COPYING_REGISTERS
from numbacaps.nn.resident.ring import in_turn, make_fetch, ring_of

_ZERO, _ONE = np.float32(0), np.float32(1)
_OWN = 8  # elements of a squash group that a thread has, at most
_FEW = 2  # turns whose outputs are loaded at once, twice that of many; the code of each has to be fetched
_PIXELS = 3  # of which a thread takes the first layer's windows at once
_IN_FLIGHT = 24  # capsules' elements that a thread loads at once


@cache
def make_resident_backward(place, classes):
    """Kernel for a network's backward pass.

    Parameters
    ----------
    place : numbacaps.nn.resident.backward_layout.BackwardResidence
    classes : int
        Capsules of the last layer.
    """
    ring, first = place.ring, place.first
    WARPS, SLOTS, EMPTY, GATE = ring.warpgroups * 4, ring.slots, 8 * ring.slots, 16 * ring.slots
    REGISTERS, COPYING = ring.registers, COPYING_REGISTERS
    X, IMAGE, THREADS = first.x, first.layer.image, ring.warpgroups * 128
    begin_with = _make_loss(place.outputs[-1], ring, classes)
    compute = [_make_activation(place.outputs[-1], ring)]
    for layer, output in zip(reversed(place.layers), reversed(place.outputs[:-1])):
        compute += [_make_weights(layer, ring)] if layer.weights else []
        compute += [_make_input(layer, ring), _make_activation(output, ring)]
    compute = in_turn([*compute, _make_first_weights(first, ring)])
    copy = in_turn([_make_copy(layer, ring) for layer in reversed(place.layers)])
    fetch = make_fetch(THREADS)

    @kept_on_disk
    @cuda.jit(launch_bounds=(ring.threads, 1))
    def resident_backward_kernel(
        x,  # in   (N, C, H, W, E1)
        labels,  # in   (N,), int64
        lengths,  # in   (N, classes)
        slopes,  # in   of every layer's squash, (groups, 2), one behind the other
        outputs,  # in   every layer's, likewise
        packed,  # in   all kernels but the first, one behind the other as the layers say
        d_sums,  # out  what reaches the sums of layers whose kernel's gradient is not computed here
        partial,  # out  the blocks' parts of the kernels' gradients that are, one kernel behind the other
        images,
    ):
        shared = cuda.shared.array(0, np.float32)
        begin = shared_address(shared)
        start = (begin + 127) // 128 * 128
        thread = short(cuda.threadIdx.x & 1023)  # known not to be negative
        warp = shuffle(short(thread >> 5 & 31), 0)  # known to be the same of all lanes
        lane = short(thread & 31)
        if thread < SLOTS:
            mbarrier_init(shared, start + 8 * thread, 1)
            mbarrier_init(shared, start + EMPTY + 8 * thread, WARPS)
            if thread == 0:
                mbarrier_init(shared, start + GATE, WARPS)
            fence_proxy_async()  # the copy engine may see the barriers
        let_next_start()
        cuda.syncthreads()
        wait_for_last()  # the forward pass is done, and the kernels are packed
        turn = short(0)
        if warp >= WARPS:
            fewer_registers(COPYING)
            if warp == WARPS and lane == 0:
                phases = short(-1)  # what nobody has filled yet counts as empty
                opened = short(1)
                for _ in range(short(cuda.blockIdx.x), short(images), short(cuda.gridDim.x)):
                    mbarrier_wait(shared, start + GATE, opened)  # the image before is done
                    turn, phases = copy((shared, start, packed), turn, phases)
                    opened = short(opened ^ 1)
        else:
            more_registers(REGISTERS)
            phases = short(0)
            floats = short((start - begin) // 4)
            for image in range(short(cuda.blockIdx.x), short(images), short(cuda.gridDim.x)):
                read = slopes, outputs, lengths, labels
                which = image, images, thread, warp
                where = shared, start, floats, read, d_sums, partial, which
                begin_with(where)
                fetch(shared, start + 4 * X, x, image * IMAGE, IMAGE, thread)
                cp_async_commit()
                turn, phases = compute(where, turn, phases)
                fence_proxy_async()  # the copy engine may write over what was read here
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(shared, start + GATE)

    return resident_backward_kernel


def _make_copy(one, ring):
    """Device function that fetches a layer's kernel, chunk after chunk, once a round of tiles."""
    ROUNDS, CHUNKS, BYTES = one.rounds, one.chunks, one.chunk_bytes
    OFFSET, ELEMENTS, EMPTY, SLOTS = one.packed_at, one.chunk_bytes // 4, 8 * ring.slots, one.slots
    lies_at, phase_of, following, _ = ring_of(ring, one.slots)

    @cuda.jit(device=True, forceinline=True)
    def copy(where, turn, phases):
        shared, start, packed = where
        if turn >= SLOTS:
            turn = short(0)
        around = short(0)
        while around < ROUNDS:
            source, chunk = OFFSET, short(0)
            while chunk < CHUNKS:
                full = start + turn * 8
                mbarrier_wait(shared, full + EMPTY, phase_of(turn, phases))
                mbarrier_expect(shared, full, BYTES)
                bulk_copy(shared, CHUNK * lies_at(start, turn), packed, source, BYTES, full)
                source += ELEMENTS
                turn, phases = following(turn, phases)
                chunk = unforeseen(chunk + 1)
            around = unforeseen(around + 1)
        return turn, phases

    return copy


def _make_loss(output, ring, classes):
    """Device function for what reaches the class capsules."""
    SIZE, AT, THREADS, CLASSES = output.size, output.at, ring.warpgroups * 128, classes
    OF_CAPSULE, OUTPUT = output.size // classes, output.output_at
    PRESENT, ABSENT, WEIGHT = map(np.float32, (MARGIN_PRESENT, MARGIN_ABSENT, WEIGHT_ABSENT))
    TWO = np.float32(2)

    @cuda.jit(device=True, forceinline=True)
    def begin_with(where):
        shared, _, floats, read, _, _, which = where
        _, outputs, lengths, labels = read
        image, images, thread, warp = which
        label = labels[at(image)]
        e = short(thread)
        while e < SIZE:
            capsule = np.uint32(np.uint32(e) // OF_CAPSULE)
            length = lengths[at(image * CLASSES + capsule)]
            element = outputs[at(OUTPUT * images + image * SIZE + e)]
            gap, slope = length - ABSENT, TWO * WEIGHT
            if capsule == label:
                gap, slope = PRESENT - length, -TWO
            d_length = _ZERO if gap < _ZERO else slope * gap / np.float32(images)
            gradient = _ZERO
            if length != _ZERO:  # NaN stays NaN
                gradient = d_length * (element / length)
            shared[at(floats + AT + e)] = gradient
            e = unforeseen(e + THREADS)
        meet(THREADS)

    return begin_with


def _make_activation(output, ring):
    """Device function that takes the gradient from a layer's output to its sums; lanes share a group."""
    WIDTH = gcd(output.group, _OWN)
    RUNS, PARTS, THREADS = WIDTH // 4, output.size // WIDTH, ring.warpgroups * 128
    BITS = (output.group // WIDTH).bit_length() - 1
    SIZE, AT, OUTPUT = output.size, output.at, output.output_at
    SLOPES, GROUPS = output.slopes_at, output.size // output.group
    WRITES, TO, COPIES = output.d_sums_at is not None, output.d_sums_at or 0, output.copies
    SLOPE, TURNS = np.float32(output.slope), -(-PARTS // THREADS)
    AHEAD = min(TURNS, _FEW if TURNS <= 2 * _FEW else 2 * _FEW)
    ROUNDS, HELD, PAIRS = -(-TURNS // AHEAD), AHEAD * WIDTH, AHEAD * 2

    @cuda.jit(device=True, forceinline=True)
    def run_of(lane, r):
        """Where one of a thread's runs lies: half of the lanes begin with the second, so all banks are busy."""
        return (r ^ lane >> 2 & RUNS - 1) * 4

    @cuda.jit(device=True, forceinline=True)
    def load(results, pairs, outputs, slopes, begins, first, lane):
        """A thread's outputs of some turns, and their groups' slopes."""
        run = cuda.local.array(4, np.float32)
        output, group = begins
        for turn in range(AHEAD):
            part = min(first + turn * THREADS, PARTS - 1)
            for r in range(RUNS):
                load_run(4, run, outputs, output + part * WIDTH + run_of(lane, r))
                for j in range(4):
                    results[turn * WIDTH + r * 4 + j] = run[j]
            load_run(2, run, slopes, 2 * (group + (part >> BITS)))
            pairs[2 * turn], pairs[2 * turn + 1] = run[0], run[1]

    @cuda.jit(device=True, forceinline=True)
    def differentiate(where, turn, phases):
        shared, _, floats, read, d_sums, _, which = where
        slopes, outputs, _, _ = read
        image, images, thread, warp = which
        ahead = cuda.local.array(HELD, np.float32)
        pairs_ahead = cuda.local.array(PAIRS, np.float32)
        result = cuda.local.array(HELD, np.float32)
        pairs = cuda.local.array(PAIRS, np.float32)
        gradient = cuda.local.array(WIDTH, np.float32)
        run = cuda.local.array(4, np.float32)
        lane = short(thread & 31)
        begins = OUTPUT * images + image * SIZE, SLOPES * images + image * GROUPS
        load(ahead, pairs_ahead, outputs, slopes, begins, thread, lane)
        for around in range(short(ROUNDS)):
            for i in range(HELD):
                result[i] = ahead[i]
            for i in range(PAIRS):
                pairs[i] = pairs_ahead[i]
            first = short(thread + around * (AHEAD * THREADS))
            if around < ROUNDS - 1:
                behind = first + AHEAD * THREADS
                load(ahead, pairs_ahead, outputs, slopes, begins, behind, lane)
            for one in range(AHEAD):
                part = short(first + one * THREADS)
                e = short(part * WIDTH)
                dot = _ZERO
                if part < PARTS:
                    for r in range(RUNS):
                        load_run(4, run, shared, floats + AT + e + run_of(lane, r))
                        for j in range(4):
                            gradient[r * 4 + j] = run[j]
                        for other in range(1, COPIES):
                            at_other = AT + other * SIZE + e
                            load_run(4, run, shared, floats + at_other + run_of(lane, r))
                            for j in range(4):
                                gradient[r * 4 + j] += run[j]
                    for j in range(WIDTH):
                        dot += result[one * WIDTH + j] * gradient[j]
                for bit in range(BITS):
                    dot += shuffle(dot, lane ^ 1 << bit)
                along = dot * pairs[2 * one + 1]
                if part < PARTS:
                    for r in range(RUNS):
                        for j in range(4):
                            value = result[one * WIDTH + r * 4 + j]
                            scale = _ONE if value > _ZERO else SLOPE
                            d_value = gradient[r * 4 + j] * pairs[2 * one] + value * along
                            run[j] = d_value * scale
                        place = e + run_of(lane, r)
                        store_run(4, shared, floats + AT + place, run)
                        if WRITES:
                            store_run(4, d_sums, TO * images + image * SIZE + place, run)
        meet(THREADS)
        return turn, phases

    return differentiate


def _make_input(one, ring):
    """Device function for what reaches a layer's input: products on warpgroups, and their sums in shared memory."""
    layer = one.layer
    ROWS, D1, COLUMNS = layer.rows, layer.D1, layer.columns
    OUT_ROW, OUT_COLUMN, OUT_D1 = layer.results
    BY_ROW, BY_COLUMN, BY_D1, FIRST = layer.reads
    CHANNEL, TAP_ROW, TAP_COLUMN = layer.taps_apart
    K, CAPSULE, BY_CAPSULE, STEPS, RUN = one.K, layer.D3, layer.by_capsule, one.steps, one.run
    RUNS, FRAGMENTS, TURNS = 2 * STEPS // RUN, 4 * STEPS, one.at_once
    SPLIT = layer.terms > 1
    HELD_ROWS, PART = TURNS * FRAGMENTS, FRAGMENTS if SPLIT else 1
    BN, WIDE, D = one.columns, one.wide, one.D
    B_MATRIX, STEP = descriptor_strides(BN * 16, 128), 2 * BN
    SUMS, TOGETHER, IN_TURN = BN // 2, one.together, one.taps // one.together
    ALL_SUMS, ROWS_ADDED = TURNS * SUMS, 2 * TURNS
    ROWS_HELD = 2 if SPLIT else ROWS_ADDED  # as many as registers are left for
    OF_TAP = one.N // 8  # blocks of 8 columns
    RUN_OUT, PLACES = 2 * WIDE, OF_TAP // WIDE
    HELD = ROWS_HELD * PLACES * RUN_OUT
    TAP_COLUMNS, ROUNDS, COPIES = layer.taps[1], one.rounds, one.copies
    CHUNKS, WARPGROUPS = 2 if SPLIT else 1, ring.warpgroups
    AT, OUT, SIZE, THREADS = one.at, one.out, one.size, ring.warpgroups * 128
    EMPTY, SLOTS, NEARER = 8 * ring.slots, one.slots, TF32_NEARER
    lies_at, phase_of, following, after = ring_of(ring, one.slots)

    @cuda.jit(device=True, forceinline=True)
    def places_of(row):
        """Where a row of the image's product lies, and where its first tap is added."""
        row = np.uint32(row if row < ROWS else 0)
        pixel, d1 = np.uint32(row // D1), np.uint32(row % D1)
        down, across = np.uint32(pixel // COLUMNS), np.uint32(pixel % COLUMNS)
        place = short(down * OUT_ROW + across * OUT_COLUMN + d1 * OUT_D1)
        return place, short(down * BY_ROW + across * BY_COLUMN + d1 * BY_D1 + FIRST)

    @cuda.jit(device=True, forceinline=True)
    def load(held, begin_to, shared, begin, row_at, below_at, lane):
        """A thread's part of a tile's first operand: all k's of two rows."""
        values = cuda.local.array(RUN, np.float32)
        for i in range(RUNS):
            k = np.uint32((i * 4 + lane % 4) * RUN)
            k = np.uint32(k if k < K else 0)  # multiplied by zeros
            capsule = np.uint32(k // CAPSULE) * BY_CAPSULE + np.uint32(k % CAPSULE)
            for half in range(2):
                load_run(RUN, values, shared, begin + capsule + (below_at if half else row_at))
                for j in range(RUN):
                    four = i * RUN + j
                    to = begin_to + four // 2 * 4 + four % 2 * 2 + half
                    held[to] = values[j] if SPLIT else values[j] * NEARER

    @cuda.jit(device=True, forceinline=True)
    def load_tiles(held, added_at, shared, begin, row, lane):
        """The same of all tiles at once, and where their rows' first taps are added."""
        for t in range(TURNS):
            row_at, added_at[2 * t] = places_of(row + 64 * t)
            below_at, added_at[2 * t + 1] = places_of(row + 64 * t + 8)
            load(held, t * FRAGMENTS, shared, begin, row_at, below_at, lane)

    @cuda.jit(device=True, forceinline=True)
    def multiply(acc, held, shared, start, turn, phases):
        """The products of all tiles with some taps, whose chunks are next in the ring."""
        high = cuda.local.array(PART, np.float32)
        low = cuda.local.array(PART, np.float32)
        mbarrier_wait(shared, start + turn * 8, phase_of(turn, phases))
        one, bits = following(turn, phases)
        if SPLIT:
            mbarrier_wait(shared, start + one * 8, phase_of(one, bits))
        b_low = B_MATRIX + lies_at(start, turn)
        b_high = B_MATRIX + lies_at(start, one if SPLIT else turn)
        wgmma_fence()
        for t in range(TURNS if SPLIT else 0):
            to, of = t * SUMS, t * FRAGMENTS
            if SPLIT:  # the small products first
                for i in range(FRAGMENTS):
                    high[i] = cut_tf32(held[of + i])
                    low[i] = (held[of + i] - high[i]) * NEARER
                wgmma_fence()
                for k in range(STEPS):
                    more = 1 if k > 0 else 0
                    wgmma_fragment(BN, acc, to, high, k * 4, shared, b_low + k * STEP, more)
                for k in range(STEPS):
                    wgmma_fragment(BN, acc, to, low, k * 4, shared, b_high + k * STEP, 1)
                for k in range(STEPS):
                    wgmma_fragment(BN, acc, to, high, k * 4, shared, b_high + k * STEP, 1)
                wgmma_commit()
                wgmma_wait()
        if not SPLIT:  # sums that do not wait for each other in turn
            for k in range(STEPS):
                b, more = b_high + k * STEP, 1 if k > 0 else 0
                for t in range(TURNS):
                    of = t * FRAGMENTS + k * 4
                    wgmma_fragment(BN, acc, t * SUMS, held, of, shared, b, more)
            wgmma_commit()
            wgmma_wait()

    @cuda.jit(device=True, forceinline=True)
    def below(one):
        """Rows from a thread's first one to this one."""
        return one // 2 * 64 + one % 2 * 8

    @cuda.jit(device=True, forceinline=True)
    def add(acc, shared, to, row, added_at, column_at, taps, barrier):
        """Add a thread's sums of some taps, one after the other; others of its warpgroup add theirs."""
        held = cuda.local.array(HELD, np.float32)
        run = cuda.local.array(RUN_OUT, np.float32)
        for j in range(TOGETHER):
            tap = np.uint32(taps * TOGETHER + j)
            tap_at = to + np.uint32(tap // TAP_COLUMNS) * TAP_ROW
            tap_at += np.uint32(tap % TAP_COLUMNS) * TAP_COLUMN
            if TOGETHER > 1:
                meet_at(barrier, 128)  # what was added of the tap before is there
            for some in range(0, ROWS_ADDED, ROWS_HELD):
                for one in range(ROWS_HELD):  # before the first store, which they would wait for
                    begin = tap_at + added_at[some + one]
                    if row + below(some + one) < ROWS:
                        for place in range(PLACES):
                            load_run(RUN_OUT, run, shared, begin + column_at[place])
                            for i in range(RUN_OUT):
                                held[(one * PLACES + place) * RUN_OUT + i] = run[i]
                for one in range(ROWS_HELD):
                    begin = tap_at + added_at[some + one]
                    if row + below(some + one) < ROWS:
                        for place in range(PLACES):
                            for i in range(RUN_OUT):
                                block = j * OF_TAP + place * WIDE + i // 2
                                which = (some + one) // 2 * SUMS + block * 4
                                which += (some + one) % 2 * 2 + i % 2
                                run[i] = held[(one * PLACES + place) * RUN_OUT + i] + acc[which]
                            store_run(RUN_OUT, shared, begin + column_at[place], run)

    @cuda.jit(device=True, forceinline=True)
    def prepare(column_at, shared, floats, thread, lane):
        """Fill the input with zeros, and find out where a thread's columns are added."""
        i = short(4 * thread)
        while i < SIZE * COPIES:
            store_quad(shared, floats + OUT + i, _ZERO, _ZERO, _ZERO, _ZERO)
            i = unforeseen(i + 4 * THREADS)
        for place in range(PLACES):
            n = np.uint32((place * 4 + lane % 4) * RUN_OUT)
            column_at[place] = short(np.uint32(n // D) * CHANNEL + np.uint32(n % D))
        meet(THREADS)

    @cuda.jit(device=True, forceinline=True)
    def compute_taps(where, turn, phases):
        """Warpgroups take taps in turn: in a step one multiplies, the other adds what it multiplied before."""
        shared, start, floats, _, _, _, which = where
        _, _, thread, warp = which
        acc = cuda.local.array(ALL_SUMS, np.float32)
        held = cuda.local.array(HELD_ROWS, np.float32)
        column_at = cuda.local.array(PLACES, np.int32)
        added_at = cuda.local.array(ROWS_ADDED, np.int32)
        lane = short(thread & 31)
        if turn >= SLOTS:
            turn = short(0)
        prepare(column_at, shared, floats, thread, lane)
        to, last = short(floats + OUT), short(IN_TURN)
        for around in range(short(ROUNDS)):
            row = short(around * (TURNS * 64) + (warp & 3) * 16 + lane // 4)
            load_tiles(held, added_at, shared, floats + AT, row, lane)
            for i in range(ALL_SUMS):
                acc[i] = _ZERO
            step = short(0)
            while step <= last:
                if (step ^ warp >> 2) & 1 == 0:
                    if step < last:
                        multiply(acc, held, shared, start, turn, phases)
                        for _ in range(CHUNKS):
                            if lane == 0:
                                to_empty = start + EMPTY + turn * 8
                                mbarrier_arrive_times(shared, to_empty, WARPGROUPS)
                            turn, phases = following(turn, phases)
                else:
                    if step > 0:
                        add(acc, shared, to, row, added_at, column_at, step - 1, 0)
                    if step < last:
                        turn, phases = after(turn, phases, CHUNKS)
                meet(THREADS)
                step = unforeseen(step + 1)
        return turn, phases

    @cuda.jit(device=True, forceinline=True)
    def compute_tiles(where, turn, phases):
        """A warpgroup takes tiles of its own."""
        shared, start, floats, _, _, _, which = where
        _, _, thread, warp = which
        acc = cuda.local.array(ALL_SUMS, np.float32)
        held = cuda.local.array(HELD_ROWS, np.float32)
        column_at = cuda.local.array(PLACES, np.int32)
        added_at = cuda.local.array(ROWS_ADDED, np.int32)
        lane = short(thread & 31)
        if turn >= SLOTS:
            turn = short(0)
        prepare(column_at, shared, floats, thread, lane)
        tile = short(warp >> 2)
        to = short(floats + OUT + (tile * SIZE if COPIES > 1 else 0))
        for _ in range(short(ROUNDS)):
            row = short(tile * 64 + (warp & 3) * 16 + lane // 4)
            load_tiles(held, added_at, shared, floats + AT, row, lane)
            taps = short(0)
            while taps < IN_TURN:
                multiply(acc, held, shared, start, turn, phases)
                for _ in range(CHUNKS):
                    if lane == 0:
                        mbarrier_arrive(shared, start + EMPTY + turn * 8)
                    turn, phases = following(turn, phases)
                if TOGETHER == 1:
                    meet_at(2 + (warp >> 2), 128)
                add(acc, shared, to, row, added_at, column_at, taps, 2 + (warp >> 2))
                taps = unforeseen(taps + 1)
            tile = short(tile + WARPGROUPS)
        meet(THREADS)
        return turn, phases

    return compute_taps if one.takes_taps else compute_tiles


def _make_weights(one, ring):
    """Device function for what images add to the gradient of a kernel whose input's capsules are core matrices.

    dw[(p, d3), (tap, d2)] = sum over (pixel, d1) of d_sums[(p, d3), (pixel, d1)] * input[(tap, d2), (pixel, d1)]
    """
    layer, w = one.layer, one.weights
    C, (KH, KW), (OH, OW), (H, W) = w.channels, w.taps, w.pixels, w.input
    (SH, SW), (DH, DW) = w.step, w.apart
    N, D3, BY_CAPSULE = layer.N, layer.D3, layer.by_capsule
    OUT_ROW, OUT_COLUMN, OUT_D1 = layer.results
    SPLIT = layer.terms > 1
    TERMS = 3 if SPLIT else 1
    PAIRS, BATCHES = w.pairs, w.batches
    BN, OF_ROW = KW * 8, KW * 4
    SUMS = C * KH * OF_ROW
    PART_SUMS, FRAGMENTS = SUMS if SPLIT else 1, 4 * PAIRS
    B_MATRIX = descriptor_strides(SW * 128, DW * 128)
    SLOTS, ALL_SLOTS = C * H * W, C * H * W + w.padding // 32
    AT, TRANSPOSED, READ, IMAGE = one.at, w.at, w.read_at, C * H * W * 32
    TO, SIZE, E2 = w.partial_at, w.size, 8 * layer.D3
    WARPGROUPS, THREADS, WARPS = ring.warpgroups, ring.warpgroups * 128, ring.warpgroups * 4
    ITEMS, NEARER, AHEAD = OH * BATCHES, TF32_NEARER, min(_IN_FLIGHT, -(-ALL_SLOTS // WARPS))

    @cuda.jit(device=True, forceinline=True)
    def transpose(shared, to, outputs, begin, warp, lane, small):
        """Lay the input's capsules out with d1 along their rows; or what TF32 has not of them."""
        held = cuda.local.array(AHEAD, np.float32)
        place = to + lane % 8 * 4 + lane // 8
        for first in range(warp, ALL_SLOTS, WARPS * AHEAD):
            for i in range(AHEAD):
                slot = min(first + i * WARPS, SLOTS - 1)
                held[i] = outputs[at(begin + slot * 32 + lane)]
            for i in range(AHEAD):
                slot = first + i * WARPS
                if slot < ALL_SLOTS:
                    value = to_tf32(held[i])
                    if small:
                        value = to_tf32(held[i] - value)
                    shared[at(place + slot * 32)] = value if slot < SLOTS else _ZERO

    @cuda.jit(device=True, forceinline=True)
    def place_of(row, lane):
        """Where in the gradient the first of a thread's sums of a row lies."""
        place = np.uint32(row // D3) * (C * KH * KW * E2) + np.uint32(row % D3)
        return place + lane % 4 * (2 * D3)

    @cuda.jit(device=True, forceinline=True)
    def load(to, shared, begin, rows_at, item):
        """A thread's part of what reaches the sums: two columns, of pairs of pixels."""
        row_at, below_at = rows_at
        item = np.uint32(min(item, ITEMS - 1))
        oh, ow = np.uint32(item // BATCHES), np.uint32(item % BATCHES * (2 * PAIRS))
        pixel = begin + oh * OUT_ROW + ow * OUT_COLUMN
        for pair in range(PAIRS):
            for second in range(2):
                inside = ow + (2 * pair + second) < OW
                place = pixel + (2 * pair + second) * OUT_COLUMN if inside else begin
                for half in range(2):
                    element = shared[at(place + (below_at if half else row_at))]
                    to[pair * 4 + second * 2 + half] = element if inside else _ZERO

    @cuda.jit(device=True, forceinline=True)
    def compute(where, turn, phases):
        shared, start, floats, read, _, partial, which = where
        _, outputs, _, _ = read
        image, images, thread, warp = which
        acc = cuda.local.array(SUMS, np.float32)
        part = cuda.local.array(PART_SUMS, np.float32)
        before = cuda.local.array(SUMS, np.float32)
        fragment = cuda.local.array(FRAGMENTS, np.float32)
        loaded = cuda.local.array(FRAGMENTS, np.float32)
        lane = short(thread & 31)
        warpgroup = short(warp >> 2)
        n = np.uint32((warp & 3) * 16 + lane // 4)
        below = np.uint32(n + 8)
        d1_at = lane % 4 * OUT_D1
        n_at = d1_at + (np.uint32(n // D3) * BY_CAPSULE + np.uint32(n % D3) if n < N else 0)
        below_at = d1_at
        if below < N:
            below_at += np.uint32(below // D3) * BY_CAPSULE + np.uint32(below % D3)
        rows_at = short(n_at), short(below_at)
        block = cuda.blockIdx.x
        begins = TO * cuda.gridDim.x + (block * WARPGROUPS + warpgroup) * SIZE
        for i in range(SUMS):
            acc[i] = _ZERO
            before[i] = _ZERO
        if image != block:  # what the block's images before it add
            for half in range(2):
                row = np.uint32(n + half * 8)
                if row < N:
                    place = begins + place_of(row, lane)
                    for tap in range(C * KH * KW):
                        for e in range(2):
                            before[tap * 4 + half * 2 + e] = partial[at(place + tap * E2 + e * D3)]
        for term in range(short(TERMS)):
            if term < 2:  # in three terms the small products first
                meet(THREADS)  # what lay there was read
                begin = READ * images + image * IMAGE
                small = SPLIT and term == 0
                transpose(shared, floats + TRANSPOSED, outputs, begin, warp, lane, small)
                fence_proxy_async()
                meet(THREADS)
            load(loaded, shared, floats + AT, rows_at, warpgroup)
            for item in range(warpgroup, short(ITEMS), WARPGROUPS):
                for i in range(FRAGMENTS):
                    if SPLIT:
                        large = cut_tf32(loaded[i])
                        fragment[i] = (loaded[i] - large) * NEARER if term == 1 else large
                    else:
                        fragment[i] = loaded[i] * NEARER
                row = np.uint32(np.uint32(item) // BATCHES) * SH * W
                row += np.uint32(np.uint32(item) % BATCHES) * (2 * PAIRS * SW)
                b = B_MATRIX + (start + 4 * TRANSPOSED) // 16 + row * 8
                wgmma_fence()
                for pair in range(PAIRS):
                    for c in range(C):
                        for kh in range(KH):
                            slot = (c * H + kh * DH) * W + 2 * pair * SW
                            to = (c * KH + kh) * OF_ROW
                            if SPLIT:
                                more = 1 if pair > 0 else 0
                                b_at = b + slot * 8
                                wgmma_fragment(BN, part, to, fragment, pair * 4, shared, b_at, more)
                            else:
                                b_at = b + slot * 8
                                wgmma_fragment(BN, acc, to, fragment, pair * 4, shared, b_at, 1)
                wgmma_commit()
                load(loaded, shared, floats + AT, rows_at, item + WARPGROUPS)
                wgmma_wait()
                if SPLIT:
                    for i in range(SUMS):
                        acc[i] += part[i]
        for half in range(2):
            row = np.uint32(n + half * 8)
            if row < N:
                place = begins + place_of(row, lane)
                for tap in range(C * KH * KW):
                    for e in range(2):
                        i = tap * 4 + half * 2 + e
                        partial[at(place + tap * E2 + e * D3)] = before[i] + acc[i]
        meet(THREADS)
        return turn, phases

    return compute


def _make_first_weights(first, ring):
    """Device function for what images add to the gradient of the first kernel; threads share the pixels."""
    layer, THREADS = first.layer, ring.warpgroups * 128
    N, K, D3, PIXELS, COLUMNS = layer.N, layer.K, layer.N // layer.P, layer.pixels, layer.columns
    ROW, COLUMN, CHANNEL, TAP_ROW, TAP_COLUMN, FIRST = layer.steps
    C, KH, KW, D2 = layer.C, layer.KH, layer.KW, layer.D2
    X, AT, SHARES_AT, SHARES = first.x, first.at, first.shares_at, THREADS // layer.N
    TO, SIZE = first.partial_at, first.size
    BEFORE, fetch = first.shares_at + SHARES * first.size, make_fetch(THREADS)

    @cuda.jit(device=True, forceinline=True)
    def compute(where, turn, phases):
        shared, start, floats, _, _, partial, which = where
        image, images, thread, warp = which
        total = cuda.local.array(K, np.float32)
        cp_async_wait(0)
        block = cuda.blockIdx.x
        begins, again = TO * cuda.gridDim.x + block * SIZE, image != block
        if again:  # what the block's images before it add
            fetch(shared, start + 4 * BEFORE, partial, begins, SIZE, thread)
        cp_async_commit()
        meet(THREADS)  # the image is there
        n, share = np.uint32(np.uint32(thread) % N), np.uint32(np.uint32(thread) // N)
        n_at = np.uint32(n // D3) * (PIXELS * D3) + np.uint32(n % D3)
        for k in range(K):
            total[k] = _ZERO
        first = short(share) if share < SHARES else short(PIXELS)
        while first < PIXELS:
            for one in range(_PIXELS):
                pixel = np.uint32(min(first + one * SHARES, PIXELS - 1))
                slot = np.uint32(pixel // COLUMNS) * ROW
                slot = floats + X + FIRST + short(slot + np.uint32(pixel % COLUMNS) * COLUMN)
                gradient = shared[at(floats + AT + short(n_at + pixel * D3))]
                if first + one * SHARES >= PIXELS:
                    gradient = _ZERO
                for c in range(C):
                    for kh in range(KH):
                        for kw in range(KW):
                            for d2 in range(D2):
                                tap = slot + c * CHANNEL + kh * TAP_ROW + kw * TAP_COLUMN + d2
                                k = ((c * KH + kh) * KW + kw) * D2 + d2
                                total[k] += shared[at(tap)] * gradient
            first = unforeseen(first + _PIXELS * SHARES)
        if share < SHARES:
            for k in range(K):
                shared[at(floats + SHARES_AT + (share * K + k) * N + n)] = total[k]
        cp_async_wait(0)
        meet(THREADS)
        i = short(thread)
        while i < SIZE:
            d3, k = np.uint32(np.uint32(i) % D3), np.uint32(np.uint32(i) // D3)
            own = np.uint32(k % K) * N + np.uint32(k // K) * D3 + d3
            whole = _ZERO
            for other in range(SHARES):
                whole += shared[at(floats + SHARES_AT + other * SIZE + own)]
            if again:
                whole += shared[at(floats + BEFORE + i)]
            partial[at(begins + i)] = whole
            i = unforeseen(i + THREADS)
        meet(THREADS)  # the next image's may come
        return turn, phases

    return compute
