"""From a picture to capsules: every capsule is a patch of pixels, so nothing has to be learned.

With 4 x 4 capsules a 28 x 28 digit becomes 7 x 7 capsules. A capsule of any shape T1 is a patch as
wide as its last axis and as high as the product of its other axes.
"""

import warnings
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from PIL import Image

from experiments.measuring.refusal import Refusal

DIGIT = Path(__file__).resolve().parent.parent / "data" / "digit.npy"
_MOST_PIXELS = 1 << 24  # which take about half a GB on their way to numbers from 0 to 1
_TAKES_PIXELS = f"1 to {_MOST_PIXELS:,} pixels"


@dataclass(frozen=True)
class Patches:
    """An image cut into capsules.

    Attributes
    ----------
    pixels : ndarray (C, height, width)
        The channels, values 0 to 1; whole patches only.
    capsule : tuple of int
        T1, the shape of a capsule in the order of the product's spec.
    cropped : tuple of int
        Rows and columns of the image, at its lower and right edge, that did not fill a patch.
    """

    pixels: np.ndarray
    capsule: tuple
    cropped: tuple

    @property
    def patch(self):
        """(height, width) of a patch in pixels."""
        return patch_size(self.capsule)

    @property
    def grid(self):
        """(H, W): capsules from top to bottom and from left to right."""
        height, width = self.patch
        return self.pixels.shape[1] // height, self.pixels.shape[2] // width

    @property
    def capsules(self):
        """(1, C, H, W, *T1): the pixels, patch by patch."""
        (H, W), (height, width) = self.grid, self.patch
        C = len(self.pixels)
        cut = self.pixels.reshape(C, H, height, W, width).swapaxes(2, 3)
        return np.ascontiguousarray(cut).reshape(1, C, H, W, *self.capsule)

    def lay_out(self, capsules):
        """The inverse of :attr:`capsules`: (1, C, H, W, *T1) -> (C, height, width)."""
        (H, W), (height, width) = self.grid, self.patch
        C = len(self.pixels)
        return capsules.reshape(C, H, W, height, width).swapaxes(2, 3).reshape(self.pixels.shape)


def patch_size(capsule):
    """(height, width) in pixels of a capsule of shape T1."""
    return prod(capsule[:-1]), (capsule[-1] if capsule else 1)


def read_image(path):
    """Read a ``.npy`` array or a picture file.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    ndarray of float64, (height, width)
        Grey values from 0 to 1. Bytes are divided by 255; values of another type are taken as
        they are if they lie from 0 to 1, else moved and scaled to fill that range.

    Raises
    ------
    Refusal
        The file is neither, or holds no numbers, not two axes, no pixels or too many, or NaN or infinity.
    """
    array = _read_npy(path) if str(path).endswith(".npy") else _read_picture(path)
    grey = array.astype(np.float64)
    if not np.isfinite(grey).all():
        raise Refusal("--image", f"{path}, which holds NaN or infinity", "finite numbers")
    if array.dtype == np.uint8:
        return grey / 255
    low, high = grey.min(), grey.max()
    if low >= 0 and high <= 1:
        return grey
    largest = max(abs(low), abs(high))  # divided by first, so that high - low cannot overflow
    low, high = low / largest, high / largest
    return (grey / largest - low) / max(high - low, np.finfo(np.float64).tiny)


def _read_npy(path):
    """The array of a .npy file, whose header is checked before anything is read by it."""
    try:
        with open(path, "rb") as file:
            shape, by_columns, dtype = _header(file)
            if len(shape) != 2:
                raise Refusal("--image", f"{path}, of shape {shape}", "an array of two axes")
            if dtype.kind not in "buif":
                raise Refusal("--image", f"{path}, of type {dtype}", "real numbers")
            _check_pixels(path, shape)
            array = np.fromfile(file, dtype, prod(shape))
            return array.reshape(shape, order="F" if by_columns else "C")
    except Refusal:
        raise
    except Exception as error:  # of many kinds, by what of it is damaged
        reason = getattr(error, "strerror", None) or "its header or its numbers are damaged"
        raise Refusal("--image", f"{path} ({reason})", "a .npy file of numbers") from None


def _header(file):
    """(shape, whether by columns, dtype) of a .npy file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers in the form of Python 2, and damaged ones
        version = npy.read_magic(file)
        if version == (1, 0):
            return npy.read_array_header_1_0(file)
        return npy.read_array_header_2_0(file)


def _read_picture(path):
    """A picture's pixels in grey; their number is known, and checked, before they are decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is lower
            picture = Image.open(path)
        with picture:
            _check_pixels(path, picture.size[::-1])
            # Modes I and F hold one number a pixel already; turning them to bytes would clip it.
            return np.asarray(picture if picture.mode[0] in "IF" else picture.convert("L"))
    except Refusal:
        raise
    except Exception as error:  # of many kinds, by format and by what of it is damaged
        takes = "a .npy file or a picture file"
        if isinstance(error, Image.DecompressionBombError):
            takes = _TAKES_PIXELS
        raise Refusal("--image", f"{path} ({_reason(error)})", takes) from None


def _check_pixels(path, shape):
    """Refuse an image of no pixels, or of more than are worth decoding."""
    if not 1 <= prod(shape) <= _MOST_PIXELS or min(shape) < 1:
        raise Refusal("--image", f"{path}, of shape {shape}", _TAKES_PIXELS)


def _reason(error):
    """What went wrong, in a few words."""
    said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return said.splitlines()[0].rstrip(".")


def crop_centre(image, size):
    """The middle of the image.

    Parameters
    ----------
    image : ndarray (height, width)
    size : tuple of int
        (height, width) to keep.

    Raises
    ------
    Refusal
        The image is smaller.
    """
    height, width = size
    if height > image.shape[0] or width > image.shape[1]:
        raise Refusal(
            "--crop", f"{height},{width}", "at most {},{} for this image".format(*image.shape)
        )
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def cut_patches(image, capsule, channels, dtype):
    """Cut an image into capsules.

    Parameters
    ----------
    image : ndarray (height, width)
    capsule : tuple of int
        T1.
    channels : int
        C; channel ``c`` is the image shifted ``c`` pixels to the right, zeros coming in.
    dtype : numpy.dtype

    Returns
    -------
    Patches

    Raises
    ------
    Refusal
        The image is smaller than one patch.
    """
    (height, width), (rows, columns) = patch_size(capsule), image.shape
    if height > rows or width > columns:
        raise Refusal(
            "--sizes",
            f"capsules of {height} x {width} pixels",
            f"capsules that fit the image's {rows} x {columns}",
        )
    cropped = rows % height, columns % width
    kept = image[: rows - cropped[0], : columns - cropped[1]]
    pixels = np.zeros((channels, *kept.shape), dtype)
    for c in range(min(channels, kept.shape[1])):
        pixels[c, :, c:] = kept[:, : kept.shape[1] - c]
    return Patches(pixels, tuple(capsule), cropped)
