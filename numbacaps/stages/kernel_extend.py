"""Stage 3 of Algorithm 3 (Figure 5): replicate each output channel's capsules for every position.

    K'[p, l, q] = K[p, q]

K' has no batch axis: the images share it.

Thread mapping: one thread an element of a channel's capsules; it walks the (p, l) rows. Consecutive
threads are consecutive on both sides; the reads repeat and stay in cache.
"""

from functools import lru_cache

from numbacaps.launch import THREADS, flat, launch
from numbacaps.target import cuda


@lru_cache(maxsize=None)
def make_kernel_extend(ROW):
    """Kernel for ROW = Q * E2 elements an output channel."""

    @cuda.jit
    def kernel_extend_kernel(
        w,  # in   (P, ROW)
        extended,  # out  (P, positions, ROW)
        rows,  # P * positions
        positions,
    ):
        i = cuda.grid(1)
        if i >= ROW:
            return
        row = cuda.blockIdx.y  # (p, l)
        while row < rows:
            extended[row * ROW + i] = w[row // positions * ROW + i]
            row += cuda.gridDim.y

    return kernel_extend_kernel


def kernel_extend(slab, w, extended, stream=0, threads=THREADS):
    """Replicate the kernel for every position of the slab.

    Parameters
    ----------
    slab : numbacaps.geometry.Slab
    w : device array (P, C, KH, KW, G, D2, D3)
    extended : device array (P, l, Q, G, D2, D3), written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    row, rows = g.Q * g.E2, g.P * slab.positions
    arguments = (
        flat("w", w, g.kernel_shape),
        flat("extended", extended, slab.extended_kernel_shape),
        rows,
        slab.positions,
    )
    launch(make_kernel_extend(row), row, rows, arguments, stream, threads)
