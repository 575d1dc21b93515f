"""A warp's sums: what multiplies into them, what becomes of their parts, and how they are stored.

A thread holds DOWN x BESIDE products of 16 rows by 8 columns, four sums of each: two neighbours of a row, and the same
eight rows on.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import WARP_PRODUCTS, short, shuffle, store_pair, unroll_loops
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cuda.jit(device=True, inline="always")
def place_of_sum(i, beside):
    """(rows, columns) from a thread's first sum to its sum ``i``; ``beside`` products of 8 columns lie side by side."""
    return i // 4 // beside * 16 + i // 2 % 2 * 8, i // 4 % beside * 8 + i % 2


def make_multiply(dtype, terms, down, beside):
    """``multiply(acc, a, b)``: the products of a warp's factors, added to its sums.

    Tensor cores cut what they add to. So in three terms they add up those of 8 words of k, from the smallest term to the
    largest, and ordinary arithmetic, which rounds, adds that to the sum.
    """
    product = WARP_PRODUCTS[dtype.name]
    THREE = terms == 3
    DOWN, BESIDE, A_LOW, B_LOW = map(specialized, (down, beside, down * 4, beside * 2))
    ZERO = np.float32(0)

    @cuda.jit(device=True, inline="always")
    def multiply(acc, a, b):
        if THREE:
            four = cuda.local.array(4, np.float32)
            for j in range(BESIDE):
                for i in range(DOWN):
                    for q in range(4):
                        four[q] = ZERO
                    product(four, 0, a, A_LOW + i * 4, b, j * 2)
                    product(four, 0, a, i * 4, b, B_LOW + j * 2)
                    product(four, 0, a, i * 4, b, j * 2)
                    for q in range(4):
                        acc[(i * BESIDE + j) * 4 + q] += four[q]
        else:
            for i in range(DOWN):
                for j in range(BESIDE):
                    product(acc, (i * BESIDE + j) * 4, a, i * 4, b, j * 2)

    return multiply


class Store(NamedTuple):
    """How a warp's sums are stored. A lane stores ``rows`` x ``columns`` times, where offsets are not negative.

    Attributes
    ----------
    rows, columns : int
    row, column : callable
        Device functions of (i, lane): the warp's row, and column, of the lane's i-th.
    store : callable
        Device function ``store(array, acc, to_row, to_column, lane)``.
    """

    rows: int
    columns: int
    row: Callable
    column: Callable
    store: Callable


def make_store(result, paired, down, beside):
    """The :class:`Store` of results whose columns come in pairs, or do not."""
    return (_make_store_pairs if paired else _make_store_alone)(result, down, beside)


def _make_store_pairs(result, down, beside):
    """A lane stores the neighbours that it has, at once."""
    _, write = conversions(result)
    ROWS, BESIDE = map(specialized, (2 * down, beside))

    @cuda.jit(device=True, inline="always")
    def row(i, lane):
        return short(i * 8 + lane // 4)

    @cuda.jit(device=True, inline="always")
    def column(i, lane):
        return short(i * 8 + lane % 4 * 2)

    @cuda.jit(device=True, forceinline=True)
    def store(array, acc, to_row, to_column, lane):
        unroll_loops()
        for i in range(ROWS):
            for j in range(BESIDE):
                at_sum = (i // 2 * BESIDE + j) * 4 + i % 2 * 2
                one, two = write(acc[at_sum]), write(acc[at_sum + 1])
                if short(to_row[i] | to_column[j]) >= 0:
                    store_pair(array, short(to_row[i] + to_column[j]), one, two)

    return Store(2 * down, beside, row, column, store)


def _make_store_alone(result, down, beside):
    """Lanes exchange sums, so that what is stored at once are eight neighbours of four rows.

    Of eight rows by every other column, each sector of 32 bytes would be written twice.
    """
    _, write = conversions(result)
    EIGHTS, BESIDE = map(specialized, (2 * down, beside))

    @cuda.jit(device=True, inline="always")
    def row(i, lane):
        return short(i * 4 + lane // 8)

    @cuda.jit(device=True, inline="always")
    def column(i, lane):
        return short(i * 8 + lane % 8)

    @cuda.jit(device=True, forceinline=True)
    def store(array, acc, to_row, to_column, lane):
        unroll_loops()
        is_above, is_even = lane < 16, lane % 2 == 0
        # Who has the lane's column of the upper four rows, and of the lower four.
        above, below = lane // 2, lane // 2 + 16
        one_from, two_from = above if is_even else below, below if is_even else above
        for i in range(EIGHTS):
            for j in range(BESIDE):
                at_sum = (i // 2 * BESIDE + j) * 4 + i % 2 * 2
                first, second = acc[at_sum], acc[at_sum + 1]
                one = shuffle(first if is_above else second, one_from)
                two = shuffle(second if is_above else first, two_from)
                if short(to_row[2 * i] | to_column[j]) >= 0:
                    to = short(to_row[2 * i] + to_column[j])
                    array[at(to)] = write(one if is_even else two)
                if short(to_row[2 * i + 1] | to_column[j]) >= 0:
                    to = short(to_row[2 * i + 1] + to_column[j])
                    array[at(to)] = write(two if is_even else one)

    return Store(4 * down, beside, row, column, store)
