"""The first layer of the forward pass, whose sums are short: ordinary arithmetic."""

import numpy as np

from numbacaps.device.instructions import (
    float_of,
    load_run,
    local_array,
    short,
    store_pair,
    store_run,
    unforeseen,
)
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import at, cuda
from numbacaps.fused.activation import EPSILON, leaky, squash_slopes_of_result
from numbacaps.nn.resident.layer_end import make_end

_ZERO = np.float32(0)


def make_first_layer(layer, pipeline, keeps):
    """Device function for the first layer; a thread computes a squash group of one pixel.

    Parameters
    ----------
    layer : numbacaps.nn.resident.layers.FirstLayer
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    keeps : bool
        The output and its squash's slopes are written to global memory.
    """
    output, reads, d3 = layer.output, layer.reads, layer.N // layer.P
    of_pixel = layer.N // output.group
    GROUP, BESIDE = map(specialized, (output.group, d3 // output.group))
    # Pixels at once; what threads are left have none.
    OF_PIXEL, AT_ONCE = map(specialized, (of_pixel, pipeline.consumers // of_pixel))
    D3, PIXELS, COLUMNS = map(specialized, (d3, layer.pixels, layer.columns))
    ROW, COLUMN, CHANNEL = map(specialized, (reads.row, reads.column, reads.channel))
    tap = reads.tap_row, reads.tap_column, reads.first
    TAP_ROW, TAP_COLUMN, FIRST = map(specialized, tap)
    C, KH, KW = map(specialized, (layer.C, layer.KH, layer.KW))
    D2, K, OWN = map(specialized, (layer.D2, layer.K, layer.K * output.group))
    X, KERNEL, OUT = map(specialized, (layer.x, layer.kernel, output.at))
    KEEPS, GROUPS = map(specialized, (keeps, output.groups))
    SLOPE, REGULARISER = specialized_float32(output.slope), np.float32(EPSILON)
    RUN, RUNS = layer.run, specialized(output.group // layer.run)
    end = make_end(output, pipeline, keeps)

    @cuda.jit(device=True, forceinline=True)
    def compute_first(work):
        shared, floats, slopes, image = work.shared, work.floats, work.slopes, work.image
        thread = work.thread
        total = local_array(GROUP, np.float32)
        run = local_array(RUN, np.float32)
        weights = local_array(OWN, np.float32)
        # A thread's groups are the same of every pixel, so it keeps its part of the kernel.
        own = np.uint32(np.uint32(thread) % OF_PIXEL)
        p, d3 = np.uint32(own // BESIDE), np.uint32(own % BESIDE * GROUP)
        for k in range(K):
            for r in range(RUNS):
                load_run(RUN, run, shared, floats + KERNEL + (p * K + k) * D3 + d3 + r * RUN)
                for j in range(RUN):
                    weights[k * GROUP + r * RUN + j] = run[j]
        begin = short(np.uint32(thread) // OF_PIXEL)
        pixel = begin if begin < AT_ONCE else short(PIXELS)
        while pixel < PIXELS:
            slot = np.uint32(np.uint32(pixel) // COLUMNS) * ROW
            slot += np.uint32(np.uint32(pixel) % COLUMNS) * COLUMN + FIRST
            e = (p * PIXELS + pixel) * D3 + d3
            for j in range(GROUP):
                total[j] = _ZERO
            for c in range(C):
                for kh in range(KH):
                    for kw in range(KW):
                        for d2 in range(D2):
                            tap = slot + c * CHANNEL + kh * TAP_ROW + kw * TAP_COLUMN + d2
                            element = shared[at(floats + X + tap)]
                            k = ((c * KH + kh) * KW + kw) * D2 + d2
                            for j in range(GROUP):
                                total[j] += element * weights[k * GROUP + j]
            square = _ZERO
            for j in range(GROUP):
                value = leaky(total[j], float_of(SLOPE))
                square += value * value
            factor, slope = squash_slopes_of_result(square + REGULARISER)
            if KEEPS == 1:
                group = image * GROUPS + np.uint32(e // GROUP)
                store_pair(slopes, 2 * group, factor, slope)
            for r in range(RUNS):
                for j in range(RUN):
                    run[j] = leaky(total[r * RUN + j], float_of(SLOPE)) * factor
                store_run(RUN, shared, floats + OUT + e + r * RUN, run)
            pixel = unforeseen(pixel + AT_ONCE)
        end(work)

    return compute_first
