"""The margin loss' gradient, as it reaches the class capsules."""

from functools import cache

import numpy as np

from numbacaps.device.instructions import meet, short, unforeseen
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.nn.kernels.margin_loss import (
    MARGIN_ABSENT,
    MARGIN_PRESENT,
    WEIGHT_ABSENT,
)

_ZERO = np.float32(0)


@cache
def make_loss(layout, classes):
    """Device function for the gradient of the class capsules.

    Parameters
    ----------
    layout : numbacaps.nn.resident.backward_layout.BackwardLayout
    classes : int
        Capsules of the last layer.
    """
    last, pipeline = layout.gradients[-1], layout.pipeline
    output = last.output
    SIZE, AT, CLASSES = map(specialized, (output.size, last.at, classes))
    OF_CAPSULE, OUTPUT = map(specialized, (output.size // classes, output.elements_before))
    THREADS = pipeline.consumers
    PRESENT, ABSENT, WEIGHT = map(np.float32, (MARGIN_PRESENT, MARGIN_ABSENT, WEIGHT_ABSENT))
    TWO = np.float32(2)

    @cuda.jit(device=True, forceinline=True)
    def begin_with(work):
        shared, floats, outputs, lengths = work.shared, work.floats, work.outputs, work.lengths
        labels, image, images, thread = work.labels, work.image, work.images, work.thread
        label = labels[at(image)]
        e = short(thread)
        while e < SIZE:
            capsule = np.uint32(np.uint32(e) // OF_CAPSULE)
            length = lengths[at(image * CLASSES + capsule)]
            element = outputs[at(OUTPUT * images + image * SIZE + e)]
            gap, slope = length - ABSENT, TWO * WEIGHT
            if capsule == label:
                gap, slope = PRESENT - length, -TWO
            d_length = _ZERO if gap < _ZERO else slope * gap / np.float32(images)
            gradient = _ZERO
            if length != _ZERO:  # NaN stays NaN
                gradient = d_length * (element / length)
            shared[at(floats + AT + e)] = gradient
            e = unforeseen(e + THREADS)
        meet(THREADS)

    return begin_with
