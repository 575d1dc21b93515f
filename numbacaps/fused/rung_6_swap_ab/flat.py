"""Rung 6 in its simplest form: the kernel stays in registers, one warpgroup computes 64 columns of one image.

    c[n, m] = sum over k of b[n, k] * a[k, m]

Read this before :mod:`numbacaps.fused.rung_6_swap_ab.kernel`. Operands are swapped: the first one, which may come from
registers, is the kernel's, as it lies. The second one is the image's: TMA brings each channel whole, with capsules'
rows swizzled as the tensor cores read them, and rounded to TF32. A tap reads the same bytes from another slot on, so
nothing is laid out. Slots between one row of pixels and the next are multiplied too, and thrown away.

What is left out: strides, images larger than one product, parts of the channels, a second image on its way, and
columns that do not fill 64.
"""

from functools import cache

import numpy as np

from numbacaps.device.block import aligned, warp_and_lane
from numbacaps.device.compiled import Compiled
from numbacaps.device.fragments import clear, nearer_tf32
from numbacaps.device.instructions import (
    FRAGMENT_PRODUCTS,
    descriptor_strides,
    fence_proxy_async,
    load_run,
    map_address,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    shared_address,
    store_pair_where,
    tensor_copy,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import launch_tiles
from numbacaps.device.target import at, cuda
from numbacaps.device.tensor_map import MAP_WORDS, tensor_map
from numbacaps.fused.rung_4_wgmma.tile import BM, WARPGROUP
from numbacaps.fused.rung_6_swap_ab import tile as tiles
from numbacaps.fused.rung_6_swap_ab.spec import SwapSpec, swizzle_bits


@cache
def make_flat_swapped(spec):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` that :class:`FlatSwapped` takes."""
    slots, pixels, n, steps = spec.slots, spec.pixels, spec.n, spec.steps
    BOX, BOX_BYTES, PITCH, CHANNELS = slots.box, slots.box_bytes, slots.columns, spec.channels
    TAPS, (TAP_ROWS, TAP_COLUMNS) = np.array(slots.taps, np.int64) // 16, spec.window.taps
    TOP, LEFT = pixels.top[1] + spec.window.first[0], pixels.left[1] + spec.window.first[1]
    COLUMNS, D1, USED = pixels.columns, pixels.D1, spec.used_rows
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = pixels.other
    GROUPS, FRAGMENTS, SUMS, NT = spec.k_groups, spec.fragments, spec.sums, spec.rows
    FIRST, BY_CHANNEL, BY_ROW, BY_COLUMN, BY_D = (
        steps.first,
        steps.channel,
        steps.row,
        steps.column,
        steps.d,
    )
    CAPSULE, BY_CAPSULE, KERNEL_CAPSULE = n.D, n.other, n.kernel[0]
    MATRIX = descriptor_strides(16, 8 * slots.row) + swizzle_bits(slots.row)
    IMAGE_AT = tiles.BARRIERS
    multiply = FRAGMENT_PRODUCTS["float32"]

    @kept_on_disk
    @cuda.jit(launch_bounds=(WARPGROUP, 1))
    def flat_swapped_kernel(
        b,  # in   the kernel
        c,  # out
        words,  # in   the tensor map of the gathered array
    ):
        shared = cuda.shared.array(0, np.float32)
        start = aligned(shared_address(shared), 1024)
        warp, lane = warp_and_lane()
        image, n = cuda.blockIdx.x, cuda.blockIdx.y * BM + warp * 16 + lane // 4 * 2
        if cuda.threadIdx.x == 0:
            mbarrier_init(shared, start, 1)
            fence_proxy_async()  # TMA may see the barrier
            mbarrier_expect(shared, start, CHANNELS * BOX_BYTES)
            for channel in range(CHANNELS):
                to, of = start + IMAGE_AT + channel * BOX, image * CHANNELS + channel
                tensor_copy(shared, to, map_address(words, 0), 0, 0, LEFT, TOP, of, start)
        fragment = cuda.local.array(FRAGMENTS, np.float32)
        acc = cuda.local.array(SUMS, np.float32)
        pair = cuda.local.array(2, np.float32)
        first = FIRST + n // CAPSULE * KERNEL_CAPSULE + n % CAPSULE + lane % 4 * BY_D
        for i in range(FRAGMENTS // 2):  # columns n and n + 1, at k and then 4 further
            group, tap = i // 2 % GROUPS, i // 2 // GROUPS
            place = tap // (TAP_ROWS * TAP_COLUMNS) * BY_CHANNEL
            place += tap // TAP_COLUMNS % TAP_ROWS * BY_ROW + tap % TAP_COLUMNS * BY_COLUMN
            load_run(2, pair, b, first + place + (group * 8 + i % 2 * 4) * BY_D)
            fragment[i * 2] = nearer_tf32(pair[0])
            fragment[i * 2 + 1] = nearer_tf32(pair[1])
        clear(acc, SUMS)
        cuda.syncthreads()  # the barrier is there
        mbarrier_wait(shared, start, 0)  # and so is the image
        wgmma_fence()
        for channel in range(CHANNELS):
            matrix = MATRIX + (start + IMAGE_AT + channel * BOX) // 16
            for r in range(TAP_ROWS):
                for tap in range(TAP_COLUMNS):
                    for group in range(GROUPS):
                        k = ((channel * TAP_ROWS + r) * TAP_COLUMNS + tap) * GROUPS + group
                        a = matrix + TAPS[r, tap] + group * 2
                        multiply(NT, acc, 0, fragment, k * 4, shared, a, 1)
        wgmma_commit()
        wgmma_wait()
        to_image = image * C_IMAGE + n // CAPSULE * BY_CAPSULE + n % CAPSULE
        for j in range(NT // 8):
            for i in range(2):
                m = j * 8 + lane % 4 * 2 + i
                h, w = m // D1 // PITCH, m // D1 % PITCH
                to = to_image + h * C_ROW + w * C_COLUMN + m % D1 * C_D1
                inside = (m < USED) & (w < COLUMNS)
                # Without a branch, so that the loop is unrolled and sums stay in registers.
                store_pair_where(inside, c, at(to), acc[j * 4 + i], acc[j * 4 + 2 + i])

    return flat_swapped_kernel


class FlatSwapped:
    """The launcher: a product of the forward pass with G of 1 and a stride of 1, whose image is one product."""

    def __init__(self, product, images):
        p, slots = product, tiles.Slots.of(product)
        tile = tiles.SwappedTile(p.pixels.rows, 1, 1, 1)
        why = tiles.why_never(p, images, 1) or tiles.why_not(tile, p, slots)
        assert not why, why
        assert slots.boxes == 1 and p.N % BM == 0 and p.n.D % 2 == 0
        self.shared = tiles.shared_bytes(tile, p, slots)
        kernel = make_flat_swapped(SwapSpec.of(p, tile))
        self._kernel = Compiled(kernel, (np.float32,) * 2, 0, self.shared, MAP_WORDS)
        self._grid = images, p.N // BM
        self._box = *slots.tensor(p, images, 1), True

    def __call__(self, gathered, kernel, result, stream=0):
        """Launch it on runs of elements that begin at multiples of 16 bytes."""
        arguments = kernel, result, tensor_map(gathered, *self._box)
        launch_tiles(self._kernel, self._grid, WARPGROUP, arguments, stream, self.shared)
