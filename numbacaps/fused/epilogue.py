"""LeakyReLU and squash of a product's sums before they leave the registers; or the gradient of both.

A squash group is ``group`` consecutive elements of a (D1, D3) capsule, so it is a rectangle of the
result: neighbouring columns n (d3) of one row m, or all D3 columns of neighbouring rows (d1). Where
it lies within a warp's part of a tile, each lane adds the squares that it holds, and the lanes add up
their sums. Then every one of them would work out the same factor; so neighbours take as many groups at
a time as they are, each works out one group's factor, and they hand the factors round.

The gradient (:mod:`numbacaps.nn.kernels.squash` has its formula) is of a layer before the product, whose results the
product's sums reach: the sums before that layer's activation lie where the results are written.
"""

from dataclasses import dataclass

import numpy as np

from numbacaps.device.instructions import shuffle
from numbacaps.device.target import cuda
from numbacaps.fused.activation import (
    EPSILON,
    leaky,
    squash_factor,
    squash_gradient,
    squash_slopes,
)

_ZERO = np.float32(0)  # of a type that widens nothing


@dataclass(frozen=True)
class Lanes:
    """How a warp's lanes share a block of a tile; their numbers run across, then down. All powers of 2.

    A lane's sums are (blocks, rows, width), C-contiguous; blocks run along a tile's columns first.

    Attributes
    ----------
    across, down : int
        Lanes side by side, and rows of them.
    width : int
        Neighbouring columns that a lane holds.
    rows : int
        Rows that a lane holds, ``down`` apart.
    """

    across: int
    down: int
    width: int = 1
    rows: int = 1


@dataclass(frozen=True)
class Epilogue:
    """What a kernel does with its sums; by default it writes them and that is all.

    Attributes
    ----------
    keeps_sums : bool
        They are written.
    activates : bool
        They are written behind LeakyReLU and squash, to an array of their own.
    differentiates : bool
        What is written is what reaches the sums before a LeakyReLU and squash, which are read from that array.
    slope : float
        Of LeakyReLU.
    blocks : int
        Neighbouring blocks that a group reaches over.
    lanes : int
        Lanes side by side that hold a part of it.
    mask : int
        The bits in which the numbers of all lanes differ that do.
    """

    keeps_sums: bool = True
    activates: bool = False
    differentiates: bool = False
    slope: float = 1.0
    blocks: int = 1
    lanes: int = 1
    mask: int = 0

    @property
    def results(self):
        """What is written: 0 stands for the sums, 1 for what the activation makes of them."""
        return range(0 if self.keeps_sums else 1, 2 if self.activates else 1)


def fit(activation, product, columns, lanes):
    """(epilogue, why): the one for an activation; or the one without it, and why it must be.

    Parameters
    ----------
    activation : numbacaps.fused.activation.Activation or None
    product : numbacaps.fused.implicit_gemm.Product
        Of the forward pass; of the input's gradient for an activation ``backward``.
    columns : int
        Of a tile.
    lanes : Lanes
    """
    why = "none is wanted" if activation is None else why_not(activation, product, columns, lanes)
    if why:
        return Epilogue(), why
    across, down = _rectangle(activation.group, product)
    block = lanes.across * lanes.width
    beside = min(across, block) // lanes.width
    return Epilogue(
        activation.keeps_sums or activation.backward,
        not activation.backward,
        activation.backward,
        activation.slope,
        blocks=max(1, across // block),
        lanes=beside,
        mask=beside - 1 + (down - 1) * lanes.across,
    ), None


def why_not(activation, product, columns, lanes):
    """Why a kernel cannot compute an activation; None where it can. The arguments are :func:`fit`'s."""
    group, D1, D3 = activation.group, product.pixels.D1, product.pixels.other[3]
    across, down = _rectangle(group, product)
    block = lanes.across * lanes.width
    if across * down != group or D3 % across or D1 % down:
        return f"groups of {group} are neither parts of rows nor whole rows of {D1} x {D3}"
    if across % lanes.width or (block % across and (across % block or columns % across)):
        return f"a group of {across} columns does not fit {columns} in blocks of {block}"
    if lanes.down % down:
        return f"a group of {down} rows does not fit the {lanes.down} of a warp"
    return None


def _rectangle(group, product):
    """(columns, rows) of a group."""
    D3 = product.pixels.other[3]
    return min(group, D3), max(1, group // D3)


_AT_ONCE = 8  # groups whose factors a warp works out at once, at most


@cuda.jit(device=True, inline="always")
def activate(sums, count, rows, width, blocks, lanes, mask, slope):
    """LeakyReLU and squash in place; all lanes of a warp call it together.

    Sums stay in registers if all loops are unrolled, and the compiler unrolls only short ones; so
    there are four.

    Parameters
    ----------
    sums : local array (count,)
    rows, width : int
        As those of :class:`Lanes`.
    blocks, lanes, mask, slope
        As those of :class:`Epilogue`.
    """
    how = rows, width, blocks, mask, slope
    groups = count // (blocks * width)
    at_once = min(lanes, _AT_ONCE)
    quarter = -(-groups // (4 * at_once)) * at_once
    _activate_groups(sums, 0, min(groups, quarter), at_once, how)
    _activate_groups(sums, quarter, min(groups, 2 * quarter), at_once, how)
    _activate_groups(sums, 2 * quarter, min(groups, 3 * quarter), at_once, how)
    _activate_groups(sums, 3 * quarter, groups, at_once, how)


@cuda.jit(device=True, inline="always")
def _activate_groups(sums, begin, end, at_once, how):
    """Some of the groups that a lane has a part of."""
    rows, width, blocks, mask, slope = how
    lane = cuda.threadIdx.x % 32
    for some in range(begin, end, at_once):
        mine = _ZERO
        for k in range(min(at_once, end - some)):
            square = _ZERO
            for block in range(blocks):
                first = _first_of(some + k, block, rows, width, blocks)
                for i in range(first, first + width):
                    sums[i] = leaky(sums[i], slope)
                    square += sums[i] * sums[i]
            for bit in range(5):
                if mask >> bit & 1:
                    square += shuffle(square, lane ^ 1 << bit)
            if lane % at_once == k:
                mine = square
        factor = squash_factor(mine + sums.dtype.type(EPSILON))
        for k in range(min(at_once, end - some)):
            its_factor = shuffle(factor, lane - lane % at_once + k)
            for block in range(blocks):
                first = _first_of(some + k, block, rows, width, blocks)
                for i in range(first, first + width):
                    sums[i] *= its_factor


def make_differentiate(count, rows, width, epilogue, dtype):
    """Device function for the gradient of LeakyReLU and squash in place; all lanes of a warp call it together.

    ``differentiate(gradients, first, before)`` takes local arrays: from ``first`` on ``count`` of what reaches
    the results, and the ``count`` sums that the activation was of.

    Parameters
    ----------
    count : int
    rows, width : int
        As those of :class:`Lanes`.
    epilogue : Epilogue
    dtype : numpy.dtype
        Of the sums.
    """
    HOW = rows, width, epilogue.blocks, epilogue.mask
    SLOPE = dtype.type(epilogue.slope)
    GROUPS = count // (epilogue.blocks * width)
    # As for :func:`activate`, but that loops without a turn are not compiled.
    END = GROUPS if GROUPS <= 4 else -(-GROUPS // 4)

    @cuda.jit(device=True, inline="always")
    def differentiate(gradients, first, before):
        _differentiate_groups(gradients, first, before, 0, END, HOW, SLOPE)
        if GROUPS > END:
            _differentiate_groups(gradients, first, before, END, min(GROUPS, 2 * END), HOW, SLOPE)
        if GROUPS > 2 * END:
            end = min(GROUPS, 3 * END)
            _differentiate_groups(gradients, first, before, 2 * END, end, HOW, SLOPE)
        if GROUPS > 3 * END:
            _differentiate_groups(gradients, first, before, 3 * END, GROUPS, HOW, SLOPE)

    return differentiate


@cuda.jit(device=True, inline="always")
def _differentiate_groups(gradients, first, before, begin, end, how, slope):
    """Some of the groups that a lane has a part of."""
    rows, width, blocks, mask = how
    lane = cuda.threadIdx.x % 32
    for group in range(begin, end):
        square, dot = _ZERO, _ZERO
        for block in range(blocks):
            own = _first_of(group, block, rows, width, blocks)
            for i in range(own, own + width):
                value = leaky(before[i], slope)
                square += value * value
                dot += value * gradients[first + i]
        for bit in range(5):
            if mask >> bit & 1:
                square += shuffle(square, lane ^ 1 << bit)
                dot += shuffle(dot, lane ^ 1 << bit)
        f, along = squash_slopes(square + before.dtype.type(EPSILON), dot)
        for block in range(blocks):
            own = _first_of(group, block, rows, width, blocks)
            for i in range(own, own + width):
                dy = gradients[first + i]
                gradients[first + i] = squash_gradient(before[i], dy, f, along, slope)


@cuda.jit(device=True, inline="always")
def _first_of(group, block, rows, width, blocks):
    """Where a group's part of one of its blocks begins in a lane's sums."""
    return ((group // rows * blocks + block) * rows + group % rows) * width
