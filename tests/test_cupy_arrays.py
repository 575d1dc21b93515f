"""CuPy's arrays in, CuPy's out: shown on the simulator with a stand-in for CuPy; test_interop.py has CuPy itself."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from numbacaps import capsule_conv2d, capsule_votes
from numbacaps.call import Call
from numbacaps.device import streams
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.cupy_arrays import in_cupy
from numbacaps.device.target import cuda
from tests.support.all_functions import operands, results

_Numba = type(cuda.to_device(np.zeros(1)))


class _Array(_Numba):
    """What CuPy's array is here: the simulator's, under another name."""

    def view(self, dtype):
        return _Array(super().view(dtype)._ary)


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The memory of what the stand-in has wrapped."""
    wrapped = []

    def asarray(array):
        assert array.stream == 0  # else CuPy's host waits for that stream
        assert array.dtype.kind in "fu"  # it reads no bfloat16 from an interface
        wrapped.append(array._ary)
        return _Array(array._ary)

    cupy = SimpleNamespace(ndarray=_Array, asarray=asarray)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return wrapped


def _put(array):
    """A NumPy array as one of the stand-in's."""
    return _Array(to_device(array)._ary)


@pytest.mark.parametrize("N", [0, 2])
def test_every_function(N):
    found, right = (results(put, np.random.default_rng(N), N) for put in (_put, cuda.to_device))
    for one, other in zip(found, right, strict=True):
        assert (type(one), type(other)) == (_Array, _Numba)
        np.testing.assert_array_equal(one.copy_to_host(), other.copy_to_host())


def test_the_memory_is_the_result_s(made, rng):
    x, w, _ = map(_put, operands(rng))
    y = capsule_conv2d(x, w, algorithm="fused")
    assert len(made) == 1 and np.shares_memory(y._ary, made[0])


class _Pool:
    """Memory of the stand-in's pool."""

    def __init__(self, ptr):
        self.ptr = ptr


@pytest.mark.parametrize(
    ("at", "contiguous", "owner"),
    [(512, True, _Pool(512)), (528, True, _Pool(512)), (512, False, _Pool(512)), (512, True, 512)],
    ids=["whole", "a part", "strided", "another's"],
)
def test_an_array_of_the_pool_s_memory_is_made_by_cupy_s_constructor(
    at, contiguous, owner, monkeypatch
):
    class Made:
        def __init__(self, shape, dtype, memptr):
            self.of = shape, dtype, memptr

    array = SimpleNamespace(
        shape=(2, 3),
        dtype=np.dtype(np.float32),
        gpu_data=SimpleNamespace(owner=owner, device_pointer_value=at),
        is_c_contiguous=lambda: contiguous,
        bind=lambda: array,
    )
    cuda_of_cupy = SimpleNamespace(MemoryPointer=_Pool)
    cupy = SimpleNamespace(ndarray=Made, cuda=cuda_of_cupy, asarray=lambda array: array)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    found = in_cupy(array)
    if at == 512 and contiguous and isinstance(owner, _Pool):
        assert found.of == (array.shape, array.dtype, owner)
    else:
        assert found is array


def test_bfloat16(made, rng):
    x, w, _ = operands(rng, dtype="bfloat16")
    votes = capsule_votes(_put(x), _put(w), algorithm="indexed")
    assert type(votes) is _Array and votes.dtype == dtype_of("bfloat16")
    assert np.shares_memory(votes._ary, made[0])
    np.testing.assert_array_equal(votes.copy_to_host(), capsule_votes(x, w, algorithm="numpy"))


@pytest.mark.parametrize("put", [_put, cuda.to_device])
def test_out_is_the_caller_s_object(put, made, rng):
    x, w, dy = operands(rng)
    out = put(np.full_like(dy, np.nan))
    assert capsule_conv2d(_put(x), _put(w), out=out, algorithm="fused") is out
    assert not made and not np.isnan(out.copy_to_host()).any()


def test_it_is_x_that_decides(made, rng):
    x, w, _ = operands(rng)
    assert type(capsule_conv2d(cuda.to_device(x), _put(w), algorithm="fused")) is _Numba
    assert type(capsule_conv2d(_put(x), cuda.to_device(w), algorithm="fused")) is _Array
    assert len(made) == 1


class _Stream(int):
    """A Numba stream by its address."""

    auto_synchronize = None


@pytest.mark.parametrize(
    ("own", "told"),
    [(5, [("record", 5), ("wait", 7)]), (7, []), (0, [("record", 1), ("wait", 7)])],
)
def test_the_stream_that_is_current_in_cupy_waits_for_the_call_s(own, told, monkeypatch):
    found = []
    event = SimpleNamespace(
        record=lambda stream: found.append(("record", stream)),
        wait=lambda stream: found.append(("wait", stream)),
    )
    monkeypatch.setattr(streams, "SIMULATED", False)
    monkeypatch.setattr(streams, "cuda", SimpleNamespace(event=lambda timing: event))
    monkeypatch.setattr(streams, "_external", _Stream)
    array = cuda.to_device(np.zeros(1))
    x = SimpleNamespace(array=_put(np.zeros(1)), stream=7)
    call = SimpleNamespace(_given=[x], _gives_cupy=True, stream=own and _Stream(own))
    assert type(Call.as_given(call, array)) is _Array
    assert found == told
