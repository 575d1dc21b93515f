"""The same numbers in other places: strided, reversed, unaligned, read again and again; on the host or the device."""

import numpy as np

from numbacaps.device.bfloat16 import bits, to_device

LAYOUTS = ("contiguous", "every second", "backwards", "unaligned", "repeated")


def repeated(array):
    """An array whose images are all its first one."""
    return np.ascontiguousarray(np.broadcast_to(array[:1], array.shape))


def laid_out(array, layout, on_device):
    """A view of a larger array that has the elements of a C-contiguous one.

    Parameters
    ----------
    array : ndarray
        For ``"repeated"`` as :func:`repeated` makes it.
    layout : str
        Of :data:`LAYOUTS`.
    on_device : bool

    Returns
    -------
    ndarray or device array
    """
    place = to_device if on_device else lambda room: room
    if layout == "every second" and array.ndim > 4:
        room = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        room[..., ::2] = array
        return place(room)[(slice(None),) * (array.ndim - 1) + (slice(None, None, 2),)]
    if layout == "backwards" and array.shape[2] > 1:  # Numba makes nothing of one row, turned round
        return place(np.ascontiguousarray(array[:, :, ::-1]))[:, :, ::-1]
    if layout == "unaligned":
        room = np.empty(array.size + 1, array.dtype)
        room[1:] = array.ravel()
        return place(room)[1:].reshape(array.shape)
    if layout == "repeated" and not on_device:
        return np.broadcast_to(array[:1], array.shape)
    return place(array)


def unwritten(like, on_device):
    """A C-contiguous array of the shape and dtype of another, full of NaN."""
    array = np.full(like.shape, np.nan, like.dtype)
    return to_device(array) if on_device else array


def on_host(result):
    """A result as NumPy's, in float32 where its dtype has two bytes."""
    host = result if isinstance(result, np.ndarray) else _fetched(result)
    return host.astype(np.float32) if host.dtype.itemsize == 2 else host


def _fetched(result):
    """A device array on the host; Numba itself cannot fetch bfloat16."""
    dtype = result.dtype
    return np.ascontiguousarray(bits(result).copy_to_host()).view(dtype)
