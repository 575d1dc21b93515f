"""On a real GPU: other libraries' arrays and streams, huge arrays, arrays on another device."""

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest

import numbacaps
import reference
from experiments.measuring import device_memory, lock
from numbacaps import (
    capsule_conv2d,
    capsule_conv2d_backward,
    capsule_routing,
    capsule_routing_backward,
    capsule_votes,
    kept,
)
from numbacaps.arrays import Operand, resolve_stream
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.target import cuda
from tests.support.all_functions import results
from tests.support.dlpack import OfDlpack

pytestmark = pytest.mark.tiers("gpu")


@pytest.fixture
def huge():
    """One after another, whichever process runs them: together they exceed the GPU's memory."""
    with lock.held(Path(tempfile.gettempdir()) / "numbacaps_huge", seconds=3600):
        yield
        device_memory.release()


def _problem(rng, batch=16):
    """x, w, dy and the float64 results, for matrix capsules at stride 2."""
    x = rng.standard_normal((batch, 8, 15, 13, 4, 6)).astype(np.float32)
    w = rng.standard_normal((5, 8, 3, 3, 6, 3)).astype(np.float32)
    y = reference.capsule_convolution_einsum(x[:, :, :, :, None], w[:, :, :, :, None], 2)
    dy = rng.standard_normal(y[:, :, :, :, 0].shape).astype(np.float32)
    dx, dw = reference.capsule_convolution_backward_einsum(
        *(array[:, :, :, :, None] for array in (x, w, dy)), 2
    )
    return (x, w, dy), [array[:, :, :, :, 0] for array in (y, dx, dw)]


def _on_host(result):
    """A result as a NumPy array, whether it is CuPy's or Numba's."""
    return result.get() if hasattr(result, "get") else result.copy_to_host()


def _close(actual, wanted):
    for array, want in zip(actual, wanted):
        reference.assert_close(_on_host(array), want, 4096)


def _keep_busy(cupy):
    """Give CuPy's current stream work for some time."""
    busy = cupy.ones((4096, 4096), cupy.float32)
    for _ in range(20):
        busy = busy @ busy * np.float32(1e-4)


def _late(cupy, arrays):
    """Arrays that are written late on CuPy's current stream: work elsewhere would find NaN."""
    late = [cupy.full(array.shape, cupy.nan, array.dtype) for array in arrays]
    _keep_busy(cupy)
    for target, array in zip(late, arrays):
        target[...] = cupy.asarray(array)
    return late


def test_cupy_arrays_on_a_cupy_stream(rng):
    cupy = pytest.importorskip("cupy")
    arrays, wanted = _problem(rng)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        late = _late(cupy, arrays)
        y = capsule_conv2d(*late[:2], stride=2, stream=stream)
        dx, dw = capsule_conv2d_backward(*late, stride=2, stream=stream)
        assert all(isinstance(one, cupy.ndarray) for one in (y, dx, dw))
        _close((y, dx, dw), wanted)


@pytest.mark.parametrize("N", [0, 2])
def test_every_function_returns_cupy_arrays_for_cupy_arrays(N):
    """With the bits of Numba's."""
    cupy = pytest.importorskip("cupy")
    found, right = (
        results(put, np.random.default_rng(N), N) for put in (cupy.asarray, cuda.to_device)
    )
    for one, other in zip(found, right, strict=True):
        assert isinstance(one, cupy.ndarray) and one.dtype == other.dtype
        np.testing.assert_array_equal(one.get(), other.copy_to_host())


def test_a_cupy_array_holds_the_memory_of_a_result(rng):
    cupy = pytest.importorskip("cupy")
    (x, w, _), (want, *_) = _problem(rng)
    y = capsule_conv2d(cupy.asarray(x), cupy.asarray(w), stride=2)
    gc.collect()
    others = [cuda.to_device(np.full_like(y.get(), np.nan)) for _ in range(20)]
    _close([y], [want])
    del others


@pytest.mark.parametrize("non_blocking", [None, False, True])
def test_a_result_lies_in_cupy_s_pool(non_blocking, rng):
    """On its current stream; on another one the pool would hand memory on too early."""
    cupy = pytest.importorskip("cupy")
    (x, w, _), (want, *_) = _problem(rng)
    streams = [
        cupy.cuda.Stream.null
        if non_blocking is None
        else cupy.cuda.Stream(non_blocking=non_blocking)
        for _ in range(2)
    ]
    with streams[0]:
        x, w = cupy.asarray(x), cupy.asarray(w)
        capsule_conv2d(x, w, stride=2)
        pool = cupy.get_default_memory_pool()
        before = pool.used_bytes()
        y = capsule_conv2d(x, w, stride=2)
        assert pool.used_bytes() - before >= y.nbytes
        before = pool.used_bytes()
        other = capsule_conv2d(x, w, stride=2, stream=streams[1])
        assert (pool.used_bytes() == before) == (non_blocking is not None)
        _close([y, other], [want, want])


def test_what_cupy_runs_next_waits_for_a_call_on_another_stream(rng):
    """The host does not."""
    cupy = pytest.importorskip("cupy")
    (x, w, _), _ = _problem(rng)
    current, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with current:
        x, w = cupy.asarray(x), cupy.asarray(w)
        want = capsule_conv2d(x, w, stride=2, stream=other)  # compiles
        copied = cupy.full_like(want, np.nan)
        current.synchronize()
        # Else Numba may come to free memory that was dropped before, and the driver waits for the GPU as it does so.
        cuda.current_context().deallocations.clear()
        with other:
            _keep_busy(cupy)
        y = capsule_conv2d(x, w, stride=2, stream=other)
        assert not other.done
        copied[...] = y
        np.testing.assert_array_equal(copied.get(), want.get())


@pytest.mark.parametrize("library", ["cupy", "cuda.core"])
def test_a_stream_that_its_owner_has_destroyed(library, rng):
    """What a call on it has kept is dropped later: a driver that is asked about such a stream ends the process."""
    (x, w, _), (wanted, *_) = _problem(rng)
    x, w = (cuda.to_device(array) for array in (x, w))
    numbacaps.clear_caches()
    if library == "cupy":
        stream = pytest.importorskip("cupy").cuda.Stream(non_blocking=True)
        finish = stream.synchronize
    else:
        stream = pytest.importorskip("cuda.core").Device(0).create_stream()
        finish = stream.sync
    cuda.synchronize()
    y = capsule_conv2d(x, w, stride=2, algorithm="fused", precision="tf32x3", stream=stream)
    finish()
    _close([y], [wanted])
    assert kept.plans.nbytes > 0
    del stream, finish, y
    gc.collect()
    numbacaps.clear_caches()
    _close([capsule_conv2d(x, w, stride=2)], [wanted])


def test_the_stream_that_an_array_names(rng):
    """Without ``stream=`` the work follows the producer's stream, as CuPy's interface names it."""
    cupy = pytest.importorskip("cupy")
    arrays, wanted = _problem(rng)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = capsule_conv2d(*_late(cupy, arrays[:2]), stride=2)
        _close((y,), wanted[:1])


@pytest.mark.parametrize("algorithm", ["naive", "staged", "indexed"])
def test_torch_tensors(algorithm, rng):
    torch = pytest.importorskip("torch")
    arrays, wanted = _problem(rng)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensors = [torch.from_numpy(array).cuda() for array in arrays]
        out = torch.full(wanted[0].shape, torch.nan, device="cuda")
        how = {"stride": 2, "algorithm": algorithm, "stream": stream}
        assert capsule_conv2d(*tensors[:2], out=out, **how) is out
        dx, dw = capsule_conv2d_backward(*tensors, **how)
    stream.synchronize()
    reference.assert_close(out.cpu().numpy(), wanted[0], 4096)
    _close((dx, dw), wanted[1:])


def test_arrays_that_have_dlpack_alone(rng):
    """Read and written where they lie; the caller's object is returned."""
    torch = pytest.importorskip("torch")
    (x, w, _), (want, *_) = _problem(rng)
    y = torch.full(want.shape, torch.nan, device="cuda")
    x, w, out = map(OfDlpack, (torch.from_numpy(x).cuda(), torch.from_numpy(w).cuda(), y))
    assert capsule_conv2d(x, w, stride=2, out=out) is out
    reference.assert_close(y.cpu().numpy(), want, 4096)
    _close([capsule_conv2d(x, w, stride=2)], [want])


@pytest.mark.parametrize("strided", [False, True])
def test_torch_tensors_of_bfloat16(strided, rng):
    torch = pytest.importorskip("torch")
    arrays, _ = _problem(rng)
    x, w, dy = (torch.from_numpy(array).cuda().bfloat16() for array in arrays)
    rounded = [tensor.cpu().float().numpy()[:, :, :, :, None] for tensor in (x, w, dy)]
    want = reference.capsule_convolution_einsum(*rounded[:2], 2)[:, :, :, :, 0]
    if strided:
        x = x.movedim(1, 3).contiguous().movedim(3, 1)
    out = torch.full(want.shape, torch.nan, device="cuda", dtype=torch.bfloat16)
    assert capsule_conv2d(x, w, stride=2, out=out) is out
    reference.assert_close(out.cpu().float().numpy(), want, 4096, "bfloat16")
    wanted = reference.capsule_convolution_backward_einsum(*rounded, 2)
    for gradient, want in zip(capsule_conv2d_backward(x, w, dy, stride=2), wanted):
        assert gradient.dtype == dtype_of("bfloat16")
        have = gradient.copy_to_host().astype(np.float32)
        reference.assert_close(have, want[:, :, :, :, 0], 4096, "bfloat16")


def test_cupy_arrays_of_bfloat16(rng):
    cupy = pytest.importorskip("cupy")
    bfloat16 = dtype_of("bfloat16")
    (x, w, _), _ = _problem(rng)
    x, w = x.astype(bfloat16), w.astype(bfloat16)
    y = capsule_conv2d(*(cupy.asarray(a.view("uint16")).view(bfloat16) for a in (x, w)), stride=2)
    assert isinstance(y, cupy.ndarray) and y.dtype == bfloat16
    np.testing.assert_array_equal(y.get(), capsule_conv2d(x, w, stride=2))


def test_strided_torch_tensors(rng):
    torch = pytest.importorskip("torch")
    (x, w, _), (want, *_) = _problem(rng)
    channels_last = torch.from_numpy(x).cuda().movedim(1, 3).contiguous().movedim(3, 1)
    reversed_w = torch.from_numpy(w).cuda().transpose(4, 5).contiguous()
    y = capsule_conv2d(channels_last, reversed_w, stride=2, product="ab,cb->ac")
    reference.assert_close(y.copy_to_host(), want, 4096)


def _of_torch():
    """(to the device, back) by PyTorch."""
    torch = pytest.importorskip("torch")
    return lambda array: torch.from_numpy(array).cuda(), lambda tensor: tensor.cpu().numpy()


def _of_cupy():
    """The same by CuPy."""
    cupy = pytest.importorskip("cupy")
    return cupy.asarray, cupy.asnumpy


@pytest.mark.parametrize("library", [_of_torch, _of_cupy])
def test_routing_takes_arrays_of_other_libraries(library, rng):
    """The same bits as of Numba's, also where they are written to."""
    arrays, _ = _problem(rng, 2)
    found = []
    for put, get in (library(), (cuda.to_device, lambda array: array.copy_to_host())):
        x, w, dy = map(put, arrays)
        out = put(np.full_like(arrays[2], np.nan))
        assert capsule_routing(x, w, stride=2, out=out) is out
        gradients = capsule_routing_backward(x, w, dy, stride=2)
        found.append([get(out), _on_host(gradients.x), _on_host(gradients.w)])
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_every_kind_of_stream():
    numba_stream = cuda.stream()
    address = int(numba_stream)
    assert resolve_stream(None, []) == 0
    assert resolve_stream(0, []) == 0
    assert int(resolve_stream(numba_stream, [])) == address
    assert int(resolve_stream(address, [])) == address
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    for stream in (torch.cuda.Stream(), cupy.cuda.Stream()):
        pointer = getattr(stream, "cuda_stream", None) or stream.ptr
        assert int(resolve_stream(stream, [])) == pointer
    core = pytest.importorskip("cuda.core")
    device = core.Device()
    device.set_current()
    stream = device.create_stream()
    assert int(resolve_stream(stream, [])) == int(stream.handle)
    for wrong in (1.5, True, object()):
        with pytest.raises(TypeError, match="stream is .*; it takes a Numba stream"):
            resolve_stream(wrong, [])


def test_arrays_on_another_device(rng, monkeypatch):
    """The ordinal is the driver's; a second GPU is played by changing what it says."""
    (x, w, _), _ = _problem(rng)
    x, w = cuda.to_device(x), cuda.to_device(w)
    there = Operand.device_ordinal
    monkeypatch.setattr(
        Operand, "device_ordinal", lambda self: there(self) + (1 if self.name == "w" else 0)
    )
    with pytest.raises(
        ValueError, match="w is on device 1; it takes an array on the current device, 0"
    ):
        capsule_conv2d(x, w, stride=2)


@pytest.mark.usefixtures("huge")
def test_offsets_beyond_2_to_the_31(rng):
    """Votes and extended arrays of more than 2**31 elements: the last image comes out right."""
    N, C, P, H = 330, 8, 32, 16
    x = rng.standard_normal((N, C, H, H, 4, 4)).astype(np.float32)
    w = rng.standard_normal((P, C, 3, 3, 4, 4)).astype(np.float32)
    device_x, device_w = cuda.to_device(x), cuda.to_device(w)
    last = (x[-1:, :, :, :, None], w[:, :, :, :, None])
    want = reference.capsule_votes_einsum(*last)
    votes = capsule_votes(device_x, device_w)
    assert votes.size > 2**31
    reference.assert_close(votes[N - 1].copy_to_host(), want[0, ..., 0, :, :], 4)
    del votes
    y = capsule_conv2d(device_x, device_w, algorithm="staged", workspace_limit=20 << 30)
    want = reference.capsule_convolution_einsum(*last)
    reference.assert_close(y[N - 1].copy_to_host(), want[0, ..., 0, :, :], 288)


@pytest.mark.usefixtures("huge")
def test_an_input_beyond_2_to_the_31(rng):
    N = 2**31 // (64 * 32 * 32 * 16) + 2
    one = rng.standard_normal((1, 64, 32, 32, 4, 4)).astype(np.float32)
    w = rng.standard_normal((2, 64, 1, 1, 4, 4)).astype(np.float32)
    dy = rng.standard_normal((1, 2, 16, 16, 4, 4)).astype(np.float32)
    x = cuda.device_array((N, *one.shape[1:]), np.float32)
    assert x.size > 2**31
    last = x[N - 1 : N]
    last.copy_to_device(one)
    wanted = [reference.capsule_convolution_einsum(one[:, :, :, :, None], w[:, :, :, :, None], 2)]
    y = capsule_conv2d(x, cuda.to_device(w), stride=2, algorithm="indexed")
    reference.assert_close(y[N - 1 : N].copy_to_host(), wanted[0][:, :, :, :, 0], 256)
    whole_dy = cuda.device_array((N, *dy.shape[1:]), np.float32)
    whole_dy[N - 1 : N].copy_to_device(dy)
    dx, _ = capsule_conv2d_backward(x, cuda.to_device(w), whole_dy, stride=2, needs=["input"])
    want, _ = reference.capsule_convolution_backward_einsum(
        *(array[:, :, :, :, None] for array in (one, w, dy)), 2
    )
    reference.assert_close(dx[N - 1 : N].copy_to_host(), want[:, :, :, :, 0], 64)


@pytest.mark.usefixtures("huge")
def test_default_workspace_is_half_of_the_free_memory(rng, monkeypatch):
    """A convolution whose intermediates exceed the GPU's memory runs all the same."""
    an_image = 32 * 900 * 144 * 2 * 16 * 4  # bytes of its two replicated operands
    N = cuda.current_context().get_memory_info().total // an_image + 1
    x = rng.standard_normal((N, 16, 32, 32, 4, 4), dtype=np.float32)
    w = rng.standard_normal((32, 16, 3, 3, 4, 4), dtype=np.float32)
    device_x, device_w = cuda.to_device(x), cuda.to_device(w)
    y = capsule_conv2d(device_x, device_w, algorithm="staged")
    want = reference.capsule_convolution_einsum(x[-1:, :, :, :, None], w[:, :, :, :, None])
    reference.assert_close(y[N - 1].copy_to_host(), want[0, :, :, :, 0], 576)
