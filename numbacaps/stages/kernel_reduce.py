"""A stage of Algorithm 4: sum the kernel's gradient over images and positions.

    dK[p, q] = sum over n, l of dK'[n, p, l, q]

A small kernel has few elements and a long sum, so each element's sum is shared by ``lanes`` threads:
lane s takes the terms whose number n*L + l leaves s when divided by ``lanes``, slab after slab, and
the lanes are added up at the end. A term's lane and its turn depend on the geometry alone, so the
bits of the result do not depend on how the work was cut into slabs.

Thread mapping: one thread an element of a channel's capsules; it walks the (lane, p) pairs.
Consecutive threads are consecutive on both sides.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, flat, launch
from numbacaps.device.target import at, cuda
from numbacaps.stages.slab import lanes_of, whole


@cache
def make_kernel_reduce(P, L, ROW, LANES, dtype):
    """Kernels (add a slab to the lanes, add the lanes up) for ROW = Q * E2 elements a channel."""
    AT_ONCE = 4  # loads of a thread under way before its first addition
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def add_slab_kernel(
        products,  # in      (images, P, positions, ROW)
        lanes,  # in/out  (LANES, P, ROW)
        first_image,
        images,
        first_position,
        positions,
    ):
        loaded = cuda.local.array(AT_ONCE, dtype)
        i = cuda.grid(1)
        if i >= ROW:
            return
        first_term = first_image * L + first_position
        sp = cuda.blockIdx.y  # (lane, p)
        while sp < LANES * P:
            p = sp % P
            total = ZERO  # the first slab starts the sum, so nothing has to be cleared before
            if first_term > 0:
                total = lanes[at(sp * ROW + i)]
            term = (sp // P - first_term) % LANES  # the lane's first term of the slab
            left = (images * positions - term + LANES - 1) // LANES
            n = term // L  # a slab of several images holds whole ones, so positions is L then
            l = term - n * L
            while left > 0:
                for j in range(AT_ONCE):
                    if j < left:
                        loaded[j] = products[at(((n * P + p) * positions + l) * ROW + i)]
                    n += LANES // L
                    l += LANES % L
                    if l >= L:
                        l -= L
                        n += 1
                for j in range(AT_ONCE):
                    if j < left:
                        total += loaded[j]
                left -= AT_ONCE
            lanes[at(sp * ROW + i)] = total
            sp += cuda.gridDim.y

    @kept_on_disk
    @cuda.jit
    def add_lanes_kernel(
        lanes,  # in   (LANES, P, ROW)
        dw,  # out  (P, ROW)
    ):
        i = cuda.grid(1)
        if i >= P * ROW:
            return
        total = ZERO
        for s in range(LANES):
            total += lanes[at(s * P * ROW + i)]
        dw[at(i)] = total

    return add_slab_kernel, add_lanes_kernel


def kernel_reduce(slab, products, lanes, stream=0, threads=THREADS):
    """Add the slab's extended kernel gradient to the lanes.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
    products : device array (n, P, l, Q, G, D2, D3)
    lanes : device array (lanes, P, C, KH, KW, G, D2, D3)
        Partial sums; the convolution's first slab starts them.
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array is of the wrong size, or the slab has parts of several images.
    """
    g = slab.geometry
    if slab.images > 1 and slab.rows < g.OH:
        raise ValueError(
            f"slab has {slab.rows} of {g.OH} rows of {slab.images} images; it takes part of one "
            "image, or whole ones"
        )
    row = g.Q * g.E2
    arguments = (
        flat("products", products, slab.kernel_products_shape),
        flat("lanes", lanes, slab.lanes_shape),
        slab.first_image,
        slab.images,
        slab.first_position,
        slab.positions,
    )
    add_slab, _ = make_kernel_reduce(g.P, g.L, row, lanes_of(g), lanes.dtype)
    launch(add_slab, row, lanes_of(g) * g.P, arguments, stream, threads)


def kernel_reduce_lanes(geometry, lanes, dw, stream=0, threads=THREADS):
    """Add the lanes up: the last step of the sum, once all slabs are in.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    lanes : device array (lanes, P, C, KH, KW, G, D2, D3)
    dw : device array (P, C, KH, KW, G, D2, D3), written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = geometry
    arguments = (flat("lanes", lanes, whole(g).lanes_shape), flat("dw", dw, g.kernel_shape))
    _, add_lanes = make_kernel_reduce(g.P, g.L, g.Q * g.E2, lanes_of(g), dw.dtype)
    launch(add_lanes, g.P * g.Q * g.E2, 1, arguments, stream, threads)
