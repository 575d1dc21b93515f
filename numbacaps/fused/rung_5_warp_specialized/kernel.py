"""Rung 5, warp specialization: producer warps keep TMA busy, consumer warpgroups multiply, and neither waits for all.

    c[m, n] = sum over k of a[m, k] * b[k, n]

What changed: one instruction fetches a whole box, all slots of all images and the stage's channels
(:mod:`numbacaps.device.tensor_map`), one more a tap row of the packed kernel. TMA works out the addresses, and
what lies over the edge is zero. Boxes and tap rows are two pipelines (:mod:`numbacaps.device.ring`), so warpgroups
drift apart and one multiplies while another loads. The kernel is persistent: there are as many blocks as
multiprocessors, and each takes tile after tile. While a result is written, the next tile's boxes come. Where the
last round has too few tiles for all blocks, another launch of the kernel takes them in parts.

The roles are files of their own: :mod:`~numbacaps.fused.rung_5_warp_specialized.producer`,
:mod:`~numbacaps.fused.rung_5_warp_specialized.consumer` and, at the end of each tile, the epilogue in
:mod:`~numbacaps.fused.rung_5_warp_specialized.store`; behind that, at the default, results that three terms cannot tell are
summed again (:mod:`~numbacaps.fused.rung_5_warp_specialized.sum_again`).

The first operand comes through registers (:mod:`~numbacaps.fused.rung_5_warp_specialized.fragments`): a slot's rows
are loaded once for all taps and pixels that read them, where capsules are wide enough a run of k's in one load.
Which of a product's k's a thread holds does not matter as long as the packed kernel has them in the same places.
For ``terms`` of 3 both operands are split (:mod:`numbacaps.device.fragments`), and the sums leave the tensor
cores, which cut off bits as they add, once a batch, for ordinary adds.
"""

from functools import cache

import numpy as np

from numbacaps.device.block import aligned, warp_and_lane
from numbacaps.device.instructions import (
    fence_proxy_async,
    fewer_registers,
    map_address,
    more_registers,
    shared_address,
    short,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.ring import make_init
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.fused.rung_5_warp_specialized.consumer import make_consume
from numbacaps.fused.rung_5_warp_specialized.producer import (
    make_produce_boxes,
    make_produce_tap_rows,
    stagger,
)
from numbacaps.fused.rung_5_warp_specialized.tile import PRODUCER_REGISTERS


@cache
def make_bulk_wgmma(spec):
    """Kernel for a :class:`numbacaps.fused.implicit_gemm.Product` of float32, or of float16 or bfloat16 in pairs.

    Where ``spec.looks``, it sums again what three terms cannot tell.

    Parameters
    ----------
    spec : numbacaps.fused.rung_5_warp_specialized.spec.KernelSpec
    """
    CONSUMERS, REGISTERS = map(specialized, (spec.consumer_warps, spec.tile.registers))
    THREADS = specialized(spec.tile.threads)
    init_boxes, init_tap_rows = make_init(spec.box_ring), make_init(spec.tap_ring)
    produce_boxes, produce_tap_rows = make_produce_boxes(spec), make_produce_tap_rows(spec)
    consume = make_consume(spec)

    @cuda.jit(device=True, inline="always")
    def run_block(b, word_map, results, looked, first, count, later, waits):
        """All roles of a block; ``word_map`` is where the tensor map lies, ``looked`` what ``sum_again`` reads."""
        shared = cuda.shared.array(0, np.float32)
        begin = shared_address(shared)
        start = aligned(begin, 128)
        warp, lane = warp_and_lane()
        tiles = short(cuda.blockIdx.x), short(count), short(cuda.gridDim.x)  # of this block
        first_tile = short(first)
        if cuda.threadIdx.x == 0:
            init_boxes(shared, start)
            init_tap_rows(shared, start)
            fence_proxy_async()  # TMA may see the barriers
        cuda.syncthreads()
        if warp >= CONSUMERS:
            fewer_registers(PRODUCER_REGISTERS)
            if warp == CONSUMERS and lane == 0:  # it waits for no packing
                if waits > 1:
                    wait_for_last()  # the gathered array is there
                stagger(tiles, later)
                produce_boxes(shared, start, word_map, tiles, first_tile)
            if warp == CONSUMERS + 1 and lane == 0:
                produce_tap_rows(shared, start, b, tiles, first_tile, waits)
        else:
            more_registers(REGISTERS)
            consume(shared, begin, start, tiles, first_tile, results, looked, warp, lane)

    @kept_on_disk
    @cuda.jit(launch_bounds=(THREADS, 1))
    def bulk_wgmma_kernel(
        b,  # in   the packed kernel
        c,  # out  the other array
        words,  # in   the tensor map of the gathered array
        activated,  # out  the same behind an activation; in  what one was of, whose gradient c is; or c again
        images,
        first,  # tile of this launch, in whole tiles
        count,  # tiles of all blocks
        later,  # cycles by which a block begins behind the one before it, of those that have the fewest tiles
        waits,  # 0 behind another product of the pass, 1 right behind the packing, 2 anywhere else
    ):
        results = c, activated, images
        run_block(b, map_address(words, 0), results, (), first, count, later, waits)

    @kept_on_disk
    @cuda.jit(launch_bounds=(THREADS, 1))
    def bulk_wgmma_and_look_kernel(
        b,
        c,
        words,
        gathered,  # in   the two arrays as the pass reads them
        kernel,
        of,  # in   numbacaps.fused.anew.numbers_of
        images,
        first,
        count,
        later,
        waits,
    ):
        results, looked = (c, c, images), (gathered, kernel, of)
        run_block(b, map_address(words, 0), results, looked, first, count, later, waits)

    return bulk_wgmma_and_look_kernel if spec.looks else bulk_wgmma_kernel
