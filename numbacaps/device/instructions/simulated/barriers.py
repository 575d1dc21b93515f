"""What the instructions of :mod:`numbacaps.device.instructions.ptx.barriers` do.

A barrier counts arrivals and bytes. A thread that waits for a phase that never completes is an error. Fences do nothing: a missing
one does not show here.
"""

from numbacaps.device.instructions.simulated.block import block
from numbacaps.device.turns import Meeting, this_block


def _nothing():
    """An instruction that orders what is in order here."""


fence_proxy_async = let_next_start = wait_for_last = _nothing


class Barrier:
    """Arrivals and bytes that a phase still takes."""

    def __init__(self, count):
        self._count, self._left, self._bytes, self._parity = count, count, 0, 0

    def take(self, arrivals=0, size=0):
        """Count in arrivals, and bytes that are expected (or, below 0, that came)."""
        self._left -= arrivals
        self._bytes += size
        assert self._left >= 0, "more arrivals than a phase takes"
        if self._left == 0 and self._bytes == 0:
            self._left, self._parity = self._count, self._parity ^ 1

    def wait(self, parity):
        """Until a phase of this parity is over."""
        this_block().wait_until(lambda: self._parity != parity)


def barrier_at(address):
    """The block's barrier that lies at a shared address."""
    return block()["barriers"][int(address)]


def mbarrier_init(shared, address, count):
    """A new barrier of ``count`` arrivals."""
    assert address % 8 == 0, "a barrier lies at a multiple of 8 bytes"
    block().setdefault("barriers", {})[int(address)] = Barrier(int(count))


def mbarrier_arrive(shared, address):
    """One arrival."""
    barrier_at(address).take(1)


def mbarrier_arrive_times(shared, address, count):
    """Several arrivals."""
    barrier_at(address).take(int(count))


def mbarrier_expect(shared, address, size):
    """One arrival, and ``size`` bytes to come."""
    barrier_at(address).take(1, int(size))


def mbarrier_wait(shared, address, parity):
    """Until a phase is over."""
    barrier_at(address).wait(int(parity))


def mbarrier_wait_where(shared, address, parity, condition):
    """The same where a condition is not 0."""
    if condition:
        barrier_at(address).wait(int(parity))


def meet(threads):
    """A number of threads wait for each other."""
    meet_at(1, threads)


def meet_at(barrier, number):
    """The same at one of the block's named barriers."""
    named = block().setdefault(f"barrier {int(barrier)}", Meeting(int(number)))
    assert named.parties == number, "one barrier, two numbers of threads"
    named.meet()
