"""Rung 6, swapped operands: a small kernel stays in registers, loaded as it lies, and nothing is packed.

    c[n, m] = sum over k of b[n, k] * a[k, m]

What changed: the first operand of a product, which may come from registers, is the kernel's. A thread loads its
part once, of all taps, from where the array lies, and keeps it for every image that its block takes. The second is
the gathered array's, which the copy engine lays out as the tensor cores read it: capsules' rows, swizzled as long as
they are, and rounded to TF32. A product's rows are those of all slots from a tile's first pixel to its last, so
windows that overlap are the same bytes from another place on; slots between one row of pixels and the next are
multiplied and thrown away. With a stride, slots come apart (:class:`numbacaps.fused.rung_6_swap_ab.tile.Slots`).

Warpgroups share the channels, and add up their sums in shared memory, or share the image's rows.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    FRAGMENT_PRODUCTS,
    LINE,
    TF32_NEARER,
    descriptor_strides,
    fence_proxy_async,
    let_next_start,
    load_run,
    map_address,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    prefetch,
    shared_address,
    short,
    store_pair_where,
    store_quad,
    tensor_copy,
    unforeseen,
    wait_for_last,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.target import at, cuda
from numbacaps.fused.rung_4_wgmma.tile import BM
from numbacaps.fused.rung_6_swap_ab.tile import BARRIERS, SWIZZLES


@cache
def make_swapped_wgmma(
    pixels, window, slots, channels, D, n, steps, rows, image_bytes, ahead, tile
):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` of float32, in TF32.

    Parameters
    ----------
    pixels : numbacaps.fused.implicit_gemm.Pixels
    window : numbacaps.fused.rung_4_wgmma.tile.Window
    slots : numbacaps.fused.rung_6_swap_ab.tile.Slots
    channels, D : int
    n : numbacaps.fused.implicit_gemm.Columns
    steps : numbacaps.fused.implicit_gemm.KernelSteps
    rows, image_bytes : int
        :func:`numbacaps.fused.rung_6_swap_ab.tile.product_rows`, and of that name.
    ahead : int
        :func:`numbacaps.fused.rung_6_swap_ab.tile.ahead`.
    tile : numbacaps.fused.rung_6_swap_ab.tile.SwappedTile
    """
    TH, ROW_PARTS, CHANNEL_PARTS, IMAGES = tile.TH, tile.ROW_PARTS, tile.CHANNEL_PARTS, tile.IMAGES
    WARPS, THREADS = tile.warpgroups * 4, tile.threads
    OF_LINE, LINES_AHEAD, A_IMAGE = LINE // 4, ahead // LINE, pixels.gathered[0]
    ROWS, COLUMNS, D1 = pixels.rows, pixels.columns, pixels.D1
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = pixels.other
    C_FIRST, KERNEL_G, C_G = pixels.first, pixels.steps[1], pixels.steps[2]
    TOP, LEFT = pixels.top[1] + window.first[0], pixels.left[1] + window.first[1]
    TAP_ROWS, TAP_COLUMNS = window.taps
    TAPS = np.array(slots.taps, np.int64) // 16
    ROW_PHASES, COLUMN_PHASES = (np.array(phases, np.int64) for phases in slots.phases)
    ACROSS, BOXES = len(COLUMN_PHASES), slots.boxes
    PITCH, BOX, CHANNEL = slots.columns, slots.box, slots.channel
    CHANNEL_BYTES = slots.boxes * slots.box_bytes
    TILE_BYTES = TH * PITCH * slots.slot
    TILES = -(-ROWS // TH)
    CHANNELS, CHANNELS_OF_PART = channels, channels // CHANNEL_PARTS
    GROUPS = D // 8
    OF_CHANNEL = TAP_ROWS * TAP_COLUMNS * GROUPS * 4  # elements of the kernel that a thread holds
    FRAGMENTS = CHANNELS_OF_PART * OF_CHANNEL
    NT, USED = rows, ((TH - 1) * PITCH + COLUMNS) * D1
    SUMS, BLOCKS = NT // 2, NT // 8
    OWN_BLOCKS = -(-BLOCKS // CHANNEL_PARTS)
    A_MATRIX = descriptor_strides(16, 8 * slots.row) + _swizzled(slots.row)
    PARTIAL = (BARRIERS + IMAGES * image_bytes) // 4
    N, CAPSULE, BY_CAPSULE = n.N, n.D, n.other
    KERNEL_CAPSULE = n.kernel[0]  # in which columns lie side by side
    BY_CHANNEL, BY_ROW, BY_COLUMN, BY_D, FIRST = (
        steps.channel,
        steps.row,
        steps.column,
        steps.d,
        steps.first,
    )
    PAIRED = CAPSULE % 2 == 0  # neighbouring columns are loaded, and stored, at once
    NEARER, ZERO, ONE = TF32_NEARER, np.float32(0), np.float32(1)
    multiply = FRAGMENT_PRODUCTS["float32"]

    @cuda.jit(device=True, inline="always")
    def prefetch_operands(a, b, image, thread):
        """Have the kernel and an image's first bytes brought to the L2 cache, by the threads of all blocks."""
        fellow, fellows = cuda.blockIdx.y, cuda.gridDim.y
        fellow, fellows = fellow + fellows * cuda.blockIdx.z, fellows * cuda.gridDim.z
        for line in range(fellow * THREADS + thread, LINES_AHEAD, fellows * THREADS):
            prefetch(a, at(image * A_IMAGE + line * OF_LINE))
        line = (fellow * cuda.gridDim.x + cuda.blockIdx.x) * THREADS + thread
        if line < b.size // OF_LINE:
            prefetch(b, at(line * OF_LINE))

    @cuda.jit(device=True, inline="always")
    def fetch(shared, words, start, stage, image, g, warp, lane):
        """Have an image copied, a warp some of its channels."""
        box_map = map_address(words, 0)
        if lane == 0:
            for channel in range(warp, CHANNELS, WARPS):
                full = start + (stage * CHANNELS + channel) * 8
                to = start + BARRIERS + stage * image_bytes + channel * CHANNEL
                mbarrier_expect(shared, full, CHANNEL_BYTES)
                for box in range(short(BOXES)):
                    top, left = TOP + ROW_PHASES[box // ACROSS], LEFT + COLUMN_PHASES[box % ACROSS]
                    of = image * CHANNELS + channel
                    tensor_copy(shared, to + box * BOX, box_map, 0, g * D1, left, top, of, full)

    @cuda.jit(device=True, inline="always")
    def place_of(row, row0):
        """Where in an image a row of a tile's product lies, and whether that is a pixel."""
        slot, d1 = np.uint32(row // D1), np.uint32(row % D1)
        h, w = short(row0 + slot // PITCH), short(slot % PITCH)
        to = short(h * C_ROW + w * C_COLUMN + d1 * C_D1)
        return to, (row < USED) & (h < ROWS) & (w < COLUMNS)

    @cuda.jit(device=True, inline="always")
    def store(c, to, inside, n, one, other):
        """Write two neighbouring columns of a row of a tile's product, where it is a pixel's."""
        if PAIRED:
            store_pair_where(inside & (n < N), c, to, one, other)
        elif inside and n < N:
            c[at(to)] = one
            if n + 1 < N:
                c[at(to + (1 if n % CAPSULE < CAPSULE - 1 else BY_CAPSULE - CAPSULE + 1))] = other

    @cuda.jit(device=True, inline="always")
    def store_block(c, to_columns, row0, j, quarter, n, block):
        """Write a thread's part of 8 rows of a tile's product: two rows of two columns."""
        row = np.uint32(j * 8 + quarter)
        to, inside = place_of(row, row0)
        store(c, to_columns + to, inside, n, block[0], block[2])
        if D1 % 2 == 0:
            store(c, to_columns + to + C_D1, inside, n, block[1], block[3])
        else:
            to, inside = place_of(np.uint32(row + 1), row0)
            store(c, to_columns + to, inside, n, block[1], block[3])

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
        start = (begin + 1023) // 1024 * 1024
        thread = cuda.threadIdx.x
        warp, lane = short(thread >> 5 & 31), short(thread & 31)
        channel_part = short(warp // 4 % CHANNEL_PARTS)
        row_part = short(warp // 4 // CHANNEL_PARTS)
        block, blocks, count = short(cuda.blockIdx.x), short(cuda.gridDim.x), short(images)
        n = short(cuda.blockIdx.y * BM + warp % 4 * 16 + lane // 4 * 2)
        g = short(cuda.blockIdx.z)
        if thread == 0:
            for i in range(short(IMAGES * CHANNELS)):
                mbarrier_init(shared, start + 8 * i, 1)
            fence_proxy_async()  # the copy engine may see the barriers
        cuda.syncthreads()
        prefetch_operands(a, b, block, thread)  # while the kernel before this one comes to its end
        wait_for_last()  # both arrays are there
        let_next_start()
        for i in range(IMAGES):
            if block + i * blocks < count:
                fetch(shared, words, start, i, block + i * blocks, g, warp, lane)
        fragment = cuda.local.array(FRAGMENTS, np.float32)
        acc = cuda.local.array(SUMS, np.float32)
        total = cuda.local.array(4, np.float32)
        others = cuda.local.array(4, np.float32)
        pair = cuda.local.array(2, np.float32)
        # What lies past the columns is multiplied too: by any that there are.
        column = min(n, short(N - 2 if PAIRED else N - 1))
        beside = min(short(n + 1), short(N - 1))
        from_one = g * KERNEL_G + FIRST + lane % 4 * BY_D + channel_part * BY_CHANNEL
        from_other = from_one + beside // CAPSULE * KERNEL_CAPSULE + beside % CAPSULE
        from_one += column // CAPSULE * KERNEL_CAPSULE + column % CAPSULE
        for i in range(CHANNELS_OF_PART):
            for r in range(TAP_ROWS):
                for tap in range(TAP_COLUMNS):
                    for group in range(GROUPS):
                        k = (((i * TAP_ROWS + r) * TAP_COLUMNS + tap) * GROUPS + group) * 4
                        place = i * CHANNEL_PARTS * BY_CHANNEL + r * BY_ROW + tap * BY_COLUMN
                        place += group * 8 * BY_D
                        for half in range(2):
                            if PAIRED:
                                load_run(2, pair, b, from_one + place)
                            else:
                                pair[0] = b[at(from_one + place)]
                                pair[1] = b[at(from_other + place)]
                            fragment[k + 2 * half] = pair[0]
                            fragment[k + 2 * half + 1] = pair[1]
                            place += 4 * BY_D
        place = short(n // CAPSULE * BY_CAPSULE + n % CAPSULE)
        stage, phase, nearer = short(0), short(0), NEARER
        for own_image in range(block, count, blocks):
            to_columns = g * C_G + C_FIRST + own_image * C_IMAGE + place
            for tile_row in range(row_part, short(TILES), short(ROW_PARTS)):
                for i in range(SUMS):
                    acc[i] = ZERO
                first = start + BARRIERS + stage * image_bytes
                first += channel_part * CHANNEL + tile_row * TILE_BYTES
                for i in range(CHANNELS_OF_PART):
                    for k in range(i * OF_CHANNEL, (i + 1) * OF_CHANNEL):
                        fragment[k] *= nearer  # here: no product waits for the whole kernel
                    channel = i * CHANNEL_PARTS + channel_part
                    mbarrier_wait(shared, start + (stage * CHANNELS + channel) * 8, phase)
                    wgmma_fence()
                    matrix = A_MATRIX + (first + i * (CHANNEL_PARTS * CHANNEL)) // 16
                    for r in range(TAP_ROWS):
                        for tap in range(TAP_COLUMNS):
                            for group in range(GROUPS):
                                k = (((i * TAP_ROWS + r) * TAP_COLUMNS + tap) * GROUPS + group) * 4
                                a = matrix + TAPS[r, tap] + group * 2
                                multiply(NT, acc, 0, fragment, k, shared, a, 1)
                    wgmma_commit()
                wgmma_wait()
                nearer = ONE  # for it is rounded now
                # Worked out here for each tile: kept, the rows' places would take the registers.
                row0, quarter = short(tile_row * TH), np.uint32(unforeseen(short(lane % 4 * 2)))
                if CHANNEL_PARTS == 1:
                    for j in range(BLOCKS):
                        for i in range(4):
                            total[i] = acc[j * 4 + i]
                        store_block(c, to_columns, row0, j, quarter, n, total)
                else:
                    cuda.syncthreads()  # the last tile's sums were read
                    own = (start - begin) // 4 + PARTIAL + thread % 128 * 4
                    for j in range(BLOCKS):
                        to, k = own + (channel_part * BLOCKS + j) * 512, j * 4
                        store_quad(shared, to, acc[k], acc[k + 1], acc[k + 2], acc[k + 3])
                    cuda.syncthreads()
                    for i in range(OWN_BLOCKS):
                        # Past the last there is no pixel.
                        j = short(i * CHANNEL_PARTS + channel_part)
                        at_j = own + min(j, short(BLOCKS - 1)) * 512
                        load_run(4, total, shared, at_j)
                        for part in range(1, CHANNEL_PARTS):
                            load_run(4, others, shared, at_j + part * (BLOCKS * 512))
                            for e in range(4):
                                total[e] += others[e]
                        store_block(c, to_columns, row0, j, quarter, n, total)
            next_image = own_image + IMAGES * blocks
            if next_image < count:
                cuda.syncthreads()  # everybody has read this one
                fetch(shared, words, start, stage, next_image, g, warp, lane)
            stage = short(stage + 1)
            if stage == IMAGES:
                stage = short(0)
                phase = short(phase ^ 1)

    return swapped_wgmma_kernel


def _swizzled(row):
    """The bits of a matrix descriptor that say how rows of so many bytes are swizzled.

    Addresses are swizzled and boxes begin at multiples of the pattern, so the descriptor's base offset is 0
    wherever in a box it points.
    """
    bits = SWIZZLES[row] << 62
    return bits - (bits >> 63 << 64)
