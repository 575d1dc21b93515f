"""What the threads of a simulated block, and of its warps, share besides shared memory.

A block is one Python thread for each of its own, and everything here goes when the block does.
"""

import threading

import numpy as np

PATIENCE = 200  # seconds after which no thread will come any more


def memory(array):
    """An array's bytes."""
    return np.asarray(getattr(array, "_ary", array)).reshape(-1).view(np.uint8)


def block():
    """What the threads of this thread's block share, by name."""
    return vars(threading.current_thread()._manager)


class Warp:
    """32 threads, or what a small block has, and what each of them hands round."""

    def __init__(self, threads):
        self._barrier = threading.Barrier(threads)
        self.a, self.b = np.empty((16, 8), np.float32), np.empty((8, 8), np.float32)
        self.values = {}  # by (turn, lane)
        self.rows = {}  # shared addresses, by lane
        self.products = {}  # of a warpgroup that are not done, by lane

    @classmethod
    def of(cls, thread):
        """A thread's warp."""
        number = thread.threadIdx.x // 32
        threads = min(32, thread._manager._block_dim[0] - 32 * number)
        # setdefault is one step, so all threads of a warp get the same one.
        return vars(thread._manager).setdefault(f"warp {number}", cls(threads))

    def meet(self):
        """Wait for the warp's other threads."""
        self._barrier.wait(PATIENCE)


def this_lane():
    """This thread's warp, and its number in it."""
    thread = threading.current_thread()
    return Warp.of(thread), thread.threadIdx.x % 32


def sync_warp():
    """``cuda.syncwarp``, which the simulator lacks."""
    this_lane()[0].meet()
