"""Threads with streams of their own: calls, shared plans, graphs, routing, caches that are cleared and networks, all at once."""

import threading
from dataclasses import replace
from functools import cache

import numpy as np

import numbacaps
from numbacaps.device.streams import Stream
from numbacaps.device.target import SIMULATED, cuda
from tests.support.campaign import convolutions
from tests.support.campaign.layouts import on_host, unwritten
from tests.support.campaign.part import Part
from tests.support.nn_networks import batch, network

_THREADS = 3 if SIMULATED else 24
_CALLS = 2 if SIMULATED else 12  # of a thread in a round
_POOL = 8 if SIMULATED else 64  # calls that threads choose from
_CLEARED_EVERY = 16  # works of a thread, in the mean
_PACKS = 0.2  # share of the works on a packed kernel that pack it again
_LEAVES = 0.2  # share of the works behind which a thread goes on with another stream
_LONG = 600  # seconds for a round
# Numba's simulator runs one kernel at a time.
_turn = threading.Lock()


@cache
def _alone(seed, number):
    """(call, its arrays, its results as one thread has them), compared with float64."""
    call = replace(convolutions.draw(seed, number), way="call", stream="default", has_out=False)
    arrays = call.operands()
    results = call.launch(*call.place(arrays), None)
    call.compare(results, call.expected(arrays))
    return call, arrays, [on_host(result) for result in results]


@cache
def _shared(seed):
    """(plan that has packed its kernel, its x and w on the device, its result), which all threads take."""
    shapes = ((2, 4, 7, 7, 4, 4), (4, 4, 3, 3, 4, 4))
    if SIMULATED:
        shapes = (1, 1, 3, 3, 2, 2), (2, 1, 2, 2, 2, 2)
    plan = numbacaps.plan(*shapes, precision="tf32x3")
    x, w, y = _operands(seed, plan)
    plan.pack(w)
    return plan, x, w, plan(x, w, y).copy_to_host()


@cache
def _shared_routing(seed):
    """The same of a plan of routing."""
    shapes = (2, 8, 4, 4, 4, 4), (4, 8, 1, 1, 4, 4)
    if SIMULATED:
        shapes = (1, 2, 1, 1, 2, 2), (2, 2, 1, 1, 2, 2)
    plan = numbacaps.routing_plan(*shapes)
    x, w, y = _operands(seed, plan)
    return plan, x, w, plan(x, w, y).copy_to_host()


def _operands(seed, plan):
    """x, w and an unwritten output of a plan, on the device."""
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (plan.x_shape, plan.w_shape))
    return cuda.to_device(x), cuda.to_device(w), unwritten(np.empty(plan.y_shape, np.float32), True)


@cache
def _losses(seed):
    """What the steps of a network come to."""
    return _trained(seed)


def _trained(seed):
    rng = np.random.default_rng(seed)
    net = network("matrix", seed=1)
    for _ in range(3):
        net.step(*batch(net, 3, rng))
    return net.history()[0]


def _call(seed, rng, stream):
    call, arrays, want = _alone(seed, int(rng.integers(_POOL)))
    told = stream if call.algorithm != "numpy" else None
    placed = call.place(arrays)
    results = call.launch(*placed, told)
    stream.synchronize()
    del placed  # queued kernels have read it
    if call.is_exact:
        for have, one in zip(results, want):
            assert np.array_equal(on_host(have), one), f"other bits than alone: {call}"
    else:
        call.compare(results, call.expected(arrays))
    return f"{call.algorithm} {call.dtype}"


def _plan(seed, rng, stream):
    return _run(_shared(seed), "a shared plan", stream)


def _routing(seed, rng, stream):
    return _run(_shared_routing(seed), "a shared plan of routing", stream)


def _packed(seed, rng, stream):
    plan, x, w, want = _shared(seed)
    if rng.random() < _PACKS:
        plan.pack(w, stream=stream)
    return _run((plan, x, None, want), "a shared packed kernel", stream)


def _run(shared, what, stream):
    plan, x, w, want = shared
    y = plan(x, w, unwritten(want, True), stream=stream)
    stream.synchronize()
    return _same(what, y, want)


def _graph(seed, rng, stream):
    plan, x, w, want = _shared(seed)
    own, y = Stream(), unwritten(want, True)

    def work():
        plan(x, w, y, stream=own.numba)

    work()
    launch = own.capture(work) if own.captures else work
    for _ in range(2):
        launch()
    own.synchronize()
    return _same("a graph of a shared plan", y, want)


def _same(what, y, want):
    assert np.array_equal(y.copy_to_host(), want), f"other bits than alone: {what}"
    return what


def _network(seed, rng, stream):
    assert np.array_equal(_trained(seed), _losses(seed)), "other losses than alone: a network"
    return "a network"


def _clear(seed, rng, stream):
    numbacaps.clear_caches()
    return "caches cleared"


_WORKS = _call, _call, _call, _plan, _packed, _graph, _routing


def _work(seed, rng, said, is_over):
    """The works of a thread in a round, until it is over."""
    stream = cuda.stream()
    for _ in range(_CALLS):
        if is_over():
            return
        one = _clear if rng.random() < 1 / _CLEARED_EVERY else rng.choice(_WORKS)
        one = _network if rng.random() < 0.1 else one
        stream = cuda.stream() if rng.random() < _LEAVES else stream
        if SIMULATED:
            with _turn:
                said.append(one(seed, rng, stream))
        else:
            said.append(one(seed, rng, stream))


def _wait(ended):
    for one in ended:
        one.wait(_LONG)


def check(seed, number):
    """A round: all threads begin together; what each gets is what one gets alone."""
    _shared(seed), _shared_routing(seed), _losses(seed)
    for one in range(_POOL):
        _alone(seed, one)
    said, wrong, start, over = [], [], threading.Barrier(_THREADS), threading.Event()
    # Not `Thread.join`: interrupted in Python 3.11 and 3.12, it takes a running thread for ended.
    ended = [threading.Event() for _ in range(_THREADS)]

    def run(which):
        try:
            rng = np.random.default_rng((seed, number, which))
            start.wait(_LONG)
            _work(seed, rng, said, over.is_set)
        except Exception as error:  # whichever library's
            wrong.append(error)
        finally:
            ended[which].set()

    for which in range(_THREADS):
        threading.Thread(target=run, args=(which,), daemon=True).start()
    try:
        _wait(ended)
    except KeyboardInterrupt:  # no thread launches while Python ends
        over.set()
        _wait(ended)
        raise
    assert all(one.is_set() for one in ended), "threads wait for each other"
    for error in wrong:
        raise error
    return said


PART = Part(
    summary=f"{_THREADS} threads with streams of their own: calls, shared plans, graphs, routing, networks, cleared caches",
    unit="round",
    check=check,
    amount=10,
    few=0.02,
    timed=True,
)
