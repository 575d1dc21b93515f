"""The splits of a kernel's gradient added, where they lie as the tensor cores hold them.

What changed from the last kernel of :mod:`numbacaps.fused.rung_3_register_tiles.split_k`: a capsule of the gradient is 16 to 64 bytes, far
from the next one that a thread has, and memory is written in 32 bytes. So every thread of
:mod:`numbacaps.fused.rung_5_warp_specialized.split_k` stores its sums beside its neighbours', four at once, whatever they belong to;
and this kernel, which reads them in that order, finds out where the total goes, once for all splits.
"""

from functools import cache

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import load_run, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused import anew
from numbacaps.fused.rung_3_register_tiles.split_k import ADD_THREADS, ADDED
from numbacaps.fused.told import is_told


def fours_of_block(splits):
    """Fours of sums that a block adds: the fewer splits there are, the fewer threads share one, and the more it has."""
    return ADD_THREADS // min(ADD_THREADS // ADDED, 1 << (splits - 1).bit_length())


@cache
def make_add_tiles(spec, looks=""):
    """Kernel that adds the partial sums of all splits, always in the same order.

    Parameters
    ----------
    spec : numbacaps.fused.rung_5_warp_specialized.split_k_spec.ReductionSpec
    looks : str
        The pass, where results that three terms cannot tell are summed again.
    """
    (of_x, of_dy), tile, PAIR = spec.boxes, spec.tile, spec.tile.PAIR
    columns, threads, blocks = spec.window.taps[1], tile.tap_rows * 128, tile.BN // 8
    filled = of_dy.channels * spec.pixels.other[3]
    down, across = -(-spec.channels // of_x.channels), -(-spec.N // filled)
    split = down * across * columns * blocks * threads  # in fours
    N, K, D = map(specialized, (spec.N, spec.K, spec.D))
    TAP_ROWS, TAP_COLUMNS = map(specialized, (tile.tap_rows, columns))
    SPLITS, CHANNELS, GROUPS = map(specialized, (spec.strips.splits, spec.channels, spec.groups))
    STEP, A_CHANNELS = map(specialized, (spec.pixels.steps[1], of_x.channels))
    COLUMNS_FILLED, DOWN, SPLIT = map(specialized, (filled, down, split))
    PAIRS, ROWS_OF_WARP = map(specialized, (spec.D // PAIR, 16 // PAIR))
    FILLED = specialized(of_x.channels * (spec.D // PAIR))
    THREADS, BLOCKS = map(specialized, (threads, blocks))
    AT_ONCE, SUMS, BLOCK = fours_of_block(spec.strips.splits), 4 * ADD_THREADS, ADD_THREADS
    LANES, TURNS = ADD_THREADS // AT_ONCE, ceil_div(4 * AT_ONCE, ADD_THREADS)
    ROUNDS = specialized(ceil_div(spec.strips.splits, LANES))
    ZERO = np.float32(0)
    _, write = conversions(spec.dtype)
    LOOKS, sum_at = bool(looks), anew.SUMS[looks] if looks else None

    @cuda.jit(device=True, inline="always")
    def add_tiles(partial, table, dw, looked):
        of_lanes = cuda.shared.array(SUMS, np.float32)
        total = cuda.local.array(4, np.float32)
        four = cuda.local.array(4, np.float32)
        thread = cuda.threadIdx.x
        to = cuda.local.array(TURNS, np.int64)
        # Where some of the block's sums go, which a thread finds out for itself; -1 is nowhere.
        for turn in range(TURNS):
            one = np.uint32(turn * BLOCK + thread)
            i = np.uint32(cuda.blockIdx.x * AT_ONCE + one // 4)
            g, rest = np.uint32(i // SPLIT), np.uint32(i % SPLIT)
            lane, rest = np.uint32(rest % 32), np.uint32(rest // 32)
            warp, rest = np.uint32(rest % (THREADS // 32)), np.uint32(rest // (THREADS // 32))
            block, rest = np.uint32(rest % BLOCKS), np.uint32(rest // BLOCKS)
            tap_column, rest = np.uint32(rest % TAP_COLUMNS), np.uint32(rest // TAP_COLUMNS)
            half = np.uint32(one % 4 // 2)
            row = np.uint32(warp % 4 * ROWS_OF_WARP + lane // 4 + (half * 8 if PAIR == 1 else 0))
            channel = np.uint32(rest % DOWN * A_CHANNELS + row // PAIRS)
            k = np.uint32((channel * TAP_ROWS + warp // 4) * TAP_COLUMNS + tap_column)
            k = np.uint32(k * D + row % PAIRS * PAIR + (half if PAIR > 1 else 0))
            column = np.uint32(block * 8 + lane % 4 * 2 + one % 2)
            n = np.uint32(rest // DOWN * COLUMNS_FILLED + column)
            inside = g < GROUPS and row < FILLED and channel < CHANNELS
            inside = inside and column < COLUMNS_FILLED and n < N and one < 4 * AT_ONCE
            to[turn] = -1
            if inside:
                to[turn] = g * STEP + table[at(3 * K + k)] + table[at(4 * K + n)]
        # What it adds: four neighbours, of some splits.
        i = np.uint32(cuda.blockIdx.x * AT_ONCE + thread % AT_ONCE)
        g, i = np.uint32(i // SPLIT), np.uint32(i % SPLIT)
        written = g < GROUPS and i // 32 % 4 * ROWS_OF_WARP + i % 32 // 4 < FILLED
        for j in range(4):
            total[j] = ZERO
        wait_for_last()  # the splits are summed
        for some in range(ROUNDS):
            split = some * LANES + thread // AT_ONCE
            if written and split < SPLITS:
                load_run(4, four, partial, ((g * SPLITS + split) * SPLIT + i) * 4)
                for j in range(4):
                    total[j] += four[j]
        for j in range(4):
            of_lanes[at(thread * 4 + j)] = total[j]
        cuda.syncthreads()
        for turn in range(TURNS):
            if to[turn] >= 0:
                one = turn * BLOCK + thread
                whole = of_lanes[at(one)]
                for lane_of_sum in range(1, LANES):
                    whole += of_lanes[at(lane_of_sum * 4 * AT_ONCE + one)]
                if LOOKS:
                    a, b, of = looked
                    if not is_told(whole):
                        whole = np.float32(sum_at(to[turn], a, b, of))
                dw[at(to[turn])] = write(whole)

    @kept_on_disk
    @cuda.jit
    def add_tiles_kernel(
        partial,  # in   (G, splits, tiles of columns, of channels, TAP_COLUMNS, BLOCKS, THREADS, 4)
        table,  # in   Product.table
        dw,  # out
    ):
        add_tiles(partial, table, dw, ())

    @kept_on_disk
    @cuda.jit
    def add_tiles_and_look_kernel(
        partial,
        table,
        dw,
        x,  # in   what the pass reads, as numbacaps.fused.anew has it
        dy,
        of,  # in   numbacaps.fused.anew.numbers_of
    ):
        add_tiles(partial, table, dw, (x, dy, of))

    return add_tiles_and_look_kernel if looks else add_tiles_kernel
