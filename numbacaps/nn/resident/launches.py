"""The kernels of resident passes as they are launched: compiled, their grids, and what their blocks leave.

Arrays are float32, but for the labels, which are int64.
"""

import numpy as np

from numbacaps.device.compiled import Compiled
from numbacaps.device.gpu import multiprocessors
from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_3_register_tiles.split_k import (
    ADDED,
    ahead_of,
    make_add_splits,
)
from numbacaps.nn.resident.backward import make_resident_backward
from numbacaps.nn.resident.forward import make_resident_forward

_FLOAT, _LABEL = np.dtype(np.float32), np.dtype(np.int64)


def compiled_forward(layout, classes, for_gradients):
    """The kernel of :func:`numbacaps.nn.resident.forward.make_resident_forward`."""
    kernel = make_resident_forward(layout, classes, for_gradients)
    return Compiled(kernel, [_FLOAT] * 6, 1, layout.memory.bytes, early=True)


def compiled_backward(layout, begin_with):
    """The kernel of :func:`numbacaps.nn.resident.backward.make_resident_backward`."""
    kernel = make_resident_backward(layout, begin_with)
    # Not early: blocks that wait for the forward pass delay it by more than a launch takes (measured).
    return Compiled(kernel, (_FLOAT, _LABEL, *[_FLOAT] * 6), 1, layout.memory.bytes)


def grid_of(layout, images):
    """(blocks, threads of each, bytes of its shared memory) of either pass's kernel."""
    return min(images, multiprocessors()), layout.pipeline.threads, layout.memory.bytes


def parts_of(layout, images):
    """What the backward pass's blocks leave of kernels' gradients.

    A block adds its images up, so where they are more than multiprocessors these decide the sum's order.

    Returns
    -------
    ({layer's number: (parts, elements of one, element of the array where the first one begins)}, elements of the array)
    """
    blocks, found, end = min(images, multiprocessors()), {}, 0
    computed = [layout.first, *(one.kernel for one in layout.layers)]
    shares = [1, *[layout.pipeline.warpgroups] * len(layout.layers)]
    for number, (which, parts) in enumerate(zip(computed, shares)):
        if which:
            found[number] = blocks * parts, which.size, blocks * which.partial_at
            end += blocks * parts * which.size
    return found, end


def compiled_sum(count, size):
    """(kernel, blocks of it) that adds ``count`` parts of ``size`` elements up."""
    kernel = make_add_splits(ahead_of(count), _FLOAT)
    return Compiled(kernel, (_FLOAT, _FLOAT), 2, early=True), ceil_div(size, ADDED)
