"""How everything is measured: checked first, then timed on the GPU, side by side.

- A variant is timed only after its result on the same random data was compared with float64, and so
  is the result that the timed graph leaves.
- GPU time is the replay of a CUDA graph that holds many calls, between two events, over the number of
  calls. Events and graph are queued behind other work, so that the GPU never waits for the host: what the
  host takes to launch is not in the time. That is measured apart, as ``host_us``.
- The calls rotate through sets of operands (and results) that together are twice the L2 cache, so that
  no call finds its operands there; where that would take too many sets, the row's ``cache`` cell says
  that it was warm. Within a call, one kernel may find what the one before it wrote.
- Variants that are compared take turns, in an order that is drawn anew each time. How fast the GPU's clock
  runs depends on the power that was drawn before, for up to half a second: so long a variant is replayed in
  each turn before it is timed, and has the clock that it itself leads to. (Work that no graph can hold
  is not: the GPU would wait for the host meanwhile.) Of the repeats the 20th, 50th and 80th percentiles are kept.
- A variant that runs out of memory beside the others is measured again alone.
"""

import gc
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from experiments.measuring import opponents, records, sources
from experiments.measuring.problem import itemsize
from numbacaps import ALGORITHMS
from numbacaps.device.kernel_cache import launched
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.extras import require

_MOST_MS = 30.0  # what more calls than sets may make of a graph's replay
_MOST_SETS = 128
_SLOW_MS = 100.0  # what takes so long needs neither warming up nor many repeats
_FEWEST_SLOW = 4
_HOST_CALLS, _HOST_US = 20, 3e5
_AHEAD_BYTES = 1 << 30  # copied to keep the GPU busy: much longer than the host takes to queue it
_AHEAD_FACTOR = 1.5
_NOTE_LENGTH = 160


@dataclass(frozen=True)
class Effort:
    """How long a variant is timed.

    Attributes
    ----------
    settled_ms : float
        Of replays at the beginning of a turn.
    timed_ms : float
        Of its timed replays together.
    repeats : (int, int)
        Fewest and most of them.
    turns : int
        That the repeats are spread over.
    graph_ms : float
        What a graph's replay should take at the least.
    calls : int
        Most calls that are put into a graph for it.
    """

    settled_ms: float = 500.0
    timed_ms: float = 60.0
    repeats: tuple = (15, 25)
    turns: int = 3
    graph_ms: float = 1.0
    calls: int = 256


FULL = Effort()


@dataclass(frozen=True)
class Replay:
    """Work that can be timed again and again.

    Attributes
    ----------
    run : callable
        Queues the work on the clock's stream.
    calls : int
        Calls of the algorithm in it; times are for one.
    needs : object
        What must not be freed as long as it is run.
    host_us : float
        What the host takes to queue it.
    captured : bool
        It is one graph launch.
    """

    run: Callable
    calls: int = 1
    needs: object = None
    host_us: float = 100.0
    captured: bool = True


class Clock:
    """The stream on which everything is timed, as each library knows it."""

    def __init__(self):
        from cuda.core import Device

        device = Device(cuda.get_current_device().id)
        device.set_current()
        self._stream = device.create_stream()
        self.numba = cuda.external_stream(int(self._stream.handle))
        self.l2_bytes = device.properties.l2_cache_size

    @cached_property
    def torch(self):
        """The stream, for PyTorch."""
        return opponents.torch().cuda.ExternalStream(int(self._stream.handle))

    @cached_property
    def _copied(self):
        """Two arrays, and the microseconds that copying one to the other takes the GPU."""
        size = min(_AHEAD_BYTES, cuda.current_context().get_memory_info().free // 16)
        source, target = (cuda.device_array(size, np.int8) for _ in range(2))
        start, end = cuda.event(), cuda.event()
        for at in range(4):  # the first ones warm up
            if at == 2:
                start.record(self.numba)
            target.copy_to_device(source, stream=self.numba)
        end.record(self.numba)
        end.synchronize()
        return source, target, 1e3 * start.elapsed_time(end) / 2

    @contextmanager
    def elapsed(self, host_us=0.0):
        """A list that gets the GPU milliseconds between the beginning and the end of the block.

        Before, the GPU is kept busy for ``host_us``, in which the host queues the block's work.
        """
        start, end, elapsed = cuda.event(), cuda.event(), []
        source, target, copy_us = self._copied
        for _ in range(math.ceil(_AHEAD_FACTOR * host_us / copy_us)):
            target.copy_to_device(source, stream=self.numba)
        start.record(self.numba)
        yield elapsed
        end.record(self.numba)
        end.synchronize()
        elapsed.append(start.elapsed_time(end))

    def capture(self, calls):
        """A replay of the calls in one graph launch."""
        builder = self._stream.create_graph_builder()
        builder.begin_building()
        try:
            for call in calls:
                call()
        except BaseException:
            with suppress(Exception):  # what went wrong is what matters
                builder.end_building()
            raise
        builder.end_building()
        graph = builder.complete()
        return Replay(lambda: graph.launch(self._stream), len(calls), calls)

    def capture_torch(self, calls, kept):
        """The same for PyTorch, whose allocator must know.

        As many results as ``kept`` stay alive, so that they too lie in turns; the last is the last of
        ``needs``.
        """
        torch = opponents.torch()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        results = deque(maxlen=kept)
        with torch.cuda.graph(graph, stream=self.torch):
            for call in calls:
                results.append(call())

        def run():
            with torch.cuda.stream(self.torch):
                graph.replay()

        return Replay(run, len(calls), (calls, *results))

    def queue(self, calls, host_us):
        """A replay of one call after the other, for work that no graph can hold."""
        turn = itertools.cycle(calls)
        return Replay(lambda: next(turn)(), 1, calls, host_us, captured=False)

    def synchronize(self):
        """Wait for all of the device's work."""
        cuda.synchronize()


@cache
def clock():
    """The clock of this process.

    Raises
    ------
    RuntimeError
        There is no GPU.
    """
    if SIMULATED or not cuda.is_available():
        raise RuntimeError("times are measured on a GPU; there is none here")
    return Clock()


@cache
def ceilings():
    """What this GPU can do at most, measured: a large copy and a large SGEMM without TF32.

    Returns
    -------
    dict
        ``copy_gbs``, 10^9 bytes/s read and written, and ``sgemm_tflops``, which is None where
        neither PyTorch nor CuPy is installed.
    """
    clock()  # which says so where there is no GPU
    found = {"copy_gbs": _copy_gbs(1 << 28), "sgemm_tflops": _sgemm_tflops(8192)}
    release()
    return found


def _copy_gbs(size):
    size = min(size, cuda.current_context().get_memory_info().free // 32)  # of float32; two of them
    numbers = np.random.default_rng(0).standard_normal(1 << 22, np.float32)
    source = cuda.to_device(np.resize(numbers, size))
    target = cuda.device_array(size, np.float32)
    times = 8

    def copy():  # not captured: a graph's copies are slower
        for _ in range(times):
            target.copy_to_device(source, stream=clock().numba)

    ms = np.median(replay_in_turns({"copy": Replay(copy, times, host_us=1000.0)})["copy"])
    return 2 * source.nbytes / float(ms) / 1e6


def _sgemm_tflops(n):
    multiply = _large_sgemm(n)
    if multiply is None:
        return None
    multiply()
    ms = np.median(replay_in_turns({"sgemm": Replay(multiply)})["sgemm"])
    return 2 * n**3 / float(ms) / 1e9


def _large_sgemm(n):
    """A function that multiplies two n x n matrices on the clock's stream, or None."""
    for by_library in (_sgemm_by_torch, _sgemm_by_cupy):
        with suppress(Exception):  # absent, or without this GPU
            return by_library(n)
    return None


def _sgemm_by_torch(n):
    torch = opponents.torch()
    a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
    torch.cuda.synchronize()

    def multiply():
        with opponents.precision("ieee"), torch.cuda.stream(clock().torch):
            torch.mm(a, b)

    return multiply


def _sgemm_by_cupy(n):
    cupy = require("cupy", "cublas", "the SGEMM ceiling")
    a, b = (cupy.random.standard_normal((n, n), np.float32) for _ in range(2))
    cuda.synchronize()

    def multiply():
        with cupy.cuda.Stream.from_external(clock().numba):
            cupy.matmul(a, b)

    return multiply


def release():
    """Give back all device memory that nothing refers to any more."""
    gc.collect()
    cuda.current_context().deallocations.clear()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()


def is_out_of_memory(error):
    """Whether an exception, whichever library's, says that device memory ran out."""
    text = f"{type(error).__name__} {error}".lower().replace("_", "").replace(" ", "")
    words = ("outofmemory", "allocfailed", "unabletofindanengine", "novalidcudnnalgorithm")
    return isinstance(error, MemoryError) or any(word in text for word in words)


def _timed(replay):
    """GPU milliseconds of a replay."""
    with clock().elapsed(replay.host_us) as ms:
        replay.run()
    return ms[0]


def replay_in_turns(replays, effort=FULL):
    """GPU milliseconds of a call, for each repeat of each replay; the replays take turns, in any order.

    Parameters
    ----------
    replays : dict of hashable to Replay
    effort : Effort

    Returns
    -------
    dict of hashable to numpy.ndarray
    """
    # The first one says how many repeats there is time for; a short one only warms up.
    first = {name: _timed(replay) for name, replay in replays.items()}
    fewest, most = effort.repeats
    repeats = {
        name: min(_FEWEST_SLOW, most)
        if ms >= _SLOW_MS
        else min(max(math.ceil(effort.timed_ms / ms), fewest), most)
        for name, ms in first.items()
    }
    times = {name: [ms] if ms >= _SLOW_MS else [] for name, ms in first.items()}
    names, rng = list(replays), np.random.default_rng()
    for turn in range(1, effort.turns + 1):
        for name in (names[i] for i in rng.permutation(len(names))):
            replay = replays[name]
            for _ in range(int(effort.settled_ms / first[name]) if replay.captured else 0):
                replay.run()
            while len(times[name]) < math.ceil(repeats[name] * turn / effort.turns):
                times[name].append(_timed(replay))
    return {name: np.array(ms) / replays[name].calls for name, ms in times.items()}


def sets_of(size, most=_MOST_SETS):
    """How many sets of so many bytes are twice the L2 cache, at most ``most``."""
    return min(most, math.ceil(2 * clock().l2_bytes / size))


def cache_cell(sets, size):
    """What a row says of ``sets`` sets of so many bytes."""
    warm = "" if sets * size >= 2 * clock().l2_bytes else ", warm: less than twice the L2 cache"
    return f"{sets} sets in turn{warm}"


def calls_of(sets, floor_ms, eager_ms, effort=FULL):
    """How many calls a graph holds: each set once, and more where a replay would be too short.

    ``floor_ms`` is the least a call can take on the GPU; ``eager_ms`` what one took with its launch.
    """
    enough = math.ceil(effort.graph_ms / max(floor_ms, effort.graph_ms / effort.calls))
    return max(sets, min(enough, int(_MOST_MS / eager_ms)))


def microseconds(call):
    """Host time of a call."""
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def idle_microseconds(call):
    """Median host time of a call that finds the GPU idle."""
    taken = []
    while len(taken) < _HOST_CALLS and sum(taken) < _HOST_US:
        clock().synchronize()
        taken.append(microseconds(call))
    clock().synchronize()
    return float(np.median(taken))


@dataclass(frozen=True)
class Ready:
    """A variant whose result was right."""

    error: float
    host_us: float | None
    peak_bytes: int
    cache: str
    replay: Replay
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
    rates = ceilings()
    ready, rows, notes, alone = {}, {}, {}, []

    def attempt(variant):
        """Prepare a variant, or note why it cannot be; whether it was memory that lacked."""
        try:
            ready[variant] = _prepare(variant, problem, wanted, rates)
        except Exception as failure:  # whatever a library raises is what its row says
            notes[variant] = note_of(failure)
            return is_out_of_memory(failure)
        return False

    def time_ready():
        """Rows of the variants that are ready; one by one if together they fail."""
        try:
            times = replay_in_turns({variant: found.replay for variant, found in ready.items()})
        except Exception:
            for variant in list(ready):
                try:
                    times = replay_in_turns({variant: ready[variant].replay})
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
            release()
            alone.append(variant)
    time_ready()
    for variant in alone:
        problem.leave_device()
        release()
        if not attempt(variant):
            time_ready()
            if variant in rows:
                notes[variant] = "timed alone: beside the others there was no memory for it"
    release()
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
        **ceilings(),
    }


def _prepare(variant, problem, wanted, rates):
    """Check a variant, count its memory and its host time, and capture it."""
    read = problem.bytes_read(wanted, variant.dtype)
    sets = sets_of(read)
    with launched() as kernels:
        run = variant.run(variant, problem, wanted, sets, clock())
        with run.environment():
            first = run.once()
    least = problem.geometry.min_bytes(itemsize(variant.dtype))
    with run.environment():
        error = problem.check(wanted, first, variant.precision)
        with clock().elapsed() as eager:
            host_us = microseconds(run.calls[0])
        is_slow = eager[0] >= _SLOW_MS
        host_us = host_us if is_slow else idle_microseconds(run.calls[0])
        peak_bytes = run.peak_bytes(least)
        if is_slow:  # what the cache may hold of its operands is little beside what it reads
            sets = 1
        calls = calls_of(sets, least / rates["copy_gbs"] / 1e6, eager[0])
        replay, once = run.repeatedly([i % sets for i in range(calls)], host_us)
        error = max(error, problem.check(wanted, once(), variant.precision))
    if replay.captured and not is_slow:
        replay = replace(replay, host_us=max(replay.host_us, microseconds(replay.run)))
        clock().synchronize()
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
    if is_out_of_memory(failure):
        return f"out of memory: {short}"
    if isinstance(failure, ImportError):
        return records.ABSENT + short
    return f"{type(failure).__name__}: {short}"
