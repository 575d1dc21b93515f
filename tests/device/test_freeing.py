"""Two threads that empty Numba's list of what is to be freed."""

import logging

import pytest

from numbacaps.device.freeing import _until_empty


class _Emptied(list):
    """A list whose last item another thread takes between looking and taking."""

    def popleft(self):
        one = self.pop(0)
        if not self:
            raise IndexError("pop from an empty deque")
        return one


@pytest.mark.tiers("ptx")
def test_numbas_list_may_be_emptied_by_two(monkeypatch):
    from numba.cuda.cudadrv import driver

    monkeypatch.setattr(driver, "_logger", logging.getLogger(), raising=False)  # there with a GPU
    freed, pending = [], driver._PendingDeallocs()
    pending._cons = _Emptied((freed.append, number, 1) for number in range(3))
    pending.clear()
    assert freed == [0, 1] and not len(pending)


def test_another_fault_is_told():
    def work(listed):
        raise RuntimeError(listed)

    with pytest.raises(RuntimeError, match="driver"):
        _until_empty(work)("driver")
