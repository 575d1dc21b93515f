"""The threads of a simulated block take turns.

Numba's simulator runs all threads of a block at once, and polls which of them wait. Here one thread runs until it has
to wait, and then the next one runs. So a kernel gives the same bits every time. A kernel without barriers needs one
Python thread in all. A block whose threads all wait is an error at once.

Every second block starts with its last thread. An element that is read before it is written therefore shows in one of
the two orders.
"""

import os
import threading
from collections import deque

import numpy as np

_idle = []  # Python threads that have nothing to do
os.register_at_fork(after_in_child=_idle.clear)  # threads do not come along


class _Worker(threading.Thread):
    """A Python thread for one piece of work after another."""

    def __init__(self):
        super().__init__(daemon=True)
        self.asked, self.work = threading.Semaphore(0), None
        self.start()

    def run(self):
        while True:
            self.asked.acquire()
            self.work()
            self.work = None
            _idle.append(self)


def _start(work):
    """Have a Python thread do some work."""
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.work = work
    worker.asked.release()


class _Waiting:
    """A thread that waits until a condition holds, and then for its turn."""

    def __init__(self, until):
        self.until, self.turn = until, threading.Semaphore(0)


class _Abandoned(BaseException):
    """Ends a thread of a block that has failed."""


class Block:
    """Stands for the simulator's ``BlockManager``.

    The attributes that begin a thread are set on the Python thread that carries it, because the simulator looks there.
    """

    def __init__(self, function, grid, block, debug):
        self._function, self._grid = function, tuple(grid)
        self._block_dim = tuple(block)  # under this name the simulated instructions look for it
        self._waiting, self._home = deque(), threading.Semaphore(0)
        self._running = self._arrived = self._phase = 0
        self._others, self._ended = 0, threading.Semaphore(0)  # Python threads that were asked
        self._failure = None

    def run(self, place, *arguments):
        """Run the block at a place of the grid."""
        from numba.cuda.simulator.kernel import Dim3, _get_kernel_context

        _get_kernel_context()._shared.begin()
        self._dim3, self._place, self._arguments = Dim3, Dim3(*place), arguments
        backwards = sum(place) % 2
        points = list(np.ndindex(*self._block_dim))
        self._unstarted = deque(reversed(points) if backwards else points)
        try:
            self._carry()
            if self._failure is None:
                self._hand_on()
                self._home.acquire()
        except BaseException as interruption:
            self._fail(interruption)
        if self._failure is not None:
            for _ in range(self._others):  # nobody is left behind in the kernel
                self._ended.acquire()
            raise self._failure

    def begin(self, thread, point):
        """Have a Python thread be the block's thread at a point."""
        x, y, z = point
        width, height, _ = self._block_dim
        thread._manager, thread.blockIdx, thread.threadIdx = self, self._place, self._dim3(*point)
        thread.thread_id = x + width * (y + height * z)
        thread.syncthreads, thread.shuffles = self._syncthreads, 0

    def wait_until(self, condition):
        """Let the others have their turns until a condition holds."""
        if not condition():
            self._wait(condition)

    def let_others(self):
        """Let whoever can go on have a turn."""
        self._wait(lambda: True)

    def _wait(self, condition):
        one = _Waiting(condition)
        if self._failure is None:
            self._waiting.append(one)
            if self._unstarted:
                self._others += 1
                _start(self._work)
            else:
                self._hand_on()
            one.turn.acquire()
        if self._failure is not None:
            raise _Abandoned

    def _syncthreads(self):
        phase = self._phase
        self._arrived += 1
        self.wait_until(lambda: self._is_over(phase))

    def _is_over(self, phase):
        """Whether all threads that still run have come to the barrier."""
        if self._phase == phase and not self._unstarted and self._arrived == self._running:
            self._phase, self._arrived = phase + 1, 0
        return self._phase > phase

    def _work(self):
        """What another Python thread does: it has the turn, and hands it on at the end."""
        try:
            self._carry()
            if self._failure is None:
                self._hand_on()
        finally:
            self._ended.release()

    def _carry(self):
        """Be one thread of the block after another, while there are such that have not begun."""
        carrier = threading.current_thread()
        while self._unstarted and self._failure is None:
            self.begin(carrier, self._unstarted.popleft())
            self._running += 1
            try:
                self._function(*self._arguments)
            except _Abandoned:
                return
            except Exception as error:  # whichever the kernel raises
                where = f"tid={list(carrier.threadIdx)} ctaid={list(carrier.blockIdx)}"
                told = f"{where}: {error}" if str(error) else where
                self._fail(type(error)(told).with_traceback(error.__traceback__))
                return
            self._running -= 1

    def _hand_on(self):
        """Give the turn to the first that can go on; home if nobody waits."""
        for one in self._waiting:
            if one.until():
                self._waiting.remove(one)
                one.turn.release()
                return
        if self._waiting:
            self._fail(AssertionError("all threads of a block wait, and nobody is left to come"))
        else:
            self._home.release()

    def _fail(self, error):
        """End all threads, each where it waits."""
        if self._failure is None:
            self._failure = error
        while self._waiting:
            self._waiting.popleft().turn.release()
        self._home.release()


class Meeting:
    """A barrier of some of a block's threads."""

    def __init__(self, parties):
        self.parties, self._arrived, self._phase = parties, 0, 0

    def meet(self):
        """Wait for the others."""
        phase = self._phase
        self._arrived += 1
        if self._arrived == self.parties:
            self._phase, self._arrived = phase + 1, 0
        this_block().wait_until(lambda: self._phase > phase)


def this_block():
    """The block of the thread that runs."""
    return threading.current_thread()._manager
