"""Stage 1 of Algorithm 3 (Figure 3): gather each output position's window into a column.

    I_flat[n, l, q] = I[n, c, oh*stride + kh*dilation - padding, ow*stride + kw*dilation - padding]

with l = oh*OW + ow and q = (c*KH + kh)*KW + kw; zeros where the window reaches into the padding.

Thread mapping: one thread an element of a column, consecutive threads on consecutive (q, e), which
are consecutive in I_flat and, within a window's row of capsules, in I. Each thread walks the images.
"""

from functools import lru_cache

from numbacaps.launch import THREADS, flat, launch
from numbacaps.target import cuda


@lru_cache(maxsize=None)
def make_capsule_im2col(C, H, W, OH, OW, KH, KW, E1, stride, padding, dilation, dtype):
    """Kernel for one geometry; ``dtype`` is a NumPy dtype, pairs are (vertical, horizontal)."""
    SH, SW = stride
    PH, PW = padding
    DH, DW = dilation
    ROW = C * KH * KW * E1
    IMAGE = C * H * W * E1
    POSITIONS = OH * OW
    ZERO = dtype.type(0)

    @cuda.jit
    def capsule_im2col_kernel(
        x,  # in   (N, C, H, W, E1)
        columns,  # out  (images, positions, Q, E1)
        first_image,
        images,
        first_position,
        positions,
    ):
        i = cuda.grid(1)  # (l, q, e) within an image
        l = first_position + i // ROW
        # The constant bounds let the compiler divide in 32 bits wherever an image's columns fit.
        if i >= positions * ROW or i >= POSITIONS * ROW or l < 0 or l >= POSITIONS:
            return
        e = i % E1
        kw = i // E1 % KW
        kh = i // (E1 * KW) % KH
        c = i // (E1 * KW * KH) % C
        h = l // OW * SH + kh * DH - PH
        w = l % OW * SW + kw * DW - PW
        inside = 0 <= h < H and 0 <= w < W
        source = ((c * H + h) * W + w) * E1 + e
        n = cuda.blockIdx.y
        while n < images:
            value = ZERO
            if inside:
                value = x[(first_image + n) * IMAGE + source]
            columns[n * positions * ROW + i] = value
            n += cuda.gridDim.y

    return capsule_im2col_kernel


def capsule_im2col(slab, x, columns, stream=0, threads=THREADS):
    """Fill the slab's columns from the whole input.

    Parameters
    ----------
    slab : numbacaps.geometry.Slab
    x : device array (N, C, H, W, G, D1, D2)
    columns : device array (n, l, Q, G, D1, D2), written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    kernel = make_capsule_im2col(
        g.C, g.H, g.W, g.OH, g.OW, g.KH, g.KW, g.E1, g.stride, g.padding, g.dilation, x.dtype
    )
    arguments = (
        flat("x", x, g.input_shape),
        flat("columns", columns, slab.columns_shape),
        slab.first_image,
        slab.images,
        slab.first_position,
        slab.positions,
    )
    launch(kernel, slab.positions * g.Q * g.E1, slab.images, arguments, stream, threads)
