"""How a launcher lays its threads out, and the check that every launcher makes of its arrays.

The elementwise kernels share one shape of launch: ``x`` runs over the elements of a row, consecutive
threads on consecutive elements, ``z`` walks the rows (output positions) and ``y`` the repeats of
them (images, channels). A thread works out what its element is once and then walks, so divisions are
paid once; rows shorter than a block share one.
"""

from functools import cache
from math import prod

from numbacaps.device.compiled import Compiled, as_argument
from numbacaps.device.target import SIMULATED

# On the simulator a thread takes long to begin, so there one block walks all repeats.
THREADS = 32 if SIMULATED else 256
BLOCKS = 1 if SIMULATED else 8192
FEW_BLOCKS = 1 if SIMULATED else 2048  # where a thread has much to work out before it walks
MAX_GRID_Y = 65535
_MAX_BLOCK_Z = 64


def ceil_div(a, b):
    """a / b rounded up."""
    return -(-a // b)


def launch(kernel, count, repeats, arguments, stream=0, threads=THREADS, rows=1, blocks=None):
    """Launch an elementwise kernel on :func:`spread`'s grid."""
    grid, block = spread(count, repeats, threads, rows, blocks)
    kernel[grid, block, stream, 0](*arguments)


def spread(count, repeats=1, threads=THREADS, rows=1, blocks=None):
    """Grid and block for ``count`` elements of ``rows`` rows, ``repeats`` times.

    ``threads`` is the most that a block has; about ``blocks`` (:data:`BLOCKS`) share the work, unless
    one walk of all rows and repeats takes more.
    """
    blocks = BLOCKS if blocks is None else blocks
    x = ceil_div(count, threads)
    # Blocks of a row alike, so that few threads idle.
    across = min(threads, ceil_div(ceil_div(count, x), 32) * 32)
    down = min(rows, max(1, threads // across), _MAX_BLOCK_Z)
    y = min(repeats, MAX_GRID_Y, ceil_div(blocks, x))
    z = min(ceil_div(rows, down), MAX_GRID_Y, ceil_div(blocks, x * y))
    return (x, y, z), (across, 1, down)


def early(kernel, arguments):
    """A kernel of arrays, then ints, that starts while the one before it on the stream comes to its end.

    It waits for that one's results itself (``wait_for_last``), and asks in turn that the next one be started
    (``let_next_start``): what a launch takes, about a microsecond, is then no part of the wait.
    """
    dtypes = tuple(argument.dtype for argument in arguments if hasattr(argument, "shape"))
    return _early(kernel, dtypes, len(arguments) - len(dtypes))


@cache
def _early(kernel, dtypes, integers):
    return Compiled(kernel, dtypes, integers, early=True)


def launch_tiles(kernel, grid, block, arguments, stream=0, shared=0):
    """Launch a kernel whose threads meet at barriers again and again; ``shared`` bytes by request."""
    kernel[grid, block, stream, shared](*arguments)


def flat(name, array, shape):
    """``array`` as one run of elements, after :func:`check_run`."""
    check_run(name, array, shape)
    return array.reshape(array.size)


def check_run(name, array, shape):
    """Refuse an array that does not hold ``shape`` as one run of elements.

    Raises
    ------
    ValueError
        The array has another number of elements, or is not C-contiguous.
    """
    if array.size != prod(shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}; it takes {tuple(shape)}")
    if not array.is_c_contiguous():
        raise ValueError(f"{name} is not C-contiguous; it takes a C-contiguous device array")


def flat_operands(geometry, **arrays):
    """Whole operands as runs of elements, each checked against the geometry; see :func:`flat`."""
    return [flat(name, array, geometry.shape_of(name)) for name, array in arrays.items()]


def runs(geometry, **arrays):
    """The same, as arguments of kernels of :mod:`numbacaps.device.compiled`."""
    for name, array in arrays.items():
        check_run(name, array, geometry.shape_of(name))
    return [as_argument(array) for array in arrays.values()]
