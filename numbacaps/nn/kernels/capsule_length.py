"""A capsule's length, forward and backward: the score of the class that the capsule stands for.

    length = sqrt(sum over e of x[e]^2)
    dx[e]  = dlength * x[e] / length        0 where the length is 0

Thread mapping: forward neighbouring lanes share a capsule, each takes up to 16 bytes at a time, and their
sums meet by shuffles, in a fixed order; backward one thread an element.
"""

import math
from functools import cache

from numbacaps.device.instructions import let_next_start, load_run, shuffle, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, early, flat, launch
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.device.warp_shares import shares


@cache
def make_capsule_length(E, width, lanes, dtype):
    """Kernel for capsules of E elements.

    ``lanes``, a power of two, take ``width`` elements each at a time; E is a multiple of both together.
    """
    WIDTH, TURNS = width, specialized(E // (width * lanes))
    LANES, BITS = map(specialized, (lanes, lanes.bit_length() - 1))
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def capsule_length_kernel(
        x,  # in   (capsules, E)
        lengths,  # out  (capsules,)
        capsules,
    ):
        let_next_start()
        run = cuda.local.array(WIDTH, dtype)
        i, lane = cuda.grid(1), cuda.threadIdx.x % 32
        first = (i // LANES * (LANES * TURNS) + i % LANES) * WIDTH
        inside = i < capsules * LANES
        wait_for_last()
        square = ZERO
        if inside:
            for turn in range(TURNS):
                load_run(WIDTH, run, x, first + turn * (LANES * WIDTH))
                for e in range(WIDTH):
                    square += run[e] * run[e]
        for bit in range(BITS):
            square += shuffle(square, lane ^ 1 << bit)
        if inside and i % LANES == 0:
            lengths[at(i // LANES)] = math.sqrt(square)

    return capsule_length_kernel


@cache
def make_capsule_length_backward(E, dtype):
    """Kernel for capsules of E elements."""
    ELEMENTS, ZERO = specialized(E), dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def capsule_length_backward_kernel(
        x,  # in   (capsules, E)
        lengths,  # in   (capsules,)
        d_lengths,  # in   (capsules,)
        dx,  # out  (capsules, E)
        capsules,
    ):
        let_next_start()
        i = cuda.grid(1)
        if i >= capsules * ELEMENTS:
            return
        wait_for_last()
        length = lengths[at(i // ELEMENTS)]
        gradient = ZERO
        if length != ZERO:  # NaN stays NaN
            gradient = d_lengths[at(i // ELEMENTS)] * (x[at(i)] / length)
        dx[at(i)] = gradient

    return capsule_length_backward_kernel


def capsule_length(x, lengths, stream=0, threads: int = THREADS) -> None:
    """Write the lengths of capsules.

    Parameters
    ----------
    x : device array (..., E), float32 or float64
        As many capsules as ``lengths`` has places, of E elements each.
    lengths : device array, dtype of x, written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        ``x`` is no whole number of elements a capsule, or an array is not C-contiguous.
    """
    E = _elements(x, lengths)
    runs = flat("x", x, x.shape), flat("lengths", lengths, lengths.shape)
    width, lanes = shares(E, threads, runs[:1])
    arguments = (*runs, lengths.size)
    kernel = early(make_capsule_length(E, width, lanes, x.dtype), arguments)
    launch(kernel, lengths.size * lanes, 1, arguments, stream, threads)


def capsule_length_backward(x, lengths, d_lengths, dx, stream=0, threads: int = THREADS) -> None:
    """Write the gradient that reaches capsules to dx.

    Parameters
    ----------
    x : device array (..., E), float32 or float64
    lengths, d_lengths : device arrays, dtype of x
        The lengths as :func:`capsule_length` wrote them, and their gradient.
    dx : device array of the size and dtype of x, written
    stream, threads
        As :func:`capsule_length`.

    Raises
    ------
    ValueError
        As :func:`capsule_length`, or an array has another size.
    """
    E = _elements(x, lengths)
    arguments = (
        flat("x", x, x.shape),
        flat("lengths", lengths, lengths.shape),
        flat("d_lengths", d_lengths, lengths.shape),
        flat("dx", dx, x.shape),
        lengths.size,
    )
    kernel = early(make_capsule_length_backward(E, x.dtype), arguments)
    launch(kernel, x.size, 1, arguments, stream, threads)


def _elements(x, lengths):
    """Elements of a capsule."""
    if x.size % lengths.size:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; it takes a whole number of elements for each of "
            f"{lengths.size} capsules"
        )
    return x.size // lengths.size
