"""Stage 5 of Algorithm 3 (Figure 6): sum each output capsule's products.

    O[n, p, l] = sum over q of O'[n, p, l, q]

Thread mapping: one thread an element of the output, consecutive threads on consecutive elements of
it; a capsule's products lie Q apart, so a warp reads runs of E3 elements. The sum runs in the order
of q.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, flat, launch
from numbacaps.device.target import at, cuda


@cache
def make_output_reduce(P, L, Q, E3, dtype):
    """Kernel for P channels, L positions, Q products of E3 elements."""
    ZERO = dtype.type(0)
    IMAGE = P * L * E3

    @kept_on_disk
    @cuda.jit
    def output_reduce_kernel(
        products,  # in   (images, P, positions, Q, E3)
        out,  # out  (N, P, L, E3)
        first_image,
        images,
        first_position,
        positions,
    ):
        i = cuda.grid(1)  # (p, l, e) within an image of the slab
        if i >= P * positions * E3 or i >= IMAGE:
            return
        e = i % E3
        pl = i // E3
        target = (pl // positions * L + first_position + pl % positions) * E3 + e
        n = cuda.blockIdx.y
        while n < images:
            source = (n * P * positions + pl) * Q * E3 + e
            total = ZERO
            for q in range(Q):
                total += products[at(source + q * E3)]
            out[at((first_image + n) * IMAGE + target)] = total
            n += cuda.gridDim.y

    return output_reduce_kernel


def output_reduce(slab, products, out, stream=0, threads=THREADS):
    """Sum the slab's products into its part of the output.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
    products : device array (n, P, l, Q, G, D1, D3)
    out : device array (N, P, OH, OW, G, D1, D3), the slab's part written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    arguments = (
        flat("products", products, slab.products_shape),
        flat("out", out, g.output_shape),
        slab.first_image,
        slab.images,
        slab.first_position,
        slab.positions,
    )
    kernel = make_output_reduce(g.P, g.L, g.Q, g.E3, out.dtype)
    launch(kernel, g.P * slab.positions * g.E3, slab.images, arguments, stream, threads)
