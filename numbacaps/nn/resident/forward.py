"""The whole forward pass as one kernel: an image's capsules never leave its multiprocessor.

Layer by layer a small network waits more than it works: each kernel begins, asks for its first boxes and
writes what the next one fetches again. Here a block takes an image through all layers. Each layer's output lies
in shared memory, where the next layer's products read it; only the kernels' packed rows of taps come from
outside, through pipeline stages in a ring buffer that runs on from layer to layer, so the next layer's are there when it
begins. Such a kernel of all layers is a megakernel; its block is persistent, and warp-specialized: one warpgroup is the
producer, which copies by TMA, the others are consumers, which multiply.

The steps of a pass, a file each: :mod:`~numbacaps.nn.resident.first_layer`; of every other layer
:mod:`~numbacaps.nn.resident.tile_products` or, of at most 8 rows, :mod:`~numbacaps.nn.resident.warp_products`, then
:mod:`~numbacaps.nn.resident.squash_tile` and :mod:`~numbacaps.nn.resident.layer_end`; at last
:mod:`~numbacaps.nn.resident.class_lengths`. :mod:`numbacaps.nn.resident.layout` says what fits, and where it lies.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    bulk_store_read,
    bulk_store_wait,
    cp_async_commit,
    cp_async_wait,
    fence_proxy_async,
    fewer_registers,
    let_next_start,
    mbarrier_init,
    mbarrier_wait,
    meet,
    more_registers,
    shared_address,
    short,
    shuffle,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.nn.resident.class_lengths import make_class_lengths
from numbacaps.nn.resident.first_layer import make_first_layer
from numbacaps.nn.resident.layer_end import make_conclude
from numbacaps.nn.resident.pipeline import in_sequence, make_copy, make_fetch
from numbacaps.nn.resident.records import CopyWork, ForwardWork
from numbacaps.nn.resident.shared_memory import PRODUCER_REGISTERS
from numbacaps.nn.resident.tile_products import make_tile_products
from numbacaps.nn.resident.warp_products import make_warp_products


@cache
def make_resident_forward(layout, classes, for_gradients):
    """Kernel for a network's forward pass.

    Parameters
    ----------
    layout : numbacaps.nn.resident.forward_layout.ForwardLayout
    classes : int
        Capsules of the last layer.
    for_gradients : bool
        Every layer's output is written, and its squash's slopes; otherwise the last output alone.
    """
    first, layers, pipeline = layout.first, layout.layers, layout.pipeline
    WARPS, THREADS = pipeline.warpgroups * 4, pipeline.consumers
    REGISTERS, COPYING = pipeline.registers, PRODUCER_REGISTERS
    STAGES, EMPTY = map(specialized, (pipeline.stages, pipeline.empty_at))
    GATE, OPENS = map(specialized, (pipeline.gate_at, pipeline.late > 0))
    IMAGE, WEIGHTS = map(specialized, (first.image, first.K * first.N))
    X, KERNEL = map(specialized, (first.x, first.kernel))
    compute_first = make_first_layer(first, pipeline, for_gradients)
    compute = in_sequence([_make_layer(layer, pipeline, for_gradients) for layer in layers])
    copies = [make_copy(one.chunks, one.schedule.rounds, pipeline, True) for one in layers]
    copy, fetch = in_sequence(copies), make_fetch(THREADS)
    write_lengths = make_class_lengths(layers[-1].output, pipeline, classes)

    @kept_on_disk
    @cuda.jit(launch_bounds=(pipeline.threads, 1))
    def resident_forward_kernel(
        x,  # in   (N, C, H, W, E1)
        kernel,  # in   the first layer's
        packed,  # in   the others', one behind the other as the layers say
        slopes,  # out  every layer's, (groups, 2), one behind the other
        outputs,  # out  every layer's, or the last one's alone
        lengths,  # out  (N, classes)
        images,
    ):
        shared = cuda.shared.array(0, np.float32)
        begin = shared_address(shared)
        start = (begin + 127) // 128 * 128
        thread = short(cuda.threadIdx.x & 1023)  # known not to be negative
        warp = shuffle(short(thread >> 5 & 31), 0)  # known to be the same of all lanes
        lane = short(thread & 31)
        if thread < STAGES:
            mbarrier_init(shared, start + 8 * thread, 1)
            mbarrier_init(shared, start + EMPTY + 8 * thread, WARPS)
            if thread == 0:
                mbarrier_init(shared, start + GATE, WARPS)
            fence_proxy_async()  # TMA may see the barriers
        let_next_start()
        cuda.syncthreads()
        stage = short(0)
        if warp >= WARPS:
            fewer_registers(COPYING)
            wait_for_last()  # the kernels are packed
            if warp == WARPS and lane == 0:
                phases = short(-1)  # what nobody has filled yet counts as empty
                opened = short(0)
                for _ in range(short(cuda.blockIdx.x), short(images), short(cuda.gridDim.x)):
                    stage, phases = copy(CopyWork(shared, start, packed, opened), stage, phases)
                    if OPENS == 1:  # an image that needed no late stage was let through as well
                        mbarrier_wait(shared, start + GATE, opened)
                    opened = short(opened ^ 1)
        else:
            more_registers(REGISTERS)
            phases = short(0)
            floats = short((start - begin) // 4)
            image = short(cuda.blockIdx.x)
            fetch(shared, start + 4 * KERNEL, kernel, 0, WEIGHTS, thread)
            fetch(shared, start + 4 * X, x, image * IMAGE, IMAGE, thread)
            cp_async_commit()
            wait_for_last()  # what packs lets this one start when batch and weights are there
            for image in range(image, short(images), short(cuda.gridDim.x)):
                cp_async_wait(0)
                bulk_store_read()  # the last image's outputs
                meet(THREADS)
                work = ForwardWork(
                    shared, start, floats, slopes, outputs, image, images, thread, warp
                )
                compute_first(work)
                beyond = image + cuda.gridDim.x
                if beyond < images:
                    fetch(shared, start + 4 * X, x, beyond * IMAGE, IMAGE, thread)
                cp_async_commit()
                stage, phases = compute(work, stage, phases)
                write_lengths(work, lengths)
            bulk_store_wait()

    return resident_forward_kernel


def _make_layer(layer, pipeline, keeps):
    """Device function for a layer's products and its activation."""
    conclude = make_conclude(layer, pipeline, keeps)
    if layer.schedule.swapped:
        return make_warp_products(layer, pipeline, conclude)
    return make_tile_products(layer, pipeline, keeps, conclude)
