"""Rung 5's split-K, for the kernel's gradient: a block computes every tap, so what it reads serves all of them.

    dw[k, n] = sum over m of x[m, k] * dy[m, n]

What changed from :mod:`numbacaps.fused.rung_4_wgmma.split_k`: warpgroups multiply, and TMA brings rows of pixels
(:mod:`numbacaps.fused.rung_5_warp_specialized.kernel` says how). A block walks down strips of the images, and
each consumer warpgroup has a row of taps: when pixel row r of dy is there, tap row i multiplies it with the row of
x that lies i rows below. A row of x stays in shared memory until the last row of taps has read it.

The first operand, x, comes through registers: a slot is loaded once for all taps that read it, and only dy's
place differs. The tensor cores want the second operand with the summed pixels as neighbours, but in capsule
layout columns are. So the pipeline of dy has three roles, not two:
:mod:`~numbacaps.fused.rung_5_warp_specialized.split_k_producer` asks TMA for a row,
:mod:`~numbacaps.fused.rung_5_warp_specialized.split_k_transpose` rewrites it as core matrices, and
:mod:`~numbacaps.fused.rung_5_warp_specialized.split_k_consumer` multiplies. k of a product counts (image, d1), n
counts (p, d3).

Of 2 bytes an element a thread reads two neighbours of a capsule's row at once, but a product wants two k's
together. So of both operands two k's are read, 4 apart, so that lanes beside each other read neighbours, and the
halves of their pairs exchanged.

For ``terms`` of 3 dy is written in two parts, and the sums leave the tensor cores after each row for ordinary adds.
"""

from functools import cache

import numpy as np

from numbacaps.device.block import aligned, warp_and_lane
from numbacaps.device.instructions import (
    fence_proxy_async,
    fewer_registers,
    let_next_start,
    local_array,
    map_address,
    more_registers,
    shared_address,
    store_quad,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.ring import make_init
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.fused.rung_5_warp_specialized.split_k_consumer import make_consume
from numbacaps.fused.rung_5_warp_specialized.split_k_producer import make_produce
from numbacaps.fused.rung_5_warp_specialized.split_k_spec import Part
from numbacaps.fused.rung_5_warp_specialized.split_k_tile import (
    TRANSPOSE_WARPS,
)
from numbacaps.fused.rung_5_warp_specialized.split_k_transpose import make_transpose


@cache
def make_bulk_reduction(spec):
    """Kernel for one :class:`numbacaps.fused.implicit_gemm.Product` of float32, float16 or bfloat16.

    Parameters
    ----------
    spec : numbacaps.fused.rung_5_warp_specialized.split_k_spec.ReductionSpec
    """
    tile, consumers = spec.tile, spec.consumer_warps
    CONSUMERS, PRODUCER_WARP = map(specialized, (consumers, consumers + TRANSPOSE_WARPS))
    REGISTERS, HELPERS = map(specialized, (tile.registers, tile.helper_registers))
    THREADS = specialized(tile.threads)
    init_x, init_dy, init_transposed = map(
        make_init, (spec.x_ring, spec.dy_ring, spec.transposed_ring)
    )
    produce, transpose, consume = make_produce(spec), make_transpose(spec), make_consume(spec)
    part_of_block, store_sums = make_part_of_block(spec), make_store_sums(spec)
    ALL_SUMS, STRIP_ROWS = map(specialized, (spec.sums, spec.strips.rows))

    @kept_on_disk
    @cuda.jit(launch_bounds=(THREADS, 1))
    def bulk_reduction_kernel(
        partial,  # out  as :mod:`numbacaps.fused.rung_5_warp_specialized.add_tiles` reads it
        beside,  # not read: behind two arrays the maps lie as TMA wants them
        words,  # in   the tensor maps of the gathered array and of the other one
    ):
        shared = cuda.shared.array(0, np.float32)
        begin = shared_address(shared)
        start = aligned(begin, 128)
        warp, lane = warp_and_lane()
        part = part_of_block()
        rows = (part.last - part.first) * STRIP_ROWS
        if cuda.threadIdx.x == 0:
            init_x(shared, start)
            init_dy(shared, start)
            init_transposed(shared, start)
            fence_proxy_async()  # TMA may see the barriers
        let_next_start()  # up to where it waits for the sums
        cuda.syncthreads()
        if warp >= CONSUMERS:
            fewer_registers(HELPERS)
            if warp == PRODUCER_WARP:
                if lane == 0:
                    wait_for_last()  # both arrays are there
                    produce(shared, start, map_address(words, 0), map_address(words, 1), part)
            else:
                transpose(shared, begin, start, rows, warp, lane)
        else:
            more_registers(REGISTERS)
            acc = local_array(ALL_SUMS, np.float32)
            consume(acc, shared, begin, start, rows, warp, lane)
            wait_for_last()  # nobody reads any more what is written now
            store_sums(partial, acc, warp, lane)

    return bulk_reduction_kernel


def make_part_of_block(spec):
    """Device function ``part_of_block()``: the block's channels, columns, g and strips."""
    (of_x, of_dy), strips = spec.boxes, spec.strips
    A_CHANNELS, B_CHANNELS = map(specialized, (of_x.channels, of_dy.channels))
    SPLITS, STRIPS, PER_SPLIT = map(specialized, (strips.splits, strips.count, strips.per_split))

    @cuda.jit(device=True, inline="always")
    def part_of_block():
        channel, p = cuda.blockIdx.x * A_CHANNELS, cuda.blockIdx.y * B_CHANNELS
        g, split = cuda.blockIdx.z // SPLITS, cuda.blockIdx.z % SPLITS
        first = split * PER_SPLIT
        return Part(channel, p, g, first, min(STRIPS, first + PER_SPLIT))

    return part_of_block


def make_store_sums(spec):
    """Device function ``store_sums(partial, acc, warp, lane)``: a thread's sums beside its neighbours', in fours."""
    threads = spec.consumer_warps * 32
    ALL_SUMS, THREADS, TILE = map(specialized, (spec.sums, threads, threads * spec.sums))
    FILLED, ROWS_OF_WARP = map(specialized, (spec.filled_rows, 16 // spec.tile.PAIR))

    @cuda.jit(device=True, inline="always")
    def store_sums(partial, acc, warp, lane):
        tile = cuda.blockIdx.z * cuda.gridDim.y + cuda.blockIdx.y
        to = (tile * cuda.gridDim.x + cuda.blockIdx.x) * TILE + cuda.threadIdx.x * 4
        if warp % 4 * ROWS_OF_WARP + lane // 4 < FILLED:
            for i in range(0, ALL_SUMS, 4):
                place = to + i * THREADS
                store_quad(partial, place, acc[i], acc[i + 1], acc[i + 2], acc[i + 3])

    return store_sums
