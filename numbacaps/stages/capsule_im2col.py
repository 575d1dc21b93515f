"""Stage 1 of Algorithm 3 (Figure 3): gather each output position's window into a column.

    I_flat[n, l, q] = I[n, c, oh*stride + kh*dilation - padding, ow*stride + kw*dilation - padding]

with l = oh*OW + ow and q = (c*KH + kh)*KW + kw; zeros where the window reaches into the padding.

Thread mapping: one thread a (q, e) of some rows of positions, consecutive threads on consecutive
(q, e), which are consecutive in I_flat and, within a window's row of capsules, in I.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import FEW_BLOCKS, THREADS, ceil_div, flat, launch
from numbacaps.device.target import at, cuda


@cache
def make_capsule_im2col(C, H, W, OW, KH, KW, E1, stride, padding, dilation, dtype):
    """Kernel for one geometry; ``dtype`` is a NumPy dtype, pairs are (vertical, horizontal)."""
    SH, SW = stride
    PH, PW = padding
    DH, DW = dilation
    ROW = C * KH * KW * E1
    CHUNKS = ceil_div(OW, 12)
    AT_ONCE = ceil_div(OW, CHUNKS)  # loads of a thread under way before its first store
    EVEN = OW % AT_ONCE == 0
    INSIDE = PH == 0 and PW == 0  # no window reaches over the edge
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def capsule_im2col_kernel(
        x,  # in   (N, C, H, W, E1)
        columns,  # out  (images, rows * OW, Q, E1)
        first_image,
        images,
        first_row,
        rows,
    ):
        loaded = cuda.local.array(AT_ONCE, dtype)
        i = cuda.grid(1)  # (q, e)
        if i >= ROW:
            return
        e = i % E1
        kw = i // E1 % KW
        kh = i // (E1 * KW) % KH
        c = i // (E1 * KW * KH)
        n = cuda.blockIdx.y
        while n < images:
            row = cuda.blockIdx.z * cuda.blockDim.z + cuda.threadIdx.z
            while row < rows:
                h = (first_row + row) * SH + kh * DH - PH
                left = kw * DW - PW
                source = ((((first_image + n) * C + c) * H + h) * W + left) * E1 + e
                target = (n * rows + row) * OW * ROW + i
                for chunk in range(CHUNKS):
                    first = chunk * AT_ONCE
                    for j in range(AT_ONCE):
                        w = (first + j) * SW + left
                        value = ZERO
                        if (EVEN or first + j < OW) and (
                            INSIDE or (h >= 0 and h < H and w >= 0 and w < W)
                        ):
                            value = x[at(source + (first + j) * SW * E1)]
                        loaded[j] = value
                    for j in range(AT_ONCE):
                        if EVEN or first + j < OW:
                            columns[at(target + (first + j) * ROW)] = loaded[j]
                row += cuda.gridDim.z * cuda.blockDim.z
            n += cuda.gridDim.y

    return capsule_im2col_kernel


def capsule_im2col(slab, x, columns, stream=0, threads=THREADS):
    """Fill the slab's columns from the whole input.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
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
        g.C, g.H, g.W, g.OW, g.KH, g.KW, g.E1, g.stride, g.padding, g.dilation, x.dtype
    )
    arguments = (
        flat("x", x, g.input_shape),
        flat("columns", columns, slab.columns_shape),
        slab.first_image,
        slab.images,
        slab.first_row,
        slab.rows,
    )
    launch(kernel, g.Q * g.E1, slab.images, arguments, stream, threads, slab.rows, FEW_BLOCKS)
