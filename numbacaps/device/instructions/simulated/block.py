"""What the threads of a simulated block, and of its warps, share besides shared memory.

Everything here goes when the block does. Its threads take turns (:mod:`numbacaps.device.turns`).
"""

import numpy as np

from numbacaps.device.turns import Meeting, this_block, this_thread


FRESH = 255  # each byte of shared memory that no thread has written yet; a float made of such bytes is NaN


def fresh_array(shape, dtype):
    """Shared memory as a block finds it."""
    made = np.empty(shape, dtype)
    made.view(np.uint8).fill(FRESH)
    return made


def memory(array):
    """An array's bytes."""
    return np.asarray(getattr(array, "_ary", array)).reshape(-1).view(np.uint8)


def block():
    """What the threads of this thread's block share, by name."""
    return this_block().common


class Warp:
    """32 threads, or what a small block has, and what each of them hands round."""

    def __init__(self, threads):
        self._meeting = Meeting(threads)
        self.a, self.b = np.empty((16, 8), np.float32), np.empty((8, 8), np.float32)
        self.sums = [None] * threads  # by lane, 4 sums of a product
        self.values = {}  # by (turn, lane)
        self.rows = {}  # shared addresses, by lane
        self.products = {}  # of a warpgroup that are not done, by lane

    @classmethod
    def of(cls, thread):
        """A thread's warp."""
        number = thread.threadIdx.x // 32
        block = thread.block
        found = block.common.get(("warp", number))
        if found is None:
            found = cls(min(32, block.shape[0] - 32 * number))
            block.common["warp", number] = found
        return found

    def meet(self, last=None):
        """Wait for the warp's other threads. The thread that arrives last calls ``last`` before any of them goes on."""
        self._meeting.meet(last)


def this_lane():
    """This thread's warp, and its number in it."""
    thread = this_thread()
    return Warp.of(thread), thread.threadIdx.x % 32


def sync_warp():
    """``cuda.syncwarp``, which the simulator lacks."""
    this_lane()[0].meet()
