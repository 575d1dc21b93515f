"""What calls keep, where, for how long, and how it is given back."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numbacaps
from numbacaps import call, kept, signature
from numbacaps.algorithms import fused
from numbacaps.device import handover, keeping, streams, workspace
from numbacaps.device.handover import Handover
from numbacaps.device.keeping import Keeping
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.device.workspace import Rooms
from numbacaps.last_used import LastUsed
from numbacaps.plan import Plan
from numbacaps.routing import runner
from numbacaps.routing.options import Options
from tests.support.cases import nan

pytestmark = pytest.mark.slow
_ROOT = Path(__file__).parents[1]
_X, _W, _Y = (2, 2, 3, 3, 4, 4), (2, 2, 2, 2, 4, 4), (2, 2, 2, 2, 4, 4)
_F4 = np.dtype(np.float32)
_SIMULATOR = pytest.mark.skipif(not SIMULATED, reason="pretends what a GPU does by itself")


def _arrays(*shapes):
    return [cuda.to_device(np.ones(shape, np.float32)) for shape in shapes]


class _Event:
    """An event that passes when it is told to."""

    def __init__(self, stream=None):
        self.stream, self.passed, self.waited, self.waiting = stream, False, False, []

    def record(self, stream):
        self.stream = stream

    def wait(self, stream):
        self.waiting.append(stream)

    def query(self):
        return self.passed

    def synchronize(self):
        self.passed = self.waited = True


# --- devices


def _on_device(monkeypatch, number):
    for module in (kept, fused, runner):
        monkeypatch.setattr(module, "current_device", lambda: number)


@pytest.mark.parametrize("make", ["plan", "passes", "runner"])
def test_every_device_has_its_own(make, monkeypatch):
    how = _X, _W, _F4, 1, 0, 1, "ab,bc->ac", "fused", "ieee", None, False
    of_call = signature.signature_of(*how)

    def made():
        if make == "plan":
            return kept.kept_plan(of_call, 0)
        if make == "runner":
            return runner.runner_of(of_call.geometry, _F4, Options())
        return fused.passes(of_call.geometry, _F4)

    found = {}
    for number in (0, 1, 0, 1):
        _on_device(monkeypatch, number)
        assert found.setdefault(number, made()) is made()
    assert found[0] is not found[1]


_TWO_DEVICES = """
import copy
from types import SimpleNamespace
from experiments import ahead

ahead.pretend((9, 0), 132)
import numpy as np
import numbacaps
from numba.cuda.cudadrv import devices
from numbacaps import arrays, kept
from numbacaps.device import compiled, target
from numbacaps.device.target import cuda

first = devices._runtime.get_or_create_context(0)
second = copy.copy(first)
second.device = SimpleNamespace(**{**vars(first.device), "id": 1})
on, asked, current = [first, second], [], [0]
devices._runtime.get_or_create_context = lambda number: on[current[0]]
success = target.driver.CUresult.CUDA_SUCCESS
arrays._gpus = lambda: 2
target.driver.cuCtxGetDevice = lambda: (success, current[0])
arrays.Operand.device_ordinal = lambda operand: current[0]
target.driver.cuKernelSetAttribute = lambda which, size, handle, device: asked.append(device)

x, w, y = (2, 4, 8, 8, 4, 4), (4, 4, 3, 3, 4, 4), (2, 4, 6, 6, 4, 4)
operands = [cuda.device_array(shape, np.float32) for shape in (x, w, y)]
for device in (0, 1, 0, 1):
    current[0] = device
    numbacaps.capsule_conv2d(*operands[:2], precision="tf32", out=operands[2])
tables = [plan._plain for plan in kept.plans._kept.values()]
assert len(tables) == 2 and tables[0] is not tables[1]

asked.clear()
function = SimpleNamespace(kernel=0, handle=0)
made = SimpleNamespace(_codelibrary=SimpleNamespace(get_cufunc=lambda: function))
kernel = compiled.Compiled(SimpleNamespace(compile=lambda types: made), (), 0, shared=100000)
for device in (0, 1, 0, 1):
    current[0] = device
    kernel.on(1, 32)
assert asked == [1, 0], asked

mine = list(kept.plans._kept.values())[0]
current[0] = 1
try:
    mine(*(one.reshape(shape) for one, shape in zip(operands, (mine.x_shape, mine.w_shape, mine.y_shape))))
except ValueError as error:
    print(error)
"""


@pytest.mark.tiers("ptx")
def test_two_devices():
    where = {"PYTHONPATH": str(_ROOT), "NUMBACAPS_TARGET": "cuda"}
    how = {"env": {**os.environ, **where}, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", _TWO_DEVICES], check=False, **how)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the plan was made on device 0; the current device is 1\n"


# --- streams


def test_every_stream_has_its_workspaces():
    rooms = Rooms()
    ready = rooms.ahead()
    assert rooms.of(1) is ready and rooms.of(1) is ready
    assert rooms.of(2) is not ready and rooms.of(0) is not rooms.of(2)
    assert [room.use.stream for room in (rooms.of(1), rooms.of(2))] == [1, 2]


@_SIMULATOR
def test_a_plan_on_two_streams_packs_in_two_places():
    geometry = signature.signature_of(
        _X, _W, _F4, 1, 0, 1, "ab,bc->ac", "fused", "tf32", None, False
    ).geometry
    plan = Plan(geometry, _F4, "fused", "tf32")
    assert plan.packs("forward")
    x, w, y = (
        array.reshape(shape)
        for array, shape in zip(
            _arrays(_X, _W, _Y),
            (geometry.input_shape, geometry.kernel_shape, geometry.output_shape),
        )
    )
    plan.launch_forward(x, w, y, 1)
    alone = plan.nbytes
    plan.launch_forward(x, w, y, 1)
    assert 0 < alone == plan.nbytes
    plan.launch_forward(x, w, y, 2)
    assert plan.nbytes == 2 * alone


def test_few_streams_are_kept_and_those_that_graphs_read(monkeypatch):
    dropped = []
    monkeypatch.setattr(workspace, "keep_later", lambda stream, *_: dropped.append(stream))
    capturing = {2}
    identity = lambda stream: None if stream in capturing else stream
    monkeypatch.setattr(workspace, "identity", identity)
    rooms, first = Rooms(), {}
    for stream in range(1, 21):
        first[stream] = rooms.of(stream)
        first[stream]["forward"].arrays({"packed": (8,)}, _F4)
    assert rooms.of(2) is first[2]
    assert rooms.nbytes == (Rooms.STREAMS + 1) * 32
    assert dropped == [1, *range(3, 13)]
    capturing.clear()
    assert rooms.of(2) is not first[2]  # the graph was captured before any call outside it


def test_a_stream_that_takes_the_place_of_a_destroyed_one_is_another_stream(monkeypatch):
    """So it neither overwrites what the other one's queued kernels read, nor counts as ordered behind a write."""
    dropped = []
    monkeypatch.setattr(workspace, "keep_later", lambda stream, *_: dropped.append(stream))
    monkeypatch.setattr(workspace, "identity", lambda stream: stream)
    monkeypatch.setattr(workspace, "place", lambda stream: stream % 10)
    rooms = Rooms()
    first = rooms.of(12)
    first["forward"].arrays({"packed": (8,)}, _F4)
    assert rooms.of(22) is not first and dropped == [12] and rooms.nbytes == 0
    assert rooms.of(22) is rooms.of(22)


def test_reads_on_destroyed_streams_are_waited_for(pretended, monkeypatch):
    monkeypatch.setattr(handover, "place", lambda stream: stream % 10)
    packed = Handover()
    packed.after_write(1)
    packed.before_read(12)
    packed.before_read(22)
    assert pretended["events"][0].waiting == [12, 22]
    packed.after_write(3)
    for stream in (13, 23):
        packed.before_read(stream)
    packed.before_write(23)
    assert pretended["waits"] == 1 and len(packed._users) == 2


@pytest.fixture
def pretended(monkeypatch):
    """Events and waits of a device that is not there; the host's waits are counted."""
    seen = {"events": [], "waits": 0, "capturing": set()}

    class Cuda:
        @staticmethod
        def event(timing):
            seen["events"].append(_Event())
            return seen["events"][-1]

        @staticmethod
        def synchronize():
            seen["waits"] += 1

    monkeypatch.setattr(handover, "SIMULATED", False)
    monkeypatch.setattr(handover, "cuda", Cuda)
    monkeypatch.setattr(handover, "synchronize", Cuda.synchronize)
    identity = lambda stream: None if stream in seen["capturing"] else stream
    monkeypatch.setattr(handover, "identity", identity)
    return seen


def test_readers_wait_for_the_packing_and_the_next_packing_for_readers(pretended):
    packed = Handover()
    packed.before_write(1)
    packed.after_write(1)
    (event,) = pretended["events"]
    for stream in (1, 2, 2, 3, 1):
        packed.before_read(stream)
    assert event.stream == 1 and event.waiting == [2, 3] and pretended["waits"] == 0
    packed.before_write(1)
    packed.after_write(1)
    assert pretended["waits"] == 1
    packed.before_write(1)
    assert pretended["waits"] == 1  # nobody else has read since
    packed.before_write(2)
    assert pretended["waits"] == 2


def test_a_capture_is_refused_where_it_would_read_too_early(pretended):
    packed = Handover()
    packed.after_write(1)
    pretended["capturing"] |= {1, 2}
    packed.before_read(1)
    with pytest.raises(ValueError, match="the kernel is still being packed on another one"):
        packed.before_read(2)
    pretended["events"][0].passed = True
    packed.before_read(2)
    assert not pretended["events"][0].waiting


@pytest.mark.parametrize("packed_before", [False, True])
def test_a_packing_is_not_captured(packed_before, pretended):
    """Nobody could wait for it: it is done whenever the graph is replayed, on whichever stream."""
    packed = Handover()
    if packed_before:
        packed.before_write(1)
        packed.after_write(1)
    pretended["capturing"].add(1)
    with pytest.raises(ValueError, match="stream is being captured; packing takes one that is not"):
        packed.before_write(1)
    assert len(pretended["events"]) == packed_before


def test_a_packing_waits_for_graphs_and_is_waited_for(pretended):
    """Replays are not told: those before may still read, those behind are not ordered behind an event."""
    packed = Handover()
    packed.after_write(1)
    pretended["capturing"].add(1)
    packed.before_read(1)
    pretended["capturing"].clear()
    for packings in (1, 2):
        packed.before_write(1)
        assert pretended["waits"] == packings
        packed.after_write(1)
        assert [event.waited for event in pretended["events"]] == [False] + [True] * packings


@_SIMULATOR
@pytest.mark.parametrize("how", [("fused", "tf32"), ("fused", "ieee")])
def test_a_plan_whose_packing_is_captured_stays_as_it_was(how, pretended, monkeypatch):
    plan = numbacaps.plan(_X, _W, algorithm=how[0], precision=how[1])
    x, w, y = _arrays(_X, _W, _Y)
    monkeypatch.setattr(sys.modules[Plan.__module__], "resolve_stream", lambda *_: 5)
    pretended["capturing"].add(5)
    with pytest.raises(ValueError, match="packing takes one that is not"):
        plan.pack(w)
    with pytest.raises(ValueError, match="no kernel was packed"):
        plan(x, None, y)
    pretended["capturing"].clear()
    plan.pack(w)
    pretended["capturing"].add(5)
    with pytest.raises(ValueError, match="packing takes one that is not"):
        plan.pack(w)
    plan(x, None, y)
    assert (y.copy_to_host() == 16 * 2).all()


@_SIMULATOR
def test_a_packing_that_breaks_off_leaves_none(monkeypatch):
    """Half of the passes would read the old kernel."""
    plan = numbacaps.plan(_X, _W, algorithm="fused", precision="tf32")
    x, w, y = _arrays(_X, _W, _Y)
    plan.pack(w)

    def interrupted(wanted, array, stream):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(plan, "launch_pack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plan.pack(w)
    with pytest.raises(ValueError, match="no kernel was packed"):
        plan(x, None, y)
    plan.pack(w)
    plan(x, None, y)


@_SIMULATOR
def test_a_plan_orders_what_it_packed(pretended, monkeypatch):
    plan = numbacaps.plan(_X, _W, algorithm="fused", precision="tf32")
    x, w, y, dx = _arrays(_X, _W, _Y, _X)
    resolved = [5]
    monkeypatch.setattr(sys.modules[Plan.__module__], "resolve_stream", lambda *_: resolved[0])
    plan.pack(w)
    (event,) = pretended["events"]
    resolved[0] = 6
    plan(x, None, y)
    plan.backward(x, None, y, dx)
    assert event.stream == 5 and event.waiting == [6]
    plan.pack(w)
    assert pretended["waits"] == 1


@_SIMULATOR
def test_a_kernel_that_graphs_read_is_held(pretended, monkeypatch):
    """A graph has its address, where the kernel is not packed."""
    plan = numbacaps.plan(_X, _W, algorithm="fused", precision="ieee")
    assert not plan.packs("forward")
    x, y = _arrays(_X, _Y)
    monkeypatch.setattr(sys.modules[Plan.__module__], "resolve_stream", lambda *_: 5)
    kernels = _arrays(_W, _W, _W)
    alive = [weakref.ref(one) for one in kernels]
    plan.pack(kernels.pop(0))
    plan.pack(kernels.pop(0))
    assert alive[0]() is None
    pretended["capturing"].add(5)
    plan(x, None, y)
    pretended["capturing"].clear()
    plan.pack(kernels.pop(0))
    assert alive[1]() is not None


@_SIMULATOR
def test_calls_wait_while_another_thread_packs(monkeypatch):
    plan = numbacaps.plan(_X, _W, algorithm="fused", precision="tf32")
    x, w, y = _arrays(_X, _W, _Y)
    packing, called = threading.Event(), []
    launch_pack = plan.launch_pack

    def slowly(*how):
        packing.set()
        caller.join(0.2)
        called.append("packed")
        launch_pack(*how)

    def call():
        packing.wait()
        plan(x, None, y)
        called.append("called")

    caller = threading.Thread(target=call)
    monkeypatch.setattr(plan, "launch_pack", slowly)
    caller.start()
    plan.pack(w)
    caller.join()
    assert called == ["packed", "packed", "called"]


# --- captures


def test_whether_a_stream_is_captured(monkeypatch):
    class Driver:
        def cuStreamIsCapturing(self, stream):
            return streams._SUCCESS, "active" if stream == 2 else streams._NOT_CAPTURING

        def cuStreamGetId(self, stream):
            assert stream != 2  # which would break the capture off
            return streams._SUCCESS, 10 + stream

    given = [0, *(SimpleNamespace(handle=handle) for handle in (1, 2))]
    monkeypatch.setattr(streams, "SIMULATED", False)
    monkeypatch.setattr(streams, "driver", Driver())
    assert [streams.is_capturing(stream) for stream in given] == [False, False, True]
    assert [streams.identity(stream) for stream in given] == [0, 11, None]


@_SIMULATOR
@pytest.mark.parametrize("name", ["capsule_conv2d", "capsule_votes", "capsule_conv2d_backward"])
def test_a_captured_call_is_refused(name, monkeypatch):
    arrays = _arrays(_X, _W, _Y)[: 3 if "backward" in name else 2]

    def allocated(*_, **__):
        raise AssertionError("memory was allocated")

    monkeypatch.setattr(call, "is_capturing", lambda stream: True)
    monkeypatch.setattr(cuda, "device_array", allocated)
    with pytest.raises(ValueError, match=r"stream is being captured; .* numbacaps.plan\(...\)"):
        getattr(numbacaps, name)(*arrays, algorithm="indexed")


# --- what queued kernels read


def test_kept_until_the_stream_has_passed():
    events = []

    def mark(stream):
        events.append(_Event(stream))
        return events[-1]

    keeping = Keeping(10, mark)
    held = [type("Memory", (), {})() for _ in range(4)]
    alive = [weakref.ref(one) for one in held]
    keeping.keep(7, held.pop(0), 8)
    assert events[0].stream == 7 and alive[0]() is not None
    keeping.keep(7, held.pop(0), 2)
    assert alive[0]() is not None and alive[1]() is not None
    events[0].passed = True
    keeping.keep(8, held.pop(0), 9)
    assert alive[0]() is None and alive[1]() is not None and not events[1].waited
    keeping.keep(8, held.pop(0), 100)  # the last one may be large, those before it have 11 bytes
    assert alive[1]() is None and events[1].waited and not events[2].waited
    keeping.clear()
    assert not len(keeping) and all(event.passed for event in events)
    assert all(one() is None for one in alive)


class _Stream(int):
    """As much of a Numba stream as is looked at."""

    def __new__(cls, external, address=7):
        made = super().__new__(cls, address)
        made.external = external
        return made


class _Failing:
    """A driver that can only be waited for."""

    waits = 0

    def event(self, timing):
        raise RuntimeError("CUDA_ERROR_CONTEXT_IS_DESTROYED")

    def synchronize(self):
        self.waits += 1


def test_a_driver_that_records_no_event_is_waited_for(monkeypatch):
    cuda = _Failing()
    for module in (keeping, streams):
        monkeypatch.setattr(module, "cuda", cuda)
    assert keeping._mark(1).query() and cuda.waits == 1


def test_a_stream_of_another_library_is_not_asked_behind_its_call(monkeypatch):
    """Its owner may have destroyed it by then. The device is waited for where more is kept than may be, or all is let go."""
    cuda, found, mine = _Failing(), [], Keeping(10, keeping._mark)
    theirs, ours, of_a_thread = _Stream(True), _Stream(False), _Stream(False, 2)
    for module in (keeping, streams):
        monkeypatch.setattr(module, "cuda", cuda)
    monkeypatch.setattr(keeping, "SIMULATED", False)
    monkeypatch.setattr(keeping, "_keeping", mine)
    monkeypatch.setattr(keeping, "keep", lambda stream, held, nbytes: found.append(nbytes))
    keeping.keep_later(ours, "held", 5)
    assert (cuda.waits, found, len(mine)) == (0, [5], 0)
    keeping.keep_later(theirs, "held", 5)
    assert (cuda.waits, found, len(mine)) == (0, [5], 1)
    keeping.keep_later(theirs, "held", 5)
    assert cuda.waits == 2 and not len(mine)
    for _ in range(keeping._ENTRIES):
        keeping.keep_later(of_a_thread, "held")  # which is another one in every thread
    assert cuda.waits == 2 and len(mine) == keeping._ENTRIES
    keeping.keep_later(theirs, "held")
    assert cuda.waits > 2 and not len(mine)
    keeping.keep_later(theirs, "held")
    before = cuda.waits
    keeping.let_go()
    assert cuda.waits > before and not len(mine)


@_SIMULATOR
def test_only_a_call_that_is_under_way_asks_its_stream(monkeypatch):
    asked = []
    monkeypatch.setattr(workspace, "keep", lambda *_: asked.append("now"))
    monkeypatch.setattr(workspace, "keep_later", lambda *_: asked.append("later"))
    for end, how in (("release", "now"), ("drop", "later")):
        rooms = Rooms()
        rooms.of(3)["forward"].arrays({"packed": (8,)}, _F4)
        getattr(rooms, end)()
        assert asked.pop() == how and not asked
    rooms = Rooms()
    for stream in range(1, Rooms.STREAMS + 2):  # one too many
        rooms.of(stream)["forward"].arrays({"packed": (8,)}, _F4)
    assert asked == ["later"]
    asked.clear()
    rooms.release()


@pytest.fixture
def handed_over(monkeypatch):
    """(stream, what is held, bytes) of everything that is kept; nothing of other tests' is dropped meanwhile."""
    numbacaps.clear_caches()
    gc.collect()
    found = []

    def keep(stream, held, nbytes=0, device=None):
        found.append((stream, held, nbytes))

    for module in (call, workspace):
        monkeypatch.setattr(module, "keep", keep)
    monkeypatch.setattr(workspace, "keep_later", keep)
    return found


@_SIMULATOR
@pytest.mark.parametrize(
    ("changed", "copies"),
    [
        ({}, []),
        ({"x": "strided"}, [_X]),
        ({"product": "ab,cb->ca"}, [_W, _Y]),
        ({"product": "ab,cb->ca", "out": True}, [_W, _Y]),
        ({"where": "host"}, [_X, _W, _Y]),
    ],
)
def test_copies_that_kernels_read_are_kept(changed, copies, handed_over):
    how = {"product": changed.get("product", "ab,bc->ac"), "algorithm": "indexed"}
    if changed.get("where") == "host":
        x, w = (np.ones(shape, np.float32) for shape in (_X, _W))
    else:
        x, w = _arrays(_X, _W)
    if changed.get("x") == "strided":
        x = x.transpose((0, 1, 3, 2, 4, 5))
    if changed.get("out"):
        how["out"] = nan(_Y, "float32")
    numbacaps.capsule_conv2d(x, w, **how)
    kept = [one for _, held, _ in handed_over if isinstance(held, list) for one in held]
    assert sorted(one.size for one in kept) == sorted(np.prod(shape) for shape in copies)
    assert sum(nbytes for *_, nbytes in handed_over) == sum(one.nbytes for one in kept)


@_SIMULATOR
def test_workspaces_that_kernels_read_are_kept(handed_over):
    numbacaps.capsule_conv2d(*_arrays(_X, _W), algorithm="staged")
    ((_, held, nbytes),) = handed_over
    assert nbytes == sum(one.nbytes for one in held[0].values()) > 0


@_SIMULATOR
def test_a_plan_that_is_dropped_leaves_its_memory_to_queued_kernels(handed_over):
    plan = numbacaps.plan(_X, _W, algorithm="fused", precision="tf32")
    x, w, y = _arrays(_X, _W, _Y)
    plan.pack(w)
    plan(x, w, y)
    nbytes, passes = plan.nbytes - plan._packed_room.nbytes, plan._plain
    assert not handed_over
    del plan
    gc.collect()
    ((_, (_, (packed, kernels, tables)), found),) = handed_over
    assert found == nbytes > 0 and packed.nbytes > 0 and list(tables.values()) == [passes]
    assert [one.array for one in kernels] == [w]


@_SIMULATOR
def test_a_workspace_that_grows_leaves_the_old_one_to_queued_kernels(handed_over):
    room = Rooms().of(3)
    small = room["forward"].arrays({"packed": (8,)}, _F4)["packed"]
    room["forward"].arrays({"packed": (16,)}, _F4)
    ((stream, held, _),) = handed_over
    assert stream == 3 and held["packed"].size == small.size


# --- given back


class _Sized:
    def __init__(self, nbytes):
        self.nbytes = nbytes


def test_kept_plans_are_few_and_have_few_bytes():
    plans = LastUsed(3, 100)
    made = {key: plans.get(key, lambda: _Sized(10)) for key in "abc"}
    assert plans.get("a", None) is made["a"]
    plans.get("d", lambda: _Sized(85))
    assert len(plans) == 3 and plans.get("b", lambda: _Sized(1)) is not made["b"]
    assert [plans.get(key, lambda: None) for key in "a"] == [made["a"]]
    plans.fit()
    assert plans.nbytes == 96
    made["a"].nbytes = 16
    plans.fit()
    assert plans.nbytes <= 100 and plans.get("a", None) is made["a"]
    plans.get("large", lambda: _Sized(101))
    plans.fit()
    assert not len(plans)


class _Key:
    """A key that is compared by Python, where Ctrl-C may come."""

    until = None  # comparisons and hashes until then

    def __init__(self, name):
        self._name = name

    def __hash__(self):
        self._count()
        return 1

    def __eq__(self, other):
        self._count()
        return self._name == other._name

    def _count(self):
        if _Key.until is not None:
            _Key.until -= 1
            if _Key.until < 0:
                _Key.until = None
                raise KeyboardInterrupt


_ASKED = {
    "known": lambda plans: plans.get(_Key("known"), None),
    "new": lambda plans: plans.get(_Key("new"), lambda: _Sized(95)),
    "fit": lambda plans: plans.fit(),
}


@pytest.mark.parametrize("asked", _ASKED)
def test_ctrl_c_leaves_what_is_kept_whole(asked):
    for until in range(20):
        plans = LastUsed(3, 25)
        for name in ("first", "known", "third"):
            plans.get(_Key(name), lambda: _Sized(10))
        _Key.until = until
        with suppress(KeyboardInterrupt):
            _ASKED[asked](plans)
        was_interrupted, _Key.until = _Key.until is None, None
        plans.fit()
        for name in ("fourth", "known", "first", "fourth"):
            assert plans.get(_Key(name), lambda: _Sized(10)).nbytes == 10
        assert len(plans) == 3 and plans.nbytes == 30
    assert not was_interrupted  # by then it is asked no more


@_SIMULATOR
def test_the_workspaces_of_calls_have_few_bytes(monkeypatch):
    numbacaps.clear_caches()
    x, w = _arrays(_X, _W)
    numbacaps.capsule_conv2d(x, w, algorithm="fused", precision="tf32")
    needed = kept.plans.nbytes
    assert needed > 0 and len(kept.plans) == 1
    for limit, plans in ((needed, 1), (needed - 1, 0)):
        monkeypatch.setattr(kept.plans, "_nbytes", limit)
        numbacaps.clear_caches()
        numbacaps.capsule_conv2d(x, w, algorithm="fused", precision="tf32")
        assert len(kept.plans) == plans


@_SIMULATOR
def test_the_workspaces_of_routing_have_few_bytes(monkeypatch):
    """Of the calls before, and of one whose own are too many: that is kept without them."""
    x, w = _arrays(_X, _W)
    numbacaps.clear_caches()
    want = numbacaps.capsule_routing(x, w, algorithm="fused", iterations=3).copy_to_host()
    each = runner.runners.nbytes  # two iterations take as many
    assert each > 0
    for limit, kinds, nbytes in (
        (2 * each, 2, 2 * each),
        (2 * each - 1, 1, each),
        (each - 1, 2, 0),
    ):
        numbacaps.clear_caches()
        for where in ((runner, "BYTES"), (runner.runners, "_nbytes")):
            monkeypatch.setattr(*where, limit)
        for iterations in (2, 3):
            numbacaps.capsule_routing(x, w, algorithm="fused", iterations=iterations)
        assert (len(runner.runners), runner.runners.nbytes) == (kinds, nbytes)
    again = numbacaps.capsule_routing(x, w, algorithm="fused").copy_to_host()
    np.testing.assert_array_equal(again, want)
    numbacaps.clear_caches()
    assert not len(runner.runners)


@_SIMULATOR
def test_clear_caches_gives_everything_back(monkeypatch):
    waited = []
    monkeypatch.setattr(keeping._keeping, "clear", lambda: waited.append(len(kept.plans)))
    x, w = _arrays(_X, _W)
    want = numbacaps.capsule_conv2d(x, w, algorithm="fused").copy_to_host()
    (plan,) = list(kept.plans._kept.values())[-1:]
    memory = weakref.ref(plan), weakref.ref(plan._plain)
    del plan
    waited.clear()
    numbacaps.clear_caches()
    assert [one() for one in memory] == [None, None]
    assert not signature._kept and not fused.kept_passes.cache_info().currsize
    assert waited == [0]
    np.testing.assert_array_equal(
        numbacaps.capsule_conv2d(x, w, algorithm="fused").copy_to_host(), want
    )
