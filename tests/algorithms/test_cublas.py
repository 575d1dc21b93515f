"""cuBLAS's handles: taken in turns by threads, and destroyed by clear_caches alone."""

import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps.algorithms import cublas
from numbacaps.device.streams import Stream
from numbacaps.device.target import cuda


class _Array:
    """As much of a device array as an address is read from."""

    dtype, __cuda_array_interface__ = np.dtype("f4"), {"data": (4096, False)}


class _Cublas:
    """CuPy's binding: what is asked of which handle. ``during()`` runs in each multiplication."""

    CUBLAS_OP_T, CUBLAS_OP_N = "T", "N"

    def __init__(self):
        self.made, self.asked, self.destroyed, self.during = 0, [], [], lambda: None

    def create(self):
        self.made += 1
        return self.made

    def destroy(self, handle):
        self.destroyed.append(handle)

    def sgemmStridedBatched(self, handle, *_):
        self.asked.append(handle)
        during, self.during = self.during, lambda: None
        during()


@pytest.fixture
def binding(monkeypatch):
    ours = _Cublas()
    monkeypatch.setattr(cublas, "_cublas", lambda: ours)
    monkeypatch.setattr(cublas, "_idle", {})
    monkeypatch.setitem(
        sys.modules,
        "cupy",
        SimpleNamespace(cuda=SimpleNamespace(Stream=SimpleNamespace(null=nullcontext()))),
    )
    return ours


def _multiply():
    one = (0, 0)
    batch = SimpleNamespace(products=1, images=1, channels=1, a=one, b=one, c=one, c_first=0)
    cublas.gemm_strided_batched(_Array, _Array, _Array, (2, 2, 2), batch)


def _in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)


@pytest.mark.tiers("simulator")
def test_the_next_thread_takes_the_handle(binding):
    for _ in range(3):
        _in_a_thread(_multiply)
    assert binding.asked == [1, 1, 1]


@pytest.mark.tiers("simulator")
def test_no_two_calls_share_a_handle(binding):
    _multiply()
    binding.during = lambda: _in_a_thread(_multiply)
    _multiply()
    assert binding.asked == [1, 1, 2]


@pytest.mark.tiers("simulator")
def test_a_call_that_fails_gives_its_handle_back(binding):
    def fail():
        raise RuntimeError("no multiplication")

    binding.during = fail
    with pytest.raises(RuntimeError):
        _multiply()
    _multiply()
    assert binding.asked == [1, 1]


@pytest.mark.tiers("simulator")
def test_clear_caches_destroys_the_handles(binding, monkeypatch):
    monkeypatch.setattr(cublas, "cuda", SimpleNamespace(gpus=[nullcontext()]))
    binding.during = lambda: _in_a_thread(_multiply)
    _multiply()
    assert not binding.destroyed
    numbacaps.clear_caches()
    assert sorted(binding.destroyed) == [1, 2]
    _multiply()
    assert binding.asked == [1, 2, 3]


@pytest.mark.tiers("gpu")
def test_a_thread_that_ends_breaks_no_capture_off():
    """To destroy a handle waits for the device."""
    pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    shapes = (2, 3, 6, 6, 4, 4), (2, 3, 3, 3, 4, 4)
    on_host = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    x, w = map(cuda.to_device, on_host)
    plan = numbacaps.plan(x.shape, w.shape)
    y, own, told = cuda.device_array(plan.y_shape, np.float32), Stream(), []

    def multiply():
        told.append(numbacaps.capsule_conv2d(x, w, algorithm="cublas").copy_to_host())

    multiply()
    plan(x, w, y, stream=own.numba)

    def work():
        plan(x, w, y, stream=own.numba)
        _in_a_thread(multiply)
        plan(x, w, y, stream=own.numba)

    launch = own.capture(work)
    launch()
    own.synchronize()
    in_groups = (array[:, :, :, :, None].astype(float) for array in on_host)
    want = reference.capsule_convolution_einsum(*in_groups)[:, :, :, :, 0]
    assert len(told) == 2
    for have in (*told, y.copy_to_host()):
        reference.assert_close(have, want, 3 * 3 * 3 * 4)
