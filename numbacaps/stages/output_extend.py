"""First stage of Algorithm 4: replicate the output's gradient for every product summed into it.

    dO'[n, p, l, q] = dO[n, p, l]

Thread mapping: one thread a (q, e) of one output capsule's products; it walks the capsules.
Consecutive threads write consecutive elements and read within one capsule, which stays in cache.
"""

from functools import lru_cache

from numbacaps.launch import THREADS, flat, launch
from numbacaps.target import cuda


@lru_cache(maxsize=None)
def make_output_extend(P, L, Q, E3):
    """Kernel for P channels, L positions, Q products of E3 elements."""
    ROW = Q * E3

    @cuda.jit
    def output_extend_kernel(
        dy,  # in   (N, P, L, E3)
        extended,  # out  (images, P, positions, Q, E3)
        first_image,
        capsules,  # images * P * positions
        first_position,
        positions,
    ):
        i = cuda.grid(1)  # (q, e)
        if i >= ROW:
            return
        e = i % E3
        npl = cuda.blockIdx.y
        while npl < capsules:
            channel = first_image * P + npl // positions
            position = first_position + npl % positions
            extended[npl * ROW + i] = dy[(channel * L + position) * E3 + e]
            npl += cuda.gridDim.y

    return output_extend_kernel


def output_extend(slab, dy, extended, stream=0, threads=THREADS):
    """Replicate the slab's part of the output's gradient.

    Parameters
    ----------
    slab : numbacaps.geometry.Slab
    dy : device array (N, P, OH, OW, G, D1, D3)
    extended : device array (n, P, l, Q, G, D1, D3), written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    capsules = slab.images * g.P * slab.positions
    arguments = (
        flat("dy", dy, g.output_shape),
        flat("extended", extended, slab.products_shape),
        slab.first_image,
        capsules,
        slab.first_position,
        slab.positions,
    )
    kernel = make_output_extend(g.P, g.L, g.Q, g.E3)
    launch(kernel, g.Q * g.E3, capsules, arguments, stream, threads)
