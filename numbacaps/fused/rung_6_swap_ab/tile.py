"""The tiles of :mod:`numbacaps.fused.rung_6_swap_ab.kernel`, how an image lies in shared memory, and why not one of them."""

from dataclasses import dataclass

from numbacaps.device.gpu import GH100, H100, LARGEST_BOX, MOST_REGISTERS
from numbacaps.device.launch import MAX_GRID_Y, ceil_div
from numbacaps.fused.rung_4_wgmma.tile import BM, SHARED_LIMIT, WARPGROUP, Window

_K = 8  # of one product of a warpgroup
_FLOAT = 4  # bytes
_ATOM = 1024  # bytes; a box begins at a multiple of it, so that places are swizzled as its rows are
BARRIERS = _ATOM  # bytes at the beginning of the shared memory, of 8 each
_MOST_BARRIERS = BARRIERS // 8
_LARGEST_STEP = 8  # of a box, from one index to the next
_MOST_ROWS = 256  # of one product's second operand
_OTHER_REGISTERS = 28  # of a thread, besides sums and its part of the kernel
_UNROLLED = 144  # elements of a thread's part up to which the compiler keeps them in registers
# Bytes of a capsule's row, which TMA swizzles, and what a matrix descriptor calls that.
SWIZZLES = {32: 3, 64: 2, 128: 1}


@dataclass(frozen=True)
class SwappedTile:
    """A product of a warpgroup has 64 columns of the result by TH rows of pixels.

    CHANNEL_PARTS warpgroups have a part of the channels each, whose sums are added; or ROW_PARTS of them have
    other rows of the image. IMAGES are in shared memory at a time.
    """

    TH: int
    CHANNEL_PARTS: int
    ROW_PARTS: int
    IMAGES: int

    @property
    def warpgroups(self):
        """Of a block."""
        return self.CHANNEL_PARTS * self.ROW_PARTS

    @property
    def threads(self):
        """Threads of a block."""
        return self.warpgroups * WARPGROUP

    @property
    def registers(self):
        """That a thread may have."""
        return min(MOST_REGISTERS, H100.registers // self.threads // 8 * 8)

    def __str__(self):
        return (
            f"{BM} columns by {self.TH} rows of pixels, {self.CHANNEL_PARTS} parts of the channels, "
            f"{self.ROW_PARTS} of the rows, {self.IMAGES} images"
        )


@dataclass(frozen=True)
class Slots:
    """How an image lies in shared memory, in bytes: for each channel a box for each phase of the stride.

    Rows and columns of a stride of 2 come apart, the even ones and the odd ones: so what a tap reads for
    neighbouring pixels lies side by side, whatever the stride.

    Attributes
    ----------
    phases : tuple of tuple
        The rows, and columns, from the first slot on at which the boxes of a channel begin.
    rows, columns : int
        Of slots in each box.
    row, slot : int
        Of a capsule's row, and of its D1 rows.
    box : int
        From one to the next.
    taps : tuple of tuple
        Of each row of taps where each of its columns reads for a tile's first pixel, from its channel on.
    """

    phases: tuple
    rows: int
    columns: int
    row: int
    slot: int
    box: int
    taps: tuple

    @classmethod
    def of(cls, product):
        """The slots of a :class:`numbacaps.fused.implicit_gemm.Product`."""
        p, window = product.pixels, Window.of(product)
        found = [
            _apart(start, step, count, stride)
            for start, step, count, stride in zip(
                window.start, window.step, window.taps, (p.top[0], p.left[0])
            )
        ]
        phases = tuple(axis_phases for axis_phases, _ in found)
        rows, columns = (
            count + max(shift for _, shift in places)
            for count, (_, places) in zip((p.rows, p.columns), found)
        )
        row = product.D * _FLOAT
        slot = row * p.D1
        box = ceil_div(rows * columns * slot, _ATOM) * _ATOM
        across = len(phases[1])
        taps = tuple(
            tuple(
                (phase_down * across + phase_across) * box + (down * columns + shift) * slot
                for phase_across, shift in found[1][1]
            )
            for phase_down, down in found[0][1]
        )
        return cls(phases, rows, columns, row, slot, box, taps)

    @property
    def boxes(self):
        """Of a channel."""
        return len(self.phases[0]) * len(self.phases[1])

    @property
    def box_bytes(self):
        """That a copy brings."""
        return self.rows * self.columns * self.slot

    @property
    def channel(self):
        """From one channel to the next."""
        return self.boxes * self.box

    def tensor(self, product, images, G):
        """(sizes, strides, box, steps) for :func:`numbacaps.device.tensor_map.tensor_map`.

        The axes are (element of a capsule's row, g and d1, column, row, image and channel).
        """
        p = product.pixels
        row, column = p.unit
        height, width = p.extent
        sizes = (product.D, G * p.D1, width, height, images * product.channels)
        strides = (p.gathered[3], column, row, product.channel_steps[0])
        down, across = p.top[0], p.left[0]
        spans = (self.columns - 1) * across + 1, (self.rows - 1) * down + 1
        return sizes, strides, (product.D, p.D1, *spans, 1), (1, 1, across, down, 1)


def _apart(start, step, count, stride):
    """(phases, [(which of them, slots on) of each tap]) along an axis whose windows are ``stride`` apart."""
    taps = [start + i * step for i in range(count)]
    # In the order of the taps, so that tap i's phase is the i-th, round and round.
    phases = tuple(dict.fromkeys(tap % stride for tap in taps))
    return phases, [(i % len(phases), tap // stride) for i, tap in enumerate(taps)]


def product_rows(tile, product, slots):
    """Rows of a product's second operand: D1 of each slot from a tile's first pixel to its last."""
    count = ((tile.TH - 1) * slots.columns + product.pixels.columns) * product.pixels.D1
    return ceil_div(count, 8) * 8


def image_bytes(tile, product, slots):
    """Shared memory of an image, and what a product may read behind it."""
    p = product.pixels
    first = (ceil_div(p.rows, tile.TH) - 1) * tile.TH * slots.columns * slots.slot
    most = max(map(max, slots.taps)) + first + product_rows(tile, product, slots) * slots.row
    whole = (product.channels - 1) * slots.channel + max(slots.channel, most)
    return ceil_div(whole, _ATOM) * _ATOM


def sums_bytes(tile, product, slots):
    """Shared memory for the sums of all parts of the channels."""
    if tile.CHANNEL_PARTS == 1:
        return 0
    return tile.CHANNEL_PARTS * BM * product_rows(tile, product, slots) * _FLOAT


def shared_bytes(tile, product, slots):
    """Shared memory of a block, and what aligning its beginning may take."""
    images = tile.IMAGES * image_bytes(tile, product, slots)
    return _ATOM + BARRIERS + images + sums_bytes(tile, product, slots)


def tiles(product):
    """The tiles to choose from for a :class:`numbacaps.fused.implicit_gemm.Product`, small ones last."""
    rows = product.pixels.rows
    return [
        SwappedTile(TH, *parts, at_a_time)
        for parts in ((1, 4), (1, 3), (1, 2), (1, 1), (2, 1), (4, 1))
        for TH in range(rows, 0, -1)
        for at_a_time in (2, 1)
        if TH * parts[1] <= rows or TH == 1
    ]


def why_never(product, images, G):
    """Why no tile can be taken for a product; None where one may."""
    p = product.pixels
    if product.taps == 0:
        return "no window reaches here"
    if product.D * _FLOAT not in SWIZZLES:
        return f"capsules' rows of {product.D} elements; it takes 8, 16 or 32"
    if product.n.kernel[1] != 1:
        return "columns do not lie side by side in the kernel"
    if p.other[0] >= 2**31 or images * product.channels >= 2**31:
        return "2^31 elements of a result's image, or channels of all images, or more"
    if max(G, ceil_div(product.N, BM)) > MAX_GRID_Y:
        return f"{product.N} columns for each of {G} g: more than {MAX_GRID_Y} blocks of either"
    _, _, box, steps = Slots.of(product).tensor(product, 1, 1)
    if max(steps) > _LARGEST_STEP:
        return f"every {max(steps)}th slot, more than {_LARGEST_STEP} apart"
    if max(box) > LARGEST_BOX:
        return f"a box of {max(box)} indices along an axis, more than {LARGEST_BOX}"
    return None


def why_not(tile, product, slots):
    """Why a tile cannot be taken for a product that others may be taken for; None where it can."""
    if tile.CHANNEL_PARTS > 1 and tile.ROW_PARTS > 1:
        return "parts of the channels and of the rows at once"
    if product.channels % tile.CHANNEL_PARTS:
        return f"{product.channels} channels are not {tile.CHANNEL_PARTS} equal parts"
    if tile.IMAGES * product.channels > _MOST_BARRIERS:
        return f"{tile.IMAGES} images of {product.channels} channels, more than {_MOST_BARRIERS} barriers"
    rows = product_rows(tile, product, slots)
    if rows > _MOST_ROWS:
        return f"a product of {rows} rows, more than {_MOST_ROWS}"
    held = fragments(tile, product)
    if held > _UNROLLED or held + rows // 2 + _OTHER_REGISTERS > tile.registers:
        return f"{held} elements of the kernel and {rows // 2} sums a thread"
    shared = shared_bytes(tile, product, slots)
    if shared > SHARED_LIMIT:
        return f"{shared} bytes of shared memory, more than {SHARED_LIMIT}"
    return None


def ahead(product):
    """Bytes of an image that are brought to the L2 cache before they may be read."""
    return min(_MOST_AHEAD, product.pixels.gathered[0] * _FLOAT)


def fragments(tile, product):
    """Elements of the kernel that a thread holds."""
    return product.channels // tile.CHANNEL_PARTS * product.taps * product.D // _K * 4


_MOST_AHEAD = 32 * 1024  # bytes; of more the copies themselves come later
_FEWEST = 16  # cycles of a product, however few its rows are


def choose_tile(product, images, G, multiprocessors):
    """(tile, why, cycles): the tile that should take the least time; or None, why none can be taken, and None.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    multiprocessors : int
    """
    why = why_never(product, images, G)
    if why:
        return None, why, None
    slots, all_of = Slots.of(product), tiles(product)
    reasons = [why_not(tile, product, slots) for tile in all_of]
    legal = [tile for tile, why in zip(all_of, reasons) if not why]
    if not legal:
        return None, reasons[-1], None
    takes = {tile: cycles(tile, product, slots, images, G, multiprocessors) for tile in legal}
    tile = min(legal, key=lambda tile: (takes[tile], tile.IMAGES))
    blocks = blocks_of(product, images, G, multiprocessors)
    why = f"{blocks} blocks for the images of 64 columns, about {takes[tile]} cycles"
    return tile, why, takes[tile]


def blocks_of(product, images, G, multiprocessors):
    """Blocks that share the images of some columns."""
    others = ceil_div(product.N, BM) * G
    return max(1, min(images, multiprocessors // others))


def cycles(tile, product, slots, images, G, multiprocessors):
    """About how many cycles a multiprocessor takes for its images."""
    p = product.pixels
    others = ceil_div(product.N, BM) * G
    blocks = blocks_of(product, images, G, multiprocessors)
    images_each = ceil_div(images, blocks) * ceil_div(others * blocks, multiprocessors)
    kernel = product.K * min(product.N, BM) * _FLOAT // GH100.loaded_kernel_bytes_a_cycle
    rate = GH100.capsule_rows_a_cycle if slots.boxes == 1 else GH100.apart_capsule_rows_a_cycle
    fetched = product.channels * slots.boxes * slots.rows * slots.columns * p.D1 / rate
    count = ceil_div(p.rows, tile.TH)
    of_product = max(product_rows(tile, product, slots) // 2, _FEWEST)
    products = count * product.K // _K * of_product
    alone = products // (count * tile.CHANNEL_PARTS) + GH100.part_cycles * tile.CHANNEL_PARTS
    written = p.rows * p.columns * p.D1 * min(product.N, BM) * _FLOAT // GH100.written_bytes_a_cycle
    work = max(products, ceil_div(count, tile.ROW_PARTS) * alone) + written
    image = max(fetched, work) if tile.IMAGES > 1 else fetched + work
    return int(GH100.first_cycles + max(kernel, fetched) + work + (images_each - 1) * image)
