"""What the threads of a simulated block, and of its warps, share besides shared memory.

Everything here goes when the block does. Its threads take turns (:mod:`numbacaps.device.turns`).
"""

import threading

import numpy as np

from numbacaps.device.turns import Meeting, this_block


def memory(array):
    """An array's bytes."""
    return np.asarray(getattr(array, "_ary", array)).reshape(-1).view(np.uint8)


def block():
    """What the threads of this thread's block share, by name."""
    return vars(this_block())


class Warp:
    """32 threads, or what a small block has, and what each of them hands round."""

    def __init__(self, threads):
        self._meeting = Meeting(threads)
        self.a, self.b = np.empty((16, 8), np.float32), np.empty((8, 8), np.float32)
        self.values = {}  # by (turn, lane)
        self.rows = {}  # shared addresses, by lane
        self.products = {}  # of a warpgroup that are not done, by lane

    @classmethod
    def of(cls, thread):
        """A thread's warp."""
        number = thread.threadIdx.x // 32
        threads = min(32, thread._manager._block_dim[0] - 32 * number)
        return vars(thread._manager).setdefault(f"warp {number}", cls(threads))

    def meet(self):
        """Wait for the warp's other threads."""
        self._meeting.meet()


def this_lane():
    """This thread's warp, and its number in it."""
    thread = threading.current_thread()
    return Warp.of(thread), thread.threadIdx.x % 32


def sync_warp():
    """``cuda.syncwarp``, which the simulator lacks."""
    this_lane()[0].meet()
