"""A warp's sums: what multiplies into them, what becomes of their parts, and how they are stored.

A thread holds DOWN x BESIDE products of 16 rows by 8 columns, four sums of each: two neighbours of a row, and the same
eight rows on.
"""

import numpy as np

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import WARP_PRODUCTS, store_pair
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


def make_store(result, paired, down, beside):
    """``store(array, acc, to_row, to_column)``: the sums, where offsets of their rows and columns are not negative."""
    _, write = conversions(result)
    PAIRED, OWN_ROWS, BESIDE = map(specialized, (paired, 2 * down, beside))

    @cuda.jit(device=True, inline="always")
    def store(array, acc, to_row, to_column):
        for i in range(OWN_ROWS):
            if to_row[i] >= 0:
                for j in range(BESIDE):
                    at_sum = (i // 2 * BESIDE + j) * 4 + i % 2 * 2
                    one, two = write(acc[at_sum]), write(acc[at_sum + 1])
                    if PAIRED == 1:
                        if to_column[2 * j] >= 0:
                            store_pair(array, to_row[i] + to_column[2 * j], one, two)
                    else:
                        if to_column[2 * j] >= 0:
                            array[at(to_row[i] + to_column[2 * j])] = one
                        if to_column[2 * j + 1] >= 0:
                            array[at(to_row[i] + to_column[2 * j + 1])] = two

    return store
