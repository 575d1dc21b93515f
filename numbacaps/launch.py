"""How a launcher lays its threads out, and the check that every launcher makes of its arrays.

The elementwise kernels share one shape of launch: ``x`` runs over the elements of one repeat,
consecutive threads on consecutive elements, and ``y`` over the repeats (images, mostly). A thread
works out its element's coordinates once and then walks the repeats, so the divisions are paid once.
"""

import sys
from math import prod

from numbacaps.target import SIMULATED

# The simulator starts a Python thread for every CUDA thread, so there one block walks all repeats.
THREADS = 32 if SIMULATED else 256
BLOCKS = 1 if SIMULATED else 8192
MAX_GRID_Y = 65535


def ceil_div(a, b):
    """a / b rounded up."""
    return -(-a // b)


def launch(kernel, count, repeats, arguments, stream=0, threads=THREADS):
    """Launch an elementwise kernel over ``count`` elements and ``repeats`` repeats of them.

    ``threads`` is the most a block has; a block smaller than a warp's multiple wastes nothing more.
    """
    threads = min(threads, ceil_div(count, 32) * 32)
    x = ceil_div(count, threads)
    y = min(repeats, MAX_GRID_Y, ceil_div(BLOCKS, x))
    kernel[(x, y), threads, stream](*arguments)


def launch_tiles(kernel, grid, block, arguments, stream=0):
    """Launch a kernel whose threads meet at barriers.

    The simulator polls its threads at a barrier; at Python's usual 5 ms a turn that is most of its
    time, so they take shorter turns meanwhile.
    """
    interval = sys.getswitchinterval()
    if SIMULATED:
        sys.setswitchinterval(interval / 20)
    try:
        kernel[grid, block, stream](*arguments)
    finally:
        sys.setswitchinterval(interval)


def flat(name, array, shape):
    """``array`` as one run of elements, after checking that it holds ``shape``.

    Raises
    ------
    ValueError
        The array has another number of elements, or is not C-contiguous.
    """
    if array.size != prod(shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}; it takes {tuple(shape)}")
    if not array.is_c_contiguous():
        raise ValueError(f"{name} is not C-contiguous; it takes a C-contiguous device array")
    return array.reshape(array.size)


def flat_operands(geometry, **arrays):
    """Whole operands as runs of elements, each checked against the geometry; see :func:`flat`."""
    return [flat(name, array, geometry.shape_of(name)) for name, array in arrays.items()]
