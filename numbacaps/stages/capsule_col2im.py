"""The last stage of Algorithm 4: put the columns' gradient back; overlapping windows add up.

    dI[n, c, h, w] = sum over the (l, q) whose window covers (h, w) of dI_flat[n, l, q]

Gathered, not scattered: the thread that owns an input element looks up the windows covering it, so
there are no atomics. The sum runs by rising oh, then ow; slabs of rows follow each other in that
order, so the bits of the result do not depend on how the work was cut.

Thread mapping: one thread an input element, consecutive threads on consecutive elements of dI; a
warp reads runs of E1 consecutive elements. A thread works out once where its windows lie, and then
walks the images.
"""

from functools import cache

import numpy as np

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import FEW_BLOCKS, THREADS, ceil_div, flat, launch
from numbacaps.device.target import at, cuda


@cache
def make_capsule_col2im(C, H, W, OW, KH, KW, E1, stride, padding, dilation, dtype):
    """Kernel for one geometry; ``dtype`` is a NumPy dtype, pairs are (vertical, horizontal)."""
    SH, SW = stride
    PH, PW = padding
    DH, DW = dilation
    ROW = C * KH * KW * E1
    IMAGE = C * H * W * E1
    OH_SPAN = DH * (KH - 1) // SH + 1  # most output rows (columns) whose window covers one element
    OW_SPAN = DW * (KW - 1) // SW + 1
    WINDOWS = OH_SPAN * OW_SPAN
    CHUNKS = ceil_div(WINDOWS, 16)
    AT_ONCE = ceil_div(WINDOWS, CHUNKS)  # windows that a thread knows at a time
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def capsule_col2im_kernel(
        columns,  # in   (images, rows * OW, Q, E1)
        dx,  # out  (N, C, H, W, E1); in as well when first_row > 0
        first_image,
        images,
        first_row,
        rows,
    ):
        place = cuda.local.array(
            WINDOWS, np.int64
        )  # of each window's element in an image's columns
        covers = cuda.local.array(AT_ONCE, np.bool_)
        loaded = cuda.local.array(AT_ONCE, dtype)
        i = cuda.grid(1)  # (c, h, w, e)
        if i >= IMAGE:
            return
        e = i % E1
        left = i // E1 % W + PW
        top = i // (E1 * W) % H + PH
        c = i // (E1 * W * H)
        for chunk in range(CHUNKS):
            for j in range(AT_ONCE):
                window = chunk * AT_ONCE + j
                oh = top // SH - OH_SPAN + 1 + window // OW_SPAN
                ow = left // SW - OW_SPAN + 1 + window % OW_SPAN
                down = top - oh * SH
                across = left - ow * SW
                kh = down // DH
                kw = across // DW
                in_row = kh < KH and down == kh * DH and oh >= first_row and oh < first_row + rows
                in_column = kw < KW and across == kw * DW and ow >= 0 and ow < OW
                covers[j] = window < WINDOWS and in_row and in_column
                place[j] = e  # some element, where no window covers this one
                if covers[j]:
                    l = (oh - first_row) * OW + ow
                    place[j] = l * ROW + ((c * KH + kh) * KW + kw) * E1 + e
            n = cuda.blockIdx.y
            while n < images:
                target = (first_image + n) * IMAGE + i
                source = n * rows * (OW * ROW)
                total = ZERO  # an image's first slab starts the sum, so nothing has to be cleared
                if first_row > 0 or chunk > 0:
                    total = dx[at(target)]
                for j in range(AT_ONCE):  # read in any case, so that the reads overlap
                    loaded[j] = columns[at(source + place[j])]
                for j in range(AT_ONCE):
                    if covers[j]:
                        total += loaded[j]
                dx[at(target)] = total
                n += cuda.gridDim.y

    return capsule_col2im_kernel


def capsule_col2im(slab, columns, dx, stream=0, threads=THREADS):
    """Add the slab's columns into the input's gradient.

    Parameters
    ----------
    slab : numbacaps.stages.slab.Slab
    columns : device array (n, l, Q, G, D1, D2)
    dx : device array (N, C, H, W, G, D1, D2)
        The slab's images are written; a slab that begins below the first row adds to them.
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array is of the wrong size.
    """
    g = slab.geometry
    kernel = make_capsule_col2im(
        g.C, g.H, g.W, g.OW, g.KH, g.KW, g.E1, g.stride, g.padding, g.dilation, dx.dtype
    )
    arguments = (
        flat("columns", columns, slab.columns_shape),
        flat("dx", dx, g.input_shape),
        slab.first_image,
        slab.images,
        slab.first_row,
        slab.rows,
    )
    count = g.C * g.H * g.W * g.E1
    launch(kernel, count, slab.images, arguments, stream, threads, blocks=FEW_BLOCKS)
