"""Layers for PyTorch beside plain PyTorch in the same run: what a call costs the host, training steps, memory.

``python -m experiments.torch_layers`` writes ``experiments/results/<gpu>/torch.csv``:

- host: the host's time to queue a call of a layer, forward, and forward with both gradients: our operator
  ``numbacaps.torch.capsule_conv2d``, a plan's own call, and ``conv2d`` of PyTorch through the fold with its operands in
  place, in both of its layouts;
- step: a training step of the published network, of PrimaryCaps and CapsNet of Sabour et al. (batch 128) and of the matrix
  capsules of Hinton et al. (64), as modules of ``numbacaps.torch`` and as their twins in plain PyTorch, in both layouts; of the
  published network also ``numbacaps.nn``'s own. Eager,
  as a CUDA graph, with torch.compile, and as a CUDA graph of that. A row has the step's time, what the host takes to
  queue it, the most memory that PyTorch holds, and the largest error.

Losses and gradients are compared with float64 first. The steps of one workload, mode and class of precision take turns.
"default" is float32 without TF32 (ours at "auto", numbacaps.nn at "tf32x3"), "tf32" with it. Most of the time goes to
torch.compile; ``--modes eager,graph`` is a quick run.
"""

import statistics
import sys
from functools import cache

from experiments.fused import WORKLOADS
from experiments.measuring import (
    device_memory,
    gpu_time,
    measure,
    opponents,
    torch_calls,
    torch_rows,
    torch_steps,
)
from experiments.measuring.clocks import in_turns, queueing_us
from experiments.measuring.listed import Listed
from experiments.measuring.problem import Problem
from experiments.measuring.torch_rows import KEYS, MODES, NAME, NETWORK, PASSES, PRECISIONS, VALUES

MINUTES = 10  # that a run takes, about
LAYERS = ("paper-layer-5", "em-caps2")  # whose kernels are short
_BATCH_MS = 20  # of steps between two events
_TURNS, _A_TURN = 10, 10  # of each caller, and measurements of its host time in a turn
_LISTED = Listed(NAME, KEYS, VALUES, module="torch_layers")
listing, merge, is_current = _LISTED.listing, _LISTED.merge, _LISTED.is_current


def make_parser():
    """The command line's parser."""
    choices = {
        "measured": (tuple(_WORK), "what is measured"),
        "layers": (LAYERS, "whose calls are"),
        "workloads": (tuple(torch_steps.WORKLOADS), "whose steps are"),
        "modes": (MODES, "how a step is run"),
        "precisions": (PRECISIONS, "classes"),
    }
    return _LISTED.parser(__doc__, choices)


def groups(options):
    """The keys of the rows that are measured together, a list each."""
    found = []
    for precision in options.precisions:
        if "host" in options.measured:
            for layer in options.layers:
                for what in PASSES:
                    key = "host", layer, what, precision
                    found.append([(*key, name) for name in torch_rows.CALLERS])
        if "step" in options.measured:
            for workload in options.workloads:
                for mode in options.modes:
                    key = "step", workload, mode, precision
                    found.append([(*key, name) for name in _steppers(workload, mode)])
    return found


def _steppers(workload, mode):
    """Who takes a step; numbacaps.nn is not compiled."""
    everyone = torch_steps.WORKLOADS[workload].contestants
    return [one for one in everyone if one != NETWORK or not mode.startswith("compiled")]


@cache
def _problem(layer):
    return Problem(WORKLOADS[layer])


def measure_calls(keys):
    """The rows of a layer's calls. The callers take turns, because a host's speed changes with time."""
    _, layer, what, precision, _ = keys[0]
    torch, problem = opponents.torch(), _problem(layer)
    rows, calls = {key: dict(zip(KEYS, key)) for key in keys}, {}
    with opponents.precision(torch_calls.CLASSES[precision][1]):
        for key in keys:
            try:
                caller = torch_calls.make(key[-1], problem, precision)
                rows[key]["error"] = torch_calls.check(caller, what, problem)
                calls[key] = getattr(caller, what)
            except Exception as failure:  # whatever a library raises is what its row says
                rows[key]["note"] = measure.note_of(failure)
        taken = {key: [] for key in calls}
        for key in [*calls] * _TURNS:
            taken[key].append(queueing_us(calls[key], torch.cuda.synchronize, repeats=_A_TURN))
    for key, found in taken.items():
        rows[key]["host_us"] = statistics.median(found)
    calls.clear()
    device_memory.release()
    return list(rows.values())


def measure_steps(keys):
    """The rows of a workload's steps in one mode, which take turns."""
    _, workload, mode, precision, _ = keys[0]
    torch, task = opponents.torch(), torch_steps.task(workload)
    torch.compiler.reset()  # it compiles one piece of code a few times only
    rows, calls = {key: dict(zip(KEYS, key)) for key in keys}, {}
    theirs = torch_calls.CLASSES[precision][1]
    with opponents.precision(theirs), torch.cuda.stream(gpu_time.clock().torch):
        for key in keys:
            try:
                calls[key], cells = _prepared(task, mode, precision, key[-1])
                rows[key] |= cells
            except Exception as failure:
                rows[key]["note"] = measure.note_of(failure)
        try:
            for key, ms in in_turns(calls, _BATCH_MS).items():
                rows[key]["ms"] = ms
        except Exception as failure:
            for key in calls:
                rows[key]["note"] = measure.note_of(failure)
    calls.clear()
    device_memory.release()
    return list(rows.values())


def _prepared(task, mode, precision, contestant):
    """(what is timed, cells) of a contestant; what is left of others does not count as its memory."""
    word = torch_steps.precision_of(contestant, precision)
    task.expected  # before the memory is counted
    device_memory.release()
    before = opponents.torch().cuda.memory_allocated()
    step = task.make(contestant, word)
    return torch_steps.prepare(step, mode, lambda *found: task.check(*found, word), before)


_WORK = {"host": measure_calls, "step": measure_steps}


def jobs(options):
    """(keys, work) of every group of rows; ImportError where PyTorch, or its build for GPUs, is not here."""
    opponents.torch_on_gpu()
    return [(keys, lambda keys=keys: _WORK[keys[0][0]](keys)) for keys in groups(options)]


def main(arguments=None):
    return _LISTED.main(make_parser(), arguments, jobs, torch_rows.told)


if __name__ == "__main__":
    sys.exit(main())
