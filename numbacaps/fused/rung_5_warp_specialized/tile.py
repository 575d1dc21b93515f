"""The tiles of :mod:`numbacaps.fused.rung_5_warp_specialized.kernel`, their shared memory, and why one cannot be taken."""

from dataclasses import dataclass
from math import gcd

from numbacaps.device.gpu import GH100, H100, LARGEST_BOX, MOST_SET_REGISTERS, SHARED_BYTES_A_CYCLE
from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_4_wgmma.tile import BM, SHARED_LIMIT, WARPGROUP, Window

_K = 8  # of one product of a warpgroup
_FLOAT = 4  # bytes
_BANKS = 32  # of shared memory, an element each
_LINE = 64  # bytes that a pixel should have to be fetched by itself
PRODUCER_REGISTERS = 24  # of a producer's thread
_OTHER_REGISTERS = {1: 36, 3: 24}  # of a thread, besides sums and fragments, by terms
_FEW_PLACES = 8  # of a thread's runs of k's, which are among these
_MOST_PRODUCTS = 54  # of a batch, of which a tap of three terms has two: the code is as long, and more were not measured unrolled
_MOST_TAP_ROWS = 12  # of a ring
BARRIERS = 256  # bytes at the beginning of the shared memory, two barriers for each box and tap row


@dataclass(frozen=True)
class BulkTile:
    """A block computes TH x TW pixels of 64 rows by BN columns; a warpgroup PW neighbours of a row.

    A box has DEPTH times as many channels as make 8 of k. One warpgroup more takes care of the copies.
    """

    TH: int
    TW: int
    PW: int
    DEPTH: int
    BN: int

    @property
    def warpgroups(self):
        """Warpgroups that multiply."""
        return self.TH * self.TW // self.PW

    @property
    def threads(self):
        """Threads of a block."""
        return (self.warpgroups + 1) * WARPGROUP

    @property
    def registers(self):
        """What a thread that multiplies may have: what the copying ones leave of the block's, which all have alike at first."""
        left = self._at_first * (self.warpgroups + 1) - PRODUCER_REGISTERS
        return min(MOST_SET_REGISTERS, left // self.warpgroups // 8 * 8)

    @property
    def _at_first(self):
        """Registers of a thread as the assembler hands them out."""
        return H100.registers // self.threads // 8 * 8

    def __str__(self):
        return (
            f"{self.TH}x{self.TW} pixels of {BM} rows by {self.BN}, "
            f"{self.warpgroups} warpgroups of {self.PW}, depth {self.DEPTH}"
        )


@dataclass(frozen=True)
class Box:
    """What one copy brings of the gathered array, and how it lies in shared memory, in elements.

    Attributes
    ----------
    images, rows, columns, channels : int
        Sizes; in lines images are the pixels of a line; rows and columns are the slots of a tile's patch, of whole rows a few more where banks would conflict.
    pixel : int
        D1*D elements of a pixel.
    whole_rows : bool
        A row's pixels follow each other, as they do in the array; otherwise all images of a pixel.
    between : int
        In lines (:mod:`numbacaps.fused.rung_5_warp_specialized.lines`), columns of slots from one row of the product, or D1
        of them, to the next: these share the columns that windows share. Otherwise 0.
    """

    images: int
    rows: int
    columns: int
    channels: int
    pixel: int
    whole_rows: bool
    between: int = 0

    @classmethod
    def of(cls, product, G, tile):
        """The box of a :class:`numbacaps.fused.implicit_gemm.Product` and a tile."""
        p = product.pixels
        rows, columns = Window.of(product).patch(p, tile)
        pixel, at_once = p.D1 * product.D, BM // p.D1
        channels = tile.DEPTH * _K // gcd(_K, product.D)
        if p.in_lines:
            between = p.left[0]
            columns += (at_once - 1) * between
            return cls(at_once, rows, columns, channels, pixel, False, between)
        whole_rows = G == 1 and pixel * _FLOAT < _LINE and columns * pixel <= LARGEST_BOX
        whole_rows = whole_rows and row_reach(p, columns) * pixel < 2**31  # TMA's coordinates
        more = columns + 4 // gcd(4, pixel)  # runs stay multiples of 16 bytes
        if whole_rows and columns * pixel % (_BANKS // 2) == 0 and more * pixel <= LARGEST_BOX:
            columns = more  # or images would begin at the same banks
        return cls(at_once, rows, columns, channels, pixel, whole_rows)

    @property
    def image_step(self):
        """From one image to the next; in lines from one pixel of the result."""
        return self.pixel * (self.columns if self.whole_rows else self.between or 1)

    @property
    def column_step(self):
        """From one column of slots to the next."""
        return self.pixel * (1 if self.whole_rows or self.between else self.images)

    @property
    def row_step(self):
        """From one row of slots to the next."""
        return self.pixel * self.columns * (1 if self.between else self.images)

    @property
    def channel_step(self):
        """From one channel to the next."""
        return self.row_step * self.rows

    @property
    def bytes(self):
        """Of the whole box."""
        return self.channel_step * self.channels * _FLOAT

    @property
    def copied_rows(self):
        """Runs of elements that lie together in the array."""
        runs = self.channels * self.rows * (1 if self.whole_rows else self.columns)
        return runs * (1 if self.between else self.images)

    def tensor(self, product, images, G):
        """(sizes, strides, box) for :func:`numbacaps.device.tensor_map.tensor_map`.

        The axes are (g and pixel's element, image, column, row, channel); where rows are fetched whole the
        columns are part of the first one. In lines they are (g and pixel's element, column, image, row, channel), and the
        product knows how many images there are.
        """
        p = product.pixels
        image, (row, column) = p.gathered[0], p.unit
        height, width = p.extent
        channel = product.channel_steps[0]
        if self.between:
            elements = (G - 1) * p.steps[0] + self.pixel
            sizes = (elements, width, p.columns, height, product.channels)
            strides = (column, p.gathered[2], row, channel)
            return sizes, strides, (self.pixel, self.columns, 1, self.rows, self.channels)
        if self.whole_rows:
            sizes = (width * column, images, 1, height, product.channels)
            strides = (image, row, row, channel)
            return sizes, strides, (self.columns * column, self.images, 1, self.rows, self.channels)
        sizes = (G * self.pixel, images, width, height, product.channels)
        strides = (image, column, row, channel)
        return sizes, strides, (self.pixel, self.images, self.columns, self.rows, self.channels)


@dataclass(frozen=True)
class Rings:
    """How many boxes, and how many tap rows of the kernel, are in shared memory at a time.

    Attributes
    ----------
    boxes, tap_rows : int
    box_bytes, tap_row_bytes : int
        Of each, padded to 128.
    """

    boxes: int
    tap_rows: int
    box_bytes: int
    tap_row_bytes: int

    @classmethod
    def of(cls, product, box, tile, terms):
        """As many as there is room for; None where two boxes and a batch of tap rows do not fit."""
        a = ceil_div(box.bytes, 128) * 128
        down, across = Window.of(product).taps
        depth = box.channels * product.D
        batch = batch_rows(tile, product, box, terms) or 1
        b = across * depth * tile.BN * _FLOAT * (2 if terms > 1 else 1)
        for boxes in (4, 3, 2):
            rows = (SHARED_LIMIT - 128 - BARRIERS - boxes * a) // b
            if rows >= (boxes - 1) * down + 1 or (boxes == 2 and rows >= max(2, batch)):
                return cls(boxes, min(rows, boxes * down, _MOST_TAP_ROWS), a, b)
        return None

    @property
    def bytes(self):
        """Shared memory of a block, and what aligning its beginning may take."""
        return 128 + BARRIERS + self.boxes * self.box_bytes + self.tap_rows * self.tap_row_bytes


# (TH, TW, PW), from large to small. A block keeps one multiprocessor busy.
_SHAPES = (
    (2, 8, 8),
    (2, 6, 6),
    (2, 4, 4),
    (1, 8, 4),
    (2, 3, 3),
    (1, 6, 3),
    (2, 2, 2),
    (1, 4, 2),
    (1, 3, 1),
    (2, 1, 1),
    (1, 2, 1),
    (1, 1, 1),
)
# In lines, where a tile's one column is an image.
_LINES = (4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 1)
MOST_DIFFERENTIATED = 4  # pixels of a warpgroup whose activation's gradient the kernel can compute
_DEPTHS = (8, 4, 2, 1)
_MOST_COLUMNS = 128  # of a tile that is chosen
_WIDEST = 256  # columns of one product of a warpgroup
MOST_THREADS = 1024  # of a block
_PARTS = 8  # into which columns are cut beyond what they must be
# Of the cycles: worth a narrower tile, for which the first operand comes once more.
_NARROWER = 0.85
# Of a tile's cycles: the last wave in parts of tiles must take fewer, to be worth another kernel.
_WORTH = 0.9


def row_reach(pixels, columns):
    """Columns from the gathered array's first one to the furthest that a box of so many may read, on either side."""
    step, start = pixels.left
    return max(pixels.extent[1], pixels.columns * step) + abs(start) + columns


def counted(product, dtype):
    """The product in k's of 4 bytes, as this module and the kernel count; None where D is odd and elements have 2."""
    run = _FLOAT // dtype.itemsize
    return None if product.D % run else product.in_runs(run)


def tiles(product):
    """The tiles to choose from for a :class:`numbacaps.fused.implicit_gemm.Product`, wide ones first."""
    least = ceil_div(product.N, _MOST_COLUMNS)
    widths = {ceil_div(ceil_div(product.N, least + i), 8) * 8 for i in range(_PARTS)}
    return [
        BulkTile(*shape, depth, columns)
        for columns in sorted(widths, reverse=True)
        for shape in (_LINES if product.pixels.in_lines else _SHAPES)
        for depth in _DEPTHS
    ]


def why_not(tile, product, G, terms):
    """Why a tile cannot be taken for a product; None where it can."""
    p = product.pixels
    if product.taps == 0:
        return "no window reaches here"
    if tile.BN > _WIDEST:
        return f"{tile.BN} columns, of which a product of a warpgroup has {_WIDEST} at the most"
    if tile.TW % tile.PW or tile.BN % 8 or tile.threads > MOST_THREADS:
        return f"no block of {tile.threads} threads shares {tile.TW} columns by {tile.PW}, and {tile.BN} columns by 8"
    if p.D1 > BM:
        return f"D1 is {p.D1}, more than {BM} rows"
    if p.in_lines and tile.TW > 1:
        return f"tiles of {tile.TW} images; in lines they have one"
    box = Box.of(product, G, tile)
    (elements, *_), strides, sizes = box.tensor(product, 1, G)
    if elements >= 2**31 or max(strides) >= 2**38:
        return "strides are too large for TMA"
    if sizes[0] % 4 or any(stride % 4 for stride in strides):
        return f"runs of {sizes[0]} elements, or steps of {strides}, are no multiples of 16 bytes"
    step, left = p.left[0], p.left[1] + Window.of(product).first[1]
    if box.whole_rows and (left * box.pixel % 4 or step * tile.TW * box.pixel % 4):
        return f"a box begins every {step * tile.TW} pixels of {box.pixel} elements, from {left}: not at 16 bytes"
    largest = max(sizes)
    if largest > LARGEST_BOX:
        return f"a box of {largest} indices along an axis, more than {LARGEST_BOX}"
    rings = Rings.of(product, box, tile, terms)
    if rings is None:
        return f"two boxes of {box.bytes} bytes and the kernel are too much shared memory"
    if batch_rows(tile, product, box, terms) is None:
        products = products_of_batch(tile, product, box, terms, 1)
        return f"{_registers(tile, product, box, terms, 1)} registers a thread, {products} products at once"
    return None


def batch_rows(tile, product, box, terms):
    """Rows of taps whose fragments a thread holds at once: all if they fit, or one; None if not even one.

    A thread waits for all of them before it gives one back, so a ring has to have as many.
    """
    for count in (Window.of(product).taps[0], 1):
        few = count <= _MOST_TAP_ROWS
        few = few and products_of_batch(tile, product, box, terms, count) <= _MOST_PRODUCTS
        if few and _registers(tile, product, box, terms, count) <= tile.registers:
            return count
    return None


def products_of_batch(tile, product, box, terms, rows):
    """Products that a warpgroup queues at once; of three terms, those of a tap's small parts count as one."""
    taps = rows * Window.of(product).taps[1]
    return tile.PW * taps * (box.channels * product.D // _K) * (2 if terms > 1 else 1)


def columns_read(tile, product):
    """Columns of slots that a warpgroup's pixels read in a row of taps."""
    window = Window.of(product)
    step = product.pixels.left[0]
    return (tile.PW - 1) * step + abs(window.step[1]) * (window.taps[1] - 1) + 1


def ahead(tile, terms):
    """Whether a batch is loaded while another is multiplied.

    So it is where there are too few warpgroups to hide each other's loads; with three terms, products take
    long enough, and the registers are needed.
    """
    return terms == 1 and tile.warpgroups < 3


def run(D):
    """Elements of k that a thread loads from shared memory at once, at most as many as a capsule's row has."""
    return gcd(D, 16) // 4 or 1


def _registers(tile, product, box, terms, rows):
    """About how many a thread holds with the fragments of this many rows of taps."""
    split = 2 if terms > 1 else 1
    sums = tile.PW * tile.BN // 2 * split
    fragments = _fragments(tile, product, box, rows)
    places = 2 * (box.channels * product.D // _K) // run(product.D)
    others = _OTHER_REGISTERS[terms] + max(0, places - _FEW_PLACES)
    return sums + fragments * (split + ahead(tile, terms)) + others


def _fragments(tile, product, box, rows):
    """Elements of the first operand that a thread holds of this many rows of taps."""
    return rows * columns_read(tile, product) * (box.channels * product.D // _K) * 4


def choose_tile(product, images, G, terms, multiprocessors):
    """(tile, why): the tile that should take the least time; or None, and why none can be taken.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    terms : int
        Products for each pair of operands: 1 for TF32, 3 for tf32x3.
    multiprocessors : int
    """
    best, reason = None, None
    for tile in tiles(product):
        why = why_not(tile, product, G, terms)
        if why:
            reason = why
            continue
        takes = cycles(tile, product, images, G, terms, multiprocessors)
        if best is None or takes < best[0] * (1 if tile.BN == best[1].BN else _NARROWER):
            count = tiles_of(tile, product, images, G)
            best = takes, tile, f"{count} tiles, about {takes} cycles"
    return best[1:] if best else (None, reason)


def choose_tail(tile, product, images, G, terms, multiprocessors):
    """(tiles, part): how many of the last tiles to cut into smaller ones, and these; (0, None) for none.

    The last wave may have too few tiles for all multiprocessors. Parts of a tile keep more of them busy. A part
    has as many columns and channels as the tile, because the kernel is packed for these.
    """
    count = tiles_of(tile, product, images, G)
    rest = count % multiprocessors if count > multiprocessors else 0
    best = _WORTH * tile_cycles(tile, product, G, terms), None
    for shape in _SHAPES if rest else ():
        part = BulkTile(*shape, tile.DEPTH, tile.BN)
        if tile.TH % part.TH or tile.TW % part.TW or why_not(part, product, G, terms):
            continue
        waves = ceil_div(rest * parts_of(tile, part), multiprocessors)
        takes = GH100.first_cycles + waves * tile_cycles(part, product, G, terms)
        if takes < best[0]:
            best = takes, part
    return (rest, best[1]) if best[1] else (0, None)


def parts_of(tile, part):
    """How many smaller tiles a tile is."""
    return tile.TH // part.TH * (tile.TW // part.TW)


def cycles(tile, product, images, G, terms, multiprocessors):
    """About how many cycles a multiprocessor takes for all its tiles."""
    waves = ceil_div(tiles_of(tile, product, images, G), multiprocessors)
    return GH100.first_cycles + waves * tile_cycles(tile, product, G, terms)


def tile_cycles(tile, product, G, terms):
    """About how many cycles a tile takes.

    Of a box, whichever takes longest: the products of all warpgroups, the loads of all, one warpgroup
    doing both by itself, or copying. Then writing the result.
    """
    box = Box.of(product, G, tile)
    depth = box.channels * product.D
    products = tile.PW * product.taps * depth // _K * terms * tile.BN // 2
    rows = Window.of(product).taps[0]
    loads = BM * depth * rows * columns_read(tile, product) * _FLOAT // SHARED_BYTES_A_CYCLE
    batches = rows // batch_rows(tile, product, box, terms)
    alone = (
        products
        + batches * GH100.alone_cycles
        + (0 if ahead(tile, terms) else tile.warpgroups * loads)
    )
    kernel = product.taps * depth * tile.BN * _FLOAT * (2 if terms > 1 else 1)
    copied = box.bytes / GH100.box_bytes_a_cycle + kernel / GH100.packed_bytes_a_cycle
    copied += box.copied_rows * (
        GH100.whole_box_row_cycles if box.whole_rows else GH100.box_row_cycles
    )
    step = max(tile.warpgroups * max(products, loads), alone, int(copied))
    between = GH100.batch_cycles if terms == 1 else GH100.batch_cycles_of_three
    between = GH100.batch_ahead_cycles if ahead(tile, terms) else between
    step += batches * between
    written = tile.TH * tile.TW * BM * tile.BN * _FLOAT // GH100.written_bytes_a_cycle
    return ceil_div(product.channels, box.channels) * step + GH100.result_cycles + written


def later(tile, product, G, terms, count, blocks):
    """Cycles by which a block begins behind the one before it, of the blocks that have one tile less than others."""
    longer = count % blocks
    return tile_cycles(tile, product, G, terms) // (blocks - longer) if longer else 0


def tiles_of(tile, product, images, G):
    """Tiles of the result: all patches, images and columns."""
    p = product.pixels
    patches = ceil_div(p.rows, tile.TH) * ceil_div(p.columns, tile.TW)
    return G * ceil_div(images, BM // p.D1) * patches * ceil_div(product.N, tile.BN)
