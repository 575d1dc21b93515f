"""The geometry that follows from the shapes of an input and a kernel, and from a product."""

from numbacaps.geometry import Geometry


def geometry_of(x_shape, w_shape, product, stride, padding, dilation):
    """The geometry of a capsule convolution.

    Parameters
    ----------
    x_shape : tuple of int
        (N, C, H, W, *T1)
    w_shape : tuple of int
        (P, C, KH, KW, *T2)
    product : numbacaps.product.Product
    stride, padding, dilation : int or pair of int

    Returns
    -------
    Geometry

    Raises
    ------
    TypeError, ValueError
        The shapes do not go together, or a number is out of range.
    """
    for name, shape, axes, layout in (
        ("x", x_shape, product.x, "(N, C, H, W"),
        ("w", w_shape, product.w, "(P, C, KH, KW"),
    ):
        if len(shape) != 4 + len(axes):
            raise ValueError(
                f"{name} has shape {shape}; product={product.spec!r} takes "
                f"{4 + len(axes)} axes, {', '.join((layout, *axes))})"
            )
    for name, shape, sizes in (("x", x_shape, x_shape[1:]), ("w", w_shape, w_shape)):
        if 0 in sizes:
            raise ValueError(
                f"{name} has shape {shape}; every axis takes 1 or more"
                + (" (N may be 0)" if name == "x" else "")
            )
    if x_shape[1] != w_shape[1]:
        raise ValueError(f"w has {w_shape[1]} input channels (C); x has {x_shape[1]}")
    G, D1, D2, D3 = product.dimensions(x_shape[4:], w_shape[4:])
    (N, C, H, W), (P, _, KH, KW) = x_shape[:4], w_shape[:4]
    return Geometry(N, C, P, H, W, KH, KW, G, D1, D2, D3, stride, padding, dilation)


def output_shape(geometry, product, x_shape, w_shape):
    """(N, P, OH, OW, *T3)"""
    return geometry.output_shape[:4] + product.y_capsule(x_shape[4:], w_shape[4:])
