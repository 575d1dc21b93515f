"""Threads with a stream each: calls, a shared plan, caches that are cleared and networks, all at once."""

import threading
from dataclasses import replace
from functools import cache

import numpy as np

import numbacaps
from numbacaps.device.target import SIMULATED, cuda
from tests.support.campaign import convolutions
from tests.support.campaign.layouts import on_host, unwritten
from tests.support.campaign.part import Part
from tests.support.nn_networks import batch, network

_THREADS = 3 if SIMULATED else 24
_CALLS = 2 if SIMULATED else 12  # of a thread in a round
_POOL = 8 if SIMULATED else 64  # calls that threads choose from
_CLEARED_EVERY = 16  # works of a thread, in the mean
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
    """(plan, its x and w on the device, its result), which all threads take."""
    shapes, rng = ((2, 4, 7, 7, 4, 4), (4, 4, 3, 3, 4, 4)), np.random.default_rng(seed)
    if SIMULATED:
        shapes = (1, 1, 3, 3, 2, 2), (2, 1, 2, 2, 2, 2)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    plan = numbacaps.plan(*shapes)
    x, w, y = cuda.to_device(x), cuda.to_device(w), np.empty(plan.y_shape, np.float32)
    return plan, x, w, plan(x, w, unwritten(y, True)).copy_to_host()


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
    plan, x, w, want = _shared(seed)
    y = plan(x, w, unwritten(want, True), stream=stream)
    stream.synchronize()
    assert np.array_equal(y.copy_to_host(), want), "other bits than alone: the shared plan"
    return "a shared plan"


def _network(seed, rng, stream):
    assert np.array_equal(_trained(seed), _losses(seed)), "other losses than alone: a network"
    return "a network"


def _clear(seed, rng, stream):
    numbacaps.clear_caches()
    return "caches cleared"


def _work(seed, rng, stream, said):
    """The works of a thread in a round."""
    for _ in range(_CALLS):
        one = _clear if rng.random() < 1 / _CLEARED_EVERY else rng.choice((_call, _call, _plan))
        one = _network if rng.random() < 0.1 else one
        if SIMULATED:
            with _turn:
                said.append(one(seed, rng, stream))
        else:
            said.append(one(seed, rng, stream))


def check(seed, number):
    """A round: all threads begin together; what each gets is what one gets alone."""
    _shared(seed), _losses(seed)
    for one in range(_POOL):
        _alone(seed, one)
    said, wrong, start = [], [], threading.Barrier(_THREADS)

    def run(which):
        try:
            rng, stream = np.random.default_rng((seed, number, which)), cuda.stream()
            start.wait(_LONG)
            _work(seed, rng, stream, said)
        except Exception as error:  # whichever library's
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LONG)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    for error in wrong:
        raise error
    return said


PART = Part(
    summary=f"{_THREADS} threads with a stream each: calls, a shared plan, networks, cleared caches",
    unit="round",
    check=check,
    amount=10,
    few=0.02,
    timed=True,
)
