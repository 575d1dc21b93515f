"""What a warp multiplies of the words of a stage: how a thread loads them, and the parts that it makes of them.

A matrix of factors lies in shared memory along k, whose neighbours are neighbours there, or across it. Of 8 words of k a
thread takes four words for each 16 rows of a, or 16 columns of b.
"""

import numpy as np

from numbacaps.device.instructions import cut_tf32, load_matrices, load_matrices_transposed
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.device.tf32 import nearer


def make_keep(itemsize, terms, count):
    """``keep(factors, i, word)``: factor i of ``count``; of three terms the high part, and the low one behind all those.

    The high part is cut, not rounded: so it is finite where the factor is. The low one is brought near to its rounding,
    so that what the tensor cores cut from it has no sign of its own.
    """
    THREE, FLOAT32, COUNT = terms == 3, itemsize == 4, specialized(count)

    @cuda.jit(device=True, inline="always")
    def keep(factors, i, word):
        if THREE:
            high = cut_tf32(word)
            factors[i] = high
            factors[COUNT + i] = nearer(word - high)
        elif FLOAT32:
            factors[i] = nearer(word)
        else:
            factors[i] = word

    return keep


def make_load_along_k(itemsize, terms, blocks, pitch):
    """``load(factors, shared, address)``: of ``blocks`` times 16 rows, whose words lie along k.

    Parameters
    ----------
    itemsize, terms, blocks : int
    pitch : int
        Bytes from a row to the next.
    """
    BLOCKS, PITCH = map(specialized, (blocks, pitch))
    keep = make_keep(itemsize, terms, 4 * blocks)

    @cuda.jit(device=True, inline="always")
    def load(factors, shared, address):
        four = cuda.local.array(4, np.float32)
        for i in range(BLOCKS):
            load_matrices(four, shared, address + i * (16 * PITCH))
            for j in range(4):
                keep(factors, i * 4 + j, four[j])

    return load


def make_load_across_k(itemsize, terms, blocks, four_rows, is_a):
    """``load(factors, shared, start, element)``: the same of rows, or columns of b, that lie across k.

    Parameters
    ----------
    itemsize, terms, blocks : int
    four_rows : int
        Elements from a k's row to that of the fourth k after it (:mod:`numbacaps.fused.mma_sync.rows`).
    is_a : bool
        The second of a thread's four words lies 8 rows on; of b it is that of the next words of k.
    """
    BLOCKS, SIZE, IS_FLOAT32 = specialized(blocks), itemsize, itemsize == 4
    SECOND, THIRD = map(specialized, (8, four_rows) if is_a else (four_rows, 8))
    keep = make_keep(itemsize, terms, 4 * blocks)

    @cuda.jit(device=True, inline="always")
    def load(factors, shared, start, element):
        four = cuda.local.array(4, np.float32)
        for i in range(BLOCKS):
            first = element + i * 16
            if IS_FLOAT32:
                four[0] = shared[at(first)]
                four[1] = shared[at(first + SECOND)]
                four[2] = shared[at(first + THIRD)]
                four[3] = shared[at(first + SECOND + THIRD)]
            else:
                load_matrices_transposed(four, shared, start + first * SIZE)
            for j in range(4):
                keep(factors, i * 4 + j, four[j])

    return load
