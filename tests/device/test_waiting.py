"""What waits for what: shown without a GPU, on streams that do their work as late as they may."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from numbacaps import arrays
from numbacaps.device import compiled, streams
from numbacaps.nn import data
from tests.support.fake_driver import STREAM, FakeDriver
from tests.support.nn_networks import batch, network

# ---- a stream that follows others


class _Event:
    """Writes down where it is recorded, and who waits for it."""

    def __init__(self, told):
        self.told = told

    def record(self, stream):
        self.told.append(("record", self, stream))

    def wait(self, stream):
        self.told.append(("wait", self, stream))


class _NumbaStream(int):
    """A stream by its address."""

    auto_synchronize = None


@pytest.fixture
def told(monkeypatch):
    """What is told to the events that are made meanwhile, as on a GPU."""
    told = []
    for module in (arrays, streams):
        monkeypatch.setattr(module, "SIMULATED", False)
    monkeypatch.setattr(streams, "cuda", SimpleNamespace(event=lambda timing: _Event(told)))
    monkeypatch.setattr(streams, "_external", _NumbaStream)
    return told


def _operands(*made_on):
    """Operands on the device that name these streams."""
    return [SimpleNamespace(on_device=True, stream=one, array=None) for one in made_on]


def test_a_call_waits_for_the_streams_that_its_arrays_name(told):
    stream = arrays.resolve_stream(_NumbaStream(5), _operands(7, None, 9, 7))
    assert stream == 5
    recorded = {event: at for what, event, at in told if what == "record"}
    assert sorted(recorded.values()) == [7, 9]
    assert [(what, at) for what, _, at in told] == [
        *(("record", told[0][2]), ("wait", 5)),
        *(("record", told[2][2]), ("wait", 5)),
    ]
    assert told[0][1] is told[1][1] and told[2][1] is told[3][1]


def test_a_call_on_the_default_stream_waits_too(told):
    assert arrays.resolve_stream(np.int64(0), _operands(7)) == 0
    assert [(what, at) for what, _, at in told] == [("record", 7), ("wait", 0)]


def test_a_stream_does_not_wait_for_itself(told):
    assert arrays.resolve_stream(None, _operands(7, 7, None)) == 7
    assert not told


def test_the_whole_device_is_not_waited_for_during_a_capture(monkeypatch):
    """CUDA refuses it to all threads while one of them captures."""
    driver, asked = FakeDriver(), threading.Event()
    told = driver.asked
    device = SimpleNamespace(
        synchronize=lambda: told.append("synchronize"), defer_cleanup=nullcontext
    )
    monkeypatch.setattr(streams, "driver", driver)
    monkeypatch.setattr(streams, "cuda", device)

    def ask():
        asked.set()
        streams.synchronize()

    other = threading.Thread(target=ask)

    def work():
        other.start()
        asked.wait()
        other.join(0.2)  # what does not wait has come by now

    graph = streams.captured(STREAM, work)
    other.join()
    captures = [
        "cuStreamBeginCapture",
        "cuStreamEndCapture",
        "cuGraphInstantiate",
        "cuGraphDestroy",
    ]
    assert graph and told == [*captures, "synchronize"]


@pytest.mark.tiers("gpu")
def test_networks_are_made_while_others_are_captured():
    """Threads with a network each: building one waits for the whole device, and its steps are captured."""
    failed, start = [], threading.Barrier(4)

    def train(seed):
        try:
            start.wait()
            for _ in range(5):
                net = network("matrix", seed=seed)
                for _ in range(3):
                    net.step(*batch(net, 3, np.random.default_rng(seed)))
                net.history()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        raise error


def test_what_is_run_beside_a_stream_is_waited_for(told, monkeypatch):
    others = (SimpleNamespace(numba=_NumbaStream(at)) for at in (11, 12))
    monkeypatch.setattr(streams, "Stream", lambda: next(others))
    beside = streams.Beside(5, count=2)
    ran = []
    for _ in range(3):
        beside.run(ran.append)
    beside.join()
    assert ran == [11, 12, 11]
    said = [(what, at) for what, _, at in told]
    branch = [("record", 5), ("wait", 11), ("record", 5), ("wait", 12), ("record", 5), ("wait", 11)]
    assert said == [*branch, ("record", 11), ("wait", 5), ("record", 12), ("wait", 5)]


# ---- the ring of rows


class _Late:
    """A stream whose work is done when the host waits for it, and no sooner."""

    numba = 0

    def __init__(self):
        self.queued, self.done = [], 0

    def event(self):
        return SimpleNamespace(at=0)

    def record(self, event):
        event.at = len(self.queued)

    def wait_for(self, event):
        self._do(event.at)

    def synchronize(self):
        self._do(len(self.queued))

    def _do(self, count):
        while self.done < count:
            self.queued[self.done]()
            self.done += 1


@pytest.mark.parametrize("first", [0, 100, data.PLACES - 1])
def test_no_row_is_written_over_before_it_is_read(first, monkeypatch):
    """However late the device is."""
    stream, read, steps = _Late(), [], range(first, first + 3 * data.PLACES + 7)

    def gather(x, labels, ring, step, *rest):
        place = len(stream.queued) + first
        stream.queued.append(lambda: read.append(ring[place % data.PLACES].copy().tolist()))

    monkeypatch.setattr(data, "gather", gather)
    images = data.Data(np.zeros((9, 1), np.float32), np.zeros(9), None)
    batch = data.RowBatch(images, 2, None, stream)
    for step in steps:
        batch.write([step, -step], step)
        batch.gather()
    assert len(stream.queued) - stream.done <= data.PLACES
    stream.synchronize()
    assert read == [[step, -step] for step in steps]


# ---- arrays that begin where copies want them


@pytest.mark.parametrize(
    ("addresses", "fits"), [((0, 160), True), ((16, 8), False), ((4, 16), False), ((), True)]
)
def test_arrays_are_asked_where_they_begin(addresses, fits, monkeypatch):
    monkeypatch.setattr(compiled, "SIMULATED", False)
    arguments = [compiled.run_as_argument(address, 64, 4) for address in addresses]
    assert compiled.aligned(16, *arguments) is fits
