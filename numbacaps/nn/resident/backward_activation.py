"""The gradient of LeakyReLU and squash: from a layer's output to its sums, in place."""

from math import gcd

import numpy as np

from numbacaps.device.instructions import (
    float_of,
    load_run,
    local_array,
    meet,
    short,
    shuffle,
    store_run,
)
from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import cuda

_ZERO = np.float32(0)
_ZERO, _ONE = np.float32(0), np.float32(1)
_OWN = 8  # elements of a squash group that a thread has, at most
_FEW = 2  # parts whose outputs are loaded at once, twice that of many; the code of each has to be fetched


def make_activation(gradient, pipeline):
    """Device function that takes the gradient from a layer's output to its sums; lanes share a group."""
    output = gradient.output
    width, THREADS = gcd(output.group, _OWN), pipeline.consumers
    parts = output.size // width
    parts_each = ceil_div(parts, THREADS)
    ahead = min(parts_each, _FEW if parts_each <= 2 * _FEW else 2 * _FEW)
    WIDTH, BITS = map(specialized, (width, (output.group // width).bit_length() - 1))
    RUNS, PARTS = map(specialized, (width // 4, parts))
    SIZE, AT, OUTPUT = map(specialized, (output.size, gradient.at, output.elements_before))
    SLOPES, GROUPS = map(specialized, (output.groups_before, output.groups))
    writes = gradient.d_sums_at is not None
    WRITES, TO = map(specialized, (writes, gradient.d_sums_at or 0))
    COPIES, SLOPE = specialized(gradient.copies), specialized_float32(output.slope)
    AHEAD, ROUNDS = map(specialized, (ahead, ceil_div(parts_each, ahead)))
    HELD, PAIRS = map(specialized, (ahead * width, ahead * 2))

    @cuda.jit(device=True, forceinline=True)
    def run_of(lane, r):
        """Where one of a thread's runs lies: half of the lanes begin with the second, so all banks are busy."""
        return (r ^ lane >> 2 & RUNS - 1) * 4

    @cuda.jit(device=True, forceinline=True)
    def load(results, pairs, outputs, slopes, begins, first, lane):
        """A thread's outputs of some parts, and their groups' slopes."""
        run = local_array(4, np.float32)
        output, group = begins
        for one in range(AHEAD):
            part = min(first + one * THREADS, PARTS - 1)
            for r in range(RUNS):
                load_run(4, run, outputs, output + part * WIDTH + run_of(lane, r))
                for j in range(4):
                    results[one * WIDTH + r * 4 + j] = run[j]
            load_run(2, run, slopes, 2 * (group + (part >> BITS)))
            pairs[2 * one], pairs[2 * one + 1] = run[0], run[1]

    @cuda.jit(device=True, forceinline=True)
    def differentiate(work, stage, phases):
        shared, floats, d_sums, slopes = work.shared, work.floats, work.d_sums, work.slopes
        outputs, image, images, thread = work.outputs, work.image, work.images, work.thread
        ahead = local_array(HELD, np.float32)
        pairs_ahead = local_array(PAIRS, np.float32)
        result = local_array(HELD, np.float32)
        pairs = local_array(PAIRS, np.float32)
        gradient = local_array(WIDTH, np.float32)
        run = local_array(4, np.float32)
        lane = short(thread & 31)
        begins = OUTPUT * images + image * SIZE, SLOPES * images + image * GROUPS
        load(ahead, pairs_ahead, outputs, slopes, begins, thread, lane)
        for around in range(short(ROUNDS)):
            for i in range(HELD):
                result[i] = ahead[i]
            for i in range(PAIRS):
                pairs[i] = pairs_ahead[i]
            first = short(thread + around * (AHEAD * THREADS))
            if around < ROUNDS - 1:
                behind = first + AHEAD * THREADS
                load(ahead, pairs_ahead, outputs, slopes, begins, behind, lane)
            for one in range(AHEAD):
                part = short(first + one * THREADS)
                e = short(part * WIDTH)
                dot = _ZERO
                if part < PARTS:
                    for r in range(RUNS):
                        load_run(4, run, shared, floats + AT + e + run_of(lane, r))
                        for j in range(4):
                            gradient[r * 4 + j] = run[j]
                        for other in range(1, COPIES):
                            at_other = AT + other * SIZE + e
                            load_run(4, run, shared, floats + at_other + run_of(lane, r))
                            for j in range(4):
                                gradient[r * 4 + j] += run[j]
                    for j in range(WIDTH):
                        dot += result[one * WIDTH + j] * gradient[j]
                for bit in range(BITS):
                    dot += shuffle(dot, lane ^ 1 << bit)
                along = dot * pairs[2 * one + 1]
                if part < PARTS:
                    for r in range(RUNS):
                        for j in range(4):
                            value = result[one * WIDTH + r * 4 + j]
                            scale = _ONE if value > _ZERO else float_of(SLOPE)
                            d_value = gradient[r * 4 + j] * pairs[2 * one] + value * along
                            run[j] = d_value * scale
                        place = e + run_of(lane, r)
                        store_run(4, shared, floats + AT + place, run)
                        if WRITES == 1:
                            store_run(4, d_sums, TO * images + image * SIZE + place, run)
        meet(THREADS)
        return stage, phases

    return differentiate
