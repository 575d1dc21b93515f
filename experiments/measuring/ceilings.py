"""What this GPU can do at most, measured: what a row's fractions are of."""

from contextlib import suppress
from functools import cache

import numpy as np

from experiments.measuring import device_memory, gpu_time, opponents
from numbacaps.device.target import cuda
from numbacaps.extras import require


@cache
def ceilings():
    """What this GPU can do at most, measured: a large copy and a large SGEMM without TF32.

    Returns
    -------
    dict
        ``copy_gbs``, 10^9 bytes/s read and written, and ``sgemm_tflops``, which is None where
        neither PyTorch nor CuPy is installed.
    """
    gpu_time.clock()  # which says so where there is no GPU
    found = {"copy_gbs": _copy_gbs(1 << 28), "sgemm_tflops": _sgemm_tflops(8192)}
    device_memory.release()
    return found


def _copy_gbs(size):
    size = min(size, cuda.current_context().get_memory_info().free // 32)  # of float32; two of them
    numbers = np.random.default_rng(0).standard_normal(1 << 22, np.float32)
    source = cuda.to_device(np.resize(numbers, size))
    target = cuda.device_array(size, np.float32)
    times = 8

    def copy():  # not captured: a graph's copies are slower
        for _ in range(times):
            target.copy_to_device(source, stream=gpu_time.clock().numba)

    replay = gpu_time.Replay(copy, times, host_us=1000.0)
    ms = np.median(gpu_time.replay_in_turns({"copy": replay})["copy"])
    return 2 * source.nbytes / float(ms) / 1e6


def _sgemm_tflops(n):
    multiply = _large_sgemm(n)
    if multiply is None:
        return None
    multiply()
    ms = np.median(gpu_time.replay_in_turns({"sgemm": gpu_time.Replay(multiply)})["sgemm"])
    return 2 * n**3 / float(ms) / 1e9


def _large_sgemm(n):
    """A function that multiplies two n x n matrices on the clock's stream, or None."""
    for by_library in (_sgemm_by_torch, _sgemm_by_cupy):
        with suppress(Exception):  # absent, or without this GPU
            return by_library(n)
    return None


def _sgemm_by_torch(n):
    torch = opponents.torch()
    a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
    torch.cuda.synchronize()

    def multiply():
        with opponents.precision("ieee"), torch.cuda.stream(gpu_time.clock().torch):
            torch.mm(a, b)

    return multiply


def _sgemm_by_cupy(n):
    cupy = require("cupy", "cublas", "the SGEMM ceiling")
    a, b = (cupy.random.standard_normal((n, n), np.float32) for _ in range(2))
    cuda.synchronize()

    def multiply():
        with cupy.cuda.Stream.from_external(gpu_time.clock().numba):
            cupy.matmul(a, b)

    return multiply
