"""The tiles of :mod:`numbacaps.fused.rung_5_warp_specialized.split_k`, their shared memory, and why one cannot be taken."""

from dataclasses import dataclass

from numbacaps.device.gpu import GH100, H100, LARGEST_BOX, MOST_SET_REGISTERS, SHARED_BYTES_A_CYCLE
from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_4_wgmma.tile import BM, SHARED_LIMIT, WARPGROUP
from numbacaps.fused.rung_5_warp_specialized.split_k_box import (
    boxes,
    columns_read,
    tensors,
)
from numbacaps.fused.rung_5_warp_specialized.tile import row_reach

_FLOAT = 4  # bytes
# Of a thread that transposes or copies, at least and at the most.
_FEWEST_HELPER_REGISTERS, _MOST_HELPER_REGISTERS = 32, 64
TRANSPOSE_WARPS = 3  # of the last warpgroup; its last warp is the producer
# Of a thread that multiplies, besides sums and fragments, by terms.
_OTHER_REGISTERS = {1: 28, 3: 32}
_MOST_WARPGROUPS = 7  # that multiply
_MOST_GROUPS = 4  # of 8 k's in a box
BARRIERS = 256  # bytes at the beginning of the shared memory
_MOST_STAGES = BARRIERS // 16  # of all rings, two barriers each


@dataclass(frozen=True)
class ReductionTile:
    """A block computes 64 rows by BN columns of every tap, a warpgroup those of a row of taps.

    It multiplies PW pixels of a row at once, and GROUPS times as many of their images and d1 as one product
    takes. One warpgroup more transposes dy and asks for the copies.

    Of float16 and bfloat16, PAIR is 2: this module and the kernel count neighbours of a capsule's row as one.
    """

    tap_rows: int
    PW: int
    GROUPS: int
    BN: int
    PAIR: int = 1

    @property
    def K(self):
        """Of one product of a warpgroup."""
        return 8 * self.PAIR

    @property
    def threads(self):
        """Threads of a block."""
        return (self.tap_rows + 1) * WARPGROUP

    @property
    def registers(self):
        """What a thread that multiplies may have: what the others leave of the block's."""
        left = self._at_first * (self.tap_rows + 1) - _FEWEST_HELPER_REGISTERS
        return min(MOST_SET_REGISTERS, left // self.tap_rows // 8 * 8)

    @property
    def helper_registers(self):
        """What a thread that transposes or copies may have: what those that multiply leave."""
        left = self._at_first * (self.tap_rows + 1) - self.registers * self.tap_rows
        return min(left, _MOST_HELPER_REGISTERS)

    @property
    def _at_first(self):
        """Registers of a thread as the assembler hands them out."""
        return H100.registers // self.threads // 8 * 8

    def sums(self, taps):
        """Sums of all threads that multiply, of this many columns of the window."""
        return self.tap_rows * WARPGROUP * self.BN // 2 * taps

    def __str__(self):
        return (
            f"{BM} rows by {self.BN} of every tap, {self.tap_rows} warpgroups, "
            f"{self.PW} pixels of {self.GROUPS * self.K}"
        )


def rows_read(product):
    """Rows of slots from a pixel's first tap to its last, or to the next pixel's first."""
    return max(int(product.tap_rows.max(initial=0)) + 1, product.pixels.top[0])


@dataclass(frozen=True)
class Rings:
    """How many boxes of x and dy, and how many transposed ones of dy, are in shared memory at a time.

    Attributes
    ----------
    x, dy, transposed : int
    x_bytes, dy_bytes, transposed_bytes : int
        Of each, padded to 128.
    """

    x: int
    dy: int
    transposed: int
    x_bytes: int
    dy_bytes: int
    transposed_bytes: int

    @classmethod
    def of(cls, product, tile, G, terms):
        """As many as there is room for; None where a window's rows and one of the others do not fit."""
        of_x, of_dy = boxes(tile, product, G)
        sizes = [ceil_div(box.bytes, 128) * 128 for box in (of_x, of_dy)]
        k = of_dy.images * product.pixels.D1
        transposed = tile.PW * k * tile.BN * _FLOAT // tile.PAIR
        sizes.append(transposed * (2 if terms > 1 else 1))
        span, step = rows_read(product), product.pixels.top[0]
        for ahead, dy, transposed in (
            (5, 5, 3),
            (4, 4, 3),
            (3, 3, 3),
            (2, 2, 3),
            (2, 2, 2),
            (1, 2, 2),
            (1, 1, 2),
            (1, 1, 1),
            (0, 1, 1),
        ):
            rings = cls(span + ahead * step, dy, transposed, *sizes)
            if rings.x + dy + transposed <= _MOST_STAGES and rings.bytes <= SHARED_LIMIT:
                return rings
        return None

    @property
    def bytes(self):
        """Shared memory of a block, and what aligning its beginning may take."""
        rings = self.x * self.x_bytes + self.dy * self.dy_bytes
        return 128 + BARRIERS + rings + self.transposed * self.transposed_bytes


@dataclass(frozen=True)
class Strips:
    """The sum's parts: some images, PW columns and some rows of pixels, which a block walks down.

    Attributes
    ----------
    rows : int
        Pixels from a strip's top to its bottom.
    down, across : int
        Strips of an image.
    count, per_split : int
        All strips, and those of a split.
    """

    rows: int
    down: int
    across: int
    count: int
    per_split: int

    @property
    def splits(self):
        """Splits of all strips."""
        return ceil_div(self.count, self.per_split)


def tiles(product, pair=1):
    """The tiles to choose from for a :class:`numbacaps.fused.implicit_gemm.Product`.

    ``pair`` is 2 of elements of 2 bytes.
    """
    most = ceil_div(product.N, 8) * 8
    widths = sorted({min(width, most) for width in _WIDTHS}, reverse=True)
    return [
        ReductionTile(len(product.tap_rows), PW, groups, width, pair)
        for width in widths
        for groups in (1, 2, 4)
        for PW in range(min(_MOST_PIXELS, product.pixels.columns), 0, -1)
    ]


_WIDTHS = (128, 96, 64, 48, 32, 16, 8)  # of a tile's columns
_MOST_PIXELS = 16


def why_not(tile, product, G, terms):
    """Why a tile cannot be taken for a product; None where it can."""
    p = product.pixels
    D3 = p.other[3]
    if tile.tap_rows > _MOST_WARPGROUPS:
        return f"{tile.tap_rows} rows of taps, more than {_MOST_WARPGROUPS} warpgroups"
    pair = tile.PAIR
    if product.D % pair or D3 % pair:
        return f"D2 of {product.D} and D3 of {D3} do not come in pairs"
    if product.D > BM or (product.D % 16 and 8 * pair % product.D):
        return f"D2 is {product.D}: {BM} rows, or a warp's 16 of them, are not evenly filled"
    if p.D1 % 4 and 4 % p.D1:
        return f"D1 is {p.D1}: neither divides 4 nor is a multiple of it"
    if D3 > tile.BN:
        return f"D3 is {D3}, more than {tile.BN} columns"
    for _, strides, box in tensors(tile, product, 1, G):
        if box[0] % 4 or any(stride % 4 for stride in strides):
            return f"runs of {box[0]} words, or steps of {strides}, are no multiples of 16 bytes"
    for box, (step, left) in zip(boxes(tile, product, G), (p.left, (1, 0))):
        if box.whole_rows and (left * box.pixel % 4 or step * tile.PW * box.pixel % 4):
            return f"a box begins every {step * tile.PW} pixels of {box.pixel} words, from {left}: not at 16 bytes"
    if max(p.gathered[0], p.other[0]) >= 2**38:
        return "strides are too large for TMA"
    sizes, _, largest = zip(*tensors(tile, product, 1, G))
    reach = row_reach(p, columns_read(tile, product)) * boxes(tile, product, G)[0].pixel
    if max(reach, *map(max, sizes)) >= 2**31:
        return "rows are too long for TMA"
    if max(map(max, largest)) > LARGEST_BOX:
        return f"a box of {max(map(max, largest))} indices along an axis, more than {LARGEST_BOX}"
    of_x, of_dy = boxes(tile, product, G)
    if of_x.images * p.D1 > tile.K * _MOST_GROUPS:
        return f"{of_x.images} images of D1 {p.D1} at once"
    if of_dy.channels * D3 % (8 * pair) or (p.D1 * D3) & (p.D1 * D3 - 1):
        return f"{of_dy.channels} channels of {p.D1} x {D3} do not fill warps evenly"
    if Rings.of(product, tile, G, terms) is None:
        return f"boxes of {of_x.bytes} and {of_dy.bytes} bytes are too much shared memory"
    registers = _registers(tile, product, terms)
    if registers > tile.registers:
        return f"{registers} registers a thread, more than {tile.registers}"
    return None


_FEWEST_PRODUCTS = 1 << 26


def why_slow(product, images, G):
    """Why :mod:`numbacaps.fused.rung_4_wgmma.split_k` is faster where both can be used; None where it is not."""
    if product.channels * product.D < BM // 2:
        return f"{product.channels} channels of {product.D} fill less than half of {BM} rows"
    products = product.M(images) * product.K * product.N * G
    if products < _FEWEST_PRODUCTS:
        return f"{products} products take less time than one launch more"
    return None


def _registers(tile, product, terms):
    """About how many a thread that multiplies holds."""
    sums = len(product.tap_columns) * tile.BN // 2 * (2 if terms > 1 else 1)
    return sums + _fragments(tile, product) + _OTHER_REGISTERS[terms]


def _fragments(tile, product):
    """Elements of x that a thread that multiplies holds."""
    return tile.GROUPS * columns_read(tile, product) * 4


# For the rough count of time, in cycles.
_SHARED = 128  # of these, where products share them; the others are for what is launched besides
_SHARE = 0.6  # each one's share goes with this power of what it reads: the best of five ways that were measured
_MOST_WAVES = 3
_NARROWEST = 32  # columns: fewer take a product as long
# Of a split, in three terms: each rounds, and 2400 of them lost twice what a library's float32 loses.
_MOST_ADDS = 1500


def choose_tile(product, images, G, terms, pair=1):
    """(tile, strips, why): what should take the least time; or None, None, and why none can be taken.

    It depends on the geometry alone, so that the order of the sum is the same on every GPU.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
        Of the forward pass.
    images, G : int
    terms : int
        Products for each pair of operands: 1 for TF32, 3 for tf32x3.
    pair : int
        2 of elements of 2 bytes.
    """
    best, why = _choose(product, images, G, terms, pair, H100.multiprocessors, _MOST_WAVES)
    return best[1:] if best else (None, None, why)


def choose_beside(products, sizes, images, terms):
    """The same of products that are computed at the same time, each on multiprocessors of its own.

    One after the other they would take longer: however small, each has to begin and to end.

    Parameters
    ----------
    products : sequence of numbacaps.fused.implicit_gemm.Product
        Of forward passes, without g.
    sizes : sequence of int
        Elements of an image that each reads.
    images, terms : int

    Returns
    -------
    list of (tile, strips, why), or None
        None where one of the products has no tile.
    """
    weights = [size**_SHARE for size in sizes]
    shares = [4 * max(1, round(_SHARED / 4 * weight / sum(weights))) for weight in weights]
    found = [_choose(p, images, 1, terms, 1, share, 1)[0] for p, share in zip(products, shares)]
    return [one[1:] for one in found] if all(found) else None


def _choose(product, images, G, terms, pair, multiprocessors, waves):
    """((cycles, tile, strips, why), None); or None, and why there is none."""
    best, reason = None, "no images"
    for tile in tiles(product, pair) if images else ():
        why = why_not(tile, product, G, terms)
        if why:
            reason = why
            continue
        how = tile, product, images, G, terms
        strips, takes = choose_strips(*how, multiprocessors, waves)
        if best is None or takes < best[0]:
            best = takes, tile, strips, f"{strips.count} strips, about {takes} cycles"
    return best, None if best else reason


def choose_strips(
    tile,
    product,
    images,
    G,
    terms,
    multiprocessors=H100.multiprocessors,
    waves=_MOST_WAVES,
):
    """(strips, cycles): how the sum is split where blocks of this tile compute it.

    There are at most ``waves`` of them on each multiprocessor.
    Three terms are for who wants float32's accuracy, so there the sums of a split are kept short.
    """
    p = product.pixels
    at_once = boxes(tile, product, G)[0].images
    groups = ceil_div(images, at_once)
    adds_of_a_row = at_once * p.D1 // (tile.K * tile.GROUPS)
    across = ceil_div(p.columns, tile.PW)
    blocks = blocks_of_a_split(tile, product, G)
    row = cycles_of_a_row(tile, product, G, terms)
    size = product.K * product.N * G * _FLOAT
    best = None
    for wave in range(1, 1 + waves):
        wanted = max(1, wave * multiprocessors // blocks)
        for down in range(1, 1 + p.rows):
            rows = ceil_div(p.rows, down)
            count = groups * across * ceil_div(p.rows, rows)
            strips = Strips(rows, ceil_div(p.rows, rows), across, count, ceil_div(count, wanted))
            together = ceil_div(blocks * strips.splits, multiprocessors)
            takes = together * (
                GH100.split_k_block_cycles
                + strips.per_split * (rows * row + GH100.split_k_chain_cycles)
            )
            takes += strips.splits * size * 2 // GH100.split_k_sum_bytes_a_cycle
            adds = strips.per_split * rows * adds_of_a_row
            found = max(0, adds - _MOST_ADDS) if terms > 1 else 0, takes, strips
            best = min(best or found, found, key=lambda one: one[:2])
            if count >= wanted * 8:
                break
    _, takes, strips = best
    return strips, takes


def blocks_of_a_split(tile, product, G):
    """Blocks of all rows, columns and g."""
    of_x, of_dy = boxes(tile, product, G)
    P = product.N // product.pixels.other[3]
    return G * ceil_div(product.channels, of_x.channels) * ceil_div(P, of_dy.channels)


def cycles_of_a_row(tile, product, G, terms):
    """About how many cycles PW pixels take: whatever is busiest.

    The tensor cores; shared memory, from which every product reads its columns; the copies; and a
    warpgroup alone, which waits while it loads.
    """
    p = product.pixels
    of_x, of_dy = boxes(tile, product, G)
    groups = of_x.images * p.D1 // tile.K
    products = product.taps * tile.PW * groups * terms * max(tile.BN, _NARROWEST) // 2
    copied = of_x.bytes * p.top[0] + of_dy.bytes
    fragments = tile.tap_rows * columns_read(tile, product) * groups * 16
    transposed = tile.PW * groups * 8 * tile.BN * _FLOAT * (2 if terms == 1 else 3)
    shared = products // 2 + fragments + (transposed + copied) // SHARED_BYTES_A_CYCLE
    alone = (
        products // tile.tap_rows
        + groups // tile.GROUPS * (2 if terms > 1 else 1) * GH100.split_k_chain_cycles
    )
    return max(products, shared, copied // GH100.split_k_bytes_a_cycle, alone)
