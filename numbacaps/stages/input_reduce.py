"""A stage of Algorithm 4: sum the input's gradient over the output channels it was copied to.

    dI_flat[n, l, q] = sum over p of dI'[n, p, l, q]

Thread mapping: one thread an element of a column, consecutive threads on consecutive elements on
both sides. The sum runs in the order of p.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, flat, launch
from numbacaps.device.target import at, cuda


@cache
def make_input_reduce(P, dtype):
    """Kernel for P output channels."""
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def input_reduce_kernel(
        extended,  # in   (images, P, column)
        columns,  # out  (images, column)
        images,
        column,  # elements of one image's columns: positions * Q * E1
    ):
        i = cuda.grid(1)
        if i >= column:
            return
        n = cuda.blockIdx.y
        while n < images:
            total = ZERO
            for p in range(P):
                total += extended[at((n * P + p) * column + i)]
            columns[at(n * column + i)] = total
            n += cuda.gridDim.y

    return input_reduce_kernel


def input_reduce(slab, extended, columns, stream=0, threads=THREADS):
    """Sum the slab's extended input gradient over the output channels.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
    extended : device array (n, P, l, Q, G, D1, D2)
    columns : device array (n, l, Q, G, D1, D2), written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    column = slab.positions * g.Q * g.E1
    arguments = (
        flat("extended", extended, slab.extended_input_shape),
        flat("columns", columns, slab.columns_shape),
        slab.images,
        column,
    )
    launch(make_input_reduce(g.P, columns.dtype), column, slab.images, arguments, stream, threads)
