"""How the rows of a stage lie in shared memory where there is one for every k, so that few threads wait for one bank.

Shared memory has 32 banks of 4 bytes: what lies 128 bytes apart is on one bank. Copies write 32 bytes of four neighbouring rows at
once, and loads of 4 bytes read as much, so such rows begin 32 bytes apart on the banks. ``ldmatrix``, which loads elements of 2
bytes, reads 16 bytes of eight rows, so for it the next four rows begin 16 bytes further on.
"""

from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


def pitches(row, itemsize):
    """How far apart rows begin.

    Parameters
    ----------
    row : int
        Elements of a row: 16, or a multiple of 32.
    itemsize : int
        Bytes of an element, 2 or 4.

    Returns
    -------
    tuple of int
        Elements from a row to the next, and from each four rows to the next four.
    """
    if itemsize == 4:
        return row + 8, 4 * (row + 8)
    if row == 16:  # 32 bytes: four of them fill all banks
        return row, 4 * row + 8
    if row == 32:  # copies wait once: what would prevent it is a fourth more memory
        return tight(row)
    return row + 16, 4 * (row + 16) + 8


def tight(row):
    """The same with less memory: only what is loaded at once lies on different banks."""
    return row + 8, 4 * (row + 8)


def make_place(row, four):
    """``place(i)``: elements from the first row to row i, of :func:`pitches`.

    ``place(i + j)`` is ``place(i) + place(j)`` where i is a multiple of 4 or ``i % 4 + j % 4`` is below 4.
    """
    ROW, FOUR = map(specialized, (row, four))

    @cuda.jit(device=True, inline="always")
    def place(i):
        return i // 4 * FOUR + i % 4 * ROW

    return place
