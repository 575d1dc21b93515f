"""The processes that train one model by PyTorch's DistributedDataParallel, which torchrun starts.

What they add and agree on goes through torch.distributed; where one process trains alone nothing of it is imported.
"""

import gc
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module

from experiments.measuring import opponents
from experiments.measuring.refusal import Refusal


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
    _together: list = field(default_factory=list, init=False, repr=False, compare=False)

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

    def together(self, module):
        """A function of a module, whose gradients become the mean over all processes until the job ends."""
        if self.count == 1:
            return module
        made = _Together(opponents.torch().nn.parallel.DistributedDataParallel(module))
        self._together.append(made)
        return made

    def gathered(self, value):
        """The values of all processes, by rank; all of them ask at the same place."""
        if self.count == 1:
            return [value]
        values = [None] * self.count
        opponents.torch().distributed.all_gather_object(values, value)
        return values

    def agrees_on(self, number):
        """Whether it is the same in all processes; all of them ask at the same place."""
        return len(set(self.gathered(number))) == 1

    def end(self):
        """Give the processes' group back, with all that holds it, so that its threads end here.

        A thread of gloo's frees the tensors of the last sum when it gets around to it, and takes Python's lock for
        that. If Python is about to leave by then, the process aborts ("terminate called without an active
        exception", pytorch/pytorch#190489). ``destroy_process_group`` waits for the threads only where nothing else
        holds the group, as each DistributedDataParallel does.
        """
        for one in self._together:
            one.let_go()
        opponents.torch().distributed.destroy_process_group()
        gc.collect()  # of what circles hold, too


class _Together:
    """A call of a module by DistributedDataParallel, which it can let go."""

    def __init__(self, module):
        self._module = module

    def __call__(self, *arguments):
        return self._module(*arguments)

    def let_go(self):
        self._module = None


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
    """This process's :class:`Job`, which ends behind it; each takes a GPU of its own if ``on_gpu``.

    Raises
    ------
    experiments.measuring.refusal.Refusal
        There are more processes on this host than GPUs.
    """
    if launched() == 1:
        yield ALONE
        return
    distributed = opponents.torch().distributed
    if on_gpu:
        _take_gpu(int(os.environ["LOCAL_RANK"]))
    # Before there is a group, which defaults of its functions would hold for good.
    import_module("torch.distributed.nn")
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    job = Job(distributed.get_rank(), distributed.get_world_size())
    try:
        yield job
        distributed.barrier()  # all leave together; not after a failure, where the others would not come
    finally:
        job.end()


def _take_gpu(number):
    """Make a GPU the one that PyTorch and Numba use."""
    from numbacaps.device.target import cuda

    count, here = int(os.environ["LOCAL_WORLD_SIZE"]), opponents.torch().cuda.device_count()
    if count > here:
        raise Refusal("--nproc-per-node", count, f"{here} at most, a GPU each")
    opponents.torch().cuda.set_device(number)
    cuda.select_device(number)
