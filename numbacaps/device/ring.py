"""A pipeline in shared memory: a ring of stages that a producer fills and consumers empty.

Every stage has two barriers. *Full*: the producer's bytes have arrived. *Empty*: the last consumer has read them.
A barrier has a phase, 0 or 1, that changes whenever it completes. Who waits names the phase that has to be over.
A thread therefore goes round the ring with two numbers, its stage and its phase:

- the producer begins with phase 1, because a stage that was never filled counts as empty: :data:`PRODUCER`;
- a consumer begins with phase 0: :data:`CONSUMER`.

::

    producer                                        consumer
    stage, phase = PRODUCER                         stage, phase = CONSUMER
    full, to = acquire(shared, start, stage, phase) wait(shared, start, stage, phase)
    tensor_copy(shared, to, ..., full)              ... reads the stage ...
    stage, phase = advance(stage, phase)            release(shared, start, stage, lane)
                                                    stage, phase = advance(stage, phase)
"""

from dataclasses import dataclass

import numpy as np

from numbacaps.device.instructions import (
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    short,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda

BARRIER = 8  # bytes
CONSUMER = np.int32(0), np.int32(0)  # the first stage, and its phase
PRODUCER = np.int32(0), np.int32(1)


@dataclass(frozen=True)
class Ring:
    """Where a ring lies, in bytes from an address that the block aligns, and who uses it.

    Attributes
    ----------
    stages : int
    barriers : int
        Where the full barriers begin; the empty ones follow.
    data, pitch : int
        Where stage 0 begins, and how far apart stages are.
    bytes : int
        That copies bring to a stage; 0 where threads write it.
    consumers : int
        Arrivals that empty a stage, one a warp.
    producers : int
        Arrivals that fill a stage.
    """

    stages: int
    barriers: int
    data: int
    pitch: int
    bytes: int
    consumers: int
    producers: int = 1

    @property
    def empty(self):
        """Where the empty barriers begin."""
        return self.barriers + BARRIER * self.stages

    @property
    def end(self):
        """Where the barriers end."""
        return self.empty + BARRIER * self.stages


def make_init(ring):
    """Device function ``init(shared, start)``: one thread makes the barriers."""
    STAGES, FULL, EMPTY = map(specialized, (ring.stages, ring.barriers, ring.empty))
    PRODUCERS, CONSUMERS = map(specialized, (ring.producers, ring.consumers))

    @cuda.jit(device=True, forceinline=True)
    def init(shared, start):
        for i in range(STAGES):
            mbarrier_init(shared, start + FULL + BARRIER * i, PRODUCERS)
            mbarrier_init(shared, start + EMPTY + BARRIER * i, CONSUMERS)

    return init


def make_advance(ring):
    """Device function ``stage, phase = advance(stage, phase)``: the next stage."""
    STAGES = specialized(ring.stages)

    @cuda.jit(device=True, forceinline=True)
    def advance(stage, phase):
        stage = short(stage + 1)
        if stage == STAGES:
            stage = short(0)
            phase = short(phase ^ 1)
        return stage, phase

    return advance


def make_acquire(ring):
    """Device function of the producer: ``full, to = acquire(shared, start, stage, phase)``.

    It waits until the stage is empty and announces the bytes to come. It returns the barrier that counts them,
    and where they go.
    """
    FULL, TO_EMPTY = map(specialized, (ring.barriers, ring.empty - ring.barriers))
    DATA, PITCH, BYTES = map(specialized, (ring.data, ring.pitch, ring.bytes))

    @cuda.jit(device=True, forceinline=True)
    def acquire(shared, start, stage, phase):
        full = start + FULL + stage * BARRIER
        mbarrier_wait(shared, full + TO_EMPTY, phase)
        mbarrier_expect(shared, full, BYTES)
        return full, start + DATA + stage * PITCH

    return acquire


def make_wait(ring):
    """Device function of a consumer: ``wait(shared, start, stage, phase)``, until the stage is full."""
    FULL = specialized(ring.barriers)

    @cuda.jit(device=True, forceinline=True)
    def wait(shared, start, stage, phase):
        mbarrier_wait(shared, start + FULL + stage * BARRIER, phase)

    return wait


def make_release(ring):
    """Device function of a consumer: ``release(shared, start, stage, lane)``; a warp has read the stage."""
    EMPTY = specialized(ring.empty)

    @cuda.jit(device=True, forceinline=True)
    def release(shared, start, stage, lane):
        if lane == 0:
            mbarrier_arrive(shared, start + EMPTY + stage * BARRIER)

    return release


def make_look_ahead(ring):
    """Device function ``stage, phase = look_ahead(stage, phase, count)``: where ``count`` stages on is, at most once round."""
    STAGES = specialized(ring.stages)

    @cuda.jit(device=True, forceinline=True)
    def look_ahead(stage, phase, count):
        stage = short(stage + count)
        wrapped = short(1 if stage >= STAGES else 0)
        return short(stage - wrapped * STAGES), phase ^ wrapped

    return look_ahead


def make_wait_empty(ring):
    """Device function of producers that write a stage themselves: ``wait_empty(shared, start, stage, phase)``."""
    EMPTY = specialized(ring.empty)

    @cuda.jit(device=True, forceinline=True)
    def wait_empty(shared, start, stage, phase):
        mbarrier_wait(shared, start + EMPTY + stage * BARRIER, phase)

    return wait_empty


def make_commit(ring):
    """Device function of such producers: ``commit(shared, start, stage, lane)``; a warp has written its part."""
    FULL = specialized(ring.barriers)

    @cuda.jit(device=True, forceinline=True)
    def commit(shared, start, stage, lane):
        if lane == 0:
            mbarrier_arrive(shared, start + FULL + stage * BARRIER)

    return commit
