"""What several threads share, and captures that threads disturb."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numbacaps
from numbacaps.algorithms.fused import FusedPasses
from numbacaps.device import handover, keeping, loading, streams, workspace
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.geometry import Geometry
from numbacaps.last_used import LastUsed
from numbacaps.made_once import made_once
from numbacaps.plan import Plan
from numbacaps.routing.options import Options
from numbacaps.routing.runner import Runner
from tests.support.fake_driver import STREAM, FakeDriver

_F4 = np.dtype(np.float32)
_GEOMETRY = Geometry(N=2, C=2, P=2, H=3, W=3, KH=2, KW=2, G=1, D1=2, D2=2, D3=2)
_SIMULATOR = pytest.mark.skipif(not SIMULATED, reason="what is decided is the same on a GPU")


def _at_once(work):
    """What two threads get of ``work()``."""
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(work) for _ in range(2)]
        return [one.result(60) for one in asked]


@pytest.fixture
def both():
    """A function that makes something new when both threads have called it, for one of them later than for the other."""
    barrier = threading.Barrier(2)

    def make(*arguments, **options):
        time.sleep(0.1 * barrier.wait(60))
        return _Made()

    return make


class _Made:
    nbytes = 0


def test_a_property(both):
    class Shared:
        @made_once
        def table(self):
            """A table."""
            return both()

    shared = Shared()
    one, other = _at_once(lambda: shared.table)
    assert one is other is shared.table is not Shared().__dict__.get("table")
    assert Shared.table.__doc__ == "A table."


@_SIMULATOR
def test_a_launcher(both, monkeypatch):
    monkeypatch.setattr(FusedPasses, "_launchers", lambda *how: [both()])
    passes = FusedPasses(_GEOMETRY, _F4, "tf32")
    for name in ("kernel_launcher", "forward_launchers"):
        one, other = _at_once(lambda name=name: getattr(passes, name))
        assert one is other is getattr(passes, name)


@_SIMULATOR
def test_the_passes_of_a_plan(both):
    plan = Plan(_GEOMETRY, _F4)
    plan._make = both
    one, other = _at_once(lambda: plan._plain)
    assert one is other and list(plan._tables.values()) == [one]


@_SIMULATOR
def test_what_routing_launches(both, monkeypatch):
    runner = Runner(_GEOMETRY, _F4, Options("dynamic", 2))
    monkeypatch.setattr(Runner, "_made", both)
    one, other = _at_once(lambda: runner._of(1, "other"))
    assert one is other is runner._of(1, "other")
    monkeypatch.setattr(Runner, "forward", both)
    one, other = _at_once(lambda: runner.recording("key", "forward", ()))
    assert one is other is runner.recorded("key")


def test_a_kept_plan(both):
    kept = LastUsed(1, 0)
    one, other = _at_once(lambda: kept.get("key", both))
    assert one is other is kept.get("key", None)


def test_workspaces_of_a_stream(monkeypatch):
    class Slow(workspace.Workspaces):
        def __init__(self, *how):
            time.sleep(0.1)
            super().__init__(*how)

    monkeypatch.setattr(workspace, "Workspaces", Slow)
    rooms = workspace.Rooms()
    one, other = _at_once(lambda: rooms.of(5))
    assert one is other is rooms.of(5)


def test_workspaces_of_many_streams(monkeypatch):
    """Some make way for others while they come."""
    monkeypatch.setattr(workspace, "keep_later", lambda *held: None)
    rooms = workspace.Rooms()

    def come(first):
        for turn in range(300):
            rooms.of(1 + (first + turn) % 24)
            rooms.of(1 + (first + 5 * turn) % 24)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(come, range(8)))
    assert len(rooms._of) == workspace.Rooms.STREAMS


# What these files have as a cached_property owns nothing on the GPU: numbers, and the launch of a kernel without a table.
_OWN_NOTHING = {"clear.py", "strided_batched_matmul.py"}


def test_properties_that_may_own_memory_are_made_once():
    package = Path(numbacaps.__file__).parent
    found = {path.name for path in package.rglob("*.py") if "cached_property" in path.read_text()}
    assert found == {"made_once.py", *_OWN_NOTHING}


@_SIMULATOR
def test_a_plan_knows_the_stream_of_a_call_behind_it(monkeypatch):
    """Other threads bring more streams than a plan keeps workspaces for, so this stream's workspaces are dropped."""
    monkeypatch.setattr(workspace, "keep_later", lambda *held: None)
    plan = Plan(_GEOMETRY, _F4)

    def others(*arrays, **how):
        for stream in range(2, 2 + workspace.Rooms.STREAMS):
            plan._rooms.of(stream)
        assert 1 not in plan._rooms._of

    vars(plan)["_plain"] = SimpleNamespace(forward_operands=others, backward_operands=others)
    plan.forward_operands(None, None, None, 1, room=object())
    assert 1 in plan._rooms._of
    plan.backward_operands(None, None, None, object(), None, 1, room=object())
    assert 1 in plan._rooms._of


def test_a_loaded_kernel_needs_no_lock(monkeypatch):
    """A thread that captures launches it while another thread loads."""
    device = SimpleNamespace(id=0)
    monkeypatch.setattr(loading, "cuda", SimpleNamespace(get_current_device=lambda: device))
    loads, goes_on = threading.Event(), threading.Event()

    def load(library):
        loads.set()
        goes_on.wait(60)
        return "loaded now"

    get = loading._one_at_a_time(load)
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(get, SimpleNamespace(_cufunc_cache={}))
        assert loads.wait(60)
        known = threads.submit(get, SimpleNamespace(_cufunc_cache={0: "loaded"}))
        assert known.result(60) == "loaded" and not other.done()
        goes_on.set()
        assert other.result(60) == "loaded now"


def _captured(driver, monkeypatch, work=lambda: None):
    monkeypatch.setattr(streams, "driver", driver)
    return streams.captured(STREAM, work)


def test_nothing_is_collected_while_a_stream_is_captured(monkeypatch):
    """A finalizer that waits for the device breaks the capture off, and does not wait."""
    driver = FakeDriver()
    graph = _captured(driver, monkeypatch, lambda: driver.collects.append(gc.isenabled()))
    assert driver.collects == [False] * 5 and gc.isenabled()
    graph.launch(STREAM)
    del graph
    captures = [
        "cuStreamBeginCapture",
        "cuStreamEndCapture",
        "cuGraphInstantiate",
        "cuGraphDestroy",
    ]
    assert driver.asked == [*captures, "cuGraphLaunch", "cuGraphExecDestroy"]
    gc.disable()
    try:
        _captured(FakeDriver(), monkeypatch)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_that_is_broken_off_is_ended(fails, monkeypatch):
    """There is no graph then, so none is destroyed. One that has been ended may be ended again, for Ctrl-C may come in between."""

    def work():
        if fails:
            raise ValueError("work")

    driver = FakeDriver(breaks_off=True)
    wrong, said = (ValueError, "work") if fails else (RuntimeError, "INVALIDATED")
    with pytest.raises(wrong, match=said):
        _captured(driver, monkeypatch, work)
    ends = 1 if fails else 2
    assert driver.asked == ["cuStreamBeginCapture", *["cuStreamEndCapture"] * ends]
    assert gc.isenabled()


def test_a_capture_whose_work_fails_leaves_no_graph(monkeypatch):
    def work():
        raise ValueError("work")

    driver = FakeDriver()
    with pytest.raises(ValueError, match="work"):
        _captured(driver, monkeypatch, work)
    assert driver.asked == ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphDestroy"]


def test_a_device_that_is_captured_is_not_idle(monkeypatch):
    """Nor does who asks wait for the capture's end, which may wait for who asks."""
    found, waits = [], []
    device = SimpleNamespace(synchronize=lambda: waits.append(1), defer_cleanup=nullcontext)
    monkeypatch.setattr(streams, "cuda", device)
    with ThreadPoolExecutor(1) as threads:

        def work():
            found.append(threads.submit(streams.is_idle).result(60))

        _captured(FakeDriver(), monkeypatch, work)
    assert found == [False] and not waits
    assert streams.is_idle() and len(waits) == 1


def test_a_device_is_not_idle_to_who_captures(monkeypatch):
    """Memory may be asked for meanwhile, and what is kept let go before."""
    found = []
    _captured(FakeDriver(), monkeypatch, lambda: found.append(streams.is_idle()))
    assert found == [False]


@pytest.fixture
def mine(monkeypatch):
    """What is kept for this test alone, as on a GPU, none of it longer than it has to be."""
    mine = keeping.Keeping(0, keeping._mark)
    monkeypatch.setattr(keeping, "_keeping", mine)
    monkeypatch.setattr(keeping, "SIMULATED", False)
    return mine


def _keep_later(gone):
    """Hand over what a stream of another library may read; ``gone`` says when it goes."""
    held = _Made()
    weakref.finalize(held, gone.append, "held")
    keeping.keep_later(SimpleNamespace(external=True), held, 8)


def test_memory_is_kept_where_the_driver_refuses_to_wait(mine, monkeypatch):
    """Another library captures a stream."""
    refuses, gone = [True], []

    def synchronize():
        if refuses[0]:
            raise RuntimeError("capturing")

    monkeypatch.setattr(streams, "cuda", SimpleNamespace(synchronize=synchronize))
    _keep_later(gone)
    keeping.let_go()
    assert not gone and len(mine) == 1
    refuses[0] = False
    keeping.let_go()
    assert gone and len(mine) == 0


def test_memory_is_kept_without_waiting_for_the_end_of_a_capture(mine, monkeypatch):
    """The captured work may wait for a lock that this thread holds."""
    gone = []
    device = SimpleNamespace(synchronize=lambda: None, defer_cleanup=nullcontext)
    monkeypatch.setattr(streams, "cuda", device)
    with ThreadPoolExecutor(1) as threads:

        def work():
            threads.submit(_keep_later, gone).result(60)
            assert not gone and len(mine) == 1

        _captured(FakeDriver(), monkeypatch, work)
    keeping.let_go()
    assert gone and len(mine) == 0


@_SIMULATOR
def test_packing_holds_no_lock_of_the_plan_while_it_waits_for_the_end_of_a_capture():
    """The captured work may be a call of the plan."""
    plan = Plan(_GEOMETRY, _F4)
    w = cuda.to_device(np.zeros(plan.w_shape, _F4))
    with ThreadPoolExecutor(1) as threads:
        with streams.between_captures():
            packing = threads.submit(plan.pack, w)
            time.sleep(0.2)
            assert not packing.done() and plan._lock.acquire(timeout=60)
            plan._lock.release()
        packing.result(60)


def test_threads_default_streams_are_many_though_they_have_one_address():
    """That of CUDA's per-thread default stream."""
    theirs, rooms = 2, workspace.Rooms()
    mine = rooms.of(theirs)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(rooms.of, theirs).result(60)
        place = threads.submit(streams.place, theirs).result(60)
    assert mine is rooms.of(theirs) is not other
    assert place != streams.place(theirs) and streams.place(7) == 7


def test_a_write_that_breaks_off_is_waited_for(monkeypatch):
    """Its kernels may be queued."""
    waits = []
    monkeypatch.setattr(handover, "SIMULATED", False)
    monkeypatch.setattr(handover, "identity", streams.place)
    monkeypatch.setattr(handover, "synchronize", lambda: waits.append(1))
    ours = handover.Handover()
    ours.before_write(5)
    assert not waits
    ours.before_write(6)
    assert waits


def test_a_capture_that_ctrl_c_ends_leaves_nothing_off(monkeypatch):
    """Also while its traceback is held, as a notebook does."""
    seen = []

    def work():
        seen.append(gc.isenabled())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as held:
        _captured(FakeDriver(), monkeypatch, work)
    assert seen == [False] and held.tb and gc.isenabled()
