"""How neighbouring lanes of a warp share a group of consecutive elements whose sum a kernel needs."""

from math import gcd

from numbacaps.device.compiled import address_of
from numbacaps.device.instructions import CHUNK

_WARP = 32


def shares(group, threads, arrays) -> tuple[int, int]:
    """How many elements a lane takes at a time, up to 16 bytes, and how many lanes a group has.

    Parameters
    ----------
    group : int
        Elements.
    threads : int
        Most threads of a block.
    arrays : sequence of flat device arrays of one dtype
        In which groups lie one behind the other.

    Returns
    -------
    tuple of int
        The second a power of two; the group is a multiple of both together.
    """
    return shares_at(group, threads, arrays[0].dtype.itemsize, gcd(*map(address_of, arrays)))


def shares_at(group, threads, itemsize, divisor):
    """The same of arrays whose addresses have a divisor; 0 where all are 0."""
    # Loads begin at multiples of what they take.
    width = gcd(group, CHUNK // itemsize, divisor // itemsize)
    return width, gcd(group // width, threads, _WARP)
