"""Rung 5 in its simplest form: one producer warp, one consumer warpgroup, one tile a block.

    c[m, n] = sum over k of a[m, k] * b[k, n]

Read this before :mod:`numbacaps.fused.rung_5_warp_specialized.kernel`. A block computes one pixel of the result: 64
rows, which are (image, d1), by ``BN`` columns, which are (p, d3). It takes k a stage at a time; a stage is one
channel at one tap. The producer, one thread, asks TMA for both operands of a stage. The consumers wait until they
are there, load their part of the first operand to registers, and multiply it with the second one in shared memory.
Four stages are in shared memory, so the producer is up to four stages ahead.

What is left out: results are exact multiples of a tile, only the forward pass in TF32 is computed, and a slot is
loaded again for every tap and pixel that reads it.
"""

from functools import cache

import numpy as np

from numbacaps.device.block import aligned, warp_and_lane
from numbacaps.device.compiled import Compiled
from numbacaps.device.fragments import clear, nearer_tf32
from numbacaps.device.instructions import (
    CHUNK,
    FRAGMENT_PRODUCTS,
    bulk_copy,
    descriptor_strides,
    fence_proxy_async,
    map_address,
    shared_address,
    short,
    store_pair,
    tensor_copy,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import launch, launch_tiles
from numbacaps.device.ring import (
    CONSUMER,
    PRODUCER,
    Ring,
    make_acquire,
    make_advance,
    make_init,
    make_release,
    make_wait,
)
from numbacaps.device.target import at, cuda
from numbacaps.device.tensor_map import MAP_WORDS, tensor_map
from numbacaps.fused.pack import NUMBERS, Packing, make_pack
from numbacaps.fused.rung_4_wgmma.tile import BM, Window

_STAGES = 4
_BARRIERS = 128  # bytes at the beginning of the shared memory
_FLOAT32 = np.dtype(np.float32)


@cache
def make_flat_wgmma(pixels, window, channels, D, n, BN):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` that :class:`FlatWgmma` takes."""
    IMAGES, D1, COLUMNS, CAPSULE, BY_CAPSULE = (
        BM // pixels.D1,
        pixels.D1,
        pixels.columns,
        n.D,
        n.other,
    )
    (ROW_STEP, TOP), (COLUMN_STEP, LEFT) = pixels.top, pixels.left
    C_IMAGE, C_ROW, C_COLUMN, C_D1 = pixels.other
    (TAP_ROWS, TAP_COLUMNS), (TAP_DOWN, TAP_ACROSS) = window.taps, window.step
    TAPS, STEPS = TAP_ROWS * TAP_COLUMNS, channels * TAP_ROWS * TAP_COLUMNS
    A_BYTES, B_BYTES, GROUPS, SUMS = BM * D * 4, BN * D * 4, D // 8, BN // 2
    FRAGMENTS = 4 * GROUPS
    MATRIX, PRODUCT = descriptor_strides(BN * CHUNK, 128), 2 * BN  # of k = 8, in chunks of 16 bytes
    ring = Ring(_STAGES, 0, _BARRIERS, A_BYTES + B_BYTES, A_BYTES + B_BYTES, consumers=4)
    init, acquire, wait, release, advance = (
        make(ring) for make in (make_init, make_acquire, make_wait, make_release, make_advance)
    )
    DATA, PITCH = ring.data, ring.pitch
    multiply = FRAGMENT_PRODUCTS["float32"]

    @kept_on_disk
    @cuda.jit(launch_bounds=(160, 1))
    def flat_wgmma_kernel(
        b,  # in   the packed kernel
        c,  # out
        words,  # in   the tensor map of the gathered array
    ):
        shared = cuda.shared.array(0, np.float32)
        begin = shared_address(shared)
        start = aligned(begin, 128)
        warp, lane = warp_and_lane()
        row, column = cuda.blockIdx.x // COLUMNS, cuda.blockIdx.x % COLUMNS  # the block's pixel
        image0, n_tile = cuda.blockIdx.y * IMAGES, cuda.blockIdx.z
        if cuda.threadIdx.x == 0:
            init(shared, start)
            fence_proxy_async()  # TMA may see the barriers
        cuda.syncthreads()
        if warp == 4:  # the producer
            if lane == 0:
                box_map = map_address(words, 0)
                stage, phase = PRODUCER
                for step in range(short(STEPS)):
                    channel, tap = step // TAPS, step % TAPS
                    top = row * ROW_STEP + TOP + tap // TAP_COLUMNS * TAP_DOWN
                    left = column * COLUMN_STEP + LEFT + tap % TAP_COLUMNS * TAP_ACROSS
                    full, to = acquire(shared, start, stage, phase)
                    tensor_copy(shared, to, box_map, 0, image0, left, top, channel, full)
                    b_from = (n_tile * STEPS + step) * (B_BYTES // 4)
                    bulk_copy(shared, to + A_BYTES, b, b_from, B_BYTES, full)
                    stage, phase = advance(stage, phase)
        else:  # the consumers
            acc = cuda.local.array(SUMS, np.float32)
            fragment = cuda.local.array(FRAGMENTS, np.float32)
            own_row = warp * 16 + lane // 4
            clear(acc, SUMS)
            stage, phase = CONSUMER
            for _ in range(short(STEPS)):
                wait(shared, start, stage, phase)
                a = (start - begin + DATA + stage * PITCH) // 4
                matrix = MATRIX + (start + DATA + stage * PITCH + A_BYTES) // 16
                for i in range(FRAGMENTS):  # rows own_row and 8 below, k and 4 further
                    k = i // 2 * 4 + lane % 4
                    fragment[i] = nearer_tf32(shared[at(a + (own_row + i % 2 * 8) * D + k)])
                wgmma_fence()
                for group in range(GROUPS):
                    b_at = matrix + group * PRODUCT
                    multiply(BN, acc, 0, fragment, group * 4, shared, b_at, 1)
                wgmma_commit()
                wgmma_wait()
                release(shared, start, stage, lane)
                stage, phase = advance(stage, phase)
            for half in range(2):
                m = own_row + half * 8
                to_row = (image0 + m // D1) * C_IMAGE + row * C_ROW + column * C_COLUMN
                to_row += m % D1 * C_D1
                for block in range(BN // 8):
                    i, col = block * 4 + half * 2, n_tile * BN + block * 8 + lane % 4 * 2
                    to = to_row + col // CAPSULE * BY_CAPSULE + col % CAPSULE
                    store_pair(c, to, acc[i], acc[i + 1])

    return flat_wgmma_kernel


class FlatWgmma:
    """The launcher: a product of the forward pass with G of 1, D of 8, 16 or 32, and nothing left over."""

    def __init__(self, product, images, BN):
        p, window = product, Window.of(product)
        at_once, pixel = BM // p.pixels.D1, p.pixels.D1 * p.D
        assert p.D % 8 == 0 and p.n.D % 2 == 0, "D is a multiple of 8, a capsule's row even"
        assert at_once * p.pixels.D1 == BM and images % at_once == 0 and p.N % BN == 0
        chunks, sizes = p.D * 4 // CHUNK, (p.channels, p.D)
        columns = p.n, p.kernel_steps, 1, 1, BN
        packing = Packing(*sizes, window.taps, *columns, chunks, 1, _FLOAT32.itemsize)
        self.packed, self._numbers = packing.elements, packing.numbers
        pack = make_pack(packing.form, _FLOAT32, False)
        self._pack = Compiled(pack, (_FLOAT32,) * 2, 0, words=NUMBERS)
        self.shared = 128 + _BARRIERS + _STAGES * (BM + BN) * p.D * 4
        kernel = make_flat_wgmma(p.pixels, window, *sizes, p.n, BN)
        self._kernel = Compiled(kernel, (_FLOAT32,) * 2, 0, self.shared, MAP_WORDS)
        self._grid = p.pixels.rows * p.pixels.columns, images // at_once, p.N // BN
        (height, width), (row, column) = p.pixels.extent, p.pixels.unit
        strides = (p.pixels.gathered[0], column, row, p.channel_steps[0])
        tensor = (pixel, images, width, height, p.channels)
        self._box = tensor, strides, (pixel, at_once, 1, 1, 1)

    def __call__(self, gathered, kernel, packed, result, stream=0):
        """Pack the kernel, then multiply; all are runs of elements that begin at multiples of 16 bytes."""
        launch(self._pack, self.packed, 1, (kernel, packed, self._numbers), stream)
        words = tensor_map(gathered, *self._box)
        launch_tiles(self._kernel, self._grid, 160, (packed, result, words), stream, self.shared)
