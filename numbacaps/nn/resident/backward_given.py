"""What reaches the class capsules, where a loss outside of the kernel has computed it."""

from functools import cache

from numbacaps.device.instructions import meet, short, unforeseen
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cache
def make_given(layout):
    """Device function that reads it.

    Parameters
    ----------
    layout : numbacaps.nn.resident.backward_layout.BackwardLayout
    """
    last, pipeline = layout.gradients[-1], layout.pipeline
    SIZE, AT, THREADS = map(specialized, (last.output.size, last.at, pipeline.consumers))

    @cuda.jit(device=True, forceinline=True)
    def begin_with(work):
        shared, floats, given = work.shared, work.floats, work.lengths
        image, thread = work.image, work.thread
        e = short(thread)
        while e < SIZE:
            shared[at(floats + AT + e)] = given[at(image * SIZE + e)]
            e = unforeseen(e + THREADS)
        meet(THREADS)

    return begin_with
