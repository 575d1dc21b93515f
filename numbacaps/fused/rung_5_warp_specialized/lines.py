"""Few images: a product's rows are neighbouring pixels of a line, where otherwise they are images.

A warpgroup's product has 64 rows. The kernel fills them with images and D1. One image with D1 of 1 fills one row.

Here images and columns change places. A product's rows are the pixels of a line, and a tile's column is an image. Pixel
ow at tap kw reads column

    ow*stride + kw*dilation - padding

of the gathered array. So a box is a run of columns, in which neighbouring pixels share what their windows share. The next
tap is some columns further in the same box. Over an edge TMA fills in zeros.

Where there is one channel and D1 is 1, its elements are cut into channels of 32 bytes. So a step of k need not have all of
them in shared memory. Votes that are summed over a window are such a convolution: there g counts the channels.
"""

from dataclasses import replace

from numbacaps.fused.rung_5_warp_specialized.launcher import WarpSpecializedLauncher

_CHANNEL = 32  # bytes


def in_lines(product, images, dtype):
    """A product with images and columns in each other's place; it has as many images as that one has columns.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images : int
    dtype : numpy.dtype

    Returns
    -------
    numbacaps.fused.implicit_gemm.Product
    """
    p, D = product.pixels, _CHANNEL // dtype.itemsize
    (image, row, column, d1), (c_image, c_row, c_column, c_d1) = p.gathered, p.other
    pixels = replace(
        p,
        columns=images,
        gathered=(column, row, image, d1),
        other=(c_column, c_row, c_image, c_d1),
        in_lines=True,
    )
    if product.channels > 1 or p.D1 > 1 or product.D % D:
        return replace(product, pixels=pixels)
    steps = tuple(D * step for step in product.element_steps)
    return replace(product, pixels=pixels, channels=product.D // D, D=D, channel_steps=steps)


class LinesLauncher(WarpSpecializedLauncher):
    """The launcher; its parameters are those of :class:`WarpSpecializedLauncher`."""

    def __init__(self, product, images, G, dtype, *how, read=None, **more):
        lines = in_lines(read or product, images, dtype)
        factor = product if read else lines  # as whose kernel is packed
        super().__init__(factor, product.pixels.columns, G, dtype, *how, read=lines, **more)
        self._ordinary = product, images, G, dtype

    def __str__(self):
        return super().__str__().replace("warp_specialized", "warp_specialized_lines", 1)
