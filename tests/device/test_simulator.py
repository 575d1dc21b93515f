"""What the toolkit changes in Numba's simulator."""

from time import sleep

import numpy as np
import pytest
from numba import int64

from numbacaps.device.instructions import mbarrier_init, mbarrier_wait
from numbacaps.device.target import cuda


@cuda.jit
def _hand_round(out, step, meets):
    shared = cuda.shared.array(8, np.float32)
    i = cuda.threadIdx.x
    shared[i] = i
    if meets:
        cuda.syncthreads()
    out[cuda.blockIdx.x, i] = shared[(i + step) % 8]


@pytest.mark.parametrize("step", [1, 7])
def test_a_barrier_holds_all_threads(step):
    out = cuda.to_device(np.zeros((2, 8), np.float32))
    _hand_round[2, 8](out, step, True)
    np.testing.assert_array_equal(out.copy_to_host(), [(np.arange(8) + step) % 8] * 2)


@pytest.mark.parametrize("step", [1, 7])
def test_a_missing_barrier_shows_in_every_run(step):
    """What nobody has written yet is NaN."""
    results = []
    for _ in range(2):
        out = cuda.to_device(np.zeros((2, 8), np.float32))
        _hand_round[2, 8](out, step, False)
        results.append(out.copy_to_host())
    assert np.isnan(results[0]).sum() >= 7
    np.testing.assert_array_equal(*results)


@cuda.jit
def _some_leave(out):
    i = cuda.threadIdx.x
    if i % 2:
        return
    cuda.syncthreads()
    out[i] = 1


def test_who_has_left_is_not_waited_for():
    out = cuda.to_device(np.zeros(6, np.float32))
    _some_leave[1, 6](out)
    assert out.copy_to_host().tolist() == [1, 0, 1, 0, 1, 0]


@cuda.jit
def _fails(out):
    if cuda.threadIdx.x == 2:
        out[8] = 1
    cuda.syncthreads()


def test_an_error_says_which_thread(capsys):
    out = cuda.to_device(np.zeros(4, np.float32))
    with pytest.raises(IndexError, match=r"tid=\[2, 0, 0\] ctaid=\[0, 0, 0\]"):
        _fails[1, 4](out)
    _some_leave[1, 4](out)  # and the next kernel runs
    assert out.copy_to_host().tolist() == [1, 0, 1, 0]


@cuda.jit
def _nobody_comes(out):
    shared = cuda.shared.array(2, int64)
    mbarrier_init(shared, 0, 3)
    cuda.syncthreads()
    mbarrier_wait(shared, 0, 0)
    out[0] = 1


def test_a_barrier_that_nobody_completes_is_an_error_at_once():
    out = cuda.to_device(np.zeros(1, np.float32))
    with pytest.raises(AssertionError, match="all threads of a block wait"):
        _nobody_comes[1, 2](out)
    assert out.copy_to_host()[0] == 0


def test_a_failed_block_leaves_nobody_in_the_kernel():
    """The error comes when all other threads have left it too."""
    left = []

    @cuda.jit
    def kernel(out):
        try:
            cuda.syncthreads()
            if cuda.threadIdx.x == 3:
                out[99] = 1
            cuda.syncthreads()
        finally:
            sleep(0.01)
            left.append(1)

    for _ in range(5):
        left.clear()
        with pytest.raises(IndexError):
            kernel[1, 8](cuda.device_array(1))
        assert len(left) == 8
