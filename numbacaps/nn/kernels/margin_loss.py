"""The margin loss, forward and backward, and how many images of the batch were classified rightly.

With v[n,p] the length of class capsule p of image n, and the mean over the images:

    loss = 1/N * sum over n, p of  max(0, 0.5 - v)^2        where p is the label
                                   0.5 * max(0, v - 0.1)^2  elsewhere

An image is a hit if the capsule of its label is the longest, the first of those that tie. An image with a length of
NaN is none.

Losses and hits go to place ``step % places`` of their arrays, the step being read from the device:
so a captured step records every loss, and the host reads them when it likes.

Thread mapping: forward one block, whose lanes walk the images; their sums meet in a tree, so that
the order of the sum is fixed. Backward one thread a class capsule.
"""

from functools import cache

from numbacaps.device.instructions import let_next_start, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, early, flat, launch, launch_tiles
from numbacaps.device.target import SIMULATED, at, cuda

# Of the published run.
MARGIN_PRESENT, MARGIN_ABSENT, WEIGHT_ABSENT = 0.5, 0.1, 0.5
LANES = 4 if SIMULATED else 256


@cache
def make_margin_loss(P, lanes, dtype):
    """Kernel for P classes and a power of two lanes."""
    LANES = lanes
    ZERO, PRESENT, ABSENT, WEIGHT = _constants(dtype)
    to_dtype = dtype.type

    @kept_on_disk
    @cuda.jit
    def margin_loss_kernel(
        lengths,  # in   (N, P)
        labels,  # in   (N,), int64
        step,  # in   (1,), int64
        losses,  # out  (places,), the step's written
        hits,  # out  (places,), int64, the step's written
        places,
        N,
    ):
        let_next_start()
        losses_of = cuda.shared.array(LANES, dtype)
        hits_of = cuda.shared.array(LANES, "int64")
        lane = cuda.threadIdx.x
        loss = ZERO
        found = 0
        n = lane
        wait_for_last()
        while n < N:
            label = labels[at(n)]
            own = lengths[at(n * P + label)]
            hit = 1
            for p in range(P):
                length = lengths[at(n * P + p)]
                if not (length < own or (length == own and p >= label)):
                    hit = 0
                if p == label:
                    gap = PRESENT - length
                    loss += ZERO if gap < ZERO else gap * gap
                else:
                    gap = length - ABSENT
                    loss += ZERO if gap < ZERO else WEIGHT * gap * gap
            found += hit
            n += LANES
        losses_of[at(lane)] = loss
        hits_of[at(lane)] = found
        half = LANES // 2
        while half > 0:
            cuda.syncthreads()  # the sums that this turn adds up are there
            if lane < half:
                losses_of[at(lane)] += losses_of[at(lane + half)]
                hits_of[at(lane)] += hits_of[at(lane + half)]
            half //= 2
        if lane == 0:
            place = step[at(0)] % places
            losses[at(place)] = losses_of[at(0)] / to_dtype(N)
            hits[at(place)] = hits_of[at(0)]

    return margin_loss_kernel


@cache
def make_margin_loss_backward(P, dtype):
    """Kernel for P classes."""
    ZERO, PRESENT, ABSENT, WEIGHT = _constants(dtype)
    TWO = dtype.type(2)
    to_dtype = dtype.type

    @kept_on_disk
    @cuda.jit
    def margin_loss_backward_kernel(
        lengths,  # in   (N, P)
        labels,  # in   (N,), int64
        d_lengths,  # out  (N, P)
        N,
    ):
        let_next_start()
        i = cuda.grid(1)
        if i >= N * P:
            return
        wait_for_last()
        length = lengths[at(i)]
        if i % P == labels[at(i // P)]:
            gap = PRESENT - length
            slope = -TWO
        else:
            gap = length - ABSENT
            slope = TWO * WEIGHT
        d_lengths[at(i)] = ZERO if gap < ZERO else slope * gap / to_dtype(N)

    return margin_loss_backward_kernel


def _constants(dtype):
    return tuple(map(dtype.type, (0, MARGIN_PRESENT, MARGIN_ABSENT, WEIGHT_ABSENT)))


def margin_loss(lengths, labels, step, losses, hits, stream=0, lanes=LANES):
    """Write a batch's loss and its number of hits.

    Parameters
    ----------
    lengths : device array (N, P), float32 or float64
    labels : device array (N,), int64
        Classes, 0 to P - 1.
    step : device array (1,), int64
        Which place of ``losses`` and ``hits`` is written, modulo their number.
    losses : device array (places,), dtype of lengths, one place written
    hits : device array (places,), int64, one place written
    stream : Numba stream
    lanes : int
        Threads that share the sum; a power of two.

    Raises
    ------
    ValueError
        An array has another size than it should, or is not C-contiguous.
    """
    N, P = lengths.shape
    arguments = (
        flat("lengths", lengths, (N, P)),
        flat("labels", labels, (N,)),
        flat("step", step, (1,)),
        losses,
        flat("hits", hits, losses.shape),
        losses.size,
        N,
    )
    kernel = early(make_margin_loss(P, lanes, lengths.dtype), arguments)
    launch_tiles(kernel, 1, lanes, arguments, stream)


def margin_loss_backward(lengths, labels, d_lengths, stream=0, threads: int = THREADS) -> None:
    """Write the gradient that reaches the lengths.

    Parameters
    ----------
    lengths : device array (N, P), float32 or float64
    labels : device array (N,), int64
    d_lengths : device array (N, P), dtype of lengths, written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        As :func:`margin_loss`.
    """
    N, P = lengths.shape
    arguments = (
        flat("lengths", lengths, (N, P)),
        flat("labels", labels, (N,)),
        flat("d_lengths", d_lengths, (N, P)),
        N,
    )
    kernel = early(make_margin_loss_backward(P, lengths.dtype), arguments)
    launch(kernel, N * P, 1, arguments, stream, threads)
