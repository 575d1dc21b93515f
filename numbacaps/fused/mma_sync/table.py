"""What the kernels of this folder read of a geometry, in one int32 array on the GPU.

A kernel is compiled for a tile, an element type and the bytes that one copy takes. Sizes, steps and the taps of the
window come at run time: a header of numbers for each product, then its offsets (Algorithm 5's index functions, worked
out once). The input's gradient has a product for each residue of the stride; all of them are in one table and are
computed by one launch.
"""

from dataclasses import dataclass

import numpy as np

from numbacaps.device.division import divisor
from numbacaps.device.launch import ceil_div
from numbacaps.fused.mma_sync.edges import FARTHEST, NOWHERE

HEADER = 36  # numbers of a product's header
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
# What divides by a number of pixels: the factor of numbacaps.device.division, its lower half, then its upper one.
OVER_D1, OVER_COLUMNS, OVER_ROWS = range(28, 34, 2)

ABSENT = -1  # the offset of a column, or of a row of the kernel, that there is not
_PADDED = 256  # entries behind a table's end that copies may ask for


@dataclass(frozen=True, eq=False)
class Walk:
    """Where a product's operands lie, as a kernel walks through them.

    Attributes
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    gathered : tuple of int
        Elements from one image, row of pixels, column and d1 of the gathered array to the next.
    other : tuple of int
        The same of the array on the other side.
    first : int
        Where that array's first pixel lies.
    steps : tuple of int
        From one g to the next of the gathered array, the kernel and the other array.
    offsets, down, across, kernel : int64 arrays (K,)
        From a pixel's base to what tap k reads; how far down and across that is; where k lies in the kernel.
    in_kernel, in_other : int64 arrays (N,)
        Where column n lies in the kernel, and in the other array.
    """

    product: object
    gathered: tuple
    other: tuple
    first: int
    steps: tuple
    offsets: np.ndarray
    down: np.ndarray
    across: np.ndarray
    kernel: np.ndarray
    in_kernel: np.ndarray
    in_other: np.ndarray

    @classmethod
    def of(cls, product):
        """The walk through arrays in capsule layout."""
        p = product.pixels
        parts = np.split(product.table, np.cumsum([product.K] * 4 + [product.N]))
        return cls(product, p.gathered, p.other, p.first, p.steps, *parts)

    @property
    def K(self):
        """Depth, with what fills rows up."""
        return self.offsets.size


def pixel_rows(product, images, row):
    """(image, row, column, d1, g): elements from one to the next of a packed array of pixels whose rows are ``row`` long."""
    p = product.pixels
    H, W = p.extent
    return H * W * p.D1 * row, W * p.D1 * row, p.D1 * row, row, images * H * W * p.D1 * row


def packed_walk(product, images, each):
    """The walk through a packed gathered array (:mod:`numbacaps.fused.mma_sync.pack`), the rest in capsule layout.

    k counts taps, then a pixel's row, which is filled up to a multiple of ``each`` elements.
    """
    p, C, D = product.pixels, product.channels, product.D
    row = ceil_div(C * D, each) * each
    image, down_step, column_step, d1, g = pixel_rows(product, images, row)
    tap_row, tap_column, k = (
        axis.ravel() for axis in np.indices((len(product.tap_rows), len(product.tap_columns), row))
    )
    down, across = product.tap_rows[tap_row], product.tap_columns[tap_column]
    offsets = (down + p.top[1]) * down_step + (across + p.left[1]) * column_step + k
    kernel = (
        k // D * product.channel_steps[1]
        + k % D * product.element_steps[1]
        + product.kernel_rows[tap_row]
        + product.kernel_columns[tap_column]
    )
    kernel = np.where(k < C * D, kernel, ABSENT)
    gathered = image, p.top[0] * down_step, p.left[0] * column_step, d1
    parts = offsets, down, across, kernel, *product.n.offsets()
    return Walk(product, gathered, p.other, p.first, (g, *p.steps[1:]), *parts)


def why_not(walks, images, rows_of_tile):
    """Why products do not fit the table's 32 bits; None where they do.

    Parameters
    ----------
    walks : sequence of Walk
    images : int
    rows_of_tile : int
        BM: rows that are counted from the image in which a tile begins.
    """
    for walk in walks:
        product = walk.product
        p = product.pixels
        image = p.rows * p.columns * p.D1
        if image == 0 or product.taps == 0:
            continue
        if walk.K >= 2**24:
            return f"{walk.K} products of a sum; its table takes fewer than 2^24"
        if product.M(images) >= 2**31 - rows_of_tile:
            return f"{product.M(images)} rows of the product; it takes fewer than 2^31"
        for step in (walk.gathered[0], walk.other[0]):
            if (rows_of_tile // image + 2) * step >= 2**31:
                return f"images of {step} elements; offsets in those of a tile have 32 bits"
        if max(map(abs, (*walk.other, *walk.gathered, *walk.steps, walk.first))) >= 2**31:
            return "steps of 2^31 elements or more"
        farthest = walk.kernel.max(initial=0) + walk.in_kernel.max(initial=0)
        if max(farthest, walk.in_other.max(initial=0)) >= 2**31:
            return "a kernel, or columns of the result, of 2^31 elements or more"
        taps = product.tap_rows, product.tap_columns
        for size, taps, (step, start), count in zip(
            p.extent, taps, (p.top, p.left), (p.rows, p.columns)
        ):
            far = abs(start) + step * count + abs(taps).max(initial=0) + size
            if far >= FARTHEST:
                return f"a row or column {far} from the first; it takes fewer than {FARTHEST}"
    return None


def make_table(walks, images, run):
    """The int32 numbers of products that are computed by one launch.

    Parameters
    ----------
    walks : sequence of Walk
    images : int
    run : int
        Elements that one copy takes of the gathered array.
    """
    header = np.zeros((len(walks), HEADER), np.int64)
    parts, size = [header.ravel()], header.size
    for number, walk in zip(header, walks):
        product = walk.product
        p = product.pixels
        around = walk.down[::run] * 65536 + walk.across[::run]
        taps = np.stack([_padded(walk.offsets[::run], 0), _padded(around, NOWHERE)], 1).ravel()
        starts = []
        for part in (
            taps,
            *(_padded(x, ABSENT) for x in (walk.kernel, walk.in_kernel, walk.in_other)),
        ):
            starts.append(size)
            parts.append(np.concatenate([part, np.zeros(-part.size % 4, np.int64)]))
            size += parts[-1].size
        number[:28] = (
            product.M(images),
            product.N,
            walk.K,
            p.rows,
            p.columns,
            p.D1,
            *walk.gathered,
            *p.top,
            *p.left,
            *p.extent,
            walk.first,
            *walk.other,
            *walk.steps,
            *starts,
        )
        for at, pixels in zip((OVER_D1, OVER_COLUMNS, OVER_ROWS), (p.D1, p.columns, p.rows)):
            _, factor = divisor(max(1, pixels))
            number[at : at + 2] = factor & 0xFFFFFFFF, factor >> 32
    parts[0] = header.ravel()
    return np.concatenate(parts).astype(np.int32)


def _padded(values, filling):
    return np.concatenate([values, np.full(_PADDED, filling, np.int64)])
