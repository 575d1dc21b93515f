"""The backward pass as one kernel, from the loss to the gradient of every layer's sums.

What changed from :mod:`numbacaps.nn.resident.forward`, which a block again takes an image through: here a layer's input
is what is made, and its windows overlap. Read as a sum over the taps that reach a pixel, that is one product for
each residue of the stride, and taps reach over the edge. Read the other way round, every tap is a product of its own,

    d_input[pixel * stride + tap, d1, (c, d2)] += sum over (p, d3) of d_sums[pixel, d1, (p, d3)] * kernel[tap]

whose first operand is the same of all taps: a thread loads its part once, and keeps it in registers. The sums are
added up in shared memory, tap after tap. Two warpgroups take the taps in turn: while one adds, the tensor cores work
for the other, and between two taps they meet, so the order is fixed. Where columns are few, several taps are one
product, and each warpgroup takes tiles of its own and adds to an input of its own.

The gradient of an output becomes in place the gradient of the sums before its activation. A kernel's gradient is a
sum over the images too, so a block leaves its images' part, for another kernel to add, of those kernels
that are small: the first layer's, and that of a layer whose capsules are, transposed, the tensor cores'
core matrices. :mod:`numbacaps.nn.resident.backward_layout` says what fits, and where it lies.

The steps of a pass, a file each: :mod:`~numbacaps.nn.resident.backward_loss`, or where the gradient of the class capsules is given
:mod:`~numbacaps.nn.resident.backward_given`; of every layer from the last one down
:mod:`~numbacaps.nn.resident.backward_activation`, :mod:`~numbacaps.nn.resident.backward_kernel` where its kernel's gradient
is computed here, :mod:`~numbacaps.nn.resident.backward_input`; at last :mod:`~numbacaps.nn.resident.backward_first`.
"""

from functools import cache

import numpy as np

from numbacaps.device.instructions import (
    cp_async_commit,
    fence_proxy_async,
    fewer_registers,
    let_next_start,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    more_registers,
    shared_address,
    short,
    shuffle,
    wait_for_last,
)
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.nn.resident.backward_activation import make_activation
from numbacaps.nn.resident.backward_first import make_first_kernel_gradient
from numbacaps.nn.resident.backward_input import make_input_gradient
from numbacaps.nn.resident.backward_kernel import make_kernel_gradient
from numbacaps.nn.resident.pipeline import in_sequence, make_copy, make_fetch
from numbacaps.nn.resident.records import BackwardWork, CopyWork
from numbacaps.nn.resident.shared_memory import PRODUCER_REGISTERS


@cache
def make_resident_backward(layout, begin_with):
    """Kernel for a network's backward pass.

    Parameters
    ----------
    layout : numbacaps.nn.resident.backward_layout.BackwardLayout
    begin_with : device function
        What reaches the class capsules: of :func:`numbacaps.nn.resident.backward_loss.make_loss` or
        :func:`numbacaps.nn.resident.backward_given.make_given`.
    """
    first, gradients, pipeline = layout.first, layout.gradients, layout.pipeline
    WARPS, THREADS = pipeline.warpgroups * 4, pipeline.consumers
    REGISTERS, COPYING = pipeline.registers, PRODUCER_REGISTERS
    STAGES, EMPTY = map(specialized, (pipeline.stages, pipeline.empty_at))
    GATE, X, IMAGE = map(specialized, (pipeline.gate_at, first.x, first.layer.image))
    steps, copies = [make_activation(gradients[-1], pipeline)], []
    for layer, before in zip(reversed(layout.layers), reversed(gradients[:-1])):
        steps += [make_kernel_gradient(layer, pipeline)] if layer.kernel else []
        steps += [make_input_gradient(layer, pipeline), make_activation(before, pipeline)]
        copies.append(make_copy(layer.chunks, layer.schedule.rounds, pipeline, False))
    compute = in_sequence([*steps, make_first_kernel_gradient(first, pipeline)])
    copy, fetch = in_sequence(copies), make_fetch(THREADS)

    @kept_on_disk
    @cuda.jit(launch_bounds=(pipeline.threads, 1))
    def resident_backward_kernel(
        x,  # in   (N, C, H, W, E1)
        labels,  # in   of the loss (N,), int64
        lengths,  # in   of the loss (N, classes); where it is given, the gradient of the class capsules, (N, P, E3)
        slopes,  # in   of every layer's squash, (groups, 2), one behind the other
        outputs,  # in   every layer's, likewise
        packed,  # in   all kernels but the first, one behind the other as the layers say
        d_sums,  # out  the gradient of the sums of layers whose kernel's gradient is not computed here
        partial,  # out  the blocks' parts of the kernels' gradients that are, one kernel behind the other
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
        wait_for_last()  # the forward pass is done, and the kernels are packed
        stage = short(0)
        if warp >= WARPS:
            fewer_registers(COPYING)
            if warp == WARPS and lane == 0:
                phases = short(-1)  # what nobody has filled yet counts as empty
                opened = short(1)
                for _ in range(short(cuda.blockIdx.x), short(images), short(cuda.gridDim.x)):
                    mbarrier_wait(shared, start + GATE, opened)  # the image before is done
                    stage, phases = copy(CopyWork(shared, start, packed, opened), stage, phases)
                    opened = short(opened ^ 1)
        else:
            more_registers(REGISTERS)
            phases = short(0)
            floats = short((start - begin) // 4)
            for image in range(short(cuda.blockIdx.x), short(images), short(cuda.gridDim.x)):
                work = BackwardWork(
                    shared,
                    start,
                    floats,
                    slopes,
                    outputs,
                    lengths,
                    labels,
                    d_sums,
                    partial,
                    image,
                    images,
                    thread,
                    warp,
                )
                begin_with(work)
                fetch(shared, start + 4 * X, x, image * IMAGE, IMAGE, thread)
                cp_async_commit()
                stage, phases = compute(work, stage, phases)
                fence_proxy_async()  # TMA may write over what was read here
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(shared, start + GATE)

    return resident_backward_kernel
