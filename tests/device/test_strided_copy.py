"""Strided arrays read in C order: their axes merged, and copied."""

from itertools import product

import numpy as np
import pytest

from numbacaps.arrays import describe
from numbacaps.device.strided_copy import Part, gather, merge_axes
from numbacaps.device.target import cuda
from numbacaps.routing.place import place

# Shape and strides in elements: contiguous, broadcast before, between and behind, backwards, permuted, apart.
LAYOUTS = {
    "contiguous": ((2, 3, 4), (12, 4, 1)),
    "broadcast first": ((3, 4), (0, 1)),
    "broadcast behind a contiguous axis": ((4, 3), (1, 0)),
    "broadcast behind a strided axis": ((4, 3), (3, 0)),
    "broadcast between": ((2, 3, 4), (4, 0, 1)),
    "broadcast twice": ((2, 3, 4), (1, 0, 0)),
    "broadcast of one": ((3, 4), (0, 0)),
    "backwards": ((3, 4), (-4, -1)),
    "backwards in part": ((3, 4), (4, -1)),
    "permuted": ((4, 2, 3), (1, 12, 4)),
    "apart": ((2, 3, 2), (20, 6, 1)),
    "axes of one": ((1, 3, 1, 2), (99, 2, 7, 1)),
    "one": ((1, 1), (5, 5)),
}


def _offsets(shape, strides):
    """Where the elements lie, in C order."""
    return [
        sum(at * step for at, step in zip(place, strides)) for place in product(*map(range, shape))
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_merged_axes_are_the_same_elements(layout):
    shape, strides = LAYOUTS[layout]
    merged = merge_axes(shape, strides)
    assert _offsets(*merged) == _offsets(shape, strides)
    assert len(merged[0]) == len(merged[1]) <= len(shape)


def test_adjoining_axes_become_one():
    assert merge_axes((2, 3, 4), (12, 4, 1)) == ((24,), (1,))
    assert merge_axes((2, 3, 4), (4, 0, 1)) == ((2, 3, 4), (4, 0, 1))
    assert merge_axes((3, 4), (-4, -1)) == ((12,), (-1,))


@pytest.mark.parametrize("layout", ["contiguous", "permuted", *(n for n in LAYOUTS if "cast" in n)])
def test_a_copy_reads_what_numpy_does(layout):
    shape, strides = LAYOUTS[layout]
    memory = np.arange(99, dtype=np.float32)
    source = np.lib.stride_tricks.as_strided(memory, shape, [4 * step for step in strides])
    there = type(cuda.to_device(memory))(source)
    for order in {tuple(range(len(shape))), tuple(reversed(range(len(shape))))}:
        copied = gather(describe("x", there), order, 0).copy_to_host()
        np.testing.assert_array_equal(copied, source.transpose(order), strict=True)


@pytest.mark.parametrize(
    "indices",
    [(slice(1, 2), slice(None), slice(2, 4)), (slice(0, 3),), (slice(1, 1), slice(1, 2)), ()],
)
def test_a_part_is_what_a_slice_is(indices):
    """Read, and written to."""
    whole = np.arange(3 * 2 * 5 * 4, dtype=np.float32).reshape(3, 2, 5, 4)
    there, order = cuda.to_device(whole), (0, 2, 1, 3)
    part = Part(there, *indices)
    wanted = whole[indices].transpose(order)
    assert part.shape == whole[indices].shape and part.strides == whole.strides
    if wanted.size:
        copied = gather(part, order, 0)
        np.testing.assert_array_equal(copied.copy_to_host(), wanted, strict=True)
        row = wanted.size // 2
        place(copied, part, order, 0, added=row)
        want = wanted.flatten()
        want[:row] *= 2
        whole[indices] = want.reshape(wanted.shape).transpose(order)
    np.testing.assert_array_equal(there.copy_to_host(), whole, strict=True)
