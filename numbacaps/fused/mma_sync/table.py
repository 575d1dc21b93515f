"""What the kernels of this folder read of a geometry, in one int32 array on the GPU.

A kernel is compiled for a tile, an element type and the bytes that one copy takes. Sizes, steps and the taps of the
window come at run time: a header of numbers for each product, then its offsets (Algorithm 5's index functions, worked
out once). The input's gradient has a product for each residue of the stride; all of them are in one table and are
computed by one launch.
"""

from dataclasses import dataclass

import numpy as np

HEADER = 32  # numbers of a product's header
(
    ROWS_OF_PRODUCT,
    COLUMNS_OF_PRODUCT,
    DEPTH,
    PIXEL_ROWS,
    PIXEL_COLUMNS,
    PIXEL_D1,
    A_IMAGE,
    A_ROW,
    A_COLUMN,
    A_D1,
    TOP_STEP,
    TOP_START,
    LEFT_STEP,
    LEFT_START,
    HEIGHT,
    WIDTH,
    C_FIRST,
    C_IMAGE,
    C_ROW,
    C_COLUMN,
    C_D1,
    A_G,
    B_G,
    C_G,
    TAPS_AT,
    KERNEL_AT,
    B_COLUMNS_AT,
    C_COLUMNS_AT,
) = range(28)

BIAS = 1 << 14  # added to rows and columns, which lie side by side in 32 bits
NOWHERE = -(1 << 30)  # a tap that lies over every edge
ABSENT = -1  # the offset of a column, or of a row of the kernel, that there is not
_PADDED = 256  # entries behind a table's end that copies may ask for


@dataclass(frozen=True)
class Table:
    """The numbers, and what a launch has to know of them.

    Attributes
    ----------
    numbers : int32 array
    products : int
    M, N, K : int
        The largest of any product.
    """

    numbers: np.ndarray
    products: int
    M: int
    N: int
    K: int


def why_not(products, images, rows_of_tile):
    """Why products do not fit the table's 32 bits; None where they do.

    Parameters
    ----------
    products : sequence of numbacaps.fused.implicit_gemm.Product
    images : int
    rows_of_tile : int
        BM: rows that are counted from the image in which a tile begins.
    """
    for product in products:
        p = product.pixels
        image = p.rows * p.columns * p.D1
        if image == 0 or product.taps == 0:
            continue
        if product.K >= 2**24:
            return f"{product.K} products of a sum; its table takes fewer than 2^24"
        if product.M(images) >= 2**31 - rows_of_tile:
            return f"{product.M(images)} rows of the product; it takes fewer than 2^31"
        if (rows_of_tile // image + 2) * p.gathered[0] >= 2**31:
            return f"images of {p.gathered[0]} elements; offsets in those of a tile have 32 bits"
        if max(map(abs, (*p.other, *p.gathered, *p.steps, p.first))) >= 2**31:
            return "steps of 2^31 elements or more"
        if max(_last_of_kernel(product), abs(product.n.offsets()[1]).max(initial=0)) >= 2**31:
            return "a kernel, or columns of the result, of 2^31 elements or more"
        spans = (p.extent, (product.tap_rows, product.tap_columns), (p.top, p.left))
        for size, taps, (step, start), count in zip(*spans, (p.rows, p.columns)):
            far = abs(start) + step * count + abs(taps).max(initial=0) + size
            if far >= BIAS:
                return f"a row or column {far} from the first; it takes fewer than {BIAS}"
    return None


def make_table(products, images, run):
    """The :class:`Table` of products that are computed by one launch.

    Parameters
    ----------
    products : sequence of numbacaps.fused.implicit_gemm.Product
    images : int
    run : int
        Elements that one copy takes of the gathered array.
    """
    header = np.zeros((len(products), HEADER), np.int32)
    parts, size = [header.ravel()], header.size
    for number, product in zip(header, products):
        p = product.pixels
        offsets, down, across, kernel, of_kernel, of_result = np.split(
            product.table, np.cumsum([product.K] * 4 + [product.N])
        )
        p_taps = down[::run] * 65536 + across[::run]
        taps = np.stack([_padded(offsets[::run], 0), _padded(p_taps, NOWHERE)], 1).ravel()
        starts = []
        for part in (
            taps,
            _padded(kernel, ABSENT),
            _padded(of_kernel, ABSENT),
            _padded(of_result, ABSENT),
        ):
            starts.append(size)
            part = np.concatenate([part, np.zeros(-part.size % 4, np.int64)])
            parts.append(part)
            size += part.size
        # Row and column of tap 0 are in the offsets, so a pixel's base is where its tap 0 would lie at 0, 0.
        number[:28] = (
            product.M(images),
            product.N,
            product.K,
            p.rows,
            p.columns,
            p.D1,
            *p.gathered,
            *p.top,
            *p.left,
            *p.extent,
            p.first,
            *p.other,
            *p.steps,
            *starts,
        )
    parts[0] = header.ravel()
    numbers = np.concatenate([np.asarray(part) for part in parts]).astype(np.int32)
    largest = (max(p.M(images) for p in products), max(p.N for p in products))
    return Table(numbers, len(products), *largest, max(p.K for p in products))


def _last_of_kernel(product):
    """Where the last element of the kernel lies that a product reads, about."""
    steps = product.channel_steps[1] * product.channels + product.element_steps[1] * product.D
    taps = product.kernel_rows.max(initial=0) + product.kernel_columns.max(initial=0)
    return steps + taps + product.n.offsets()[0].max(initial=0)


def _padded(values, filling):
    return np.concatenate([values, np.full(_PADDED, filling, np.int64)])
