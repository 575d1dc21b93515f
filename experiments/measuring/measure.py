"""How everything is measured: checked first, then timed on the GPU, side by side.

- A variant is timed only after its result on the same random data was compared with float64, and so
  is the result that the timed graph leaves.
- GPU time is that of a graph of many calls (:mod:`experiments.measuring.gpu_time`). What the host takes to launch
  is not in it and is measured apart, as ``host_us``.
- The calls rotate through sets of operands (and results) that together are twice the L2 cache, so that
  no call finds its operands there; where that would take too many sets, the row's ``cache`` cell says
  that it was warm. Within a call, one kernel may find what the one before it wrote.
- Variants that are compared take turns. Of the repeats the 20th, 50th and 80th percentiles are kept.
- A variant that runs out of memory beside the others is measured again alone.
"""

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from experiments.measuring import ceilings, device_memory, gpu_time, records, sources
from experiments.measuring.problem import itemsize
from numbacaps import ALGORITHMS
from numbacaps.device.kernel_cache import launched

_MOST_SETS = 128
_HOST_CALLS, _HOST_US = 20, 3e5
_NOTE_LENGTH = 160
ALONE = "timed alone: beside the others there was no memory for it"


def sets_of(size, most=_MOST_SETS):
    """How many sets of so many bytes are twice the L2 cache, at most ``most``."""
    return min(most, math.ceil(2 * gpu_time.clock().l2_bytes / size))


def cache_cell(sets, size):
    """What a row says of ``sets`` sets of so many bytes."""
    is_cold = sets * size >= 2 * gpu_time.clock().l2_bytes
    return f"{sets} sets in turn" + ("" if is_cold else ", warm: less than twice the L2 cache")


def microseconds(call):
    """Host time of a call."""
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def idle_microseconds(call):
    """Median host time of a call that finds the GPU idle."""
    taken = []
    while len(taken) < _HOST_CALLS and sum(taken) < _HOST_US:
        gpu_time.clock().synchronize()
        taken.append(microseconds(call))
    gpu_time.clock().synchronize()
    return float(np.median(taken))


@dataclass(frozen=True)
class Ready:
    """A variant whose result was right."""

    error: float
    host_us: float | None
    peak_bytes: int
    cache: str
    replay: gpu_time.Replay
    kernel_sources: str


def measure(problem, wanted, variants, tick=lambda variant: None):
    """Check and time some variants of one pass, side by side.

    Parameters
    ----------
    problem : experiments.measuring.problem.Problem
    wanted : str
        ``forward``, ``backward_input`` or ``backward_kernel``.
    variants : list of experiments.measuring.contestants.Variant
    tick : callable
        Called with each variant before it is checked.

    Returns
    -------
    list of dict
        The cells of a row for each variant; the names of experiment and workload are not in it.
    """
    rates = ceilings.ceilings()
    ready, rows, notes, alone = {}, {}, {}, []

    def attempt(variant):
        """Prepare a variant, or note why it cannot be; whether it was memory that lacked."""
        try:
            ready[variant] = _prepare(variant, problem, wanted, rates)
        except Exception as failure:  # whatever a library raises is what its row says
            notes[variant] = note_of(failure)
            return device_memory.is_out_of_memory(failure)
        return False

    def time_ready():
        """Rows of the variants that are ready; one by one if together they fail."""
        try:
            replays = {variant: found.replay for variant, found in ready.items()}
            times = gpu_time.replay_in_turns(replays)
        except Exception:
            for variant in list(ready):
                try:
                    times = gpu_time.replay_in_turns({variant: ready[variant].replay})
                    rows[variant] = row_of(problem, variant, ready[variant], times[variant], rates)
                    notes[variant] = "timed alone: beside the others a replay failed"
                except Exception as failure:
                    notes[variant] = note_of(failure)
        else:
            for variant, found in ready.items():
                rows[variant] = row_of(problem, variant, found, times[variant], rates)
                notes[variant] = "" if found.replay.captured else "calls queued, not in a graph"
        ready.clear()

    # Ours last: their workspaces would stand in the way of cuDNN, which tries its algorithms once.
    for variant in sorted(variants, key=lambda variant: variant.algorithm in ALGORITHMS):
        tick(variant)
        if attempt(variant):
            device_memory.release()
            alone.append(variant)
    time_ready()
    for variant in alone:
        problem.leave_device()
        device_memory.release()
        if not attempt(variant):
            time_ready()
            if variant in rows:
                notes[variant] = ALONE
    device_memory.release()
    common = common_cells(problem, wanted)
    return [
        common
        | variant.cells
        | {"min_bytes": problem.geometry.min_bytes(itemsize(variant.dtype))}
        | rows.get(variant, {})
        | {"note": notes.get(variant, "")}
        for variant in variants
    ]


def common_cells(problem, wanted):
    """The cells that all rows of a measurement share."""
    return {
        **records.of_machine(),
        **records.of_geometry(problem.geometry),
        "pass": wanted,
        "gflop": problem.geometry.flop / 1e9,
        "timestamp": records.now(),
        **ceilings.ceilings(),
    }


def _prepare(variant, problem, wanted, rates):
    """Check a variant, count its memory and its host time, and capture it."""
    read = problem.bytes_read(wanted, variant.dtype)
    sets = sets_of(read)
    with launched() as kernels:
        run = variant.run(variant, problem, wanted, sets, gpu_time.clock())
        with run.environment():
            first = run.once()
    least = problem.geometry.min_bytes(itemsize(variant.dtype))
    with run.environment():
        error = problem.check(wanted, first, variant.precision)
        with gpu_time.clock().elapsed() as eager:
            host_us = microseconds(run.calls[0])
        is_slow = eager[0] >= gpu_time.SLOW_MS
        host_us = host_us if is_slow else idle_microseconds(run.calls[0])
        peak_bytes = run.peak_bytes(least)
        if is_slow:  # what the cache may hold of its operands is little beside what it reads
            sets = 1
        calls = gpu_time.calls_of(sets, least / rates["copy_gbs"] / 1e6, eager[0])
        replay, once = run.repeatedly([i % sets for i in range(calls)], host_us)
        error = max(error, problem.check(wanted, once(), variant.precision))
    if replay.captured and not is_slow:
        replay = replace(replay, host_us=max(replay.host_us, microseconds(replay.run)))
        gpu_time.clock().synchronize()
    # Of a slow call the host's time is mostly waiting, for memory or for room in the queue.
    host_us = None if is_slow else host_us
    of = sources.name_of(kernels)
    return Ready(error, host_us, peak_bytes, cache_cell(sets, read), replay, of)


def row_of(problem, variant, ready, times, rates):
    """The measured cells."""
    p20, p50, p80 = map(float, np.percentile(times, (20, 50, 80)))
    least = problem.geometry.min_bytes(itemsize(variant.dtype))
    return {
        "ms_p20": p20,
        "ms_p50": p50,
        "ms_p80": p80,
        "host_us": ready.host_us,
        "peak_bytes": ready.peak_bytes,
        "rel_error": ready.error,
        "cache": ready.cache,
        "kernel_sources": ready.kernel_sources,
        **fractions(least, problem.geometry.flop, p50, rates),
    }


def fractions(least_bytes, flop, ms, rates):
    """How much of ``ms`` the bytes would take at the copy's rate, the FLOP at the SGEMM's."""
    sgemm = rates["sgemm_tflops"]
    return {
        "byte_fraction": least_bytes / rates["copy_gbs"] / 1e6 / ms,
        "flop_fraction": flop / sgemm / 1e9 / ms if sgemm else None,
    }


def note_of(failure):
    """What a row says of the exception that kept it from being measured."""
    text = " ".join(str(failure).split()) or type(failure).__name__
    short = text if len(text) <= _NOTE_LENGTH else text[:_NOTE_LENGTH].rsplit(" ", 1)[0] + " ..."
    if device_memory.is_out_of_memory(failure):
        return f"out of memory: {short}"
    if isinstance(failure, ImportError):
        return records.ABSENT + short
    return f"{type(failure).__name__}: {short}"
