"""LeakyReLU and squash of a tile's sums in registers, whose slopes a backward pass reads.

What changed from :func:`numbacaps.fused.epilogue.activate`: the lanes of a group exchange what they have of
neighbouring groups, so that each has the whole sum of one, with half of the shuffles. And that lane writes
the two numbers by which the gradient is told from the result (:func:`numbacaps.fused.activation.squash_slopes_of_result`),
so sums before the activation need not be kept.
"""

import numpy as np

from numbacaps.device.instructions import float_of, larger, short, shuffle, store_pair_where
from numbacaps.device.specialization import specialized, specialized_float32
from numbacaps.device.target import cuda
from numbacaps.fused.activation import EPSILON, leaky, squash_slopes_of_result

_ZERO = np.float32(0)
_COLUMNS = 8  # of a block: four lanes, two each
_ROWS = 2  # a lane's, 8 apart


def make_squash_tile(layer, row_address_of, column_address_of, keeps):
    """Device function that squashes a lane's sums, (blocks, rows, 2), in place; all lanes of a warp call it together.

    ``squash(sums, slopes, before, row, lane)`` takes how many groups come before the image's, and the lane's first row.

    Parameters
    ----------
    layer : numbacaps.nn.resident.layers.ResidentLayer
    row_address_of, column_address_of : device functions
        Where a row's results begin in an image's, and where a column's lie behind that.
    keeps : bool
        The slopes are written.
    """
    e = layer.epilogue
    across, down, groups = e.lanes, e.mask >> 2, layer.BN // _COLUMNS // e.blocks * _ROWS
    BLOCKS, ACROSS, FEW_LANES = map(specialized, (e.blocks, across, across - 1))
    DOWN, DOWN_BITS = map(specialized, (down, down.bit_length()))
    N, ROWS, GROUP = map(specialized, (layer.N, layer.rows.count, layer.output.group))
    GROUPS, KEEPS = map(specialized, (groups, keeps))
    SLOPE, MONOTONE = specialized_float32(e.slope), specialized(0 <= e.slope <= 1)
    REGULARISER = np.float32(EPSILON)

    @cuda.jit(device=True, forceinline=True)
    def part_of(group, block):
        """Where a lane has its part of a group, of one of its blocks."""
        return ((group // _ROWS * BLOCKS + block) * _ROWS + group % _ROWS) * 2

    @cuda.jit(device=True, forceinline=True)
    def square_of(sums, group):
        """The sum of the squares of a lane's part of a group; of the last one behind it."""
        square = _ZERO
        for block in range(BLOCKS):
            at = part_of(min(group, GROUPS - 1), block)
            square += sums[at] * sums[at]
            square += sums[at + 1] * sums[at + 1]
        return square

    @cuda.jit(device=True, forceinline=True)
    def exchange(one, other, lane, bit):
        """The sum of both lanes of the first group, or of the second one where the bit is set."""
        second = lane >> bit & 1 == 1
        mine = other if second else one
        return mine + shuffle(one if second else other, lane ^ 1 << bit)

    def squash_from(some):
        """Device function for as many groups as lanes share one, and all behind: of loops the compiler unrolls few."""
        rest = squash_from(some + across) if some + across < groups else None
        HERE, FIRST = map(specialized, (min(across, groups - some), some))
        ENDS = rest is None

        @cuda.jit(device=True, forceinline=True)
        def squash_some(sums, slopes, before, row, lane):
            own = np.uint32(lane & FEW_LANES)
            for k in range(HERE):
                for block in range(BLOCKS):
                    at = part_of(FIRST + k, block)
                    for i in range(2):
                        value = sums[at + i]
                        if MONOTONE == 1:
                            sums[at + i] = larger(value, float_of(SLOPE) * value)
                        else:
                            sums[at + i] = leaky(value, float_of(SLOPE))
            square = square_of(sums, FIRST)
            if ACROSS > 1:
                square = exchange(square, square_of(sums, FIRST + 1), lane, 0)
            if ACROSS > 2:
                behind = exchange(square_of(sums, FIRST + 2), square_of(sums, FIRST + 3), lane, 0)
                square = exchange(square, behind, lane, 1)
            for bit in range(DOWN_BITS):
                if DOWN >> bit & 1:
                    square += shuffle(square, lane ^ 4 << bit)
            factor, slope = squash_slopes_of_result(square + REGULARISER)
            if KEEPS == 1:
                # A group's number, FIRST + own, is its block's and its row's; in parts the compiler knows more.
                first = short(row - (lane >> 2 & DOWN) + (own if ACROSS > 1 else FIRST) % _ROWS * 8)
                n = np.uint32((FIRST // _ROWS + np.uint32(own // _ROWS)) * BLOCKS * _COLUMNS)
                n += np.uint32(np.uint32(lane & 3) // ACROSS * ACROSS * 2)
                e = np.uint32(row_address_of(first) + column_address_of(n))
                to = 2 * (before + np.uint32(e // GROUP))
                store_pair_where(first < ROWS and n < N, slopes, to, factor, slope)
            for k in range(HERE):
                its_factor = shuffle(factor, (lane & ~FEW_LANES) + k)
                for block in range(BLOCKS):
                    at = part_of(FIRST + k, block)
                    sums[at] *= its_factor
                    sums[at + 1] *= its_factor
            if not ENDS:
                rest(sums, slopes, before, row, lane)

        return squash_some

    return squash_from(0)
