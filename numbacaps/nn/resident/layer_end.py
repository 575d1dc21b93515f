"""What a layer of the forward pass ends with: shares of sums are added and squashed, the output is written."""

from dataclasses import replace
from math import gcd

import numpy as np

from numbacaps.device.instructions import (
    bulk_store,
    bulk_store_read,
    fence_proxy_async,
    float_of,
    load_run,
    local_array,
    mbarrier_arrive,
    meet,
    short,
    shuffle,
    store_pair,
    store_run,
    unforeseen,
)
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import cuda
from numbacaps.fused.activation import EPSILON, leaky, squash_slopes_of_result

_ZERO = np.float32(0)
_OWN = 8  # elements of a squash group that a thread has, at most; half where many threads would have none


def make_conclude(layer, pipeline, keeps):
    """Device function that a layer ends with, when its sums or shares of them are in shared memory."""
    schedule, output = layer.schedule, layer.output
    WHOLE, THREADS = schedule.shares == 1, pipeline.consumers
    OPENS, GATE = map(specialized, (schedule.opens_late, pipeline.gate_at))
    add_shares = _make_add_shares(layer, pipeline, keeps)
    end = make_end(written(output, keeps), pipeline, (keeps or layer.last) and not WHOLE)

    @cuda.jit(device=True, forceinline=True)
    def conclude(work):
        shared, start, thread = work.shared, work.start, work.thread
        if OPENS == 1:
            fence_proxy_async()  # TMA may write over what was read here
            bulk_store_read()
            cuda.syncwarp()
            if thread & 31 == 0:
                mbarrier_arrive(shared, start + GATE)
        if not WHOLE:
            meet(THREADS)
            add_shares(work)
        end(work)

    return conclude


def _make_add_shares(layer, pipeline, keeps):
    """Device function that adds the shares of a layer's sums and squashes them; lanes share a group."""
    output = layer.output
    threads = pipeline.consumers
    width = gcd(output.group, _OWN if output.size // _OWN > threads // 2 else 4)
    SIZE, SHARES, THREADS = map(specialized, (output.size, layer.schedule.shares, threads))
    WIDTH, BITS = map(specialized, (width, (output.group // width).bit_length() - 1))
    RUNS, PARTS = map(specialized, (width // 4, output.size // width))
    OUT, KEEPS = map(specialized, (output.at, keeps))
    SLOPES, GROUPS = map(specialized, (output.groups_before, output.groups))
    SLOPE, REGULARISER = specialized_float32(output.slope), np.float32(EPSILON)

    @cuda.jit(device=True, forceinline=True)
    def add_shares(work):
        shared, floats, slopes, image = work.shared, work.floats, work.slopes, work.image
        images, thread = work.images, work.thread
        total = local_array(WIDTH, np.float32)
        run = local_array(4, np.float32)
        lane = short(thread & 31)
        first = short(thread - lane)
        while first < PARTS:  # whole warps, because lanes meet
            e = min(first + lane, PARTS - 1) * WIDTH
            inside = first + lane < PARTS
            square = _ZERO
            for r in range(RUNS):
                load_run(4, run, shared, floats + OUT + e + r * 4)
                for j in range(4):
                    total[r * 4 + j] = run[j]
                for share in range(1, SHARES):
                    load_run(4, run, shared, floats + OUT + share * SIZE + e + r * 4)
                    for j in range(4):
                        total[r * 4 + j] += run[j]
            for j in range(WIDTH):
                value = leaky(total[j], float_of(SLOPE))
                square += value * value
            for bit in range(BITS):
                square += shuffle(square, lane ^ 1 << bit)
            factor, slope = squash_slopes_of_result(square + REGULARISER)
            cuda.syncwarp()  # idle lanes read the last part too
            if inside:
                if KEEPS == 1 and lane & (1 << BITS) - 1 == 0:
                    group = np.uint32((first + lane) >> BITS)
                    to = SLOPES * images + image * GROUPS + group
                    store_pair(slopes, 2 * to, factor, slope)
                for r in range(RUNS):
                    for j in range(4):
                        run[j] = leaky(total[r * 4 + j], float_of(SLOPE)) * factor
                    store_run(4, shared, floats + OUT + e + r * 4, run)
            first = unforeseen(first + THREADS)

    return add_shares


def make_end(output, pipeline, keeps):
    """Device function that writes a layer's output, where it is kept, while the next one is computed."""
    OUT, SIZE, OUTPUT = map(specialized, (output.at, output.size, output.elements_before))
    KEEPS, THREADS = specialized(keeps), pipeline.consumers

    @cuda.jit(device=True, forceinline=True)
    def end(work):
        shared, start, outputs, image = work.shared, work.start, work.outputs, work.image
        images, thread = work.images, work.thread
        bulk_store_read()  # from where the next layer writes
        if KEEPS == 1:
            fence_proxy_async()  # TMA may see the output
        meet(THREADS)
        if KEEPS == 1 and thread == 0:
            to = OUTPUT * images + image * SIZE
            bulk_store(outputs, to, shared, start + 4 * OUT, 4 * SIZE)

    return end


def written(output, keeps):
    """The output as it lies in global memory, where the last one alone is written if ``keeps`` is not set."""
    return output if keeps else replace(output, elements_before=0)
