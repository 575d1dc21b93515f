"""Blocks of a simulated cluster: they run at once, each on shared memory of its own, which the others write to."""

import numpy as np
import pytest

from numbacaps.device.compiled import Compiled
from numbacaps.device.instructions import (
    cluster_meet,
    copy_to_block,
    fence_proxy_async,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    shared_array,
)
from numbacaps.device.target import cuda

_FLOAT32 = np.dtype(np.float32)


@cuda.jit
def _hand_round(out, step, meets, stays):
    shared = shared_array(12, np.float32)  # of each block 4
    i, rank = cuda.threadIdx.x, cuda.blockIdx.y % 3
    block = cuda.blockIdx.x * cuda.gridDim.y + cuda.blockIdx.y
    shared[4 * rank + i] = 10 * block + i
    fence_proxy_async()
    if i == 0:
        mbarrier_init(shared, 0, 1)
        mbarrier_expect(shared, 0, 16)
    cuda.syncthreads()
    if meets:
        cluster_meet()
    if stays or rank:
        if i == 0:
            copy_to_block((rank + step) % 3, shared, 4 * rank, 16, 0)
        mbarrier_wait(shared, 0, 0)
        out[4 * block + i] = shared[4 * ((rank - step) % 3) + i]


def _run(step, meets=1, stays=1, grid=(2, 6)):
    out = cuda.to_device(np.zeros(4 * grid[0] * grid[1], _FLOAT32))
    compiled = Compiled(_hand_round, (_FLOAT32,), 3)
    compiled.on(grid, (4, 1, 1), cluster=3)(0, (out, step, meets, stays))
    return out.copy_to_host().reshape(-1, 3, 4)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_block_reads_what_another_has_written(step):
    found = _run(step)
    for number, cluster in enumerate(found):
        blocks = 3 * number + (np.arange(3) - step) % 3
        wanted = 10 * blocks[:, None] + np.arange(4)
        np.testing.assert_array_equal(cluster, wanted)


def test_a_missing_barrier_shows():
    """The other block's memory is not there yet."""
    with pytest.raises(KeyError):
        _run(1, meets=0)


def test_a_block_that_has_ended_is_not_written_to():
    with pytest.raises(AssertionError, match="the block has ended"):
        _run(1, stays=0)


def test_a_grid_that_is_no_multiple_is_an_error():
    with pytest.raises(AssertionError, match="no multiple"):
        _run(1, grid=(1, 4))
    assert _run(0).shape == (4, 3, 4)  # and the next launch runs


@cuda.jit
def _one_waits(out):
    if cuda.blockIdx.y == 0:
        cluster_meet()
        cuda.syncthreads()
    else:
        while True:
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                cluster_meet()


def test_a_deadlock_is_an_error_at_once():
    out = cuda.to_device(np.zeros(1, _FLOAT32))
    with pytest.raises(AssertionError, match="all threads of a block wait"):
        Compiled(_one_waits, (_FLOAT32,), 0).on((1, 2), (2, 1, 1), cluster=2)(0, (out,))
