"""The whole forward pass as one kernel: an image's capsules never leave its multiprocessor.

Layer by layer a small network waits more than it works: each kernel begins, asks for its first boxes and
writes what the next one fetches again. Here a block takes an image through all layers. Each layer's output lies
in shared memory, where the next layer's products read it; only the kernels' packed rows of taps come from
outside, through a ring that runs on from layer to layer, so the next layer's are there when it begins. The
products are those of :mod:`numbacaps.fused.rung_5_warp_specialized.kernel`, whose boxes are not needed any more.

A tile is 64 rows (pixel, d1) of the image. Where a layer has fewer tiles than there are warpgroups, these share
its sum, as all warps do where rows are few (:mod:`numbacaps.nn.resident.few_rows`); shares are added in a fixed order.
The first layer, whose sums are short, is ordinary arithmetic: a thread computes the elements of a squash group.
:mod:`numbacaps.nn.resident.layout` says what fits, and where it lies.
"""

import math
from functools import cache
from math import gcd

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    TF32_NEARER,
    bulk_copy,
    bulk_store,
    bulk_store_read,
    bulk_store_wait,
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
    mbarrier_wait_where,
    meet,
    meet_at,
    more_registers,
    shared_address,
    short,
    shuffle,
    store_pair,
    store_run,
    unforeseen,
    wait_for_last,
    wgmma_commit,
    wgmma_fence,
    wgmma_fragment,
    wgmma_wait,
    wgmma_wait_but,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda
from numbacaps.fused.activation import EPSILON, leaky, squash_slopes_of_result
from numbacaps.nn.resident.few_rows import make_few_rows
from numbacaps.nn.resident.layout import COPYING_REGISTERS
from numbacaps.nn.resident.places import places_of
from numbacaps.nn.resident.ring import in_turn, make_fetch, ring_of
from numbacaps.nn.resident.squash_tile import make_squash_tile

_ZERO = np.float32(0)
_UNROLLED = 6  # steps, at most: of more the code takes longer to be fetched than it saves
_SHARING = 16  # lanes that share a capsule's length
_OWN = 8  # elements of a squash group that a thread has, at most; half where many threads would have none


@cache
def make_resident_forward(first, layers, place, classes, E, for_gradients):
    """Kernel for a network's forward pass.

    Parameters
    ----------
    first : numbacaps.nn.resident.layout.FirstLayer
    layers : tuple of numbacaps.nn.resident.layout.ResidentLayer
        All others.
    place : numbacaps.nn.resident.layout.Residence
    classes, E : int
        Capsules of the last layer, and elements of each.
    for_gradients : bool
        Every layer's output is written, and its squash's slopes; otherwise the last output alone.
    """
    WARPS, THREADS, IMAGE = place.warpgroups * 4, place.warpgroups * 128, first.image
    SLOTS, EMPTY, GATE = place.slots, 8 * place.slots, 16 * place.slots
    REGISTERS, COPYING, OPENS = place.registers, COPYING_REGISTERS, place.more > 0
    X, KERNEL, WEIGHTS = first.x, first.kernel, first.K * first.N
    LENGTHS, CLASSES, OF_CAPSULE = layers[-1].out, classes, E
    LANES, LANE_BITS, ROUND = _SHARING, _SHARING.bit_length() - 1, THREADS // _SHARING
    TURNS = -(-classes // ROUND)
    compute_first = _make_first(first, place, for_gradients)
    compute = in_turn([_make_layer(layer, place, for_gradients) for layer in layers])
    copy = in_turn([_make_copy(layer, place) for layer in layers])
    fetch = make_fetch(THREADS)

    @kept_on_disk
    @cuda.jit(launch_bounds=(place.threads, 1))
    def resident_forward_kernel(
        x,  # in   (N, C, H, W, E1)
        kernel,  # in   the first layer's
        packed,  # in   the others', one behind the other as the layers say
        slopes,  # out  every layer's, (groups, 2), one behind the other
        outputs,  # out  every layer's, or the last one's alone
        lengths,  # out  (N, classes)
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
        turn = short(0)
        if warp >= WARPS:
            fewer_registers(COPYING)
            wait_for_last()  # the kernels are packed
            if warp == WARPS and lane == 0:
                phases = short(-1)  # what nobody has filled yet counts as empty
                opened = short(0)
                for _ in range(short(cuda.blockIdx.x), short(images), short(cuda.gridDim.x)):
                    turn, phases = copy((shared, start, packed, opened), turn, phases)
                    if OPENS:  # an image that needed no further slot was let through as well
                        mbarrier_wait(shared, start + GATE, opened)
                    opened = short(opened ^ 1)
        else:
            more_registers(REGISTERS)
            phases = short(0)
            floats = short((start - begin) // 4)
            image = short(cuda.blockIdx.x)
            fetch(shared, start + 4 * KERNEL, kernel, 0, WEIGHTS, thread)
            fetch(shared, start + 4 * X, x, image * IMAGE, IMAGE, thread)
            cp_async_commit()
            wait_for_last()  # what packs lets this one start when batch and weights are there
            for image in range(image, short(images), short(cuda.gridDim.x)):
                cp_async_wait(0)
                bulk_store_read()  # the last image's outputs
                meet(THREADS)
                where = shared, start, floats, slopes, outputs, image, images, thread, warp
                compute_first(where)
                beyond = image + cuda.gridDim.x
                if beyond < images:
                    fetch(shared, start + 4 * X, x, beyond * IMAGE, IMAGE, thread)
                cp_async_commit()
                turn, phases = compute(where, turn, phases)
                capsule = short(thread // LANES)
                while capsule < TURNS * ROUND:  # whole warps, because lanes meet
                    e, square = short(lane % LANES), _ZERO
                    own = floats + LENGTHS + min(capsule, CLASSES - 1) * OF_CAPSULE
                    while e < OF_CAPSULE:
                        element = shared[at(own + e)]
                        square += element * element
                        e = unforeseen(e + LANES)
                    for bit in range(LANE_BITS):
                        square += shuffle(square, lane ^ 1 << bit)
                    if lane % LANES == 0 and capsule < CLASSES:
                        lengths[at(image * CLASSES + capsule)] = math.sqrt(square)
                    capsule = unforeseen(capsule + ROUND)
            bulk_store_wait()

    return resident_forward_kernel


def _make_copy(layer, place):
    """Device function that fetches a layer's kernel, a row of taps after the other, once a round of tiles."""
    ROUNDS, CHUNKS, BYTES = layer.rounds, layer.chunks, layer.chunk_bytes
    OFFSET, ELEMENTS = layer.packed_at, layer.chunk_bytes // 4
    SLOTS, EMPTY, GATE = layer.slots, 8 * place.slots, 16 * place.slots
    RING = place.ring
    lies_at, phase_of, following, _ = ring_of(place, layer.slots)

    @cuda.jit(device=True, forceinline=True)
    def copy(where, turn, phases):
        shared, start, packed, opened = where
        if turn >= SLOTS:
            turn = short(0)
        around = short(0)
        while around < ROUNDS:
            source, chunk = OFFSET, short(0)
            while chunk < CHUNKS:
                full = start + turn * 8
                if SLOTS > RING and turn >= RING:
                    mbarrier_wait(shared, start + GATE, opened)  # what lay there was read
                mbarrier_wait(shared, full + EMPTY, phase_of(turn, phases))
                mbarrier_expect(shared, full, BYTES)
                bulk_copy(shared, CHUNK * lies_at(start, turn), packed, source, BYTES, full)
                source += ELEMENTS
                turn, phases = following(turn, phases)
                chunk = unforeseen(chunk + 1)
            around = unforeseen(around + 1)
        return turn, phases

    return copy


def _make_first(layer, place, keeps):
    """Device function for the first layer; a thread computes a squash group of one pixel."""
    GROUP = layer.group
    BESIDE, OF_PIXEL = layer.N // layer.P // layer.group, layer.N // layer.group
    AT_ONCE = place.warpgroups * 128 // OF_PIXEL  # pixels; what threads are left have none
    D3, PIXELS, COLUMNS = layer.N // layer.P, layer.pixels, layer.columns
    ROW, COLUMN, CHANNEL, TAP_ROW, TAP_COLUMN, FIRST = layer.steps
    C, KH, KW, D2, K = layer.C, layer.KH, layer.KW, layer.D2, layer.K
    X, KERNEL, OUT = layer.x, layer.kernel, layer.out
    KEEPS, SLOPE, GROUPS = keeps, np.float32(layer.slope), layer.size // layer.group
    REGULARISER, RUN = np.float32(EPSILON), layer.run
    RUNS, OWN = layer.group // layer.run, layer.K * layer.group
    end = _make_end(layer.out, layer.size, 0, place, keeps)

    @cuda.jit(device=True, forceinline=True)
    def compute_first(where):
        shared, _, floats, slopes, _, image, _, thread, _ = where
        total = cuda.local.array(GROUP, np.float32)
        run = cuda.local.array(RUN, np.float32)
        weights = cuda.local.array(OWN, np.float32)
        # A thread's groups are the same of every pixel, so it keeps its part of the kernel.
        own = np.uint32(np.uint32(thread) % OF_PIXEL)
        p, d3 = np.uint32(own // BESIDE), np.uint32(own % BESIDE * GROUP)
        for k in range(K):
            for r in range(RUNS):
                load_run(RUN, run, shared, floats + KERNEL + (p * K + k) * D3 + d3 + r * RUN)
                for j in range(RUN):
                    weights[k * GROUP + r * RUN + j] = run[j]
        begin = short(np.uint32(thread) // OF_PIXEL)
        pixel = begin if begin < AT_ONCE else short(PIXELS)
        while pixel < PIXELS:
            slot = np.uint32(np.uint32(pixel) // COLUMNS) * ROW
            slot += np.uint32(np.uint32(pixel) % COLUMNS) * COLUMN + FIRST
            e = (p * PIXELS + pixel) * D3 + d3
            for j in range(GROUP):
                total[j] = _ZERO
            for c in range(C):
                for kh in range(KH):
                    for kw in range(KW):
                        for d2 in range(D2):
                            tap = slot + c * CHANNEL + kh * TAP_ROW + kw * TAP_COLUMN + d2
                            element = shared[at(floats + X + tap)]
                            k = ((c * KH + kh) * KW + kw) * D2 + d2
                            for j in range(GROUP):
                                total[j] += element * weights[k * GROUP + j]
            square = _ZERO
            for j in range(GROUP):
                value = leaky(total[j], SLOPE)
                square += value * value
            factor, slope = squash_slopes_of_result(square + REGULARISER)
            if KEEPS:
                group = image * GROUPS + np.uint32(e // GROUP)
                store_pair(slopes, 2 * group, factor, slope)
            for r in range(RUNS):
                for j in range(RUN):
                    run[j] = leaky(total[r * RUN + j], SLOPE) * factor
                store_run(RUN, shared, floats + OUT + e + r * RUN, run)
            pixel = unforeseen(pixel + AT_ONCE)
        end(where)

    return compute_first


def _make_end(out, size, output_at, place, keeps):
    """Device function that writes a layer's output, where it is kept, while the next one is computed."""
    OUT, SIZE, OUTPUT, KEEPS, THREADS = out, size, output_at, keeps, place.warpgroups * 128

    @cuda.jit(device=True, forceinline=True)
    def end(where):
        shared, start, _, _, outputs, image, images, thread, _ = where
        bulk_store_read()  # from where the next layer writes
        if KEEPS:
            fence_proxy_async()  # the copy engine may see the output
        meet(THREADS)
        if KEEPS and thread == 0:
            to = OUTPUT * images + image * SIZE
            bulk_store(outputs, to, shared, start + 4 * OUT, 4 * SIZE)

    return end


def _make_conclude(layer, place, keeps):
    """Device function that a layer ends with, when its sums or shares of them are in shared memory."""
    WHOLE, LEAVES, GATE = layer.shares == 1, layer.leaves, 16 * place.slots
    THREADS, KEEPS = place.warpgroups * 128, keeps or layer.last
    finish = _make_finish(layer, place, keeps)
    end = _make_end(layer.out, layer.size, layer.output_at, place, KEEPS and not WHOLE)

    @cuda.jit(device=True, forceinline=True)
    def conclude(where):
        shared, start, _, _, _, _, _, thread, _ = where
        if LEAVES:
            fence_proxy_async()  # the copy engine may write over what was read here
            bulk_store_read()
            cuda.syncwarp()
            if thread & 31 == 0:
                mbarrier_arrive(shared, start + GATE)
        if not WHOLE:
            meet(THREADS)
            finish(where)
        end(where)

    return conclude


def _make_finish(layer, place, keeps):
    """Device function that adds the shares of a layer's sums and squashes them; lanes share a group."""
    SIZE, SHARES, THREADS = layer.size, layer.shares, place.warpgroups * 128
    WIDTH = gcd(layer.group, _OWN if layer.size // _OWN > THREADS // 2 else 4)
    BITS = (layer.group // WIDTH).bit_length() - 1
    RUNS, PARTS = WIDTH // 4, layer.size // WIDTH
    OUT, SLOPES, GROUPS, KEEPS = layer.out, layer.slopes_at, layer.size // layer.group, keeps
    SLOPE, REGULARISER = np.float32(layer.slope), np.float32(EPSILON)

    @cuda.jit(device=True, forceinline=True)
    def finish(where):
        shared, _, floats, slopes, _, image, images, thread, warp = where
        total = cuda.local.array(WIDTH, np.float32)
        run = cuda.local.array(4, np.float32)
        lane = short(thread & 31)
        first = short(thread - lane)
        while first < PARTS:  # whole warps, because lanes meet
            e = min(first + lane, PARTS - 1) * WIDTH
            inside = first + lane < PARTS
            square = _ZERO
            for r in range(RUNS):
                load_run(4, run, shared, floats + OUT + e + r * 4)
                for j in range(4):
                    total[r * 4 + j] = run[j]
                for share in range(1, SHARES):
                    load_run(4, run, shared, floats + OUT + share * SIZE + e + r * 4)
                    for j in range(4):
                        total[r * 4 + j] += run[j]
            for j in range(WIDTH):
                value = leaky(total[j], SLOPE)
                square += value * value
            for bit in range(BITS):
                square += shuffle(square, lane ^ 1 << bit)
            factor, slope = squash_slopes_of_result(square + REGULARISER)
            cuda.syncwarp()  # idle lanes read the last part too
            if inside:
                if KEEPS and lane & (1 << BITS) - 1 == 0:
                    group = np.uint32((first + lane) >> BITS)
                    to = SLOPES * images + image * GROUPS + group
                    store_pair(slopes, 2 * to, factor, slope)
                for r in range(RUNS):
                    for j in range(4):
                        run[j] = leaky(total[r * 4 + j], SLOPE) * factor
                    store_run(4, shared, floats + OUT + e + r * 4, run)
            first = unforeseen(first + THREADS)

    return finish


def _make_layer(layer, place, keeps):
    """Device function for a layer's products and its activation."""
    conclude = _make_conclude(layer, place, keeps)
    if layer.few:
        return make_few_rows(layer, place, conclude)
    return _make_tiles(layer, place, keeps, conclude)


def _make_tiles(layer, place, keeps, conclude):
    """The same on warpgroups, a tile of 64 rows each."""
    BN, N = layer.BN, layer.N
    ROWS, FIRST = layer.rows, layer.reads[-1]
    CHANNEL, TAP_ROW, TAP_COLUMN = layer.taps_apart
    TAP_ROWS, TAP_COLUMNS = layer.taps
    CHANNELS, GROUPS, RUN, BATCH = layer.channels_at_once, layer.groups, layer.run, layer.batch
    RUNS = 2 * GROUPS // RUN
    FRAGMENTS = BATCH * TAP_COLUMNS * GROUPS * 4
    SPLIT = layer.terms > 1
    PARTS = 2 if SPLIT else 1
    LOW, SUMS = FRAGMENTS if SPLIT else 1, BN // 2
    PART_SUMS = SUMS if SPLIT else 1
    B_MATRIX, PART = descriptor_strides(BN * CHUNK, 128), 2 * BN
    TILES, ROUNDS, SHARES = layer.tiles, layer.rounds, layer.shares
    WARPGROUPS = place.warpgroups
    STEPS, TOGETHER = layer.chunks // (SHARES * BATCH), SHARES * BATCH
    UNROLLS, OTHERS = STEPS <= _UNROLLED, SHARES > 1 and TOGETHER < layer.slots
    # Steps in turn whose fragments have registers of their own, so that one's products can follow the other's.
    HALVES = 2 if layer.follows else 1
    LATER, HELD = HALVES - 1, HALVES * FRAGMENTS
    D3, BY_CAPSULE, CAPSULES, SIZE = layer.D3, layer.by_capsule, layer.N // layer.D3, layer.size
    IN, OUT, KEEPS, OUTPUT = layer.at, layer.out, keeps or layer.last, layer.output_at
    WHOLE, SLOPES, GROUPS_OUT = layer.shares == 1, layer.slopes_at, layer.size // layer.group
    SLOTS, EMPTY, N_FULL, NEARER = layer.slots, 8 * place.slots, N == BN, TF32_NEARER
    lies_at, phase_of, following, after = ring_of(place, layer.slots)
    slot_of, k_at, result_of, result_of_column = places_of(layer)

    @cuda.jit(device=True, forceinline=True)
    def rows_of(tile, warp, lane):
        """A thread's first row of a tile, and where it and the one 8 below begin to read."""
        row = short(tile * 64 + (warp & 3) * 16 + lane // 4)
        return row, (slot_of(row), slot_of(row + 8))

    squash = make_squash_tile(layer, result_of, result_of_column, keeps)

    @cuda.jit(device=True, forceinline=True)
    def load(to, shared, origin, run_at, rows_at, chunk):
        """A thread's part of the first operand, of chunks: a row of taps of some channels each."""
        values = cuda.local.array(RUN, np.float32)
        row_at, below_at = rows_at
        for r in range(BATCH):
            one = np.uint32(chunk + r)
            begin = origin + np.uint32(one // TAP_ROWS) * (CHANNELS * CHANNEL)
            begin += np.uint32(one % TAP_ROWS) * TAP_ROW
            for i in range(RUNS):
                for half in range(2):
                    slot = begin + run_at[i] + (below_at if half else row_at)
                    for tap in range(TAP_COLUMNS):
                        load_run(RUN, values, shared, slot + tap * TAP_COLUMN)
                        for j in range(RUN):
                            four = i * RUN + j  # k's of a tap
                            k = (r * GROUPS + four // 2) * TAP_COLUMNS + tap
                            to[k * 4 + four % 2 * 2 + half] = values[j]

    @cuda.jit(device=True, forceinline=True)
    def store(acc, array, begin, row, column):
        """Write a thread's sums where they belong in an image's result."""
        for half in range(2):
            if row + half * 8 < ROWS:
                to = begin + result_of(row + half * 8)
                for block in range(BN // 8):
                    n, i = column + block * 8, block * 4 + half * 2
                    if N_FULL or n < N:
                        store_pair(array, to + result_of_column(n), acc[i], acc[i + 1])

    @cuda.jit(device=True, forceinline=True)
    def write_tile(shared, start, outputs, begin, tile):
        """Let a tile's rows of every capsule be written while the next tiles are computed."""
        first = short(tile * 64)
        count = short(min(64, ROWS - first)) * D3
        for p in range(short(CAPSULES)):
            at_row = p * BY_CAPSULE + first * D3
            bulk_store(outputs, begin + at_row, shared, start + 4 * (OUT + at_row), 4 * count)

    @cuda.jit(device=True, forceinline=True)
    def pass_by(shared, start, lane, turn, phases):
        """Leave a chunk to others."""
        mbarrier_wait(shared, start + turn * 8, phase_of(turn, phases))
        if lane == 0:
            mbarrier_arrive(shared, start + EMPTY + turn * 8)
        return following(turn, phases)

    @cuda.jit(device=True, forceinline=True)
    def leave(shared, start, lane, turn):
        """Leave the chunks from there on to the copy engine, in the name of all that share the sum."""
        for _ in range(BATCH):
            if lane == 0:
                mbarrier_arrive_times(shared, start + EMPTY + turn * 8, SHARES)
            turn = short(turn + 1 if turn < SLOTS - 1 else 0)

    @cuda.jit(device=True, forceinline=True)
    def multiply(acc, part, high, first, low, shared, chunk_at):
        """Queue the products with the chunks that lie there."""
        for chain in range(PARTS):  # in three terms the small products first
            for r in range(BATCH):
                for tap in range(TAP_COLUMNS):
                    for group in range(GROUPS):
                        b_high = chunk_at[r] + (tap * PARTS * GROUPS + group) * PART
                        b_low = b_high + GROUPS * PART
                        k = ((r * GROUPS + group) * TAP_COLUMNS + tap) * 4
                        if not SPLIT:
                            more = 0 if STEPS == 1 and r + tap + group == 0 else 1
                            wgmma_fragment(BN, acc, 0, high, first + k, shared, b_high, more)
                        elif chain == 0:
                            more = 1 if r + tap + group > 0 else 0
                            wgmma_fragment(BN, part, 0, low, k, shared, b_high, more)
                            wgmma_fragment(BN, part, 0, high, k, shared, b_low, 1)
                        else:
                            wgmma_fragment(BN, part, 0, high, k, shared, b_high, 1)

    @cuda.jit(device=True, forceinline=True)
    def compute(where, turn, phases):
        shared, start, floats, slopes, outputs, image, images, thread, warp = where
        acc = cuda.local.array(SUMS, np.float32)
        part = cuda.local.array(PART_SUMS, np.float32)
        high = cuda.local.array(HELD, np.float32)
        low = cuda.local.array(LOW, np.float32)
        loaded = cuda.local.array(FRAGMENTS, np.float32)
        run_at = cuda.local.array(RUNS, np.int32)
        chunk_at = cuda.local.array(BATCH, np.int64)
        lane = short(thread & 31)
        warpgroup = short(warp >> 2)
        for i in range(RUNS):
            run_at[i] = k_at(i * RUN, lane)
        origin = short(floats + IN + FIRST)
        if turn >= SLOTS:
            turn = short(0)
        tile, share = short(warpgroup), short(0)
        if SHARES * TILES <= WARPGROUPS:
            tile = short(np.uint32(warpgroup) % TILES)
            share = short(np.uint32(warpgroup) // TILES)
        row, rows_at = rows_of(tile, warp, lane)
        load(loaded, shared, origin, run_at, rows_at, share * BATCH)
        for around in range(short(ROUNDS)):
            for i in range(SUMS):
                acc[i] = _ZERO
            for i in range(PART_SUMS):
                part[i] = _ZERO
            busy = tile < TILES and share < SHARES
            if busy:
                before = turn
                first = short(0)
                while first < STEPS:
                    for half in range(HALVES):
                        step = short(first + half)
                        if SHARES > 1:
                            turn, phases = after(turn, phases, share * BATCH)
                        for i in range(FRAGMENTS):
                            if SPLIT:
                                high[i] = cut_tf32(loaded[i])
                                low[i] = (loaded[i] - high[i]) * NEARER
                            else:
                                high[half * FRAGMENTS + i] = loaded[i] * NEARER
                        one, bits = turn, phases
                        for r in range(BATCH):
                            if OTHERS:  # whose chunk may have been there
                                chunk = step * TOGETHER + share * BATCH + r
                                asked = 1 if chunk >= SLOTS else 0
                                empty = start + EMPTY + one * 8
                                mbarrier_wait_where(shared, empty, phase_of(one, bits) ^ 1, asked)
                            mbarrier_wait(shared, start + one * 8, phase_of(one, bits))
                            chunk_at[r] = B_MATRIX + lies_at(start, one)
                            one, bits = following(one, bits)
                        ahead = short(step + 1 if step < STEPS - 1 else 0)
                        if step == STEPS - 1:  # the next tile's
                            _, rows_at = rows_of(tile + WARPGROUPS, warp, lane)
                        chunk = ahead * TOGETHER + share * BATCH
                        # Before the products: with many in the queue the warp stands still.
                        if not SPLIT:
                            load(loaded, shared, origin, run_at, rows_at, chunk)
                        wgmma_fence()
                        multiply(acc, part, high, half * FRAGMENTS, low, shared, chunk_at)
                        wgmma_commit()
                        if SPLIT:  # fragments that are only cut would be taken for free
                            load(loaded, shared, origin, run_at, rows_at, chunk)
                        wgmma_wait_but(LATER)
                        if SPLIT:
                            for i in range(SUMS):
                                acc[i] += part[i]
                        if step >= LATER:  # read are the chunks of this step, or of the one before
                            leave(shared, start, lane, before if LATER > 0 else turn)
                        before = turn
                        if TOGETHER > 1:
                            turn, phases = after(turn, phases, TOGETHER - share * BATCH)
                        else:
                            turn, phases = following(turn, phases)
                    first = short(first + HALVES) if UNROLLS else unforeseen(first + HALVES)
                if LATER > 0:
                    wgmma_wait()
                    leave(shared, start, lane, before)
            else:
                for _ in range(short(STEPS * TOGETHER)):
                    turn, phases = pass_by(shared, start, lane, turn, phases)
            column = short(lane % 4 * 2)
            if busy:
                if WHOLE:
                    squash(acc, slopes, SLOPES * images + image * GROUPS_OUT, row, lane)
                store(acc, shared, floats + OUT + share * SIZE, row, column)
                if WHOLE and KEEPS:
                    fence_proxy_async()  # the copy engine may see the tile
                    meet_at(2 + warpgroup, 128)
                    if warp & 3 == 0 and lane == 0:
                        write_tile(shared, start, outputs, image * SIZE + OUTPUT * images, tile)
            tile, row = short(tile + WARPGROUPS), short(row + WARPGROUPS * 64)
        conclude(where)
        return turn, phases

    return compute
