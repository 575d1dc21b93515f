"""Stage 3 of Algorithm 3 (Figure 5): replicate each output channel's capsules for every position.

    K'[p, l, q] = K[p, q]

K' has no batch axis: the images share it.

Thread mapping: one thread an element of a channel's capsules for some of the positions; it reads the
element once and writes it at each. Consecutive threads are consecutive on both sides.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, flat, launch
from numbacaps.device.target import at, cuda


@cache
def make_kernel_extend(ROW):
    """Kernel for ROW = Q * E2 elements an output channel."""

    @kept_on_disk
    @cuda.jit
    def kernel_extend_kernel(
        w,  # in   (P, ROW)
        extended,  # out  (P, positions, ROW)
        channels,
        positions,
    ):
        i = cuda.grid(1)
        if i >= ROW:
            return
        p = cuda.blockIdx.y
        while p < channels:
            value = w[at(p * ROW + i)]
            l = cuda.blockIdx.z * cuda.blockDim.z + cuda.threadIdx.z
            while l < positions:
                extended[at((p * positions + l) * ROW + i)] = value
                l += cuda.gridDim.z * cuda.blockDim.z
            p += cuda.gridDim.y

    return kernel_extend_kernel


def kernel_extend(slab, w, extended, stream=0, threads=THREADS):
    """Replicate the kernel for every position of the slab.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
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
    row = g.Q * g.E2
    arguments = (
        flat("w", w, g.kernel_shape),
        flat("extended", extended, slab.extended_kernel_shape),
        g.P,
        slab.positions,
    )
    kernel = make_kernel_extend(row)
    launch(kernel, row, g.P, arguments, stream, threads, rows=slab.positions)
