"""How the rows of a stage lie in shared memory where there is one for every k, so that few threads wait for one bank.

Shared memory has 32 banks of 4 bytes: what lies 128 bytes apart is on one bank. Four neighbouring rows begin 32 bytes apart on the
banks, because copies go to 32 bytes of four rows at once, and so do loads of 4 bytes. ``ldmatrix``, which loads elements of 2
bytes, reads 16 bytes of eight rows, so for it the next four rows begin 16 bytes further on.
"""

from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda

_LINE = 128  # bytes of all banks


def pitches(row, itemsize):
    """Elements from a row of so many to the next, and from four rows to the next four."""
    if itemsize == 4:
        return row + 8, 4 * (row + 8)
    if row * itemsize < _LINE:  # 16 bytes of each of eight rows lie on different banks
        return row + 8, 4 * (row + 8)
    return row + 16, 4 * (row + 16) + 8


def make_place(row, itemsize):
    """``place(i)``: elements from the first row to row i. Where i and j have no bit in common, ``place(i + j) = place(i) + place(j)``."""
    ROW, FOUR = map(specialized, pitches(row, itemsize))

    @cuda.jit(device=True, inline="always")
    def place(i):
        return i // 4 * FOUR + i % 4 * ROW

    return place
