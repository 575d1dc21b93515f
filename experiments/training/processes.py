"""The processes that train one model by PyTorch's DistributedDataParallel, which torchrun starts.

What they add and agree on goes through torch.distributed; where one process trains alone nothing of it is imported.
"""

import os
from contextlib import contextmanager
from dataclasses import dataclass

from experiments.measuring import opponents


@dataclass(frozen=True)
class Job:
    """This process among those that train together.

    Attributes
    ----------
    rank : int
        Of this process, from 0.
    count : int
        How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self):
        """Whether it is the one that writes files."""
        return self.rank == 0

    def add(self, tensor):
        """Put the sum over all processes in a tensor's place."""
        if self.count > 1:
            opponents.torch().distributed.all_reduce(tensor)
        return tensor

    def any(self, is_so):
        """Whether it is so in any process; all of them ask at the same place."""
        if self.count == 1:
            return is_so
        return bool(self.add(opponents.torch().tensor(int(is_so))))

    def agrees_on(self, number):
        """Whether it is the same in all processes; all of them ask at the same place."""
        if self.count == 1:
            return True
        numbers = [None] * self.count
        opponents.torch().distributed.all_gather_object(numbers, number)
        return len(set(numbers)) == 1


ALONE = Job()


class Agreed:
    """An event that is set in all processes once it is set in one.

    Parameters
    ----------
    event : threading.Event
    job : Job
    """

    def __init__(self, event, job):
        self._event, self._job = event, job

    def is_set(self):
        """Whether it is; all processes ask at the same place."""
        return self._job.any(self._event.is_set())


def launched():
    """How many processes torchrun has started; 1 where it has not."""
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def joined(on_gpu):
    """This process's :class:`Job`; each takes a GPU of its own if ``on_gpu``."""
    if launched() == 1:
        yield ALONE
        return
    distributed = opponents.torch().distributed
    if on_gpu:
        _take_gpu(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    yield Job(distributed.get_rank(), distributed.get_world_size())
    distributed.barrier()  # all leave together; not after a failure, where the others would not come
    distributed.destroy_process_group()


def _take_gpu(number):
    """Make a GPU the one that PyTorch and Numba use."""
    from numbacaps.device.target import cuda

    opponents.torch().cuda.set_device(number)
    cuda.select_device(number)
