"""A process of those that take training steps of the published network together, as experiments.scaling times them.

``torchrun --nproc-per-node=N -m experiments.measuring.scaled FILE --images 128 ...`` takes, on a GPU a process or (``--device cpu``)
on the host, steps of each contestant in turn. The first process writes ``FILE``, JSON: for each contestant ``ms`` of
a step, by the slowest process, and ``error``, the largest of the loss and the gradients beside float64's of the whole batch;
or ``note``.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

from experiments.measuring import command, measure, opponents, provenance, torch_calls, torch_steps
from experiments.measuring.clocks import batch_ms
from experiments.measuring.scaling_rows import CONTESTANTS
from experiments.training.processes import joined

STEPS = 20  # between two events
_WARM_UPS, _TURNS = 10, 11


class Shared(torch_steps.Published):
    """The published network, of whose batch each process takes its share.

    Parameters
    ----------
    job : experiments.training.processes.Job
    images : int
        Of the batch, a multiple of the processes.
    device : str
        Of PyTorch.
    """

    contestants = CONTESTANTS

    def __init__(self, job, images, device):
        super().__init__(images, device)
        self._job = job

    def share(self, array):
        return array[self._job.rank :: self._job.count]

    def called(self, module):
        return self._job.together(module)

    def called_twin(self, twin):
        from experiments.training.torch_network import TwinModule

        return self._job.together(TwinModule(twin))

    def check(self, loss, gradients, precision):
        """As of the base class; ``loss`` is that of this process's share."""
        mean = self._job.add(opponents.torch().tensor(loss)) / self._job.count
        return super().check(float(mean), gradients, precision)


def _ms(call, on_gpu):
    """Milliseconds of a step."""
    if on_gpu:
        return batch_ms(call, STEPS)
    start = time.perf_counter()
    for _ in range(STEPS):
        call()
    return 1e3 * (time.perf_counter() - start) / STEPS


def measured(job, options):
    """Cells by contestant; every process takes the same steps in the same order."""
    on_gpu, found, steps = options.device == "cuda", {}, {}
    task = Shared(job, options.images, options.device)
    with opponents.precision(torch_calls.CLASSES[options.precision][1]):
        for name in options.contestants:
            word = torch_steps.precision_of(name, options.precision)
            step = task.make(name, word)
            for _ in range(options.warm_ups):
                step.call()
            failure = ""
            try:
                found[name] = {"error": task.check(*step.results(), word)}
            except torch_steps.WrongResult as wrong:
                failure = measure.note_of(wrong)
            if job.any(bool(failure)):
                found[name] = {"note": failure or "wrong result in another process"}
            else:
                steps[name] = step.call
        taken, rng = {name: [] for name in steps}, np.random.default_rng(0)
        for _ in range(options.turns):
            for name in rng.permutation(list(steps)):
                taken[name].append(_ms(steps[name], on_gpu))
    for name, times in taken.items():
        found[name]["ms"] = max(job.gathered(statistics.median(times)))
        found[name]["error"] = max(job.gathered(found[name]["error"]))
    return found


def main(arguments=None):
    """Take the steps; the first process writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--precision", choices=tuple(torch_calls.CLASSES), default="default")
    parser.add_argument(
        "--contestants",
        type=lambda text: command.choice(text, CONTESTANTS),
        default=CONTESTANTS,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--warm-ups", type=int, default=_WARM_UPS)
    parser.add_argument("--turns", type=int, default=_TURNS)
    options = parser.parse_args(arguments)
    with joined(on_gpu=options.device == "cuda") as job:
        if options.images % job.count:
            parser.error(f"--images: got {options.images}, a multiple of {job.count} is wanted")
        found = measured(job, options)
        if job.is_first:
            provenance.write_text(options.file, json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
