"""Launches of squash that are prepared, and kept for sizes that come again."""

from functools import lru_cache
from typing import NamedTuple

from numbacaps.device.compiled import Compiled
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import THREADS, spread
from numbacaps.device.warp_shares import shares_at
from numbacaps.squash.kernels import make_squash, make_squash_backward

_KEPT = 256  # sizes


class Squash(NamedTuple):
    """What is computed.

    Attributes
    ----------
    group : int
        Consecutive elements of a capsule that are squashed together.
    slope : float
        Of LeakyReLU; 1 for none.
    formula : str
        A key of :data:`numbacaps.squash.formulas.FORMULAS`.
    """

    group: int
    slope: float
    formula: str


@lru_cache(_KEPT)
def value(device, of, N, row, dtype, divisor):
    """A launch of y (N, row) from x.

    Parameters
    ----------
    device : int
        The current one.
    of : Squash
    N, row : int
        Images, and elements of one, a multiple of the group.
    dtype : numpy.dtype
        float32 or float64.
    divisor : int
        Bytes, of the addresses of all arrays; see :func:`divisor`.

    Returns
    -------
    callable
        Of a stream and the arguments x, y (:mod:`numbacaps.device.compiled`).
    """
    return _prepared(make_squash, 2, of, N, row, dtype, divisor)


@lru_cache(_KEPT)
def gradient(device, of, N, row, dtype, divisor):
    """A launch of dx (N, row) from x and dy, whose arguments are x, dy, dx; as :func:`value`."""
    return _prepared(make_squash_backward, 3, of, N, row, dtype, divisor)


def divisor_of(*addresses):
    """What :func:`value` has to know of addresses."""
    divisor = CHUNK
    for address in addresses:
        while address % divisor:
            divisor //= 2
    return divisor


def _prepared(make, arrays, of, N, row, dtype, divisor):
    width, lanes = shares_at(of.group, THREADS, dtype.itemsize, divisor)
    kernel = make(of.group, width, lanes, of.slope, dtype, of.formula)
    compiled = Compiled(kernel, (dtype,) * arrays, 2, early=True)
    launch = compiled.on(*spread(row // of.group * lanes, N))
    return lambda stream, arguments: launch(stream, (*arguments, row, N))
