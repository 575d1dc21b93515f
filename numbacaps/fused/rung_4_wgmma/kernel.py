"""Rung 4, warpgroup products: capsules as the tensor cores' own core matrices.

    c[m, n] = sum over k of a[m, k] * b[k, n]

What changed: the tensor cores read both operands from shared memory, 64 rows at a time. A block takes a
patch of TH x TW pixels of as many images as fill 64 rows with their d1. The pixels that the patch's
windows cover are copied to shared memory once for each chunk of channels: a *slot* a pixel, in it 64 rows
of 16 bytes, which are eight core matrices in a run. So every tap of every pixel is a descriptor that
points to another slot, and a pixel copied once serves all windows that cover it. The kernel is
packed beforehand into core matrices, k running along its rows (:mod:`numbacaps.fused.pack`).

Copies are asynchronous: while the tensor cores work on one stage, the next ones are on their way. A
thread copies the same row of the same slots in every stage, so where they lie is worked out once.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    cp_async,
    cp_async_commit,
    cp_async_wait,
    descriptor_strides,
    fence_proxy_async,
    local_array,
    shared_address,
    store_pair,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.epilogue import Epilogue, activate
from numbacaps.fused.rung_4_wgmma.tile import Stage, chunks_beside, run_bytes


@cache
def make_wgmma(pixels, window, shape, tile, dtype, epilogue=Epilogue()):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product`.

    Parameters
    ----------
    pixels : numbacaps.fused.implicit_gemm.Pixels
    window : numbacaps.fused.rung_4_wgmma.tile.Window
    shape : numbacaps.fused.implicit_gemm.ProductShape
    tile : numbacaps.fused.rung_4_wgmma.tile.WarpgroupTile
    dtype : numpy.dtype
    epilogue : numbacaps.fused.epilogue.Epilogue
    """
    d1, (rows, columns) = pixels.D1, window.patch(pixels, tile)
    slots, beside = rows * columns, chunks_beside(shape.D, dtype.itemsize)
    stage = Stage.of(slots, window.taps[0] * window.taps[1], tile, beside)
    groups = tile.threads // (64 * beside)
    copies = tile.CHUNKS // beside * slots  # of a group of threads
    turns, b_turns = -(-copies // groups), -(-stage.pieces // tile.threads)
    ELEMENTS = CHUNK // dtype.itemsize  # of a chunk
    RUN = run_bytes(shape.D, dtype.itemsize)
    RUN_ELEMENTS, RUNS = RUN // dtype.itemsize, CHUNK // RUN
    depth, stage_depth = shape.channels * shape.D, tile.CHUNKS * ELEMENTS
    paired = pixels.other[3] % 2 == 0 and shape.N % 2 == 0
    apart = 1 if paired else 2  # places of a block's columns that a thread holds
    sums = tile.BN // 2
    D, N, K = map(specialized, (shape.D, shape.N, shape.K))
    CHANNEL_STEP, N_TILES = map(specialized, (shape.channel_step, -(-shape.N // tile.BN)))
    TH, TW, BN, PIXELS = map(specialized, (tile.TH, tile.TW, tile.BN, tile.pixels))
    THREADS, STAGES, PENDING = specialized(tile.threads), tile.STAGES, tile.STAGES - 2
    ROWS, COLUMNS, D1 = map(specialized, (pixels.rows, pixels.columns, d1))
    A_IMAGE, _, _, A_D1 = map(specialized, pixels.gathered)
    A_ROW, A_COLUMN = map(specialized, pixels.unit)
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = map(specialized, pixels.other)
    C_FIRST = specialized(pixels.first)
    A_G, _, C_G = map(specialized, pixels.steps)
    HEIGHT, WIDTH = map(specialized, pixels.extent)
    ROW_STEP, COLUMN_STEP = map(specialized, (pixels.top[0], pixels.left[0]))
    TOP = specialized(pixels.top[1] + window.first[0])
    LEFT = specialized(pixels.left[1] + window.first[1])
    TAP_ROWS, TAP_COLUMNS = map(specialized, window.taps)
    TAP_TOP, TAP_LEFT = map(specialized, window.start)
    TAP_DOWN, TAP_ACROSS = map(specialized, window.step)
    SLOTS, SLOT_COLUMNS = map(specialized, (slots, columns))
    patches = -(-pixels.rows // tile.TH), -(-pixels.columns // tile.TW)
    DOWN, ACROSS = map(specialized, patches)
    IMAGES, FILLED = map(specialized, (64 // d1, 64 // d1 * d1))  # FILLED rows of the 64
    BESIDE, GROUPS, COPIES = map(specialized, (beside, groups, copies))
    STAGE, A_BYTES, PAIR = map(specialized, (stage.bytes, stage.a, stage.pair // 16))
    HALF, PIECES = map(specialized, (stage.along_k, stage.pieces))
    TURNS, B_TURNS, OFFSETS = map(specialized, (turns, b_turns, turns * RUNS))
    DEPTH, STAGE_DEPTH = map(specialized, (depth, stage_depth))
    STEPS, WHOLE = map(specialized, (-(-depth // stage_depth), depth % stage_depth == 0))
    PAIRS = specialized(tile.CHUNKS // 2)
    A_MATRIX = specialized(descriptor_strides(stage.along_k, 128))
    B_MATRIX = specialized(descriptor_strides(tile.BN * CHUNK, 128))
    SUMS, ALL_SUMS = map(specialized, (sums, sums * tile.pixels))
    PAIRED, APART, PLACES = map(specialized, (paired, apart, tile.BN // 8 * apart))
    SLOT = 64 * CHUNK
    ZERO, dtype_of = np.float32(0), dtype.type
    RESULT, RESULTS = epilogue.results.start, epilogue.results.stop
    ACTIVATES = RESULTS > 1  # known before functions are inlined, which takes long
    BLOCKS, LANES, MASK = epilogue.blocks, epilogue.lanes, epilogue.mask
    SLOPE = np.float32(epilogue.slope)

    @kept_on_disk
    @cuda.jit
    def wgmma_kernel(
        a,  # in   the gathered array
        b,  # in   the packed kernel
        c,  # out  the other array
        activated,  # out  the same behind an activation; c again where there is none
        table,  # in   Product.table
        images,
    ):
        shared = cuda.shared.array(0, dtype)
        acc = local_array(ALL_SUMS, np.float32)
        place = local_array(PIXELS, np.int64)
        column_at = local_array(PLACES, np.int64)
        offset = local_array(OFFSETS, np.int32)
        start = (shared_address(shared) + 127) // 128 * 128
        thread = cuda.threadIdx.x
        warpgroup = thread // 128
        patch = cuda.blockIdx.x % (DOWN * ACROSS)
        image0 = cuda.blockIdx.x // (DOWN * ACROSS) * IMAGES
        row0 = patch // ACROSS * TH
        column0 = patch % ACROSS * TW
        n_tile = cuda.blockIdx.y
        g = cuda.blockIdx.z
        beside = thread % BESIDE
        row = thread // BESIDE % 64
        group = thread // (BESIDE * 64)
        here = row < FILLED and image0 + row // D1 < images
        base = g * A_G
        if here:
            base += (image0 + row // D1) * A_IMAGE + row % D1 * A_D1
        top = row0 * ROW_STEP + TOP
        left = column0 * COLUMN_STEP + LEFT
        inside = 0  # a bit a turn: the slot lies in the array
        for turn in range(TURNS):
            item = group + turn * GROUPS
            h = top + item % SLOTS // SLOT_COLUMNS
            w = left + item % SLOTS % SLOT_COLUMNS
            ok = here and h >= 0 and h < HEIGHT and w >= 0 and w < WIDTH
            inside |= (1 if ok else 0) << turn
            for run in range(RUNS):
                e = (item // SLOTS * BESIDE + beside) * ELEMENTS + run * RUN_ELEMENTS
                from_base = e // D * CHANNEL_STEP + e % D + h * A_ROW + w * A_COLUMN
                offset[turn * RUNS + run] = from_base if ok else 0
        a_to = beside * HALF + (group * 64 + row) * CHUNK
        b_from = (g * N_TILES + n_tile) * STEPS * PIECES + thread
        for j in range(PIXELS):
            pixel = warpgroup * PIXELS + j
            slot = pixel // TW * ROW_STEP * SLOT_COLUMNS + pixel % TW * COLUMN_STEP
            place[j] = slot * (SLOT // 16)
        for i in range(ALL_SUMS):
            acc[i] = ZERO
        for step in range(1 - STAGES, STEPS):
            if step >= 0:
                cp_async_wait(PENDING)  # this thread's copies of the stage have arrived
                fence_proxy_async()  # and the tensor cores may see them
                cuda.syncthreads()  # so have the others', and nobody reads the stage before
                a_stage = A_MATRIX + (start + step % STAGES * STAGE) // 16
                b_stage = B_MATRIX + (start + step % STAGES * STAGE + A_BYTES) // 16
                wgmma_fence()
                for pair in range(PAIRS):
                    for tap_row in range(TAP_ROWS):
                        for tap_column in range(TAP_COLUMNS):
                            slot = (TAP_TOP + tap_row * TAP_DOWN) * SLOT_COLUMNS
                            slot += TAP_LEFT + tap_column * TAP_ACROSS
                            a_tap = a_stage + pair * PAIR + slot * (SLOT // 16)
                            tap = tap_row * TAP_COLUMNS + tap_column
                            b_tap = b_stage + (tap * PAIRS + pair) * (2 * BN)
                            for j in range(PIXELS):
                                wgmma(BN, acc, j * SUMS, shared, a_tap + place[j], b_tap)
                wgmma_commit()
            ahead = step + STAGES - 1
            if ahead < STEPS:
                to = start + ahead % STAGES * STAGE
                e = ahead * STAGE_DEPTH
                source = base + e // D * CHANNEL_STEP + e % D
                for turn in range(TURNS):
                    item = group + turn * GROUPS
                    if COPIES % GROUPS == 0 or item < COPIES:
                        for run in range(RUNS):
                            ok = inside >> turn & 1 != 0
                            if WHOLE == 0:
                                chunk = item // SLOTS * BESIDE + beside
                                ok = ok and e + chunk * ELEMENTS + run * RUN_ELEMENTS < DEPTH
                            a_from = source + offset[turn * RUNS + run] if ok or WHOLE == 1 else 0
                            a_at = to + a_to + turn * (GROUPS * SLOT) + run * RUN
                            cp_async(RUN, shared, a_at, a, a_from, ok)
                for turn in range(B_TURNS):
                    if PIECES % THREADS == 0 or thread + turn * THREADS < PIECES:
                        piece = b_from + ahead * PIECES + turn * THREADS
                        b_at = to + A_BYTES + (thread + turn * THREADS) * CHUNK
                        cp_async(16, shared, b_at, b, piece * ELEMENTS, True)
            cp_async_commit()
            if step >= 0:
                wgmma_wait()
        lane = thread % 32
        warp = thread // 32 % 4
        first_n = n_tile * BN + lane % 4 * 2
        for i in range(PLACES):  # all of them before the first store, which would hold them up
            n = first_n + i // APART * 8 + i % APART
            column_at[i] = table[at(4 * K + N + min(n, N - 1))]
        for which in range(RESULT, RESULTS):
            result = c
            if ACTIVATES and which == 1:
                activate(acc, ALL_SUMS, 2, 2, BLOCKS, LANES, MASK, SLOPE)
                result = activated
            for half in range(2):
                row = warp * 16 + lane // 4 + half * 8
                image = image0 + row // D1
                to_row = g * C_G + C_FIRST + image * C_IMAGE + row % D1 * C_D1
                for j in range(PIXELS):
                    pixel = warpgroup * PIXELS + j
                    h = row0 + pixel // TW
                    w = column0 + pixel % TW
                    if row < FILLED and image < images and h < ROWS and w < COLUMNS:
                        to = to_row + h * C_ROW + w * C_COLUMN
                        for block in range(BN // 8):
                            n = first_n + block * 8
                            where = to + column_at[block * APART]
                            first = acc[j * SUMS + block * 4 + half * 2]
                            second = acc[j * SUMS + block * 4 + half * 2 + 1]
                            if PAIRED == 1:
                                if n < N:
                                    store_pair(result, where, dtype_of(first), dtype_of(second))
                            else:
                                if n < N:
                                    result[at(where)] = first
                                if n + 1 < N:
                                    result[at(to + column_at[block * APART + 1])] = second

    return wgmma_kernel
