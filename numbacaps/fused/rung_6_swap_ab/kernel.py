"""Rung 6, swapped operands (swap AB): a small kernel stays in registers, loaded as it lies, and nothing is packed.

    c[n, m] = sum over k of b[n, k] * a[k, m]

What changed: the first operand of a product, which may come from registers, is the kernel's. A thread loads its
part once, of all taps, from where the array lies, and keeps it for every image that its block takes. The second is
the gathered array's, which TMA lays out as the tensor cores read it: capsules' rows, swizzled as long as
they are, and rounded to TF32. A product's rows are those of all slots from a tile's first pixel to its last, so
windows that overlap are the same bytes from another place on; slots between one row of pixels and the next are
multiplied and thrown away. With a stride, slots come apart (:class:`numbacaps.fused.rung_6_swap_ab.tile.Slots`).

Read :mod:`numbacaps.fused.rung_6_swap_ab.flat` first, the same idea without tails. Warpgroups share the channels, and add up their sums in shared memory, or share the image's rows.
"""

from functools import cache

import numpy as np

from numbacaps.device.block import aligned, warp_and_lane
from numbacaps.device.fragments import clear
from numbacaps.device.instructions import (
    FRAGMENT_PRODUCTS,
    TF32_NEARER,
    descriptor_strides,
    fence_proxy_async,
    let_next_start,
    local_array,
    map_address,
    mbarrier_init,
    mbarrier_wait,
    shared_address,
    short,
    wait_for_last,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.ring import CONSUMER, make_advance
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.fused.rung_4_wgmma.tile import BM
from numbacaps.fused.rung_6_swap_ab.operands import (
    make_fetch,
    make_load_kernel,
    make_prefetch_operands,
)
from numbacaps.fused.rung_6_swap_ab.spec import swizzle_bits
from numbacaps.fused.rung_6_swap_ab.store import make_store_tile


@cache
def make_swapped_wgmma(spec):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` of float32, in TF32.

    Parameters
    ----------
    spec : numbacaps.fused.rung_6_swap_ab.spec.SwapSpec
    """
    tile, n = spec.tile, spec.n
    ROW_PARTS, CHANNEL_PARTS = map(specialized, (tile.ROW_PARTS, tile.CHANNEL_PARTS))
    IMAGES, CHANNELS = map(specialized, (tile.IMAGES, spec.channels))
    FRAGMENTS, SUMS = map(specialized, (spec.fragments, spec.sums))
    C_FIRST, C_G = map(specialized, (spec.pixels.first, spec.pixels.steps[2]))
    C_IMAGE, TILES, TH = map(specialized, (spec.pixels.other[0], spec.tiles, tile.TH))
    CAPSULE, BY_CAPSULE = map(specialized, (n.D, n.other))
    NEARER, ONE = TF32_NEARER, np.float32(1)
    prefetch_operands, fetch = make_prefetch_operands(spec), make_fetch(spec)
    load_kernel, multiply_tile = make_load_kernel(spec), make_multiply_tile(spec)
    store_tile, advance = make_store_tile(spec), make_advance(spec.ring)

    @kept_on_disk
    @cuda.jit(launch_bounds=(tile.threads, 1))
    def swapped_wgmma_kernel(
        b,  # in   the kernel
        c,  # out  the other array
        words,  # in   the tensor map of the gathered array
        a,  # in   the gathered array
        images,
    ):
        shared = cuda.shared.array(0, np.float32)
        begin = shared_address(shared)
        start = aligned(begin, 1024)
        thread = cuda.threadIdx.x
        warp, lane = warp_and_lane()
        channel_part = short(warp // 4 % CHANNEL_PARTS)
        row_part = short(warp // 4 // CHANNEL_PARTS)
        block, blocks, count = short(cuda.blockIdx.x), short(cuda.gridDim.x), short(images)
        n = short(cuda.blockIdx.y * BM + warp % 4 * 16 + lane // 4 * 2)
        g = short(cuda.blockIdx.z)
        if thread == 0:
            for i in range(short(IMAGES * CHANNELS)):
                mbarrier_init(shared, start + 8 * i, 1)
            fence_proxy_async()  # TMA may see the barriers
        cuda.syncthreads()
        prefetch_operands(a, b, block, thread)  # while the kernel before this one comes to its end
        wait_for_last()  # both arrays are there
        let_next_start()
        box_map = map_address(words, 0)
        for i in range(IMAGES):
            if block + i * blocks < count:
                fetch(shared, start, box_map, i, block + i * blocks, g, warp, lane)
        fragment = local_array(FRAGMENTS, np.float32)
        acc = local_array(SUMS, np.float32)
        load_kernel(fragment, b, g, n, channel_part, lane)
        place = short(n // CAPSULE * BY_CAPSULE + n % CAPSULE)
        stage, phase = CONSUMER
        nearer = NEARER
        own = (start - begin) // 4 + thread % 128 * 4
        for own_image in range(block, count, blocks):
            to_columns = g * C_G + C_FIRST + own_image * C_IMAGE + place
            for tile_row in range(row_part, short(TILES), short(ROW_PARTS)):
                clear(acc, SUMS)
                which = stage, phase, channel_part, tile_row
                multiply_tile(acc, fragment, shared, start, which, nearer)
                nearer = ONE  # for it is rounded now
                target = to_columns, short(tile_row * TH), n
                store_tile(c, acc, shared, own, target, channel_part)
            next_image = own_image + IMAGES * blocks
            if next_image < count:
                cuda.syncthreads()  # everybody has read this one
                fetch(shared, start, box_map, stage, next_image, g, warp, lane)
            stage, phase = advance(stage, phase)

    return swapped_wgmma_kernel


def make_multiply_tile(spec):
    """Device function ``multiply_tile(acc, fragment, shared, start, which, nearer)``: a warpgroup's products of a tile.

    ``which`` is (stage, phase, part of the channels, row of tiles). The kernel is brought ``nearer`` to what TF32 cuts
    it to channel by channel, so that no product waits until all of it is loaded.
    """
    slots, ring, window, tile = spec.slots, spec.ring, spec.window, spec.tile
    across, row = len(slots.phases[1]), slots.columns * slots.slot
    TAP_ROWS, TAP_COLUMNS = map(specialized, window.taps)
    TAP_TOP, TAP_LEFT, TAP_DOWN, TAP_ACROSS = map(specialized, (*window.start, *window.step))
    ROW_STRIDE, COLUMN_STRIDE = map(specialized, (spec.pixels.top[0], spec.pixels.left[0]))
    ROW_PHASES, COLUMN_PHASES = map(specialized, map(len, slots.phases))
    # Of 16 bytes: from a row's box to the next row's, and to the next; from a slot below and beside.
    BOX_DOWN, BOX_ACROSS = map(specialized, (across * slots.box // 16, slots.box // 16))
    SLOT_DOWN, SLOT_ACROSS = map(specialized, (row // 16, slots.slot // 16))
    CHANNELS, CHANNEL, TILE_BYTES = map(specialized, (spec.channels, slots.channel, tile.TH * row))
    PART_CHANNELS, CHANNEL_PARTS = map(specialized, (spec.part_channels, tile.CHANNEL_PARTS))
    OF_CHANNEL, GROUPS = map(specialized, (spec.channel_fragments, spec.k_groups))
    NT, DATA, PITCH = map(specialized, (spec.rows, ring.data, ring.pitch))
    A_MATRIX = specialized(descriptor_strides(16, 8 * slots.row) + swizzle_bits(slots.row))
    multiply = FRAGMENT_PRODUCTS["float32"]

    @cuda.jit(device=True, forceinline=True)
    def multiply_tile(acc, fragment, shared, start, which, nearer):
        stage, phase, channel_part, tile_row = which
        first = start + DATA + stage * PITCH
        first += channel_part * CHANNEL + tile_row * TILE_BYTES
        for i in range(PART_CHANNELS):
            for k in range(i * OF_CHANNEL, (i + 1) * OF_CHANNEL):
                fragment[k] *= nearer
            channel = i * CHANNEL_PARTS + channel_part
            mbarrier_wait(shared, start + (stage * CHANNELS + channel) * 8, phase)
            wgmma_fence()
            matrix = A_MATRIX + (first + i * (CHANNEL_PARTS * CHANNEL)) // 16
            for r in range(TAP_ROWS):
                a_row = matrix + r % ROW_PHASES * BOX_DOWN
                a_row += (TAP_TOP + r * TAP_DOWN) // ROW_STRIDE * SLOT_DOWN
                for tap in range(TAP_COLUMNS):
                    a_tap = a_row + tap % COLUMN_PHASES * BOX_ACROSS
                    a_tap += (TAP_LEFT + tap * TAP_ACROSS) // COLUMN_STRIDE * SLOT_ACROSS
                    for group in range(GROUPS):
                        k = (((i * TAP_ROWS + r) * TAP_COLUMNS + tap) * GROUPS + group) * 4
                        multiply(NT, acc, 0, fragment, k, shared, a_tap + group * 2, 1)
            wgmma_commit()
        wgmma_wait()

    return multiply_tile
