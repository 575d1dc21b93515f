"""Stage 2 of Algorithm 3 (Figure 4): replicate I_flat once for every output channel.

    I'[n, p, l, q] = I_flat[n, l, q]

Thread mapping: one thread an element of a column; it reads the element once and writes it P times.
Consecutive threads are consecutive on both sides.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, flat, launch
from numbacaps.device.target import at, cuda


@cache
def make_input_extend(P):
    """Kernel for P output channels."""

    @kept_on_disk
    @cuda.jit
    def input_extend_kernel(
        columns,  # in   (images, column)
        extended,  # out  (images, P, column)
        images,
        column,  # elements of one image's columns: positions * Q * E1
    ):
        i = cuda.grid(1)
        if i >= column:
            return
        n = cuda.blockIdx.y
        while n < images:
            value = columns[at(n * column + i)]
            for p in range(P):
                extended[at((n * P + p) * column + i)] = value
            n += cuda.gridDim.y

    return input_extend_kernel


def input_extend(slab, columns, extended, stream=0, threads=THREADS):
    """Replicate the slab's columns for every output channel.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
    columns : device array (n, l, Q, G, D1, D2)
    extended : device array (n, P, l, Q, G, D1, D2), written
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
        flat("columns", columns, slab.columns_shape),
        flat("extended", extended, slab.extended_input_shape),
        slab.images,
        column,
    )
    launch(make_input_extend(g.P), column, slab.images, arguments, stream, threads)
