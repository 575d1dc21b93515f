"""The lengths of the class capsules, which lie in shared memory when the last layer is done."""

import math

import numpy as np

from numbacaps.device.instructions import short, shuffle, unforeseen
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda

_ZERO = np.float32(0)
_SHARING = 16  # lanes that share a capsule's length


def make_class_lengths(output, pipeline, classes):
    """Device function that writes an image's lengths; lanes share a capsule.

    Parameters
    ----------
    output : numbacaps.nn.resident.layers.Output
        Of the last layer.
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    classes : int
        Capsules.
    """
    at_once = pipeline.consumers // _SHARING
    LENGTHS, CLASSES = map(specialized, (output.at, classes))
    OF_CAPSULE = specialized(output.size // classes)
    LANES, LANE_BITS = _SHARING, _SHARING.bit_length() - 1
    ROUND, ROUNDS = map(specialized, (at_once, -(-classes // at_once)))

    @cuda.jit(device=True, forceinline=True)
    def write_lengths(work, lengths):
        shared, floats, image, thread = work.shared, work.floats, work.image, work.thread
        lane = short(thread & 31)
        capsule = short(thread // LANES)
        while capsule < ROUNDS * ROUND:  # whole warps, because lanes meet
            e, square = short(lane % LANES), _ZERO
            own = floats + LENGTHS + min(capsule, CLASSES - 1) * OF_CAPSULE
            while e < OF_CAPSULE:
                element = shared[at(own + e)]
                square += element * element
                e = unforeseen(e + LANES)
            for bit in range(LANE_BITS):
                square += shuffle(square, lane ^ 1 << bit)
            if lane % LANES == 0 and capsule < CLASSES:
                lengths[at(image * CLASSES + capsule)] = math.sqrt(square)
            capsule = unforeseen(capsule + ROUND)

    return write_lengths
