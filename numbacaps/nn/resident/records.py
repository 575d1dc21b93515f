"""What device functions of a resident pass take as one argument: named tuples, which cost a kernel nothing."""

from typing import NamedTuple


class ForwardWork(NamedTuple):
    """A consumer thread's part of the forward pass of one image.

    Attributes
    ----------
    shared : array
        The block's shared memory.
    start, floats : int
        Where its aligned beginning is: a byte address, and an element of ``shared``.
    slopes, outputs : device array
        As the kernel's.
    image, images : int
        The image's number, and how many there are.
    thread, warp : int
        Numbers in the block.
    """

    shared: object
    start: object
    floats: object
    slopes: object
    outputs: object
    image: object
    images: object
    thread: object
    warp: object


class BackwardWork(NamedTuple):
    """A consumer thread's part of the backward pass of one image.

    Attributes
    ----------
    shared, start, floats
        As those of :class:`ForwardWork`.
    slopes, outputs, lengths, labels : device array
        What the pass reads of all images.
    d_sums, partial : device array
        What it writes.
    image, images, thread, warp
        As those of :class:`ForwardWork`.
    """

    shared: object
    start: object
    floats: object
    slopes: object
    outputs: object
    lengths: object
    labels: object
    d_sums: object
    partial: object
    image: object
    images: object
    thread: object
    warp: object


class CopyWork(NamedTuple):
    """The producer's part of a pass of one image.

    Attributes
    ----------
    shared, start
        As those of :class:`ForwardWork`.
    packed : device array
        The packed kernels.
    opened : int
        The phase of the gate's barrier that lets the late stages be filled.
    """

    shared: object
    start: object
    packed: object
    opened: object
