"""The threads of a simulated block take turns.

Numba's simulator runs all threads of a block at once, and polls which of them wait. Here one thread runs until it has
to wait, and then the next one runs. So a kernel gives the same bits every time. A block whose threads all wait is an
error at once.

Blocks run one after another, but for those of a thread block cluster, whose threads take turns with each other's
(:func:`clusters_of`).

A greenlet keeps the stack of a thread that waits. Threads that never wait run in one greenlet, one after another.

Every second block starts with its last thread. An element that is read before it is written therefore shows in one of
the two orders.
"""

from collections import deque
from contextlib import contextmanager
from contextvars import copy_context
from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent, greenlet

# The simulated thread that runs, and the blocks that run with its block; one kernel runs at a time.
_turn = SimpleNamespace(thread=None, cluster=None)


class Thread:
    """A simulated thread, with the attributes that the simulator looks for.

    Parameters
    ----------
    block : Block
    point : tuple of int
        Where it is in the block.
    """

    def __init__(self, block, point):
        self.block = block
        self.blockIdx, self.threadIdx = block.place, block.dim3(*point)
        x, y, z = point
        width, height, _ = block.shape
        self.thread_id = x + width * (y + height * z)
        self.syncthreads = block.meet


class _Abandoned(BaseException):
    """Ends a thread of a block that has failed."""


class Block:
    """Replaces the simulator's ``BlockManager``.

    Attributes
    ----------
    shape : tuple of int
        Threads along x, y and z.
    place : Dim3
        Its place in the grid, once it runs.
    cluster : Cluster
        The blocks that run at once, of which it is one.
    common : dict
        What its threads share, by name: shared arrays by the line that makes them, and what instructions need.
    """

    def __init__(self, function, grid, block, debug):
        from numba.cuda.simulator.kernel import Dim3

        self._function, self.shape, self.dim3 = function, tuple(block), Dim3
        self.common = {}
        self._all = Meeting(int(np.prod(block)))

    def run(self, place, *arguments):
        """Run the block at a place of the grid, once all blocks of its cluster have one."""
        from numba.cuda.simulator.kernel import _get_kernel_context

        _get_kernel_context()._shared.begin()
        self.place, self._arguments = self.dim3(*place), arguments
        points = list(np.ndindex(*self.shape))
        self._unstarted = deque(reversed(points) if sum(place) % 2 else points)
        self.cluster = _turn.cluster
        self.cluster.add(self)

    def start(self):
        """Let every thread have its first turn."""
        while self._unstarted:
            carrier = greenlet(self._carry)
            carrier.gr_context = copy_context()  # the caller's NumPy error state
            carrier.switch()

    @property
    def threads(self):
        """How many threads have not ended."""
        return self._all.parties

    def begin(self, point):
        """The block's thread at a point."""
        return Thread(self, point)

    def wait_until(self, condition):
        """Let the others have their turns until a condition holds."""
        if not condition():
            self.cluster.wait(condition)

    def let_others(self):
        """Let whoever can go on have a turn."""
        self.cluster.wait(lambda: True)

    def meet(self):
        """``cuda.syncthreads``: wait for all threads that have not ended."""
        self._all.meet()

    def _carry(self):
        """Run the block's threads in this greenlet, one after another. Once a thread has waited, it is the last one here."""
        while self._unstarted:
            thread = _turn.thread = self.begin(self._unstarted.popleft())
            try:
                self._function(*self._arguments)
            except _Abandoned:
                return
            except Exception as error:  # whichever the kernel raises
                where = f"tid={list(thread.threadIdx)} ctaid={list(thread.blockIdx)}"
                told = f"{where}: {error}" if str(error) else where
                raise type(error)(told).with_traceback(error.__traceback__) from None
            self._all.leave()
            self.cluster.leave()


class Cluster:
    """Blocks that run at once: a block, or those of a thread block cluster, again and again.

    Parameters
    ----------
    size : int
        Blocks, which lie side by side along the grid's y.

    Attributes
    ----------
    blocks : list of Block
        By their rank.
    """

    def __init__(self, size):
        self._size, self.blocks = size, []
        self._waiting = deque()  # (condition, its thread, the greenlet that carries it)

    def add(self, block):
        """One block more; the last one has all of them run."""
        self.blocks.append(block)
        if len(self.blocks) == self._size:
            self._run()

    def _run(self):
        self._home = getcurrent()
        self._all = Meeting(sum(block.threads for block in self.blocks))
        try:
            for block in self.blocks:
                block.start()
            while self._waiting:
                _turn.thread, carrier = self._take_ready()
                carrier.switch()
        finally:  # after an error, unwind every thread that still waits
            for _, _turn.thread, carrier in self._waiting:
                carrier.throw(_Abandoned)
            self._waiting.clear()
            self.blocks = []
            _turn.thread = None

    def meet(self):
        """Wait for all threads of all blocks that have not ended."""
        self._all.meet()

    def leave(self):
        """A thread has ended."""
        self._all.leave()

    def wait(self, condition):
        """Let the others have their turns, and go on once a condition holds."""
        self._waiting.append((condition, _turn.thread, getcurrent()))
        self._home.switch()

    def _take_ready(self):
        """Remove the first waiting thread whose condition holds; the thread and its greenlet."""
        for i, (condition, thread, carrier) in enumerate(self._waiting):
            if condition():
                del self._waiting[i]
                return thread, carrier
        raise AssertionError("all threads of a block wait: a deadlock")


_turn.cluster = Cluster(1)


@contextmanager
def clusters_of(blocks):
    """Kernels that are launched within run in clusters of some blocks along y."""
    before, _turn.cluster = _turn.cluster, Cluster(blocks)
    try:
        yield
        assert not _turn.cluster.blocks, "the grid is no multiple of the cluster"
    finally:
        _turn.cluster = before


class Meeting:
    """A barrier of some of a block's threads, or of a cluster's."""

    def __init__(self, parties):
        self.parties, self._arrived, self._phase = parties, 0, 0

    def meet(self, last=None):
        """Wait for the other threads. The thread that arrives last calls ``last`` before any of them goes on."""
        phase = self._phase
        self._arrived += 1
        if last is not None and self._arrived == self.parties:
            last()
        self._end_phase()
        this_block().wait_until(lambda: self._phase > phase)

    def leave(self):
        """Expect one thread less from now on, since it has ended."""
        self.parties -= 1
        self._end_phase()

    def _end_phase(self):
        if self._arrived == self.parties:
            self._phase, self._arrived = self._phase + 1, 0


def this_thread():
    """The simulated thread that runs."""
    return _turn.thread


def this_block():
    """The block of the simulated thread that runs."""
    return _turn.thread.block
