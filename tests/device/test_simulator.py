"""What the toolkit changes in Numba's simulator, and that it still has to."""

import sys
import threading
import time

import numpy as np
import pytest

from numbacaps.device.simulator import short_turns


@pytest.fixture
def shared():
    """The simulator's maker of shared arrays."""
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    return FakeCUDAShared


def _arrays_of_two_threads(block, function, monkeypatch):
    """What two threads get that ask for the same shared array, while making one takes time."""
    got = []

    def slow_empty(*arguments):
        time.sleep(0.05)
        return np.zeros(*arguments)

    def ask():
        got.append(function(block, 4, np.float32))

    monkeypatch.setattr(np, "empty", slow_empty)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_a_block_shares_its_arrays(shared, monkeypatch):
    one, other = _arrays_of_two_threads(shared(0), shared.array, monkeypatch)
    assert one is other


def test_numba_still_needs_it(shared, monkeypatch):
    """When this fails, Numba makes shared arrays safely and the change can go."""
    one, other = _arrays_of_two_threads(shared(0), shared.array.__wrapped__, monkeypatch)
    assert one is not other


def test_short_turns_end():
    before = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError), short_turns():
        assert sys.getswitchinterval() < before
        1 / 0  # noqa: B018
    assert sys.getswitchinterval() == before
