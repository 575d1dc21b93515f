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
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


def make_prefetch_operands(spec):
    """Device function ``prefetch_operands(a, b, image, thread)``."""
    LINES_AHEAD, A_IMAGE = map(specialized, (spec.ahead // LINE, spec.pixels.gathered[0]))
    OF_LINE = LINE // 4
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
    WARPS, CHANNELS, D1 = map(specialized, (spec.tile.warpgroups * 4, spec.channels, pixels.D1))
    TOP = specialized(pixels.top[1] + window.first[0])
    LEFT = specialized(pixels.left[1] + window.first[1])
    ROW_STRIDE, COLUMN_STRIDE = map(specialized, (pixels.top[0], pixels.left[0]))
    TAP_TOP, TAP_LEFT, TAP_DOWN, TAP_ACROSS = map(specialized, (*window.start, *window.step))
    ACROSS, BOXES = map(specialized, (len(slots.phases[1]), slots.boxes))
    BOX, CHANNEL = map(specialized, (slots.box, slots.channel))
    DATA, PITCH, CHANNEL_BYTES = map(specialized, (ring.data, ring.pitch, ring.bytes))

    @cuda.jit(device=True, forceinline=True)
    def fetch(shared, start, box_map, stage, image, g, warp, lane):
        """Have an image copied, a warp some of its channels."""
        if lane == 0:
            for channel in range(warp, CHANNELS, WARPS):
                full = start + (stage * CHANNELS + channel) * 8
                to = start + DATA + stage * PITCH + channel * CHANNEL
                mbarrier_expect(shared, full, CHANNEL_BYTES)
                for box in range(short(BOXES)):
                    top = TOP + (TAP_TOP + box // ACROSS * TAP_DOWN) % ROW_STRIDE
                    left = LEFT + (TAP_LEFT + box % ACROSS * TAP_ACROSS) % COLUMN_STRIDE
                    of = image * CHANNELS + channel
                    tensor_copy(shared, to + box * BOX, box_map, 0, g * D1, left, top, of, full)

    return fetch


def make_load_kernel(spec):
    """Device function ``load_kernel(fragment, b, g, n, channel_part, lane)``: a thread's part, of all taps, as it lies."""
    n, steps = spec.n, spec.steps
    TAP_ROWS, TAP_COLUMNS = map(specialized, spec.window.taps)
    GROUPS, PART_CHANNELS = map(specialized, (spec.k_groups, spec.part_channels))
    CHANNEL_PARTS, PAIRED = map(specialized, (spec.tile.CHANNEL_PARTS, spec.paired))
    last = n.N - 1
    LAST, LAST_LOADED = map(specialized, (last, last - 1 if spec.paired else last))
    CAPSULE = specialized(n.D)
    KERNEL_CAPSULE = specialized(n.kernel[0])  # in which columns lie side by side
    KERNEL_G, FIRST = map(specialized, (spec.pixels.steps[1], steps.first))
    BY_CHANNEL, BY_ROW = map(specialized, (steps.channel, steps.row))
    BY_COLUMN, BY_D = map(specialized, (steps.column, steps.d))

    @cuda.jit(device=True, forceinline=True)
    def load_kernel(fragment, b, g, n, channel_part, lane):
        pair = cuda.local.array(2, np.float32)
        # What lies past the columns is multiplied too: by any that there are.
        column = min(n, short(LAST_LOADED))
        beside = min(short(n + 1), short(LAST))
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
                            if PAIRED == 1:
                                load_run(2, pair, b, from_one + place)
                            else:
                                pair[0] = b[at(from_one + place)]
                                pair[1] = b[at(from_other + place)]
                            fragment[k + 2 * half] = pair[0]
                            fragment[k + 2 * half + 1] = pair[1]
                            place += 4 * BY_D

    return load_kernel
