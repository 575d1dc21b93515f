"""The GPU's time: graphs of calls on one stream, replayed in turns.

- GPU time is the replay of a CUDA graph that holds many calls, between two events, over the number of
  calls. Events and graph are queued behind other work, so that the GPU never waits for the host: what the
  host takes to launch is not in the time.
- What is compared takes turns, in an order that is drawn anew each time. How fast the GPU's clock
  runs depends on the power that was drawn before, for up to half a second: so long a replay is run in
  each turn before it is timed, and has the clock that it itself leads to. (Work that no graph can hold
  is not: the GPU would wait for the host meanwhile.)
"""

import itertools
import math
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from experiments.measuring import opponents
from numbacaps.device.streams import captured
from numbacaps.device.target import SIMULATED, cuda

SLOW_MS = 100.0  # what takes so long needs neither warming up nor many repeats
_FEWEST_SLOW = 4
_MOST_MS = 30.0  # what more calls than sets may make of a graph's replay
_AHEAD_BYTES = 1 << 30  # copied to keep the GPU busy: much longer than the host takes to queue it
_AHEAD_FACTOR = 1.5


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

        def work():
            for call in calls:
                call()

        graph = captured(self._stream, work)
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
        if ms >= SLOW_MS
        else min(max(math.ceil(effort.timed_ms / ms), fewest), most)
        for name, ms in first.items()
    }
    times = {name: [ms] if ms >= SLOW_MS else [] for name, ms in first.items()}
    names, rng = list(replays), np.random.default_rng()
    for turn in range(1, effort.turns + 1):
        for name in (names[i] for i in rng.permutation(len(names))):
            replay = replays[name]
            for _ in range(int(effort.settled_ms / first[name]) if replay.captured else 0):
                replay.run()
            while len(times[name]) < math.ceil(repeats[name] * turn / effort.turns):
                times[name].append(_timed(replay))
    return {name: np.array(ms) / replays[name].calls for name, ms in times.items()}


def calls_of(sets, floor_ms, eager_ms, effort=FULL):
    """How many calls a graph holds: each set once, and more where a replay would be too short.

    ``floor_ms`` is the least a call can take on the GPU; ``eager_ms`` what one took with its launch.
    """
    enough = math.ceil(effort.graph_ms / max(floor_ms, effort.graph_ms / effort.calls))
    return max(sets, min(enough, int(_MOST_MS / eager_ms)))
