"""Launches that are written down: stand-ins for arrays, and repetition on other memory."""

import numpy as np
import pytest

from numbacaps.device.compiled import Compiled, aligned, as_argument
from numbacaps.device.recorded import Recording, StandIn
from numbacaps.device.target import SIMULATED, cuda

pytestmark = pytest.mark.tiers("simulator", "gpu")
_FLOAT32 = np.dtype(np.float32)


@cuda.jit
def _add_kernel(
    x,  # in   (count,)
    y,  # in and out  (count,)
    count,
    times,
):
    i = cuda.grid(1)
    if i < count:
        y[i] += times * x[i]


def _memory(array):
    """A device array's memory, as a recording takes it."""
    if SIMULATED:
        return type(array)(np.asarray(array).view(np.uint8))
    return array.device_ctypes_pointer.value


def test_what_was_written_down_runs_on_other_memory():
    x, y = StandIn("x", 0, (2, 3), _FLOAT32), StandIn("y", 4, (3,), _FLOAT32)
    recording = Recording()
    launched = Compiled(_add_kernel, (_FLOAT32,) * 2, 2).on((1, 1, 1), (32, 1, 1))
    for times, row in ((1, x[1]), (10, x[:1])):
        recording.note(launched, (row, y, 3, times))
    for first in (0, 100):
        of_x = cuda.to_device(np.arange(first, first + 6, dtype=np.float32))
        of_y = cuda.to_device(np.zeros(4, np.float32))
        recording.repeat(0, {"x": _memory(of_x), "y": _memory(of_y)})
        wanted = np.arange(first + 3, first + 6) + 10 * np.arange(first, first + 3)
        assert of_y.copy_to_host().tolist() == [0, *wanted]


def test_stand_ins_lie_as_arrays_do():
    array = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    one = StandIn("x", 0, (5, 3, 4), _FLOAT32)
    cases = [
        (one[1:3], array[1:3]),
        (one[4], array[4]),
        (one[2:].reshape(36), array[2:].reshape(36)),
        (one[1].reshape((12,)).view(np.float16)[:5], array[1].reshape(12).view(np.float16)[:5]),
    ]
    for found, want in cases:
        assert found.shape == want.shape and found.dtype == want.dtype
        assert found.first == want.__array_interface__["data"][0] - array.ctypes.data
        assert (found.size, found.nbytes) == (want.size, want.nbytes)


def test_workspaces_are_as_large_as_what_is_asked_for():
    recording = Recording()
    for shape in ((2, 3), (4, 5), (1, 1)):
        found = recording.of(0)["sums"].arrays({"sums": shape}, _FLOAT32)["sums"]
        assert found == StandIn("workspace sums", 0, shape, _FLOAT32)
    assert recording.workspaces == {"workspace sums": 80}


@pytest.mark.tiers("gpu")
def test_stand_ins_are_aligned_as_their_memory():
    one = StandIn("x", 0, (5, 4), _FLOAT32)
    other = StandIn("x", 0, (5, 4), _FLOAT32, is_aligned=False)
    assert aligned(16, as_argument(one)) and aligned(16, as_argument(one[1]))
    assert not aligned(16, as_argument(one.reshape(20)[1:]))
    assert not aligned(16, as_argument(other))
