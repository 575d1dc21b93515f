"""The operands: the kernel's array, loaded to registers once, and the images, which TMA brings."""

import numpy as np

from numbacaps.device.instructions import (
    LINE,
    load_run,
    mbarrier_expect,
    prefetch,
    short,
    tensor_copy,
)
from numbacaps.device.target import at, cuda


def make_prefetch_operands(spec):
    """Device function ``prefetch_operands(a, b, image, thread)``."""
    OF_LINE, LINES_AHEAD, A_IMAGE = LINE // 4, spec.ahead // LINE, spec.pixels.gathered[0]
    THREADS = spec.tile.threads

    @cuda.jit(device=True, forceinline=True)
    def prefetch_operands(a, b, image, thread):
        """Have the kernel and an image's first bytes brought to the L2 cache, by the threads of all blocks."""
        fellow, fellows = cuda.blockIdx.y, cuda.gridDim.y
        fellow, fellows = fellow + fellows * cuda.blockIdx.z, fellows * cuda.gridDim.z
        for line in range(fellow * THREADS + thread, LINES_AHEAD, fellows * THREADS):
            prefetch(a, at(image * A_IMAGE + line * OF_LINE))
        line = (fellow * cuda.gridDim.x + cuda.blockIdx.x) * THREADS + thread
        if line < b.size // OF_LINE:
            prefetch(b, at(line * OF_LINE))

    return prefetch_operands


def make_fetch(spec):
    """Device function ``fetch(shared, start, box_map, stage, image, g, warp, lane)``."""
    slots, pixels, window, ring = spec.slots, spec.pixels, spec.window, spec.ring
    WARPS, CHANNELS, D1 = spec.tile.warpgroups * 4, spec.channels, pixels.D1
    TOP, LEFT = pixels.top[1] + window.first[0], pixels.left[1] + window.first[1]
    ROW_PHASES, COLUMN_PHASES = (np.array(phases, np.int64) for phases in slots.phases)
    ACROSS, BOXES, BOX, CHANNEL = len(COLUMN_PHASES), slots.boxes, slots.box, slots.channel
    DATA, PITCH, CHANNEL_BYTES = ring.data, ring.pitch, ring.bytes

    @cuda.jit(device=True, forceinline=True)
    def fetch(shared, start, box_map, stage, image, g, warp, lane):
        """Have an image copied, a warp some of its channels."""
        if lane == 0:
            for channel in range(warp, CHANNELS, WARPS):
                full = start + (stage * CHANNELS + channel) * 8
                to = start + DATA + stage * PITCH + channel * CHANNEL
                mbarrier_expect(shared, full, CHANNEL_BYTES)
                for box in range(short(BOXES)):
                    top, left = TOP + ROW_PHASES[box // ACROSS], LEFT + COLUMN_PHASES[box % ACROSS]
                    of = image * CHANNELS + channel
                    tensor_copy(shared, to + box * BOX, box_map, 0, g * D1, left, top, of, full)

    return fetch


def make_load_kernel(spec):
    """Device function ``load_kernel(fragment, b, g, n, channel_part, lane)``: a thread's part, of all taps, as it lies."""
    n, steps, (TAP_ROWS, TAP_COLUMNS) = spec.n, spec.steps, spec.window.taps
    GROUPS, PART_CHANNELS, CHANNEL_PARTS = (
        spec.k_groups,
        spec.part_channels,
        spec.tile.CHANNEL_PARTS,
    )
    N, CAPSULE, PAIRED = n.N, n.D, spec.paired
    KERNEL_CAPSULE = n.kernel[0]  # in which columns lie side by side
    KERNEL_G, FIRST, BY_CHANNEL = spec.pixels.steps[1], steps.first, steps.channel
    BY_ROW, BY_COLUMN, BY_D = steps.row, steps.column, steps.d

    @cuda.jit(device=True, forceinline=True)
    def load_kernel(fragment, b, g, n, channel_part, lane):
        pair = cuda.local.array(2, np.float32)
        # What lies past the columns is multiplied too: by any that there are.
        column = min(n, short(N - 2 if PAIRED else N - 1))
        beside = min(short(n + 1), short(N - 1))
        from_one = g * KERNEL_G + FIRST + lane % 4 * BY_D + channel_part * BY_CHANNEL
        from_other = from_one + beside // CAPSULE * KERNEL_CAPSULE + beside % CAPSULE
        from_one += column // CAPSULE * KERNEL_CAPSULE + column % CAPSULE
        for i in range(PART_CHANNELS):
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

    return load_kernel
