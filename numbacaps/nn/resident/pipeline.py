"""Pipeline stages in a ring buffer: how the producer fills them with packed kernels, and how consumers walk on.

A position in the ring is a stage's number, and a bit for every stage: the phase that its barriers are in.

What a kernel does once an image has to be fetched as code too, so loops count in a way that LLVM does not
unroll (:func:`numbacaps.device.instructions.unforeseen`).
"""

import numpy as np

from numbacaps.device.instructions import (
    CHUNK,
    bulk_copy,
    cp_async,
    mbarrier_expect,
    mbarrier_wait,
    short,
    unforeseen,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


def in_sequence(functions):
    """A device function that calls some, one after the other, and hands the position in the ring on."""
    first, *others = functions
    if not others:
        return first
    rest = in_sequence(others)

    @cuda.jit(device=True, forceinline=True)
    def chained(work, stage, phases):
        stage, phases = first(work, stage, phases)
        return rest(work, stage, phases)

    return chained


def make_fetch(threads):
    """Device function by which all of ``threads`` ask for elements, a multiple of 4, of a float32 array."""
    THREADS = specialized(threads)

    @cuda.jit(device=True, forceinline=True)
    def fetch(shared, address, array, begin, size, thread):
        i = short(4 * thread)
        while i < size:
            cp_async(16, shared, address + 4 * i, array, begin + i, True)
            i = unforeseen(i + 4 * THREADS)

    return fetch


def ring_functions(pipeline, stages):
    """Device functions for the ring's first stages: where one lies, its phase, the next position, and a later one.

    Where a stage lies is counted as descriptors do, in 16 bytes.

    Parameters
    ----------
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    stages : int
        How many of its stages the ring is made of.
    """
    EARLY, STAGES, ALL = map(specialized, (pipeline.early, stages, (1 << stages) - 1))
    RING_AT, PITCH = map(specialized, (pipeline.begin // CHUNK, pipeline.pitch // CHUNK))
    GAP = specialized(pipeline.gap // CHUNK if stages > pipeline.early else 0)

    @cuda.jit(device=True, forceinline=True)
    def lies_at(start, stage):
        begin = np.uint32(np.uint32(start) // CHUNK) + RING_AT
        return np.uint32(begin + stage * PITCH + (GAP if stage >= EARLY else 0))

    @cuda.jit(device=True, forceinline=True)
    def phase_of(stage, phases):
        return short(np.uint32(phases) >> (stage & 31) & 1)

    @cuda.jit(device=True, forceinline=True)
    def following(stage, phases):
        flipped = np.uint32(np.uint32(1) << (stage & 31))
        return short(stage + 1 if stage < STAGES - 1 else 0), short(phases ^ flipped)

    @cuda.jit(device=True, forceinline=True)
    def after(stage, phases, count):
        bits = np.uint32(np.uint32((np.uint32(1) << (count & 15)) - 1) << (stage & 15))
        bits = np.uint32(bits | bits >> STAGES) & ALL
        stage = short(stage + count)
        return short(stage - STAGES if stage >= STAGES else stage), short(phases ^ bits)

    return lies_at, phase_of, following, after


def make_past(pipeline, stages, count):
    """Device function for the position behind ``count`` chunks, which may be more than the ring has stages."""
    _, _, _, after = ring_functions(pipeline, stages)
    ALL, ODD, REST = map(specialized, ((1 << stages) - 1, count // stages % 2, count % stages))

    @cuda.jit(device=True, forceinline=True)
    def past(stage, phases):
        return after(stage, short(phases ^ ALL) if ODD == 1 else phases, REST)

    return past


def make_copy(chunks, rounds, pipeline, gated):
    """Device function by which the producer copies a layer's packed kernel, chunk after chunk, once a round of tiles.

    Parameters
    ----------
    chunks : numbacaps.nn.resident.layers.Chunks
    rounds : int
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    gated : bool
        Late stages are filled only behind the gate.
    """
    ROUNDS, CHUNKS, BYTES = map(specialized, (rounds, chunks.count, chunks.bytes))
    OFFSET, ELEMENTS = map(specialized, (chunks.packed_at, chunks.bytes // 4))
    STAGES, EARLY = map(specialized, (chunks.stages, pipeline.early))
    EMPTY, GATE = map(specialized, (pipeline.empty_at, pipeline.gate_at))
    GATED = specialized(gated and chunks.stages > pipeline.early)
    lies_at, phase_of, following, _ = ring_functions(pipeline, chunks.stages)

    @cuda.jit(device=True, forceinline=True)
    def copy(work, stage, phases):
        shared, start, packed = work.shared, work.start, work.packed
        if stage >= STAGES:
            stage = short(0)
        around = short(0)
        while around < ROUNDS:
            source, chunk = OFFSET, short(0)
            while chunk < CHUNKS:
                full = start + stage * 8
                if GATED == 1 and stage >= EARLY:
                    mbarrier_wait(shared, start + GATE, work.opened)  # what lay there was read
                mbarrier_wait(shared, full + EMPTY, phase_of(stage, phases))
                mbarrier_expect(shared, full, BYTES)
                bulk_copy(shared, CHUNK * lies_at(start, stage), packed, source, BYTES, full)
                source += ELEMENTS
                stage, phases = following(stage, phases)
                chunk = unforeseen(chunk + 1)
            around = unforeseen(around + 1)
        return stage, phases

    return copy
