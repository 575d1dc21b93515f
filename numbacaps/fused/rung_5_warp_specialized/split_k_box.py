"""The boxes that TMA brings for :mod:`numbacaps.fused.rung_5_warp_specialized.split_k`: parts of rows of x and of dy."""

from dataclasses import dataclass
from math import gcd

from numbacaps.device.gpu import LARGEST_BOX
from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_4_wgmma.tile import BM

_FLOAT = 4  # bytes
_LINE = 64  # bytes that a pixel should have to be fetched by itself


@dataclass(frozen=True)
class Box:
    """What one copy brings of an array, a part of one row of pixels, and how it lies in shared memory.

    Attributes
    ----------
    columns, images, channels : int
        Sizes.
    pixel : int
        Elements of a pixel.
    whole_rows : bool
        A channel's pixels follow each other, as they do in the array; otherwise all channels of a pixel.
        Whole rows are an odd number of pixels, or of 16 bytes where pixels are smaller: TMA takes
        multiples of 16 bytes, and so neighbouring channels lie on other banks.
    """

    columns: int
    images: int
    channels: int
    pixel: int
    whole_rows: bool

    @classmethod
    def of(cls, columns, images, channels, pixel, G):
        """The box of at least this many columns."""
        unit = max(1, 4 // pixel)  # columns of 16 bytes, or one that is larger
        whole = (ceil_div(columns, unit) | 1) * unit
        whole_rows = G == 1 and pixel * _FLOAT < _LINE and whole * pixel <= LARGEST_BOX
        return cls(whole if whole_rows else columns, images, channels, pixel, whole_rows)

    @property
    def channel_step(self):
        """Elements from one channel to the next."""
        return self.pixel * (self.columns if self.whole_rows else 1)

    @property
    def image_step(self):
        """From one image to the next."""
        return self.channel_step * self.channels

    @property
    def column_step(self):
        """From one column to the next."""
        return self.pixel * (1 if self.whole_rows else self.channels * self.images)

    @property
    def bytes(self):
        """Of the whole box."""
        return self.pixel * self.columns * self.channels * self.images * _FLOAT

    def tensor(self, sizes, strides, G):
        """(sizes, strides, box) for :func:`numbacaps.device.tensor_map.tensor_map`.

        The axes are (g and pixel's element, channel, image, column, row); where rows are fetched whole the
        columns are part of the first one.

        Parameters
        ----------
        sizes, strides : tuple of int
            Of the array's channels, images, columns and rows.
        G : int
        """
        channels, images, columns, rows = sizes
        if self.whole_rows:
            channel, image, column, row = strides
            sizes = (columns * column, channels, images, 1, rows)
            strides = (channel, image, row, row)
            return sizes, strides, (self.channel_step, self.channels, self.images, 1, 1)
        sizes = (G * self.pixel, channels, images, columns, rows)
        return sizes, strides, (self.pixel, self.channels, self.images, self.columns, 1)


def boxes(tile, product, G):
    """The boxes of the gathered array and of the other one."""
    p = product.pixels
    images = tile.K * tile.GROUPS // gcd(tile.K * tile.GROUPS, p.D1)
    channels = min(BM // product.D, product.channels)
    D3 = p.other[3]
    return (
        Box.of(columns_read(tile, product), images, channels, p.D1 * product.D // tile.PAIR, G),
        Box.of(tile.PW, images, tile.BN // D3, p.D1 * D3 // tile.PAIR, G),
    )


def tensors(tile, product, images, G):
    """What the tensor maps of the gathered array and of the other one are made of."""
    p = product.pixels
    of_x, of_dy = boxes(tile, product, G)
    P = product.N // product.n.D
    height, width = p.extent
    of_x_steps = (product.channel_steps[0], p.gathered[0], p.unit[1], p.unit[0])
    of_dy_steps = (product.n.other, p.other[0], p.other[2], p.other[1])
    counted = (tuple(step // tile.PAIR for step in steps) for steps in (of_x_steps, of_dy_steps))
    of_x_steps, of_dy_steps = counted
    return (
        of_x.tensor((product.channels, images, width, height), of_x_steps, G),
        of_dy.tensor((P, images, p.columns, p.rows), of_dy_steps, G),
    )


def columns_read(tile, product):
    """Columns of slots that the taps of PW pixels read."""
    return ((tile.PW - 1) * product.pixels.left[0] + int(product.tap_columns.max(initial=0))) + 1
