"""What the host does on a GPU, on machines without one: nothing that queued kernels or graphs read is freed, by however many threads."""

import pytest

from tests.support.fake_gpu import COMPILER, run_on_fake_gpu

pytestmark = [
    pytest.mark.tiers("ptx"),
    pytest.mark.slow,
    pytest.mark.skipif(not COMPILER, reason="the fake driver takes a C compiler, cc"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where kernels are kept."""
    return tmp_path_factory.mktemp("kernels")


_PLAN = """
from tests.support.freed import free_now
from numbacaps.device.streams import Stream

plan = numbacaps.plan((1, 2, 4, 4, 2, 2), (2, 2, 3, 3, 2, 2), precision="ieee")
shapes = plan.x_shape, plan.w_shape, plan.y_shape
x, w, y = (cuda.device_array(shape, np.float32) for shape in shapes)
own = Stream()


class Gone:
    '''An array whose memory is freed.'''

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def work(x=x):
    plan(x, w, y, stream=own.numba)



work()
"""

_FAULTS = {
    "freed memory is used": "gone = Gone(x); del x, work.__defaults__; free_now(); plan(gone, w, y)",
    "freed memory is used, cuMemcpyHtoD": """
into = Gone(x)
del x, work.__defaults__
free_now()
cuda.as_cuda_array(into).copy_to_device(np.zeros(shapes[0], np.float32))
""",
    "a destroyed stream": """
stream = cuda.stream()
address = int(stream)
del stream
free_now()
plan(x, w, y, stream=address)
""",
    "a destroyed graph": """
launch = own.capture(work)
from numbacaps.device.streams import driver
graph = launch.__closure__[0].cell_contents
driver.cuGraphExecDestroy(graph._executable)
launch()
""",
}


@pytest.mark.parametrize("said", _FAULTS)
def test_the_driver_finds(said, folder):
    code, _, told = run_on_fake_gpu(_PLAN + _FAULTS[said], folder)
    assert code != 0 and f"fake GPU: {said}" in told, told


def test_a_graph_whose_operand_is_freed(folder):
    end = "launch = own.capture(work); launch(); del x, work.__defaults__; free_now(); print('freed'); launch()"
    code, _, told = run_on_fake_gpu(_PLAN + end, folder)
    assert code != 0 and "freed\n" in told and "fake GPU: freed memory is used" in told, told


def test_who_waits_for_the_device_breaks_captures_off(folder):
    end = """
try:
    own.capture(lambda: (work(), cuda.synchronize()))
except Exception:
    print("broken off")
launch = own.capture(work)
launch()
"""
    code, counts, told = run_on_fake_gpu(_PLAN + end, folder)
    assert code == 0 and "broken off" in told, told
    assert (counts["broken"], counts["graphs"], counts["replays"]) == (1, 1, 1)


_APART = """
plan = numbacaps.plan(*shapes[:2], algorithm="staged")
dx, dw = (cuda.device_array(shape, np.float32) for shape in shapes[:2])


def both():
    plan.backward(x, w, y, dx, dw, stream=own.numba)


plan.backward(x, w, y, dx, stream=own.numba)
launch = own.capture(lambda: plan.backward(x, w, y, dx, stream=own.numba))
both()
own.synchronize()
numbacaps.clear_caches()
free_now()
launch()
own.capture(both)()
"""


def test_a_graph_of_one_gradient_outlives_the_other_one(folder):
    """Both lay out arrays; and a graph may have both."""
    code, counts, told = run_on_fake_gpu(_PLAN + _APART, folder)
    assert code == 0 and counts["broken"] == 0 and counts["graphs"] == 2, told


_STREAMS = """
from numbacaps.device import keeping, streams

waits = []
ask = keeping.is_idle
keeping.is_idle = lambda device: waits.append(device) or ask(device)
made = [cuda.stream() for _ in range(12)]
room = plan._rooms.ahead()
for _ in range(3):
    for one in made:
        out = plan._result("out", y, ())
        plan.forward_operands(plan._operand("x", x), plan._operand("w", w), out, cuda.external_stream(int(one)), room=room)
assert not waits, waits
del plan, room, out, one
work = None
assert not waits, waits
numbacaps.clear_caches()
assert len(waits) > 8 and set(waits) == {0}, waits
"""


def test_many_streams_of_another_library_wait_for_nobody(folder):
    """Their calls bring workspaces of their own; and what they read is kept when the plan is dropped."""
    code, _, told = run_on_fake_gpu(_PLAN + _STREAMS, folder)
    assert code == 0, told


_SAME_ADDRESS = """
from types import SimpleNamespace
from numbacaps.device import keeping
from numbacaps.device.streams import captured, driver

asked, ask = [], keeping.is_idle
keeping.is_idle = lambda device: asked.append(device) or ask(device)
plan = numbacaps.plan(*shapes[:2], precision="tf32")
plan.pack(w)
Event = type(plan._handover._written)
known, rooms, waits, wait = set(), [], [], Event.wait
Event.wait = lambda event, stream=0: waits.append(event) or wait(event, stream)
for turn in range(40):
    _, handle = driver.cuStreamCreate(1)
    stream = cuda.external_stream(int(handle))
    call = lambda: plan(x, None, y, stream=stream)
    call()
    rooms.append(plan._rooms.of(stream))
    graph = captured(SimpleNamespace(handle=handle), call) if turn < 3 else None
    call()
    assert plan._rooms.of(stream) is rooms[-1] and rooms[-1].captured == (turn < 3)
    known.add(int(handle))
    driver.cuStreamDestroy(handle)
assert len({id(room) for room in rooms}) == len(waits) == 40
assert len(known) < 30 and len(plan._handover._users) <= len(known) + 2
assert len(plan._rooms._of) <= plan._rooms.STREAMS + 3
assert not asked, "the device is waited for"
"""


def test_a_stream_with_the_address_of_a_destroyed_one_is_another_stream(folder):
    """It has workspaces of its own, and waits for the packing. The host waits for nothing."""
    code, _, told = run_on_fake_gpu(_PLAN + _SAME_ADDRESS, folder)
    assert code == 0, told


_WHO_ASKS = """
from numbacaps.device.streams import driver, identity

asked = []
own.capture(lambda: (work(), asked.append(identity(own.numba))))
assert asked == [None] and identity(own.numba) is not None
try:
    own.capture(lambda: driver.cuStreamGetId(own.numba.handle))
except RuntimeError:
    print("broken off")
"""


def test_a_captured_stream_is_not_asked_who_it_is(folder):
    """CUDA breaks the capture off."""
    code, counts, told = run_on_fake_gpu(_PLAN + _WHO_ASKS, folder)
    assert code == 0 and "broken off" in told and counts["broken"] == 1, told


_MEMORY_RUNS_OUT = """
from numbacaps.device import keeping

while not len(keeping._keeping):  # an event may have passed
    keeping.keep(0, cuda.device_array(5 << 30, np.int8), 5 << 30)
cuda.device_array(5 << 30, np.int8)
assert not len(keeping._keeping)
"""


def test_what_is_kept_is_let_go_where_memory_runs_out(folder):
    code, _, told = run_on_fake_gpu(_MEMORY_RUNS_OUT, folder)
    assert code == 0, told


_PACKED = """
plan = numbacaps.plan(*shapes[:2], precision="tf32")
plan.pack(w)
plan(x, None, y, stream=own.numba)
launch = own.capture(lambda: plan(x, None, y, stream=own.numba))
for _ in range(5):
    plan.pack(cuda.device_array(shapes[1], np.float32))
print(len(plan._kernels), "kernels are held")
del w, work, launch
"""


def test_of_kernels_that_were_packed_those_in_graphs_are_held(folder):
    """And the last one."""
    code, _, told = run_on_fake_gpu(_PLAN + _PACKED, folder)
    assert code == 0 and "2 kernels are held" in told, told


_NETWORK = """
from tests.support.nn_networks import batch, network

rng = np.random.default_rng(0)
for kind in ("matrix", "odd"):
    net = network(kind)
    for _ in range(4):
        net.step(*batch(net, 3, rng))
    for _ in range(2):
        net.forward(batch(net, 3, rng)[0])
"""


def test_steps_of_networks_are_graphs(folder):
    """Of a network: copies into two places, steps and forward passes, the first of each kernel by kernel."""
    code, counts, told = run_on_fake_gpu(_NETWORK, folder)
    assert code == 0, told
    assert counts["broken"] == 0 and counts["graphs"] >= 6 and counts["replays"] >= 6, counts


# A round of the campaign's threads, whose results cannot be right here.
_THREADS = """
import sys
from types import SimpleNamespace
from tests.support.campaign import convolutions, threads

kinds = [kind for kind in convolutions.kinds() if kind[0] != "cublas"]
convolutions.kinds = lambda: kinds
convolutions.Call.compare = lambda *_: None
convolutions.Call.expected = lambda *_: None
threads.np = SimpleNamespace(**{**vars(np), "array_equal": lambda *_: True})
threads._POOL = 6
sys.setswitchinterval(1e-5)  # seconds; threads change often
print(len(threads.check(0, 0)), "works")
"""


def test_nothing_is_freed_too_early_by_threads(folder):
    """Nor is any capture broken off, nor do threads wait for each other."""
    code, counts, told = run_on_fake_gpu(_THREADS, folder)
    assert code == 0 and "288 works" in told, told
    assert counts["broken"] == 0 and counts["graphs"] > 20 and counts["replays"] > 20, counts
    assert "Exception ignored" not in told, told


_MEMORY = """
from tests.support.campaign import memory

memory.device_memory.release = lambda: None  # CuPy's and PyTorch's
memory._GEOMETRIES, memory._NETWORKS, memory._PIECES = 10, 5, 5
memory._DEVICE = 0
print(memory.check(0, 0))
"""


def test_a_second_turn_over_geometries_and_networks_leaves_no_memory(folder):
    code, _, told = run_on_fake_gpu(_MEMORY, folder)
    assert code == 0 and "10 geometries" in told, told


_CTRL_C = """
import gc
import signal
import threading
from numbacaps.device import keeping
from tests.support.nn_networks import batch, network

net = network("matrix")
rng, broken_off = np.random.default_rng(0), 0


def capture():
    one = Stream()
    plan(x, w, y, stream=one.numba)
    one.capture(lambda: plan(x, w, y, stream=one.numba))()


def release():
    numbacaps.clear_caches()
    numbacaps.capsule_conv2d(x, w, stream=cuda.stream())


def keep():
    one = cuda.external_stream(7)  # another library's, which may be gone
    for _ in range(500):
        keeping.keep_later(one, [])


works = capture, release, keep, lambda: net.step(*batch(net, 3, rng)), lambda: network("matrix")
for work in works:
    work()
signal.signal(signal.SIGALRM, signal.default_int_handler)
for turn in range(600):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.exponential(0.003) + 1e-5)
            works[turn % len(works)]()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        broken_off += 1
    cuda.synchronize()  # refused while a capture is open
    assert gc.isenabled() and not plan._lock.locked(), turn
    other = threading.Thread(target=capture, daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive(), "a lock is held for ever"
for work in works:
    work()
print("broken off", broken_off)
"""


def test_ctrl_c_at_any_moment_leaves_no_lock_and_no_capture(folder):
    code, _, told = run_on_fake_gpu(_PLAN + _CTRL_C, folder)
    assert code == 0 and int(told.split("broken off")[1].split()[0]) > 50, told
