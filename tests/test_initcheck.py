"""The initcheck for the simulator finds reads of uninitialized memory, and only these."""

import numpy as np
import pytest

from numbacaps.device.instructions import (
    copy_chunk,
    cp_async,
    load_run,
    local_array,
    shared_array,
    store_words,
)
from numbacaps.device.target import cuda
from tests.support.initcheck import initcheck

pytestmark = pytest.mark.tiers("simulator")


def _by_element(array, out):
    out[0] = array[3]


def _by_run(array, out):
    some = local_array(4, np.float32)
    load_run(4, some, array, 4)
    out[0] = some[0]


def _by_copy(array, out):
    cp_async(16, shared_array(8, np.float32), 0, array, 4, True)
    out[0] = 1


def _by_chunk(array, out):
    copy_chunk(array, 4, out, 0)


_READS = pytest.mark.parametrize("read", [_by_element, _by_run, _by_copy, _by_chunk])


def _run(read, prepare):
    with initcheck() as initialized:
        array, out = cuda.device_array(8, np.float32), cuda.device_array(4, np.float32)
        prepare(array)
        cuda.jit(read)[1, 1](array, out)
    return initialized.errors


@_READS
def test_a_read_of_uninitialized_memory_is_an_error(read):
    (error,) = _run(read, lambda array: None)
    assert error.endswith(read.__name__)


@_READS
def test_a_read_of_initialized_memory_is_no_error(read):
    def by_kernel(array):
        for first in (0, 4):
            store_words(array, first, 1, 2, 3, 4)

    assert not _run(read, lambda array: array.copy_to_device(np.ones(8, np.float32)))
    assert not _run(read, lambda array: cuda.jit(by_kernel)[1, 1](array))


def test_views_and_masked_copies_read_nothing():
    def outside(array, out):
        cp_async(16, shared_array(8, np.float32), 0, array, 4, False)
        part = array[0:4]
        part[1] = 1
        out[0] = array[1]

    assert not _run(outside, lambda array: None)
