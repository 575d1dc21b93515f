"""Stage 4 of Algorithm 3 and both multiplications of Algorithm 4: which operands, and which kernel.

All three are one strided batch of small products; K' has no image axis, so the images share it.
"""

from numbacaps.device.launch import flat
from numbacaps.stages.stationary_batched_matmul import stationary_batched_matmul, suits
from numbacaps.stages.strided_batched_matmul import Batch, strided_batched_matmul


def batched_matmul(a, b, c, size, batch, transpose_a=False, transpose_b=False, stream=0):
    """Multiply a strided batch with the kernel that suits it.

    Parameters
    ----------
    a, b, c, size, batch, transpose_a, transpose_b, stream
        As :func:`numbacaps.stages.strided_batched_matmul.strided_batched_matmul`.

    Raises
    ------
    ValueError
        An operand is shorter than the batch says.
    """
    if not transpose_a and suits(*size, batch):
        stationary_batched_matmul(a, b, c, size, batch, transpose_b, stream)
    else:
        strided_batched_matmul(a, b, c, size, batch, transpose_a, transpose_b, stream=stream)


def _per_product(slab, *sizes):
    """(products of a channel, then its elements for each matrix size)."""
    count = slab.positions * slab.geometry.Q * slab.geometry.G
    return count, *(count * size for size in sizes)


def multiply(slab, extended_input, extended_kernel, products, matmul=batched_matmul, stream=0):
    """Stage 4, forward: O' = I' @ K'.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
    extended_input : device array (n, P, l, Q, G, D1, D2)
    extended_kernel : device array (P, l, Q, G, D2, D3)
    products : device array, written
        The slab's (n, P, l, Q, G, D1, D3); or all of (N, P, L, Q, G, D1, D3), the votes, of which
        the slab's part is written.
    matmul : callable
        What multiplies: :func:`batched_matmul` or one that takes the same.
    stream : Numba stream

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    count, a, b, c = _per_product(slab, g.D1 * g.D2, g.D2 * g.D3, g.D1 * g.D3)
    c_channel, c_first = c, 0
    if products.size != slab.images * g.P * c:
        flat("products", products, g.votes_shape)
        c_channel = g.L * g.Q * g.E3
        c_first = slab.first_image * g.P * c_channel + slab.first_position * g.Q * g.E3
    matmul(
        flat("extended_input", extended_input, slab.extended_input_shape),
        flat("extended_kernel", extended_kernel, slab.extended_kernel_shape),
        products.reshape(products.size),
        (g.D1, g.D3, g.D2),
        Batch(
            slab.images,
            g.P,
            count,
            a=(g.P * a, a),
            b=(0, b),
            c=(g.P * c_channel, c_channel),
            c_first=c_first,
        ),
        stream=stream,
    )


def multiply_for_kernel_gradient(
    slab, extended_input, extended_dy, products, matmul=batched_matmul, stream=0
):
    """Algorithm 4: dK' = I'^T @ dO'.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
    extended_input : device array (n, P, l, Q, G, D1, D2)
    extended_dy : device array (n, P, l, Q, G, D1, D3)
    products : device array (n, P, l, Q, G, D2, D3), written
    matmul : callable
        What multiplies: :func:`batched_matmul` or one that takes the same.
    stream : Numba stream

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    count, a, b, c = _per_product(slab, g.D1 * g.D2, g.D1 * g.D3, g.D2 * g.D3)
    matmul(
        flat("extended_input", extended_input, slab.extended_input_shape),
        flat("extended_dy", extended_dy, slab.products_shape),
        flat("products", products, slab.kernel_products_shape),
        (g.D2, g.D3, g.D1),
        Batch(slab.images, g.P, count, a=(g.P * a, a), b=(g.P * b, b), c=(g.P * c, c)),
        transpose_a=True,
        stream=stream,
    )


def multiply_for_input_gradient(
    slab, extended_dy, extended_kernel, products, matmul=batched_matmul, stream=0
):
    """Algorithm 4: dI' = dO' @ K'^T.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
    extended_dy : device array (n, P, l, Q, G, D1, D3)
    extended_kernel : device array (P, l, Q, G, D2, D3)
    products : device array (n, P, l, Q, G, D1, D2), written
    matmul : callable
        What multiplies: :func:`batched_matmul` or one that takes the same.
    stream : Numba stream

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    count, a, b, c = _per_product(slab, g.D1 * g.D3, g.D2 * g.D3, g.D1 * g.D2)
    matmul(
        flat("extended_dy", extended_dy, slab.products_shape),
        flat("extended_kernel", extended_kernel, slab.extended_kernel_shape),
        flat("products", products, slab.extended_input_shape),
        (g.D1, g.D2, g.D3),
        Batch(slab.images, g.P, count, a=(g.P * a, a), b=(0, b), c=(g.P * c, c)),
        transpose_b=True,
        stream=stream,
    )
