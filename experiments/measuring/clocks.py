"""Clocks for calls as a user makes them: the host's, and events on PyTorch's current stream."""

import statistics
import time

import numpy as np

from experiments.measuring import opponents

_QUEUED, _REPEATS = 10, 50
_WALL_REPEATS, _WALL_SECONDS = 50, 1.0
_WARM_UPS = 5
_FIRST, _TIMED, _SECONDS = 3, 30, 1.0
_BATCH_MS = 2  # of calls between two events


def queueing_us(call, synchronize, queued=_QUEUED, repeats=_REPEATS):
    """Median microseconds of the host for queueing a call; ``queued`` of them between two waits."""
    taken = []
    for turn in range(_WARM_UPS + repeats):
        synchronize()
        start = time.perf_counter()
        for _ in range(queued):
            call()
        elapsed = time.perf_counter() - start
        if turn >= _WARM_UPS:
            taken.append(1e6 * elapsed / queued)
    synchronize()
    return statistics.median(taken)


def wall_us(call, synchronize):
    """Median microseconds until a call's result is there."""
    taken, until = [], time.perf_counter() + _WALL_SECONDS
    for turn in range(_WARM_UPS + _WALL_REPEATS):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        if turn >= _WARM_UPS:
            taken.append(1e6 * (time.perf_counter() - start))
        if taken and time.perf_counter() > until:
            break
    return statistics.median(taken)


def batch_ms(call, calls):
    """Milliseconds of a call between two events around several."""
    cuda = opponents.torch().cuda
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / calls


def milliseconds(call):
    """Median milliseconds of a call, by events around as many as take about 2 ms."""
    return in_turns({"": call}, _BATCH_MS)[""]


def in_turns(calls, least_ms):
    """Median milliseconds of several calls, by events around as many of each as take some milliseconds.

    The calls take turns, in an order that is drawn anew each time: what the GPU's clock does, it does to all of them.

    Parameters
    ----------
    calls : dict of hashable to callable
    least_ms : float
        Of the calls between two events. Where the host is slower than the GPU, as few calls would measure how
        long one takes alone, and many how long each of many takes.

    Returns
    -------
    dict of hashable to float
    """
    counts, taken = {}, {name: [] for name in calls}
    for name, call in calls.items():
        for _ in range(_FIRST):
            one = batch_ms(call, 1)
        counts[name] = max(1, round(least_ms / one))
    names, rng = list(calls), np.random.default_rng()
    until = time.perf_counter() + _SECONDS * len(calls)
    for turn in range(_TIMED):
        for name in (names[i] for i in rng.permutation(len(names))):
            taken[name].append(batch_ms(calls[name], counts[name]))
        if turn >= 2 and time.perf_counter() > until:
            break
    return {name: statistics.median(times) for name, times in taken.items()}


def peak_bytes(call, before):
    """Most bytes that PyTorch holds in a call, over ``before``."""
    cuda = opponents.torch().cuda
    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    call()
    cuda.synchronize()
    return cuda.max_memory_allocated() - before


def extra_bytes(call):
    """Most bytes that PyTorch allocates in a call, over what was there before."""
    cuda = opponents.torch().cuda
    cuda.synchronize()
    cuda.empty_cache()
    return peak_bytes(call, cuda.memory_allocated())
