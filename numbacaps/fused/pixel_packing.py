"""The launcher of :mod:`numbacaps.fused.pack_pixels`, and how packed rows can lie in the workspace."""

from dataclasses import dataclass, replace

from numbacaps.device.bfloat16 import stored
from numbacaps.device.compiled import Compiled, run_as_argument
from numbacaps.device.gpu import SHARED_WITHOUT_ASKING
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.fused import pack_pixels

_ELEMENTS = 4096  # of a block
_WHOLE = 30  # bits of an element's number in a row that is not cut
_CAPSULE = 2 * CHUNK  # bytes


def seen_as(workspace, dtype, begin=0):
    """Workspace, of float32, as an argument of elements of a dtype, from a float32 on."""
    if SIMULATED:
        return (workspace[0][begin:].view(stored(dtype)),)
    address, size, itemsize = workspace[-3:]
    address, size = address + begin * itemsize, (size - begin) * itemsize
    return run_as_argument(address, size // dtype.itemsize, dtype.itemsize)


def round_up(count, each):
    """A count as a whole multiple of another."""
    return ceil_div(count, each) * each


@dataclass(frozen=True)
class Layout:
    """Where the rows of packed pixels lie, in elements.

    Attributes
    ----------
    row : int
        Of a pixel and d1: its channels' elements, filled up.
    filled : int
        Rows are filled up with zeros to a multiple of this.
    image, g, pixel, d1 : int
        From one row to the next.
    part, bits : int
        From one part of a row, of 2^bits elements, to the next.
    """

    row: int
    filled: int
    image: int
    g: int
    pixel: int
    d1: int
    part: int
    bits: int

    @classmethod
    def channels_last(cls, product, images, G, dtype):
        """(G, N, H, W, D1, row)."""
        filled = CHUNK // dtype.itemsize
        row, D1 = round_up(product.channels * product.D, filled), product.pixels.D1
        image = product.pixels.extent[0] * product.pixels.extent[1] * D1 * row
        return cls(row, filled, image, images * image, D1 * row, row, 0, _WHOLE)

    @classmethod
    def capsules(cls, product, images, G, dtype):
        """(N, parts, H, W, G, D1, 32 bytes): capsule layout, in which all channels are cut anew into such capsules."""
        D, D1 = _CAPSULE // dtype.itemsize, product.pixels.D1
        row, pixel = round_up(product.channels * product.D, D), G * D1 * D
        part = product.pixels.extent[0] * product.pixels.extent[1] * pixel
        return cls(row, D, row // D * part, D1 * D, pixel, D, part, D.bit_length() - 1)


def of_capsules(product, G, dtype):
    """The product as it reads an array in :meth:`Layout.capsules`; what it says of the kernel is of no use.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    G : int
    dtype : numpy.dtype
    """
    p, layout = product.pixels, Layout.capsules(product, 1, G, dtype)
    row = p.extent[1] * layout.pixel
    pixels = replace(
        p,
        gathered=(layout.image, p.top[0] * row, p.left[0] * layout.pixel, layout.d1),
        unit=(row, layout.pixel),
        steps=(layout.g, *p.steps[1:]),
    )
    channels, steps = layout.row // layout.filled, (layout.part, product.channel_steps[1])
    return replace(product, pixels=pixels, channels=channels, D=layout.filled, channel_steps=steps)


class PixelPacking:
    """The packing of the array that a product gathers.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    layout : Layout
    """

    def __init__(self, product, images, G, dtype, layout):
        p, C, D = product.pixels, product.channels, product.D
        capsules = p.extent[0] * p.extent[1] * G * p.D1
        self.elements = images * capsules * layout.row
        of_block, channels, pitch = _block(C, D, dtype, layout.filled)
        steps = layout.image, layout.g, layout.pixel, layout.d1, layout.part, layout.bits
        sizes = C, capsules, p.D1, G, D, layout.row
        self._numbers = *sizes, *steps, of_block, channels, pitch
        grid = ceil_div(capsules, of_block) * ceil_div(C, channels) * images
        shared = of_block * pitch * dtype.itemsize
        kernel = pack_pixels.make_pack_pixels(dtype)
        made = Compiled(kernel, (dtype, dtype), 16, shared, early=True)
        self._launch = made.on(grid, pack_pixels.THREADS, shared)

    def __call__(self, source, packed, first, stream):
        """Launch it; it writes from element ``first`` on."""
        self._launch(stream, (*source, *packed, *self._numbers, first))


def _block(C, D, dtype, filled):
    """(capsules, channels, pitch) of a block.

    A thread has an element of a channel's capsules where these are short, and several where channels are few. Rows of
    capsules begin on banks of their own.
    """
    each, some = CHUNK // dtype.itemsize, max(pack_pixels.AT_ONCE, filled)
    times = max(1, _ELEMENTS // (pack_pixels.THREADS * round_up(C, some)))
    of_block = min(pack_pixels.THREADS, max(1, pack_pixels.THREADS * times // D))
    most = max(1, _ELEMENTS // (of_block * D * some)) * some
    channels = round_up(ceil_div(C, ceil_div(C, most)), some)
    return of_block, channels, (channels * D // each | 1) * each


def why_not_packed(product, G, dtype):
    """Why the array that a product gathers is not packed; None where it is."""
    p, most = product.pixels, max(pack_pixels.AT_ONCE, _CAPSULE // dtype.itemsize)
    if p.extent[0] * p.extent[1] * G * p.D1 * product.D >= 2**28:
        return "2^28 elements of a channel or more"
    if most * product.D * dtype.itemsize + CHUNK > SHARED_WITHOUT_ASKING:
        return f"capsules of {product.D} elements, which a block's shared memory does not take"
    return None
