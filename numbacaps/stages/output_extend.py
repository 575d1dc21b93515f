"""First stage of Algorithm 4: replicate the output's gradient for every product summed into it.

    dO'[n, p, l, q] = dO[n, p, l]

Thread mapping: a block takes one output capsule after the other. Thread (e, lane) reads element e
and writes it to every LANES-th product; consecutive threads are consecutive (lane, e), so they write
consecutive addresses, and an element is read once for Q / LANES writes.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import BLOCKS, MAX_GRID_Y, THREADS, ceil_div, flat
from numbacaps.device.target import at, cuda


@cache
def make_output_extend(P, L, Q, E3, LANES):
    """Kernel for P channels, L positions, Q products of E3 elements, shared by LANES threads each."""

    @kept_on_disk
    @cuda.jit
    def output_extend_kernel(
        dy,  # in   (N, P, L, E3)
        extended,  # out  (images, P, positions, Q, E3)
        first_image,
        channels,  # images * P
        first_position,
        positions,
    ):
        e = cuda.grid(1)
        if e >= E3:
            return
        np = cuda.blockIdx.y
        while np < channels:
            l = cuda.blockIdx.z
            while l < positions:
                value = dy[at(((first_image * P + np) * L + first_position + l) * E3 + e)]
                target = (np * positions + l) * Q * E3 + e
                q = cuda.threadIdx.y
                while q < Q:
                    extended[at(target + q * E3)] = value
                    q += LANES
                l += cuda.gridDim.z
            np += cuda.gridDim.y

    return output_extend_kernel


def output_extend(slab, dy, extended, stream=0, threads=THREADS):
    """Replicate the slab's part of the output's gradient.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
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
    channels = slab.images * g.P
    arguments = (
        flat("dy", dy, g.output_shape),
        flat("extended", extended, slab.products_shape),
        slab.first_image,
        channels,
        slab.first_position,
        slab.positions,
    )
    across = min(g.E3, threads)
    lanes = max(1, min(g.Q, threads // across))
    x = ceil_div(g.E3, across)
    y = min(channels, MAX_GRID_Y, ceil_div(BLOCKS, x))
    z = min(slab.positions, MAX_GRID_Y, ceil_div(BLOCKS, x * y))
    kernel = make_output_extend(g.P, g.L, g.Q, g.E3, lanes)
    kernel[(x, y, z), (across, lanes), stream](*arguments)
